"""Projections: rows that say what the events amount to, so that nobody folds to find a run.

They are committed with the facts they are made of, and say nothing that the events do not:
`rebuild` makes them anew. Only what was forgotten on purpose comes back with it, until it
is pruned again, and a session's `floor`, which no event knows, is left as it is.

So is a channel's cursor, if there is one: it may go down, and which of two streams moved it
last only their clocks could tell. By these it is found if it is lost, and so is the order
of the outbox. Within a stream its numbers decide, whatever the clock said.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from holdfast.core.events import Record, run_of
from holdfast.core.inbox import Idempotency, InputAdmitted
from holdfast.core.run import Run
from holdfast.core.session import Session, SessionOpened, evolve
from holdfast.core.types import Fact, Owner, RunId, SessionId, SessionKey
from holdfast.journal import chats, codec, listing
from holdfast.journal.blobs import Blobs
from holdfast.journal.listing import Listing
from holdfast.journal.migrate import migrate

Row = tuple[Any, ...]
_Chatted = tuple[float, list[chats.Change]]  # when, and what of it


def run_row(run: Run, owner: Owner, stream: int, first: int, ended: int | None) -> Row:
    """A run in `runs`, between the numbers of its first record and of its last."""
    return (
        run.id, owner, stream, first, ended, run.status, bool(run.stop_reason),
        run.created_at, run.updated_at, run.model, run.last_event, 0,
    )  # fmt: skip


def session_row(opened: SessionOpened, owner: Owner, stream: int, shown: Listing) -> Row:
    """A session in `sessions`, with what its first facts say to whoever lists it."""
    where = (opened.session_id, opened.workspace, opened.platform)
    return (stream, owner, *where, shown.created_at, 0, *shown.columns())


def key_row(asked: Idempotency, owner: Owner, run_id: RunId, at: float) -> Row:
    """A request's name in `request_keys`."""
    return (owner, asked.route, asked.key, asked.fingerprint, run_id, at)


def first_of(run_id: RunId, facts: Sequence[Fact], number: int) -> int:
    """The number of the run's first fact among `facts`, which are numbered from `number`."""
    for fact in facts:
        if run_of(fact) == run_id:
            break
        number += 1
    return number


def rebuild(path: Path) -> int:
    """Make the projections of the journal at `path` anew; of how many runs.

    All of them or, if it fails, none. Blocks; only for the owner of the home, and not while
    the journal is open: there is never a second writer.
    """
    blobs = Blobs(path.parent)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, "sqlite")
        connection.execute("BEGIN IMMEDIATE")  # and closing without COMMIT rolls back
        floors = connection.execute("SELECT floor, stream FROM sessions").fetchall()
        cursors = connection.execute("SELECT channel, cursor FROM cursors").fetchall()
        for table in ("sessions", "runs", "request_keys", "taken", "outbox"):
            connection.execute(f"DELETE FROM {table}")
        events = connection.execute(
            "SELECT stream, seq, owner, at, version, data, blob FROM events ORDER BY stream, seq"
        )
        named: list[Row] = []
        chatted: list[_Chatted] = []
        count = 0
        for stream, rows in groupby(events, itemgetter(0)):
            session, runs, asked, chat = _fold(stream, rows, blobs)
            _insert(connection, "sessions", session)
            _insert(connection, "runs", runs)
            named += asked
            chatted += chat
            count += len(runs)
        named.sort(key=itemgetter(-1))  # of a name that was used twice the later one counts
        _insert(connection, "request_keys", named)
        chatted.sort(key=itemgetter(0))
        for _, changes in chatted:
            chats.apply(connection, changes)
        _insert(connection, "cursors", cursors)
        connection.executemany("UPDATE sessions SET floor = ? WHERE stream = ?", floors)
        connection.execute("COMMIT")
    return count


def _fold(
    stream: int, events: Iterable[Row], blobs: Blobs
) -> tuple[list[Row], list[Row], list[Row], list[_Chatted]]:
    """What one stream's events amount to: its session, runs, requests, and changes of chats."""
    opened: list[tuple[SessionOpened, Owner]] = []
    shown = Listing()
    runs: dict[RunId, Row] = {}
    named: list[Row] = []
    chatted: list[_Chatted] = []
    latest = 0.0
    first: dict[RunId, int] = {}
    session = Session(SessionKey(Owner(""), SessionId("")))
    for _, seq, owner, at, version, data, blob in events:
        fact = codec.decode(data if blob is None else blobs.get(blob), version)
        session = evolve(session, fact, at)
        if type(fact) in listing.CHANGING:
            shown.add(fact, at)
        if isinstance(fact, SessionOpened):
            opened.append((fact, owner))
        elif isinstance(fact, InputAdmitted) and fact.idempotency is not None:
            named.append(key_row(fact.idempotency, owner, fact.run_id, at))
        latest = max(latest, at)
        if type(fact) in chats.CHANGING:
            changes = list(chats.changes(Record(stream, seq, at, fact), owner))
            chatted += [(latest, changes)] if changes else []
        if (run_id := run_of(fact)) is None:
            continue
        first.setdefault(run_id, seq)
        if (run := session.runs.get(run_id)) is not None:
            runs[run_id] = run_row(run, owner, stream, first[run_id], None)
        elif (run := session.ended) is not None and run.id == run_id:
            runs[run_id] = run_row(run, owner, stream, first[run_id], seq)
    sessions = [session_row(fact, whose, stream, shown) for fact, whose in opened]
    return sessions, list(runs.values()), named, chatted


def _insert(connection: sqlite3.Connection, table: str, rows: list[Row]) -> None:
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)
