"""Projections: rows derived from the events, so that a reader need not fold a stream.

They are committed with the facts they are made of and hold nothing that the events do not. The
tests derive them again from the events (tests/journal/sqlite/rebuild.py) and compare. A session's
`floor` and a channel's cursor are the exceptions: no event holds the one, and the streams do not
say in which order they moved the other.

The table `sessions` has listing columns, so that a list of sessions needs no loading. A `Listing`
has the changes that facts of one session make to these columns. The facts of a batch are combined
into one `Listing`, and so can be all facts of a session: later values win, except that the first
preview stays. So the result does not depend on how the facts are grouped.

`updated_at` is the time of the session's last message, which for an import is before it was
imported. `changed_at` is when the journal last recorded a message, a title or an undo; the search index
uses it to find changed sessions.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.core.events import TERMINAL
from holdfast.core.inbox import Idempotency, InputAdmitted
from holdfast.core.run.run import Run, RunQueued
from holdfast.core.session.library import PREVIEW, one_line, preview
from holdfast.core.session.rewound import Rewound
from holdfast.core.session.session import (
    ModelChosen,
    SessionOpened,
    SessionReopened,
    SessionReset,
    SessionSeeded,
    SessionStatus,
    SessionSuspended,
    SessionTitled,
    Undone,
)
from holdfast.core.types import Fact, Owner, RunId, kind
from holdfast.journal import codec
from holdfast.journal.batch import Row
from holdfast.journal.blobs import Blobs

# The only facts that change these columns: no deltas, and of a run only its start and its end.
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
        Undone,
        Rewound,
        *TERMINAL,
    }
)
OWN = "/"  # the ids of the gateway's own sessions begin with this; no client can use them

_UPDATE = """
UPDATE sessions SET
    changed_at = coalesce(new.column1, changed_at),
    created_at = coalesce(new.column2, created_at),
    listed = listed AND NOT new.column3,
    model = coalesce(new.column4, model),
    preview = iif(preview = '', new.column5, preview),
    status = coalesce(new.column6, status),
    title = coalesce(new.column7, title),
    updated_at = coalesce(new.column8, updated_at)
FROM ("""
_NEW = ") AS new WHERE stream = new.column9"

# Rows per statement: few statements, and few different ones, as sqlite3 keeps 128 prepared.
_CHUNKS = (256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 5, 4, 3, 2, 1)


def write(
    connection: sqlite3.Connection, before: str, rows: Sequence[Row], after: str = ""
) -> None:
    """Execute a statement in which the values of all rows are between `before` and `after`.

    One statement for many rows, because each statement releases and takes the GIL.
    """
    done = 0
    while left := len(rows) - done:
        size = next(c for c in _CHUNKS if c <= left)
        sql = _statement(before, len(rows[0]), size, after)
        connection.execute(sql, list(chain.from_iterable(rows[done : done + size])))
        done += size


@cache
def _statement(before: str, columns: int, rows: int, after: str) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"{before} VALUES {', '.join([row] * rows)}{after}"


def run_row(run: Run, owner: Owner, stream: int, first: int, ended: int | None) -> Row:
    """Return the row of a run; `first` and `ended` are the numbers of its first and last record.

    Plain strings and integers: for an enum or a boolean, sqlite3 searches for an adapter each time.
    """
    return (
        run.id, owner, stream, first, ended, str(run.status), 1 if run.stop_reason else 0,
        run.created_at, run.updated_at, run.model, run.last_event, 0,
    )  # fmt: skip


def key_row(asked: Idempotency, owner: Owner, run_id: RunId, at: float) -> Row:
    """Return the row of a request key."""
    return (owner, asked.route, asked.key, asked.fingerprint, run_id, at)


class Listing:
    """The changes to the listing columns of one session; None: no change."""

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
        self.hidden = 0  # 1: it is
        self.created_at: float | None = None
        self.updated_at: float | None = None
        self.changed_at: float | None = None

    def add(self, fact: Fact, at: float) -> None:
        """Add one more fact, of a type in `CHANGING`."""
        match fact:
            case InputAdmitted():
                self.preview = self.preview or one_line(fact.text, PREVIEW)
                self.updated_at = self.changed_at = at
            case RunQueued():
                self.model = fact.model
                if fact.parent is not None:
                    self.hidden = 1
            case SessionOpened():
                self.hidden = 1 if fact.session_id.startswith(OWN) else 0
                self.created_at = self.updated_at = self.changed_at = at
            case SessionSeeded():
                self.preview = self.preview or preview(fact.messages)
                self.created_at = fact.began_at or at
                self.updated_at, self.changed_at = fact.said_at or at, at
            case Undone() | Rewound():
                self.changed_at = at
            case SessionTitled():
                self.title, self.changed_at = fact.title, at
            case ModelChosen():
                self.model = fact.model
            case SessionSuspended():
                self.status = str(SessionStatus.SUSPENDED)
            case SessionReset() | SessionReopened():
                self.status = str(SessionStatus.OPEN)
            case _:  # the end of a run
                self.updated_at = self.changed_at = at

    def row(self, opened: SessionOpened, owner: Owner, stream: int) -> Row:
        """Return the row of a new session."""
        where = (opened.session_id, opened.workspace, opened.platform)
        status = self.status or str(SessionStatus.OPEN)
        shown = (self.title or "", self.preview, self.model or "", status, 1 - self.hidden)
        times = (self.updated_at, self.changed_at)
        return (stream, owner, *where, self.created_at, 0, *shown, *times)


_new = attrgetter(*Listing.__slots__)  # in the order of `_UPDATE`


def apply(connection: sqlite3.Connection, changed: Mapping[int, Listing]) -> None:
    """Change the rows of these streams, within the transaction of the facts."""
    write(connection, _UPDATE, [(*_new(one), stream) for stream, one in changed.items()], _NEW)


def fill(connection: sqlite3.Connection, blobs: Blobs) -> None:
    """Backfill the listing columns of sessions older than migration 5."""
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
    """Yield the readable facts; damaged data must not keep the journal from being opened."""
    for at, version, data, blob in rows:
        try:
            fact = codec.decode(data if blob is None else blobs.get(blob), version)
        except (msgspec.DecodeError, KeyError, OSError):
            continue
        yield fact, codec.time_of(at)
