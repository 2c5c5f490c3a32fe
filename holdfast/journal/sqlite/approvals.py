"""The table of pending approval requests, so that listing them needs no loading of sessions.

Each row is a request that is committed and not answered. Its row is deleted by an answer, by the
start or the end of its call, and by the end of its run.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.core.approval import approval
from holdfast.core.approval.approval import ApprovalRequested
from holdfast.core.events import TERMINAL, Record
from holdfast.core.run.call import CallSettled, CallStarted
from holdfast.core.types import Fact, Owner, RunId, kind
from holdfast.journal import codec
from holdfast.journal.blobs import Blobs

Change = tuple[str, tuple[Any, ...]]
Row = tuple[Any, ...]

_ANSWERS = approval.Event.__args__
_CALLS = (CallStarted, CallSettled)

# The only facts that change the table, and only the rows of their own run.
CHANGING: frozenset[type[Fact]] = frozenset({ApprovalRequested, *_ANSWERS, *_CALLS, *TERMINAL})

_ASK = "INSERT OR REPLACE INTO approvals VALUES (?, ?, ?, ?, ?, ?, ?)"
_ANSWERED = "DELETE FROM approvals WHERE request_id = ?"
_USED_UP = "DELETE FROM approvals WHERE run_id = ? AND call_id = ?"
_OVER = "DELETE FROM approvals WHERE run_id = ?"
_OF_UNFINISHED = """
SELECT e.stream, e.seq, e.at, e.owner, e.version, e.data, e.blob
FROM runs r JOIN events e ON e.stream = r.stream AND e.seq >= r.first_seq AND e.run_id = r.run_id
WHERE r.ended_seq IS NULL AND e.kind IN ({kinds})
ORDER BY e.stream, e.seq
"""


def row(record: Record, owner: Owner) -> Row:
    """Return the row of a request."""
    asked = record.fact
    assert isinstance(asked, ApprovalRequested)
    named = (asked.request_id, asked.run_id, asked.call_id)
    return (*named, owner, record.stream, record.seq, asked.expires_at)


def changes(record: Record, owner: Owner) -> Iterator[Change]:
    """Yield the changes that a record makes to the table."""
    fact = record.fact
    if isinstance(fact, ApprovalRequested):
        yield _ASK, row(record, owner)
    elif isinstance(fact, _ANSWERS):
        yield _ANSWERED, (fact.request_id,)
    elif isinstance(fact, _CALLS):
        yield _USED_UP, (fact.run_id, fact.call_id)
    elif isinstance(fact, TERMINAL):
        yield _OVER, (fact.run_id,)


def apply(connection: sqlite3.Connection, some: Iterable[Change]) -> None:
    """Change the table, within the transaction of the facts."""
    for sql, values in some:
        connection.execute(sql, values)


def asking(connection: sqlite3.Connection) -> set[RunId]:
    """Return the runs that have a request in the table."""
    return {run_id for (run_id,) in connection.execute("SELECT DISTINCT run_id FROM approvals")}


def fill(connection: sqlite3.Connection, blobs: Blobs) -> None:
    """Fill the new table from the events of unfinished runs, within the caller's transaction."""
    names = [kind(fact) for fact in CHANGING]
    sql = _OF_UNFINISHED.format(kinds=", ".join("?" * len(names)))
    for stream, seq, at, owner, version, data, blob in connection.execute(sql, names).fetchall():
        try:
            fact = codec.decode(data if blob is None else blobs.get(blob), version)
        except (msgspec.DecodeError, KeyError, OSError):
            continue  # damaged data must not keep the journal from being opened
        apply(connection, changes(Record(stream, seq, at, fact), owner))
