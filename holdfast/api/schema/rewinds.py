"""Points of a session, and going back to them."""

import msgspec

from holdfast.core.session.rewound import RewindScope


class RewindRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /api/sessions/{session_id}/rewind. Without a point: the last exchange."""

    point: str | None = None  # the id of a run: the state before it
    what: RewindScope | None = None
    force: bool = False  # also overwrite what another hand changed


class RedoRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /api/sessions/{session_id}/redo."""

    force: bool = False


class RestoredFileObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one file."""

    path: str  # below the workspace
    result: str  # "restored", "deleted", "unchanged", "changed", "gone" or "failed"
    before: str = ""  # sha256 of the content before; empty: there was no file
    after: str = ""  # sha256 of the content that was wanted; empty: no file
    reason: str = ""


class RewindResponse(msgspec.Struct, frozen=True, tag_field="object", tag="holdfast.rewind"):
    """The answer to POST /api/sessions/{session_id}/rewind and …/redo."""

    rewind_id: str
    point: str
    what: str
    redo: bool
    input: str  # the message that was taken back or brought back
    runs: tuple[str, ...]  # the exchanges that no longer count, or count again
    files: tuple[RestoredFileObject, ...]


class FileTotalObject(msgspec.Struct, frozen=True):
    """What was done to one file."""

    path: str
    added: int  # lines
    removed: int


class PointObject(msgspec.Struct, frozen=True):
    """The state before an exchange."""

    number: int  # from 1, the oldest
    point: str  # the id of its run
    at: float
    input: str
    counts: bool  # False: the message was undone, but not what it did to files
    files: tuple[FileTotalObject, ...]  # changed from here to the next point


class PointList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /api/sessions/{session_id}/points, oldest first."""

    data: tuple[PointObject, ...]
