"""/undo, /rewind and /redo, as they are written and answered."""

import pytest

from holdfast.commands import rewind
from holdfast.core.session.rewind import FileTotal, Point, RewindChoice
from holdfast.core.session.rewound import FileResult, FileStep, RewindScope
from holdfast.core.types import RunId
from tests.commands.fake_chat import NOW, FakeChat, told

pytestmark = pytest.mark.anyio

FILES, TALK = RewindScope.FILES, RewindScope.CONVERSATION


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("/undo", RewindChoice()),
        ("/undo files", RewindChoice(what=FILES)),
        ("/undo Conversation", RewindChoice(what=TALK)),
        ("/undo force", RewindChoice(force=True)),
        ("/undo files force", RewindChoice(what=FILES, force=True)),
        ("/rewind 3", RewindChoice(3)),
        ("/rewind #3 conversation", RewindChoice(3, TALK)),
        ("/rewind 12 force files", RewindChoice(12, FILES, force=True)),
        ("/redo", RewindChoice(redo=True)),
        ("/redo force", RewindChoice(force=True, redo=True)),
    ],
)
async def test_what_is_asked_for(text: str, asked: RewindChoice) -> None:
    chat = FakeChat()
    await told(chat, text)
    assert chat.asked == [("rewind", asked)]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("/undo 2", rewind.UNDO_TAKES),
        ("/undo everything", rewind.UNDO_TAKES),
        ("/rewind files", rewind.REWIND_TAKES),
        ("/rewind 1 please", rewind.REWIND_TAKES),
        ("/rewind 1234567890", rewind.REWIND_TAKES),
        ("/redo 2", rewind.REDO_TAKES),
        ("/rewind", rewind.NO_POINTS),
    ],
)
async def test_what_is_not_understood_does_nothing(text: str, answer: str) -> None:
    chat = FakeChat()
    assert await told(chat, text) == answer
    assert chat.asked == []


@pytest.mark.promise("UNDO-01")
async def test_the_answer_has_the_message_and_what_became_of_each_file() -> None:
    chat = FakeChat()
    assert await told(chat, "/undo") == "Undone: `make *it* better`"
    chat.restores = (
        FileStep(path="calc.py", result=FileResult.RESTORED),
        FileStep(path="new.py", result=FileResult.DELETED),
        FileStep(path="own.py", result=FileResult.FAILED, reason="no room"),
    )
    assert (await told(chat, "/undo")).splitlines() == [
        "Undone: `make *it* better`",
        "- `calc.py` restored",
        "- `new.py` deleted",
        "- `own.py` left as it is: `no room`",
    ]
    assert (await told(chat, "/undo files")).splitlines()[0] == "Undone."
    chat.takes_back = (RunId("run_1"), RunId("run_2"))
    assert (await told(chat, "/redo")).splitlines()[0] == "Redone (2 messages): `make *it* better`"


async def test_many_files_are_counted() -> None:
    chat = FakeChat()
    chat.restores = tuple(FileStep(path=f"{n}", result=FileResult.RESTORED) for n in range(25))
    lines = (await told(chat, "/undo")).splitlines()
    assert (len(lines), lines[-1]) == (22, "- and 5 more files")


async def test_points_are_listed_newest_first_with_their_files() -> None:
    chat = FakeChat()
    one, two = FileTotal("calc.py", 12, 3), FileTotal("b.py", 1, 0)
    chat.can_go_back_to = (
        Point(1, RunId("run_1"), NOW - 7200, "make it", True, (one,)),
        Point(2, RunId("run_2"), NOW - 300, "more", False, (one, two)),
        Point(3, RunId("run_3"), NOW, "", True, ()),
    )
    assert (await told(chat, "/rewind")).splitlines() == [
        "3. (no text), just now",
        "2. `more`, 5 min ago, +13 −3 2 files, undone except for files",
        "1. `make it`, 2 h ago, +12 −3 `calc.py`",
        rewind.HOW_TO,
    ]
