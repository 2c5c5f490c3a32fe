"""Derive the projections of a journal from its events alone, to compare with those it keeps."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from holdfast.core.approval.approval import ApprovalRequested
from holdfast.core.events import Record, run_of
from holdfast.core.inbox import InputAdmitted
from holdfast.core.session.session import Session, SessionOpened, evolve
from holdfast.core.types import Owner, RunId, SessionId, SessionKey
from holdfast.journal import codec
from holdfast.journal.batch import Row
from holdfast.journal.blobs import Blobs
from holdfast.journal.sqlite import approvals, outbox, projections
from holdfast.journal.sqlite.migrate import migrate
from holdfast.journal.sqlite.projections import Listing, key_row, run_row

_Chatted = tuple[float, list[outbox.Change]]  # when, and what of it


def rebuild(path: Path) -> int:
    """Replace the projections of the closed journal at `path`; return the number of runs."""
    blobs = Blobs(path.parent)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, blobs)
        connection.execute("BEGIN IMMEDIATE")  # and closing without COMMIT rolls back
        floors = connection.execute("SELECT floor, stream FROM sessions").fetchall()
        cursors = connection.execute("SELECT channel, cursor FROM cursors").fetchall()
        for table in ("sessions", "runs", "request_keys", "approvals", "taken", "said", "outbox"):
            connection.execute(f"DELETE FROM {table}")
        connection.execute("DELETE FROM checkpoints")  # loading a session makes it again
        events = connection.execute(
            "SELECT stream, seq, owner, at, version, data, blob FROM events ORDER BY stream, seq"
        )
        named: list[Row] = []
        chatted: list[_Chatted] = []
        count = 0
        for stream, rows in groupby(events, itemgetter(0)):
            session, runs, waiting, names, chat = _fold(stream, rows, blobs)
            _insert(connection, "sessions", session)
            _insert(connection, "runs", runs)
            _insert(connection, "approvals", waiting)
            named += names
            chatted += chat
            count += len(runs)
        named.sort(key=itemgetter(-1))  # of a name that was used twice the later one counts
        _insert(connection, "request_keys", named)
        chatted.sort(key=itemgetter(0))
        for _, changes in chatted:
            outbox.apply(connection, changes)
        _insert(connection, "cursors", cursors)
        connection.executemany("UPDATE sessions SET floor = ? WHERE stream = ?", floors)
        connection.execute("COMMIT")
    return count


def _fold(
    stream: int, events: Iterable[Row], blobs: Blobs
) -> tuple[list[Row], list[Row], list[Row], list[Row], list[_Chatted]]:
    """What one stream amounts to: its session, runs, approvals, requests, changes of chats."""
    opened: list[tuple[SessionOpened, Owner]] = []
    shown = Listing()
    runs: dict[RunId, Row] = {}
    named: list[Row] = []
    asked: list[Row] = []
    chatted: list[_Chatted] = []
    latest = 0.0
    first: dict[RunId, int] = {}
    session = Session(SessionKey(Owner(""), SessionId("")))
    for _, seq, owner, at, version, data, blob in events:
        fact = codec.decode(data if blob is None else blobs.get(blob), version)
        session = evolve(session, fact, at)
        if type(fact) in projections.CHANGING:
            shown.add(fact, at)
        if isinstance(fact, SessionOpened):
            opened.append((fact, owner))
        elif isinstance(fact, InputAdmitted) and fact.idempotency is not None:
            named.append(key_row(fact.idempotency, owner, fact.run_id, at))
        elif isinstance(fact, ApprovalRequested):
            asked.append(approvals.row(Record(stream, seq, at, fact), owner))
        latest = max(latest, at)
        if type(fact) in outbox.CHANGING:
            changes = list(outbox.changes(Record(stream, seq, at, fact), owner))
            chatted += [(latest, changes)] if changes else []
        if (run_id := run_of(fact)) is None:
            continue
        first.setdefault(run_id, seq)
        if (run := session.runs.get(run_id)) is not None:
            runs[run_id] = run_row(run, owner, stream, first[run_id], None)
        elif (run := session.ended) is not None and run.id == run_id:
            runs[run_id] = run_row(run, owner, stream, first[run_id], seq)
    sessions = [shown.row(fact, whose, stream) for fact, whose in opened]
    known = session.approvals
    waiting = [row for row in asked if row[0] in known and not known[row[0]].status.final]
    return sessions, list(runs.values()), waiting, named, chatted


def _insert(connection: sqlite3.Connection, table: str, rows: list[Row]) -> None:
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)
