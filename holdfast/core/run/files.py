"""Changes of files: what a call did to the files of the workspace, as facts.

A call that changed files records one `FileChanged` for each, directly before its `CallSettled` and
in the same append. Both versions are in the version store (journal/versions.py) by then, under the
hashes that the fact names, as long as the store keeps them. Several changes of one file have one
net effect (`combine`): from the content before the first to the content after the last.

A file tool records `FileChanging` before it replaces a file. If a crash cuts the call, the file's
present content tells whether that change has happened (`find_out`).
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec
from msgspec.structs import asdict

from holdfast.core.text.escape import escape
from holdfast.core.types import CallId, Fact, RunId, Value


class ChangeKind(StrEnum):
    """What was done to a file. The values are a part of the API."""

    CREATED = "created"
    REPLACED = "replaced"  # its whole content; also by a command
    PATCHED = "patched"
    DELETED = "deleted"


class FileChange(Value):
    """The change of one file, as a tool returns it."""

    path: str  # below the workspace, without links, "/" between parts
    kind: ChangeKind
    added: int = 0  # lines
    removed: int = 0
    before: str = ""  # sha256 of the content before, its name in the version store; empty: no file
    after: str = ""  # the same of the content after; empty: the file was deleted
    mode_before: int = 0  # st_mode: type (regular file or link) and permissions; 0: no file
    mode_after: int = 0
    binary: bool = False  # it has no lines to count


class FileChanged(Fact, tag="file.changed", omit_defaults=True):
    """A call changed a file. The fields are those of `FileChange`."""

    run_id: RunId
    call_id: CallId
    path: str
    kind: ChangeKind = msgspec.field(name="change")  # "kind" is the tag of every fact
    added: int = 0
    removed: int = 0
    before: str = ""
    after: str = ""
    mode_before: int = 0
    mode_after: int = 0
    binary: bool = False


class FileChanging(Fact, tag="file.changing"):
    """A call is about to change a file. Recorded before it does."""

    run_id: RunId
    call_id: CallId
    change: FileChange


class Happened(StrEnum):
    """Whether an announced change has happened."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"  # the file has neither content: another hand changed it


def find_out(change: FileChange, now: str) -> Happened:
    """Compare the file's present content, by its hash, with an announced change."""
    if now == change.after:
        return Happened.YES
    return Happened.NO if now == change.before else Happened.UNKNOWN


class Changed(Protocol):
    """A change of a file, in whatever form."""

    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def added(self) -> int: ...
    @property
    def removed(self) -> int: ...
    @property
    def binary(self) -> bool: ...


def describe(change: Changed) -> str:
    """Return one line for people: `+12 −3 calc.py`. Hidden characters of the path are escaped."""
    counts = "binary" if change.binary else f"+{change.added} −{change.removed}"
    note = "" if change.kind == ChangeKind.PATCHED else f" ({_NOTES[ChangeKind(change.kind)]})"
    return f"{counts} {escape(change.path)}{note}"


_NOTES = {
    ChangeKind.CREATED: "new",
    ChangeKind.REPLACED: "replaced",
    ChangeKind.DELETED: "deleted",
}


def listed(changes: Sequence[FileChanged], most: int) -> str:
    """Return a line for each file: what was done, the hashes before and after, the path."""
    lines = [
        f"{c.kind} {c.before or '-'} {c.after or '-'} {escape(c.path)}" for c in changes[:most]
    ]
    return "\n".join([*lines, *_more(changes, most)])


def named(changes: Sequence[FileChanged], most: int) -> str:
    """Return what was done to which files, in one line."""
    names = [f"{c.kind} {escape(c.path)}" for c in changes[:most]]
    return ", ".join([*names, *_more(changes, most)])


def _more(changes: Sequence[FileChanged], most: int) -> list[str]:
    return [f"and {len(changes) - most} more"] if len(changes) > most else []


def changed(run_id: RunId, call_id: CallId, change: FileChange) -> FileChanged:
    """Return `change` as a fact about a call."""
    return FileChanged(run_id=run_id, call_id=call_id, **asdict(change))


def combine(changes: Iterable[FileChange | FileChanged]) -> list[FileChange]:
    """Return one net change for each path, in the order of the paths.

    A file that is again as it was is left out. Lines are counted only where one change is the whole
    net change: otherwise they have to be counted by comparing the two versions.
    """
    by_path: dict[str, list[FileChange | FileChanged]] = {}
    for change in changes:
        by_path.setdefault(change.path, []).append(change)
    net = (_net(by_path[path]) for path in sorted(by_path))
    return [n for n in net if (n.before, n.mode_before) != (n.after, n.mode_after)]


def _net(changes: list[FileChange | FileChanged]) -> FileChange:
    first, last = changes[0], changes[-1]
    alone = len(changes) == 1
    return FileChange(
        path=first.path,
        kind=_kind(changes),
        added=first.added if alone else 0,
        removed=first.removed if alone else 0,
        before=first.before,
        after=last.after,
        mode_before=first.mode_before,
        mode_after=last.mode_after,
        binary=any(change.binary for change in changes),
    )


def _kind(changes: list[FileChange | FileChanged]) -> ChangeKind:
    if not changes[0].before:
        return ChangeKind.CREATED
    if not changes[-1].after:
        return ChangeKind.DELETED
    patched = all(change.kind is ChangeKind.PATCHED for change in changes)
    return ChangeKind.PATCHED if patched else ChangeKind.REPLACED
