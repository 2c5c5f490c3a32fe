"""/diff: the files that the session changed, bounded, and never read as Markdown."""

import pytest

from holdfast.commands import changes
from holdfast.core.run.files import ChangeKind, FileChange
from holdfast.errors import Refused
from holdfast.gateway import FileDiff
from tests.commands.fake_chat import FakeChat, told

pytestmark = [pytest.mark.anyio, pytest.mark.promise("EDIT-04")]


def changed(path: str, text: str, **more: bool) -> FileDiff:
    return FileDiff(FileChange(path, ChangeKind.CREATED, added=12, removed=3), text, **more)


@pytest.mark.parametrize(("given", "run"), [("/diff", ""), ("/diff last", "last")])
async def test_it_asks_for_the_session_or_the_run(given: str, run: str) -> None:
    chat = FakeChat()
    assert await told(chat, given) == changes.UNCHANGED
    assert chat.asked == [("diff", run)]


async def test_it_takes_one_argument() -> None:
    chat = FakeChat()
    await told(chat, "/diff a b")
    assert chat.asked == []


async def test_it_lists_the_files_and_shows_the_diff_in_a_block_that_it_cannot_close() -> None:
    chat = FakeChat()
    chat.changes = [changed("a`b.md", "+```\n+x\x1b[2J\n"), changed("c", "", pruned=True)]
    lines = (await told(chat, "/diff")).split("\n")
    assert lines == [
        "2 files changed, +24 −6",
        "- `+12 −3 a'b.md (new)`",
        f"- `+12 −3 c (new)`: {changes.PRUNED}",
        "",
        "````diff",
        "+```",
        "+x␛[2J",
        "````",
    ]


async def test_a_long_one_is_cut_and_says_where_the_rest_is() -> None:
    chat = FakeChat()
    chat.changes = [changed(f"f{n}", "+line\n" * 100) for n in range(100)]
    said = await told(chat, "/diff")
    assert len(said) < changes.ROOM + 100 * changes.FILES
    assert said.endswith(changes.MORE)


async def test_a_refusal_is_said() -> None:
    chat = FakeChat()
    chat.refusal = Refused("run_not_found", "No such run.")
    assert await told(chat, "/diff run_1") == "No such run."
