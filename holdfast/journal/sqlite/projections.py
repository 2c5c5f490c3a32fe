"""What a list of sessions shows, kept up in `sessions` with the facts: nobody folds to list them.

A `Listing` is what some facts of one session change there. Those of one batch become one, and so
do all that a session ever had: what comes later wins, only the first words stay the first. So
it does not matter in how many steps a session came to be what it is.

`updated_at` is when it was last spoken in, which for what was imported is long before it came
here. `changed_at` is when the journal last took in words or a title: whoever keeps up with
sessions goes by that.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core.events import TERMINAL
from holdfast.core.inbox import InputAdmitted
from holdfast.core.library import PREVIEW, one_line, preview
from holdfast.core.run import RunQueued
from holdfast.core.session import (
    ModelChosen,
    SessionOpened,
    SessionReopened,
    SessionReset,
    SessionSeeded,
    SessionSuspended,
    SessionTitled,
    Status,
)
from holdfast.core.types import Fact, kind
from holdfast.journal import codec
from holdfast.journal.blobs import Blobs

# All others change nothing here. No delta does, and of a run only its beginning and its end.
CHANGING: frozenset[type[Fact]] = frozenset(
    {
        SessionOpened,
        SessionSeeded,
        SessionTitled,
        SessionSuspended,
        SessionReset,
        SessionReopened,
        ModelChosen,
        InputAdmitted,
        RunQueued,
        *TERMINAL,
    }
)
OWN = "/"  # what the names of the gateway's own sessions begin with; no door can say them

_UPDATE = """
UPDATE sessions SET
    created_at = coalesce(:created_at, created_at), title = coalesce(:title, title),
    preview = iif(preview = '', :preview, preview), model = coalesce(:model, model),
    status = coalesce(:status, status), listed = listed AND NOT :hidden,
    updated_at = coalesce(:updated_at, updated_at), changed_at = coalesce(:changed_at, changed_at)
WHERE stream = :stream
"""


class Listing:
    """What some facts of one session change in what a list shows of it; None: nothing."""

    __slots__ = (
        "changed_at",
        "created_at",
        "hidden",
        "model",
        "preview",
        "status",
        "title",
        "updated_at",
    )

    def __init__(self) -> None:
        self.title: str | None = None
        self.preview = ""
        self.model: str | None = None
        self.status: str | None = None
        self.hidden = False
        self.created_at: float | None = None
        self.updated_at: float | None = None
        self.changed_at: float | None = None

    def add(self, fact: Fact, at: float) -> None:
        """Take one more fact into account: one that is `CHANGING`."""
        match fact:
            case InputAdmitted():
                self.preview = self.preview or one_line(fact.text, PREVIEW)
                self.updated_at = self.changed_at = at
            case RunQueued():
                self.model = fact.model
                self.hidden = self.hidden or fact.parent is not None
            case SessionOpened():
                self.hidden = fact.session_id.startswith(OWN)
                self.created_at = self.updated_at = self.changed_at = at
            case SessionSeeded():
                self.preview = self.preview or preview(fact.messages)
                self.created_at = fact.began_at or at
                self.updated_at, self.changed_at = fact.said_at or at, at
            case SessionTitled():
                self.title, self.changed_at = fact.title, at
            case ModelChosen():
                self.model = fact.model
            case SessionSuspended():
                self.status = Status.SUSPENDED
            case SessionReset() | SessionReopened():
                self.status = Status.OPEN
            case _:  # the end of a run
                self.updated_at = self.changed_at = at

    def columns(self) -> tuple[Any, ...]:
        """Of a session that has only just begun; `created_at` stands before."""
        status = self.status or Status.OPEN
        shown = (self.title or "", self.preview, self.model or "", status, not self.hidden)
        return (*shown, self.updated_at, self.changed_at)


def apply(connection: sqlite3.Connection, changed: Mapping[int, Listing]) -> None:
    """Change what is shown of these streams, within the transaction of the facts."""
    if changed:
        rows = [
            {"stream": stream, **{name: getattr(one, name) for name in Listing.__slots__}}
            for stream, one in changed.items()
        ]
        connection.executemany(_UPDATE, rows)


def fill(connection: sqlite3.Connection, blobs: Blobs) -> None:
    """Say of every session of which nothing has been said yet what its facts say."""
    bare = connection.execute("SELECT stream FROM sessions WHERE changed_at = 0").fetchall()
    if not bare:
        return
    names = [kind(fact) for fact in CHANGING]
    sql = (
        "SELECT at, version, data, blob FROM events WHERE stream = ? "
        f"AND kind IN ({', '.join('?' * len(names))}) ORDER BY seq"
    )
    connection.execute("BEGIN IMMEDIATE")
    for (stream,) in bare:
        found = Listing()
        for fact, at in _readable(connection.execute(sql, (stream, *names)), blobs):
            found.add(fact, at)
        apply(connection, {stream: found})
    connection.execute("COMMIT")


def _readable(rows: Iterable[tuple[Any, ...]], blobs: Blobs) -> Iterable[tuple[Fact, float]]:
    """What is damaged is left out: it must not keep a journal from being opened."""
    for at, version, data, blob in rows:
        try:
            fact = codec.decode(data if blob is None else blobs.get(blob), version)
        except (msgspec.DecodeError, KeyError, OSError):
            continue
        yield fact, codec.time_of(at)
