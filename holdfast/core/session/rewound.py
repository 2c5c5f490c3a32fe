"""The facts of an undo, a rewind and a redo.

A rewind that touches files is recorded twice: as planned, before the first file is touched, and as
done, with the result of each file. A crash between the two is finished from the plan: each file
is compared by the hash of its content, so nothing is done twice and no change by another hand is
overwritten. Messages and files change with one fact (`Rewound`), so they cannot disagree.
"""

from enum import StrEnum

from holdfast.core.inbox import UpdateRef
from holdfast.core.run.files import FileChanged
from holdfast.core.types import Fact, Owner, RewindId, RunId, Value


class RewindScope(StrEnum):
    """What a rewind takes back."""

    BOTH = "both"
    FILES = "files"
    CONVERSATION = "conversation"

    @property
    def has_files(self) -> bool:
        return self is not RewindScope.CONVERSATION

    @property
    def has_conversation(self) -> bool:
        return self is not RewindScope.FILES


class FileResult(StrEnum):
    PLANNED = "planned"
    RESTORED = "restored"  # it has the content that it had at the point
    DELETED = "deleted"  # there was no such file at the point
    UNCHANGED = "unchanged"  # it had that content already
    CHANGED = "changed"  # left as it is: another hand changed it
    GONE = "gone"  # left as it is: the version to restore is no longer kept
    FAILED = "failed"  # left as it is: `reason` says why

    @property
    def done(self) -> bool:
        """Return whether the file is now as it was at the point."""
        return self in (FileResult.RESTORED, FileResult.DELETED, FileResult.UNCHANGED)


class FileStep(Value, kw_only=True, omit_defaults=True):
    """One file of a rewind: what it has, and what it gets. A blob is named by its hash."""

    path: str  # below the workspace
    was_blob: str = ""  # empty: no file
    new_blob: str = ""
    was_mode: int = 0
    new_mode: int = 0
    result: FileResult = FileResult.PLANNED
    reason: str = ""


class RewindPlanned(Fact, tag="session.rewinding", omit_defaults=True):
    """Files are about to change. No run of the session starts before `Rewound`."""

    rewind_id: RewindId
    point: RunId  # the state before this run is wanted; of a redo: the state it undoes
    by: Owner
    what: RewindScope = RewindScope.BOTH
    runs: tuple[RunId, ...] = ()  # the exchanges that no longer count; of a redo: count again
    files: tuple[FileStep, ...] = ()
    redo: bool = False
    came: UpdateRef | None = None  # the request, which must not be carried out twice


class Rewound(Fact, tag="session.rewound", omit_defaults=True):
    """The session is at the point: these exchanges do not count, and each file as it says."""

    rewind_id: RewindId
    point: RunId
    by: Owner
    what: RewindScope = RewindScope.BOTH
    runs: tuple[RunId, ...] = ()
    files: tuple[FileStep, ...] = ()
    redo: bool = False
    came: UpdateRef | None = None  # if nothing was planned before


class SeedPoint(Value, kw_only=True, omit_defaults=True):
    """An exchange that a fork has from its source, with what it changed."""

    run_id: RunId
    position: int  # of its first message
    at: float = 0.0
    changes: tuple[FileChanged, ...] = ()  # from here to the next point
