"""The file tools, as the model uses them."""

import hashlib
import json
import os
import stat
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio import to_thread

from holdfast.core.approval.approval import Choice
from holdfast.core.run.call import OnCrash
from holdfast.core.run.files import ChangeKind, FileChange
from holdfast.core.run.run import Origin
from holdfast.core.types import OPERATOR, CallId, RunId, SessionId, SessionKey
from holdfast.engine.runs.prompt import system_prompt
from holdfast.errors import ToolFailed
from holdfast.journal.blobs import Blobs
from holdfast.tools import files, tool
from holdfast.tools.files import CONTINUE, NOT_SHOWN, SIMILAR_LINE
from holdfast.tools.fs import change
from holdfast.tools.fs.change import Patch, WriteFile
from holdfast.tools.fs.page import MAX_TEXT
from holdfast.tools.fs.search import (
    LONG_LINES,
    NOT_A_REGEX,
    TOO_SLOW,
    Bounds,
    SearchFiles,
    search_files,
)
from holdfast.tools.fs.workspace import MAX_FILE, FileGate
from holdfast.tools.tool import Context, Done, Effect, Tool, schema

pytestmark = pytest.mark.anyio
BY_NAME: dict[str, Tool[Any]] = {one.name: one for one in files.tools()}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    root.mkdir()
    return root


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path)


@pytest.fixture
def context(workspace: Path, blobs: Blobs) -> Context:
    key = SessionKey(OPERATOR, SessionId("s"))
    return Context(
        session=key,
        run_id=RunId("r"),
        turn=1,
        call_id=CallId("c"),
        workspace=workspace,
        blobs=blobs,
        cwd=str(workspace),
        origin=Origin(),
        processes={},
        hosts=(),
        execution="",
        trees=(),
        progress=lambda text: None,
        may_reach=_never,
    )


async def _never(host: str) -> bool:
    return False


async def call(context: Context, name: str, **arguments: object) -> Done:
    tool = BY_NAME[name]
    outcome = await tool.run(context, msgspec.convert(arguments, tool.arguments))
    assert isinstance(outcome, Done)
    assert len(outcome.text.encode()) <= MAX_TEXT
    return outcome


async def test_a_directory_is_listed_with_what_each_thing_is(
    context: Context, workspace: Path
) -> None:
    (workspace / "b.txt").write_text("four")
    (workspace / "a").mkdir()
    (workspace / "c").symlink_to("b.txt")
    os.mkfifo(workspace / "d")
    (workspace / "e\nf").write_text("")
    os.close(os.open(os.fsencode(workspace) + b"/g\xff", os.O_CREAT))
    text = (await call(context, "list_files")).text
    assert text.split("\n") == [
        "a/",
        "b.txt (4 bytes)",
        "c (link)",
        "d (not a regular file)",
        "e\\nf (0 bytes)",
        "g\\udcff (0 bytes)",
    ]
    assert (await call(context, "list_files", path="a")).text == "(empty directory)"


async def test_a_long_listing_says_how_much_is_missing(context: Context, workspace: Path) -> None:
    for number in range(400):
        (workspace / f"{number:0200}").touch()
    text = (await call(context, "list_files")).text
    shown = text.count(" bytes)")
    assert text.endswith(f"[{400 - shown} more{NOT_SHOWN}]")


async def test_a_file_is_read_with_numbered_lines(context: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_bytes(b"one\r\ntwo \xff\n\nfour")
    assert (await call(context, "read_file", path="a.txt")).text == "1\tone\n2\ttwo �\n3\t\n4\tfour"
    part = await call(context, "read_file", path="a.txt", offset=2, limit=2)
    assert part.text == f"2\ttwo �\n3\t\n[lines 2 to 3 shown{CONTINUE.format(4)}]"
    with pytest.raises(ToolFailed, match="it has 4 lines"):
        await call(context, "read_file", path="a.txt", offset=5)


async def test_a_big_file_can_be_read_completely_with_the_given_offsets(
    context: Context, workspace: Path
) -> None:
    lines = [f"{number} {'x' * (number % 90)}" for number in range(5_000)]
    (workspace / "big.txt").write_text("\n".join(lines))
    got: list[str] = []
    offset = "1"
    while offset:
        text = (await call(context, "read_file", path="big.txt", offset=int(offset))).text
        body, _, offset = text.partition(CONTINUE.format(""))
        got += [line.partition("\t")[2] for line in body.split("\n") if not line.startswith("[")]
        offset = offset.removesuffix("]")
    assert got == lines


async def test_a_line_that_is_too_long_is_cut_with_a_note(
    context: Context, workspace: Path
) -> None:
    (workspace / "min.js").write_text("short\n" + "é" * 100_000 + "\nlast\n")
    first = await call(context, "read_file", path="min.js")
    assert first.text == f"1\tshort\n[lines 1 to 1 shown{CONTINUE.format(2)}]"
    second = await call(context, "read_file", path="min.js", offset=2)
    assert second.text.endswith(f"é\n[line 2 is too long and cut{CONTINUE.format(3)}]")
    assert (await call(context, "read_file", path="min.js", offset=3)).text == "3\tlast"


async def test_binary_and_empty_files_are_described(context: Context, workspace: Path) -> None:
    (workspace / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (workspace / "empty").touch()
    text = (await call(context, "read_file", path="a.png")).text
    assert text.startswith("Binary file, 16 bytes, starts with 89 50 4e 47")
    assert (await call(context, "read_file", path="empty")).text == "(empty file)"


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.promise("EDIT-01")
async def test_a_write_keeps_both_versions(context: Context, workspace: Path, blobs: Blobs) -> None:
    first = await call(context, "write_file", path="./new/a.txt", content="one\n")
    created = FileChange(
        path="new/a.txt",
        kind=ChangeKind.CREATED,
        added=1,
        after=name_of(b"one\n"),
        mode_after=stat.S_IFREG | 0o644,
    )
    assert first == Done("Created new/a.txt (1 line, 4 bytes).", (created,))
    path = workspace / "new/a.txt"
    path.chmod(0o750)
    second = await call(context, "write_file", path=str(path), content="two\nthree")
    assert second.text == "Replaced new/a.txt (2 lines, 9 bytes)."
    replaced = FileChange(
        path="new/a.txt",
        kind=ChangeKind.REPLACED,
        added=2,
        removed=1,
        before=created.after,
        after=name_of(b"two\nthree"),
        mode_before=stat.S_IFREG | 0o750,
        mode_after=stat.S_IFREG | 0o750,
    )
    assert second.changes == (replaced,)
    assert (blobs.get(replaced.before), blobs.get(replaced.after)) == (b"one\n", b"two\nthree")
    assert path.read_text() == "two\nthree"


@pytest.mark.promise("EDIT-01")
async def test_a_change_names_the_file_itself_and_not_a_link_on_the_way(
    context: Context, workspace: Path
) -> None:
    (workspace / "real").mkdir()
    (workspace / "link").symlink_to("real")
    done = await call(context, "write_file", path="real/../real/a.bin", content="a\0b")
    assert [(c.path, c.binary, c.added) for c in done.changes] == [("real/a.bin", True, 0)]


async def test_a_write_of_the_same_content_is_no_change(context: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text("same\n")
    done = await call(context, "write_file", path="a.txt", content="same\n")
    assert done.changes == ()


class Announcing:
    """Notes what a call announces, and the file as it is then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[tuple[FileChange, str]] = []

    async def announce(self, change: FileChange) -> None:
        self.seen.append((change, self.path.read_text()))

    def announced(self) -> tuple[FileChange, ...]:
        return tuple(change for change, _ in self.seen)


@pytest.mark.promise("EDIT-06")
async def test_a_change_is_announced_before_it_is_made(
    context: Context, workspace: Path, blobs: Blobs
) -> None:
    path = workspace / "a.txt"
    path.write_text("old")
    note = Announcing(path)
    heard = msgspec.structs.replace(context, announce=note.announce)
    done = await call(heard, "patch", path="a.txt", old="old", new="new")
    ((change, content),) = note.seen
    assert (done.changes, content) == ((change,), "old")
    assert blobs.get(change.after) == b"new"


@pytest.mark.promise("EDIT-06")
@pytest.mark.parametrize(
    ("left", "outcome", "changes"),
    [
        ("new", Done, 1),
        ("old", tool.ToolFailure, 0),
        ("other", tool.Unknown, 0),
        (None, tool.Unknown, 0),
    ],
)
async def test_after_a_crash_the_content_tells_what_a_write_has_done(
    context: Context, workspace: Path, left: str | None, outcome: type[tool.Outcome], changes: int
) -> None:
    path = workspace / "d" / "a.txt"
    path.parent.mkdir()
    path.write_text("old")
    note = Announcing(path)
    heard = msgspec.structs.replace(context, announce=note.announce, announced=note.announced)
    await call(heard, "write_file", path="d/a.txt", content="new")
    path.unlink() if left is None else path.write_text(left)
    write = BY_NAME["write_file"]
    assert write.adopt is not None
    found = await write.adopt(heard, WriteFile("d/a.txt", "new"))
    assert type(found) is outcome
    assert len(getattr(found, "changes", ())) == changes
    unheard = await write.adopt(context, WriteFile("d/a.txt", "new"))
    assert isinstance(unheard, tool.Unknown)  # nothing was announced: nothing is known


@pytest.mark.promise("EDIT-06")
async def test_after_a_crash_a_new_file_that_is_not_there_was_not_written(
    context: Context, workspace: Path
) -> None:
    new = FileChange("no/such/a.txt", ChangeKind.CREATED, after="0" * 64)
    (workspace / "link").symlink_to("/etc/hostname")
    for planned, outcome in (
        (new, tool.ToolFailure),
        (msgspec.structs.replace(new, path="link"), tool.Unknown),
    ):
        heard = msgspec.structs.replace(context, announced=lambda planned=planned: (planned,))
        adopt = BY_NAME["patch"].adopt
        assert adopt is not None
        assert isinstance(await adopt(heard, Patch(planned.path, "a", "b")), outcome)


class FullDisk:
    def put(self, data: bytes) -> str:
        raise OSError(28, "No space left on device")


async def test_nothing_is_written_when_the_versions_cannot_be_kept(
    context: Context, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("old")
    full = msgspec.structs.replace(context, blobs=FullDisk())
    with pytest.raises(ToolFailed, match="nothing was written"):
        await call(full, "write_file", path="a.txt", content="new")
    assert (workspace / "a.txt").read_text() == "old"
    assert os.listdir(workspace) == ["a.txt"]


@pytest.mark.promise("EDIT-01")
async def test_a_patch_changes_one_place_and_keeps_both_versions(
    context: Context, workspace: Path, blobs: Blobs
) -> None:
    former = b"a = 1\nb = 2\n\xff\n"
    (workspace / "a.py").write_bytes(former)
    done = await call(context, "patch", path="a.py", old="b = 2", new="b = 3")
    assert done.text == "Patched a.py: line 2."
    (change,) = done.changes
    assert (change.kind, change.added, change.removed) == (ChangeKind.PATCHED, 1, 1)
    assert blobs.get(change.before) == former
    assert blobs.get(change.after) == b"a = 1\nb = 3\n\xff\n"
    assert (workspace / "a.py").read_bytes() == blobs.get(change.after)


async def test_a_patch_that_fits_more_than_once_asks_for_more_unless_all_are_meant(
    context: Context, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("x\ny x x\n")
    with pytest.raises(ToolFailed, match="old occurs 3 times"):
        await call(context, "patch", path="a.txt", old="x", new="z")
    done = await call(context, "patch", path="a.txt", old="x", new="z", all=True)
    assert done.text == "Patched a.txt: 3 places, the first in line 1."
    assert (workspace / "a.txt").read_text() == "z\ny z z\n"


async def test_a_patch_that_fits_nowhere_shows_the_nearest_line(
    context: Context, workspace: Path
) -> None:
    (workspace / "a.py").write_text("import os\n\n\tdef total(items):\n")
    with pytest.raises(ToolFailed, match=SIMILAR_LINE + r" 3: '\\tdef total\(items\):'"):
        await call(context, "patch", path="a.py", old="    def total(items):\n", new="")
    with pytest.raises(ToolFailed, match="no line is similar"):
        await call(context, "patch", path="a.py", old="§§§§", new="")
    with pytest.raises(ToolFailed, match="the same"):
        await call(context, "patch", path="a.py", old="os", new="os")
    with pytest.raises(ToolFailed, match="no such file"):
        await call(context, "patch", path="no/a.py", old="os", new="sys")
    assert not (workspace / "no").exists()


async def test_a_patch_fits_a_file_with_other_line_ends(context: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await call(context, "patch", path="a.txt", old="one\ntwo\n", new="1\n2\n")
    assert (workspace / "a.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"


@pytest.fixture
def project(workspace: Path) -> Path:
    for name in ("src/deep/a.py", ".git/config", "node_modules/x.js", "b.py", ".holdfast-0.tmp"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("first\nfind ME (here)\r\n")
    (workspace / "c.bin").write_bytes(b"find ME\0")
    (workspace / "d.txt").write_text("find ME" * 400_000)
    (workspace / "out").symlink_to("/etc")
    return workspace


async def test_a_search_names_file_and_line_and_says_what_it_left_out(
    context: Context, project: Path
) -> None:
    assert (await call(context, "search_files", pattern=r"(?i)^FIND\s+me\b")).text.split("\n") == [
        "b.py:2: find ME (here)",
        "src/deep/a.py:2: find ME (here)",
        "[2 files skipped: binary, too big or not readable]",
    ]
    below = await call(context, "search_files", pattern="ME", path="src/deep")
    assert below.text == "src/deep/a.py:2: find ME (here)"
    one = await call(context, "search_files", pattern="ME", path=str(project / "b.py"))
    assert one.text == "b.py:2: find ME (here)"
    none = await call(context, "search_files", pattern="nowhere", path="src")
    assert none.text == "[no match in 1 files]"


async def test_an_invalid_regex_is_searched_as_plain_text(context: Context, project: Path) -> None:
    text = (await call(context, "search_files", pattern="ME (", path="src")).text
    assert text.startswith(f"src/deep/a.py:2: find ME (here)\n[{NOT_A_REGEX} (missing )")


async def test_a_long_line_is_shown_around_the_match(context: Context, workspace: Path) -> None:
    (workspace / "min.js").write_text("x" * 5_000 + "needle" + "y" * 20_000)
    text = (await call(context, "search_files", pattern="need.e")).text
    line, note = text.split("\n")
    assert "needle" in line
    assert len(line) < 450
    assert note == f"[{LONG_LINES}]"


@pytest.mark.parametrize(
    ("bounds", "note"),
    [
        (Bounds(files=3), "stopped after 3 files; search a subdirectory"),
        (Bounds(all_bytes=10), "stopped after 2 files; search a subdirectory"),
        (Bounds(matches=4), "stopped after 4 matches; make the pattern narrower"),
        (Bounds(effort=100), TOO_SLOW),
    ],
)
async def test_a_search_stops_where_it_must_and_says_so(
    workspace: Path, bounds: Bounds, note: str
) -> None:
    for number in range(9):
        (workspace / f"{number}.txt").write_text("needle\n")

    def search() -> str:
        with FileGate(workspace) as gate:
            return search_files(gate, SearchFiles("nee+dle"), bounds)

    assert note in (await to_thread.run_sync(search)).split("\n")[-1]


async def test_a_note_says_that_not_all_matches_fit(context: Context, workspace: Path) -> None:
    (workspace / "a.txt").write_text(("needle " * 50 + "\n") * 150)
    text = (await call(context, "search_files", pattern="needle")).text
    assert text.endswith("[more matches than fit here; make the pattern narrower]")


async def test_a_hostile_pattern_does_not_freeze_the_loop(
    context: Context, workspace: Path
) -> None:
    (workspace / "a.txt").write_text(("a" * 5_000 + "b\n") * 20)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await anyio.lowlevel.checkpoint()
            beats += 1

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            text = (await call(context, "search_files", pattern="(a+)+$")).text
            group.cancel_scope.cancel()
    assert text == "[no match in 1 files]"
    assert beats > 2


async def test_a_file_that_is_far_longer_than_its_text_is_not_read_to_its_end(
    context: Context, workspace: Path
) -> None:
    (workspace / "sparse").write_text("line\n" * 2000)
    os.truncate(workspace / "sparse", 2**42)
    assert (await call(context, "read_file", path="sparse")).text.startswith("1\tline")
    with anyio.fail_after(60), pytest.raises(ToolFailed):
        await call(context, "read_file", path="sparse", offset=2002)


@pytest.mark.parametrize("name", ["read_file", "search_files"])
async def test_a_cancelled_call_ends_its_thread(
    context: Context, workspace: Path, name: str
) -> None:
    (workspace / "sparse").write_text("line\n" * 2000)
    os.truncate(workspace / "sparse", 2**42)
    for number in range(3000):
        (workspace / str(number)).mkdir()
    arguments = {"path": "sparse", "offset": 2002} if name == "read_file" else {"pattern": "x"}
    with anyio.move_on_after(0.02):
        await call(context, name, **arguments)
    limiter = to_thread.current_default_thread_limiter()
    with anyio.fail_after(10):
        while limiter.borrowed_tokens:  # noqa: ASYNC110 — a thread tells nobody that it ends
            await anyio.sleep(0.01)  # sleep: nobody tells us of it


async def test_a_stopped_search_ends_its_thread(context: Context, workspace: Path) -> None:
    for number in range(300):
        (workspace / f"{number}.txt").write_text(("ab" * 50 + "\n") * 1_000)
    with anyio.move_on_after(0.05) as scope:
        await call(context, "search_files", pattern="(a|b)*[cd]")
    assert scope.cancelled_caught  # and the fence sees that no thread or file stays


@pytest.mark.fault("F-37")
@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "out/passwd", "/proc/self/root/etc"])
@pytest.mark.parametrize("tool", files.tools(), ids=lambda tool: tool.name)
async def test_no_tool_leaves_the_workspace(context: Context, tool: Tool[Any], path: str) -> None:
    (context.workspace / "out").symlink_to("/etc")
    (context.workspace.parent / "secret").write_text("secret")
    rest = {
        "write_file": {"content": "x"},
        "patch": {"old": "s", "new": "x"},
        "search_files": {"pattern": "s"},
    }
    with pytest.raises(ToolFailed) as refused:
        await call(context, tool.name, path=path, **rest.get(tool.name, {}))
    assert str(refused.value).startswith(f"{path}: ")
    assert (context.workspace.parent / "secret").read_text() == "secret"


def test_every_file_tool_states_effect_and_crash_behaviour() -> None:
    stated = {tool.name: (tool.effect, tool.on_crash) for tool in files.tools()}
    read, write = (Effect.READ, OnCrash.REPEAT), (Effect.WRITE, OnCrash.ADOPT)
    assert stated == {
        "list_files": read,
        "read_file": read,
        "write_file": write,
        "patch": write,
        "search_files": read,
    }


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("list_files", {}, "."),
        ("read_file", {"path": "a\nb"}, "a\\nb"),
        ("write_file", {"path": "n.txt", "content": "a\n" * 12}, "n.txt (12 lines)"),
        ("write_file", {"path": "n" * 999, "content": ""}, f"{'n' * 100}… (0 lines)"),
        ("patch", {"path": "n.txt", "old": "a", "new": ""}, "n.txt (1 line)"),
        ("search_files", {"pattern": "a+"}, "a+ in ."),
    ],
)
def test_a_preview_is_one_short_line(name: str, arguments: dict[str, str], line: str) -> None:
    tool = BY_NAME[name]
    assert tool.preview(msgspec.convert(arguments, tool.arguments)) == line


def test_the_prompt_and_all_schemas_are_small() -> None:
    told = [
        {"name": tool.name, "description": tool.description, "parameters": schema(tool.arguments)}
        for tool in files.tools()
    ]
    prompt = system_prompt("/home/somebody/projects/something", "")
    assert len(prompt) / 4 < 800
    assert (len(prompt) + len(json.dumps(told))) / 4 < 1_500  # a third of them may yet come


def test_the_prompt_names_the_workspace_and_ends_with_the_runs_own_instructions() -> None:
    prompt = system_prompt("/w/{instructions}", " Speak Latin.\n")
    assert "/w/{instructions}" in prompt
    assert prompt.endswith("Instructions for this run:\nSpeak Latin.")
    assert "Instructions for this run" not in system_prompt("/w", " \n")


def _cost(act: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(100):
        act()
    return (time.process_time() - began) / 100


def test_reading_a_small_file_costs_well_under_a_millisecond(workspace: Path) -> None:
    (workspace / "a.txt").write_text("line\n" * 40)

    def read() -> str:
        with FileGate(workspace) as gate:
            return files.read_file(gate, files.ReadFile("a.txt"))

    assert min(_cost(read) for _ in range(5)) < 0.001


async def permitted(context: Context, name: str, **arguments: object) -> tool.Permission:
    found = BY_NAME[name]
    return await found.permit(context, msgspec.convert(arguments, found.arguments))


@pytest.mark.fault("F-44")
@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        "sub/.git",
        ".GIT/hooks/pre-commit",
        "sub/../.git/config",
        "link/config",
        "new/.envrc",
        ".vscode/tasks.json",
        "bare/config",
        "bare/hooks/post-checkout",
        "HEAD",
    ],
)
async def test_a_write_to_an_autorun_file_needs_an_approval_for_exactly_that_write(
    context: Context, workspace: Path, path: str
) -> None:
    for folder in (".git", "sub", "bare", "other"):
        (workspace / folder).mkdir()
    (workspace / "link").symlink_to(".git")
    (workspace / "bare" / "HEAD").write_text("ref: refs/heads/x\n")
    asked = await permitted(context, "write_file", path=path, content="line\n\u202eevil")
    assert isinstance(asked, tool.Question)
    assert "| \\u{202e}evil" in asked.command
    assert Choice.SESSION not in asked.choices
    arguments = WriteFile(path, "line\n\u202eevil")
    write = BY_NAME["write_file"].run
    before = _files_in(workspace)
    assert isinstance(await write(context, arguments), tool.ToolDenied)
    agreed = msgspec.structs.replace(context, execution=asked.execution)
    assert isinstance(await write(agreed, WriteFile(path, "other")), tool.ToolDenied)
    assert _files_in(workspace) == before
    assert isinstance(await write(agreed, arguments), Done)


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.fault("F-44")
async def test_a_permitted_write_goes_nowhere_else(context: Context, workspace: Path) -> None:
    for folder in ("a", ".git"):
        (workspace / folder).mkdir()
    (workspace / "link").symlink_to("a")
    arguments = {"path": "link/config", "content": "x"}
    assert await permitted(context, "write_file", **arguments) == tool.ToolAllowed()
    (workspace / "link").unlink()
    (workspace / "link").symlink_to(".git")
    outcome = await BY_NAME["write_file"].run(context, WriteFile("link/config", "x"))
    assert isinstance(outcome, tool.ToolDenied)
    assert list((workspace / ".git").iterdir()) == []


@pytest.mark.fault("F-44")
async def test_a_patch_is_asked_about_and_bound_to_what_it_changes(
    context: Context, workspace: Path
) -> None:
    (workspace / ".envrc").write_text("old\nrest\n")
    arguments = {"path": ".envrc", "old": "old", "new": "evil"}
    asked = await permitted(context, "patch", **arguments)
    assert isinstance(asked, tool.Question)
    assert asked.command.split("\n")[1:] == ["- old", "+ evil"]
    agreed = msgspec.structs.replace(context, execution=asked.execution)
    (workspace / ".envrc").write_text("old\nother\n")
    run = BY_NAME["patch"].run
    assert isinstance(await run(agreed, Patch(".envrc", "old", "evil")), tool.ToolDenied)
    (workspace / ".envrc").write_text("old\nrest\n")
    assert isinstance(await run(agreed, Patch(".envrc", "old", "evil")), Done)
    assert isinstance(
        await permitted(context, "write_file", path=".envrc", content="x" * change.MAX_SHOWN),
        tool.Forbidden,
    )


@pytest.mark.fault("F-44")
@pytest.mark.parametrize(
    ("former", "patch", "shown"),
    [
        ("a\n# rm x\nb\n", ("# ", "", False), ["- # rm x", "+ rm x"]),
        ("# a\nb\n# c", ("# ", "", True), ["- # a", "+ a", "- # c", "+ c"]),
        ("x x\nx\nb\nx\n", ("x", "y", True), ["- x x", "+ y y", "- x", "+ y", "- x", "+ y"]),
        ("a b\nc d\n", ("b\nc", "-", False), ["- a b", "- c d", "+ a - d"]),
        ("a\r\nb\r\n", ("a\nb", "c", False), [r"- a\u{d}", r"- b\u{d}", r"+ c\u{d}"]),
        ("a\n", ("z", "c", False), ["- z", "+ c"]),
    ],
    ids=["one", "all", "often", "across lines", "other ends", "none"],
)
async def test_a_patch_is_shown_in_whole_lines(
    context: Context, workspace: Path, former: str, patch: tuple[str, str, bool], shown: list[str]
) -> None:
    (workspace / ".envrc").write_bytes(former.encode())
    old, new, every = patch
    asked = await permitted(context, "patch", path=".envrc", old=old, new=new, all=every)
    assert isinstance(asked, tool.Question)
    assert asked.command.split("\n")[1:] == shown


async def test_ordinary_writes_need_no_approval(context: Context, workspace: Path) -> None:
    for path in ("a.py", "new/dir/Makefile", "config", "hooks/x", ".gitignore", "docs/ci.yml"):
        assert await permitted(context, "write_file", path=path, content="x") == tool.ToolAllowed()
    later = msgspec.structs.replace(context, workspace=workspace / "later")
    assert await permitted(later, "write_file", path="a", content="x") == tool.ToolAllowed()
    asked = await permitted(later, "write_file", path=".git/config", content="x")
    assert isinstance(asked, tool.Question)


async def test_a_change_that_is_much_too_long_to_show_costs_no_memory(
    context: Context, workspace: Path
) -> None:
    (workspace / ".envrc").write_bytes(b"a\n" * 400_000)
    for old, new in (("a", "b"), ("\n", "\r"), ("a", "x" * 100_000)):
        tracemalloc.start()
        try:
            asked = Patch(".envrc", old, new, all=True)
            permission = await BY_NAME["patch"].permit(context, asked)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert isinstance(permission, tool.Forbidden)
        assert most < MAX_FILE + 8 * 2**20
    assert isinstance(
        await BY_NAME["write_file"].permit(context, WriteFile(".envrc", "x" * 10**6)),
        tool.Forbidden,
    )


async def test_a_patch_that_fits_nowhere_costs_no_memory(context: Context, workspace: Path) -> None:
    (workspace / "long").write_bytes(b"\n" * 2**21)
    tracemalloc.start()
    try:
        with pytest.raises(ToolFailed, match="does not occur"):
            await call(context, "patch", path="long", old="a", new="b")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MAX_FILE + 8 * 2**20
