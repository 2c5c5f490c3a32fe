"""Read files with instructions: the project's, from its root to the workspace, and the user's own.

The root of a project is the nearest directory with a `.git`, at or above the workspace. Without one,
and for a workspace inside the Holdfast home, only the workspace itself is read. The search never
leaves the file system or the user's home, and a `.git` that belongs to another user than the
workspace does not count: in a shared directory anybody could have put one above ours.

Files are opened through the gate of the file tools, so no link leads out of the project, and nothing
but a regular file is read.
"""

import errno
import os
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

import anyio.to_thread
from msgspec.structs import replace

from holdfast.core import workspace as rules
from holdfast.core.session.instructions import MAX_BYTES, InstructionFile, readable, shortened
from holdfast.errors import ToolFailed
from holdfast.tools.fs.workspace import FileGate

PROJECT = ("AGENTS.md", "CLAUDE.md", ".holdfast/instructions.md")  # in this order
OWN = ("instructions.md", "AGENTS.md")  # in the Holdfast home
MAX_READ = 256 * 1024  # bytes of one file
MAX_ABOVE = 32  # directories between the workspace and its root

_PROBLEMS = {
    **dict.fromkeys((errno.EXDEV, errno.ELOOP), "a link that leads out of the project"),
    **dict.fromkeys((errno.ENXIO, errno.EISDIR), "not a regular file"),
}


async def find(home: Path, user_home: Path, workspace: str) -> list[InstructionFile]:
    """Return the files for a workspace, in the order in which the model reads them.

    A workspace in our home is on the disk of the journal: whether it has any is seen without a
    thread, which would cost more than all the rest of starting a run.
    """
    if rules.inside(workspace, str(home)) and not (
        _there(home, [""], OWN) or _there(Path(workspace), [""], PROJECT)
    ):
        return []
    return await anyio.to_thread.run_sync(partial(find_now, home, user_home, workspace))


def find_now(home: Path, user_home: Path, workspace: str) -> list[InstructionFile]:
    """Do the same; blocks."""
    own = _bounded(_read_all(home, [""], OWN), MAX_BYTES)
    room = MAX_BYTES - sum(len(f.text.encode()) for f in own)
    root, below = _project(workspace, home, user_home)
    nearest_first = _bounded(reversed(list(_read_all(root, below, PROJECT))), room)
    project = [_relative(f, root, workspace) for f in reversed(nearest_first)]
    return [*(_owned(f, home) for f in own), *project]


def _project(workspace: str, home: Path, user_home: Path) -> tuple[Path, list[str]]:
    """Return the root of the project, and the directories from there to the workspace."""
    here = Path(workspace)
    alone = here, [""]
    if rules.inside(workspace, str(home)):
        return alone
    try:
        ours = here.stat()
    except OSError:
        return alone
    for root in (here, *here.parents[:MAX_ABOVE]):
        if not _is_on(root, ours.st_dev):
            return alone
        if _has_git(root, {ours.st_uid, os.geteuid(), 0}):
            parts = here.relative_to(root).parts
            return root, ["/".join(parts[:at]) for at in range(len(parts) + 1)]
        if root == user_home:
            return alone
    return alone


def _is_on(directory: Path, device: int) -> bool:
    try:
        return directory.stat().st_dev == device
    except OSError:
        return False


def _has_git(directory: Path, owners: set[int]) -> bool:
    try:
        return (directory / ".git").lstat().st_uid in owners
    except OSError:
        return False


def _read_all(root: Path, below: list[str], names: tuple[str, ...]) -> Iterator[InstructionFile]:
    """Yield the files with these names in each of the directories, as they are.

    Most workspaces have none, and every run asks: the gate, which is safe, is opened for those that
    seem to be there.
    """
    there = _there(root, below, names)
    if not there:
        return
    try:
        gate = FileGate(root)
    except ToolFailed:
        return
    with gate:
        for path in there:
            if (file := _read(gate, root, path)) is not None:
                yield file


def _there(root: Path, below: list[str], names: tuple[str, ...]) -> list[str]:
    """Return the paths of these names that exist, below the root."""
    paths = [os.path.join(folder, name) for folder in below for name in names]
    return [path for path in paths if os.path.lexists(os.path.join(root, path))]


def _read(gate: FileGate, root: Path, path: str) -> InstructionFile | None:
    try:
        with gate.open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(MAX_READ)
    except ToolFailed as why:
        if not os.path.lexists(root / path):
            return None
        code = why.__cause__.errno if isinstance(why.__cause__, OSError) else 0
        return InstructionFile(
            path=path, problem=_PROBLEMS.get(code or 0) or os.strerror(code or 0)
        )
    text = readable(data)
    return InstructionFile(path=path, sha256=sha256(data).hexdigest(), size=size, text=text)


def _bounded(files: Iterator[InstructionFile], room: int) -> list[InstructionFile]:
    """Return the files without repetitions, cut to `room`; the first get it first."""
    kept, seen = list[InstructionFile](), set[str]()
    for file in files:
        if file.sha256 and file.sha256 in seen:
            continue
        seen.add(file.sha256)
        text = shortened(file.text, file.size, room)
        room = max(0, room - len(text.encode()))
        kept.append(replace(file, text=text))
    return kept


def _owned(file: InstructionFile, home: Path) -> InstructionFile:
    return replace(file, path=str(home / file.path), own=True)


def _relative(file: InstructionFile, root: Path, workspace: str) -> InstructionFile:
    return replace(file, path=os.path.relpath(root / file.path, workspace))
