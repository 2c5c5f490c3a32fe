"""Read the SQLite file: short read-only queries, a few at a time, in worker threads.

The connections are opened once, so that a process without free file descriptors can still read.
"""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec

from holdfast.core.approval.approval import ApprovalRequested
from holdfast.core.chat.delivery import Delivery, DeliveryQueued
from holdfast.core.chat.delivery import DeliveryStatus as Sending
from holdfast.core.events import Delta, MessageDelta, ReasoningDelta, Record, ToolProgress
from holdfast.core.run.run import RunPhase
from holdfast.core.types import (
    DeliveryId,
    Fact,
    Owner,
    RequestId,
    RunId,
    SessionId,
    SessionKey,
    kind,
)
from holdfast.gateway import AskedPlace
from holdfast.journal import codec
from holdfast.journal.batch import delta
from holdfast.journal.blobs import Blobs
from holdfast.journal.journal import (
    LAST,
    Asked,
    Outbound,
    Replayed,
    RunFilter,
    RunRow,
    SessionRow,
    StreamRow,
)

READERS = 4

T = TypeVar("T")
Parameters = Sequence[object] | dict[str, object]

_DELTA_TYPES: dict[str, type[Delta]] = {
    kind(t): t for t in (MessageDelta, ReasoningDelta, ToolProgress)
}

_HEAD = """
SELECT s.stream,
       max(s.floor,
           coalesce((SELECT max(seq) FROM events WHERE stream = s.stream), 0),
           coalesce((SELECT max(seq) FROM deltas WHERE stream = s.stream), 0)),
       max(coalesce((SELECT at FROM events WHERE stream = s.stream ORDER BY seq DESC LIMIT 1), 0),
           coalesce((SELECT at FROM deltas WHERE stream = s.stream ORDER BY seq DESC LIMIT 1), 0))
FROM sessions s WHERE s.owner = ? AND s.session_id = ?
"""
_RUNS = """
SELECT r.run_id, r.owner, s.session_id, r.stream, r.first_seq, r.ended_seq, r.status,
       r.created_at, r.updated_at, r.model, r.last_event, r.stopping
FROM runs r JOIN sessions s USING (stream)
"""
_SESSIONS = """
SELECT s.owner, s.session_id, s.stream, s.workspace, s.platform, s.status, s.title, s.preview,
       s.model, s.created_at, s.updated_at, s.changed_at,
       (SELECT count(*) FROM runs r WHERE r.stream = s.stream AND r.ended_seq IS NULL)
FROM sessions s
"""
_LISTED = "WHERE s.listed = 1"
_LISTED_OF_OWNER = f"{_LISTED} AND s.owner = :owner"
_AFTER = """
AND (s.updated_at, s.stream) < (
    SELECT updated_at, stream FROM sessions WHERE owner = :after_owner AND session_id = :after
)
"""
_RECORDS = """
SELECT seq, at, kind, version, data, blob, run_id, NULL FROM events
WHERE stream = :stream AND seq > :after {of_run}
UNION ALL
SELECT seq, at, kind, turn, text, NULL, run_id, call_id FROM deltas
WHERE stream = :stream AND seq > :after {of_run}
ORDER BY seq LIMIT :limit
"""
_FACTS = """
SELECT seq, at, kind, version, data, blob, run_id, NULL FROM events
WHERE stream = ? AND seq > ? AND seq <= ?
AND (kind IN ({kinds}) OR run_id IN (SELECT value FROM json_each(?)))
ORDER BY seq
"""
_WITH_CHILDREN = """
SELECT s.owner, s.session_id FROM sessions s JOIN (
    SELECT stream FROM events WHERE kind IN ('child.begun', 'child.ended')
    GROUP BY stream HAVING sum(kind = 'child.begun') > sum(kind = 'child.ended')
) USING (stream)
"""
_WITH_REWINDS = """
SELECT s.owner, s.session_id FROM sessions s JOIN (
    SELECT stream FROM events WHERE kind IN ('session.rewinding', 'session.rewound')
    GROUP BY stream HAVING
        max(iif(kind = 'session.rewinding', seq, 0)) > max(iif(kind = 'session.rewound', seq, 0))
) USING (stream)
"""
_REPLAY = """
SELECT k.run_id, s.session_id, k.fingerprint
FROM request_keys k JOIN runs r USING (run_id) JOIN sessions s USING (stream)
WHERE k.owner = ? AND k.route = ? AND k.key = ?
"""
_OUTBOX = """
SELECT o.delivery_id, o.queued_at, o.status, o.attempts, o.repeated, o.doubts, o.due_at,
       o.external_id, o.reason, o.updated_at, s.owner, s.session_id, e.version, e.data, e.blob
FROM outbox o JOIN sessions s USING (stream) JOIN events e USING (stream, seq)
"""
_APPROVALS = """
SELECT s.owner, s.session_id, e.version, e.data, e.blob
FROM approvals a JOIN sessions s USING (stream) JOIN events e USING (stream, seq)
"""
_UNDELIVERED = tuple(status for status in Sending if not status.final)


class SqliteReader:
    """The reading half of the store."""

    def __init__(self, path: Path, blobs: Blobs) -> None:
        self._blobs = blobs
        self._idle = [_connect(path) for _ in range(READERS)]
        self._limit = anyio.CapacityLimiter(READERS)

    async def head(self, key: SessionKey) -> StreamRow | None:
        """Return the session's stream as it is on disk, if it exists."""
        row = await self._one(_HEAD, (key.owner, key.session_id))
        if row is None:
            return None
        stream, head, last_at = row
        return StreamRow(key, stream, head, codec.time_of(last_at))

    async def facts(
        self,
        stream: int,
        kinds: Sequence[type[Fact]],
        runs: Sequence[RunId],
        after: int = 0,
        upto: int = LAST,
    ) -> list[Record]:
        """Return all facts of these kinds or of these runs, in order, without deltas."""
        names = [kind(k) for k in kinds]
        wanted = msgspec.json.encode(runs).decode()  # one variable: SQLite limits their number
        sql = _FACTS.format(kinds=_marks(names))
        return await self._records(stream, sql, (stream, after, upto, *names, wanted))

    async def checkpoint(self, stream: int) -> tuple[int, bytes] | None:
        """Return the last checkpoint that was kept, and its number."""
        row = await self._one("SELECT seq, data FROM checkpoints WHERE stream = ?", (stream,))
        return None if row is None else (row[0], row[1])

    async def open_runs(self, stream: int) -> list[RunId]:
        """Return the stream's unfinished runs."""
        sql = "SELECT run_id FROM runs WHERE stream = ? AND ended_seq IS NULL"
        return [RunId(row[0]) for row in await self._all(sql, (stream,))]

    async def records(
        self, stream: int, run_id: RunId | None, after: int, limit: int
    ) -> list[Record]:
        """Return up to `limit` records of one run, or of all, numbered higher than `after`."""
        parameters: dict[str, object] = {
            "stream": stream,
            "run": run_id,
            "after": after,
            "limit": limit,
        }
        of_run = "" if run_id is None else "AND run_id = :run"
        return await self._records(stream, _RECORDS.format(of_run=of_run), parameters)

    async def has_deltas(self, stream: int, run_id: RunId, turn: int) -> bool:
        """Tell if text of this turn was streamed to readers."""
        sql = "SELECT 1 FROM deltas WHERE stream = ? AND run_id = ? AND turn = ? LIMIT 1"
        return await self._one(sql, (stream, run_id, turn)) is not None

    async def run(self, run_id: RunId) -> RunRow | None:
        """Return the projection of one run."""
        row = await self._one(f"{_RUNS} WHERE r.run_id = ?", (run_id,))
        return None if row is None else _run_row(row)

    async def runs(self, query: RunFilter) -> list[RunRow]:
        """Return runs of one owner or of all, newest first."""
        where, parameters = ["1"], list[object]()
        if query.owner is not None:
            where.append("r.owner = ?")
            parameters.append(query.owner)
        if query.session_id is not None:
            where.append("s.session_id = ?")
            parameters.append(query.session_id)
        if query.status:
            where.append(f"r.status IN ({_marks(tuple(query.status))})")
            parameters.extend(sorted(query.status))
        if query.after is not None:
            where.append("r.run_id < ?")
            parameters.append(query.after)
        order = f"ORDER BY r.run_id DESC LIMIT {query.limit:d}"
        rows = await self._all(f"{_RUNS} WHERE {' AND '.join(where)} {order}", parameters)
        return [_run_row(row) for row in rows]

    async def session(self, key: SessionKey) -> SessionRow | None:
        """Return one session as a list shows it, even if lists leave it out."""
        found = await self._sessions("WHERE s.owner = ? AND s.session_id = ?", key)
        return found[0] if found else None

    async def sessions(
        self, owner: Owner | None, limit: int, after: SessionKey | None
    ) -> list[SessionRow]:
        """Return sessions of one owner or of all, after the named one, last updated first."""
        where = _LISTED if owner is None else _LISTED_OF_OWNER
        parameters: dict[str, object] = {"owner": owner, "limit": limit}
        if after is not None:
            where += _AFTER
            parameters |= {"after_owner": after.owner, "after": after.session_id}
        order = "ORDER BY s.updated_at DESC, s.stream DESC LIMIT :limit"
        return await self._sessions(f"{where} {order}", parameters)

    async def changed_sessions(self, owner: Owner, since: float) -> list[SessionRow]:
        """Return the same sessions with `changed_at` not before `since`, last changed first."""
        order = "ORDER BY s.changed_at DESC, s.stream DESC"
        where = f"{_LISTED_OF_OWNER} AND s.changed_at >= :since {order}"
        return await self._sessions(where, {"owner": owner, "since": since})

    async def _sessions(self, where: str, parameters: Parameters) -> list[SessionRow]:
        rows = await self._all(_SESSIONS + where, parameters)
        return [SessionRow(SessionKey(Owner(row[0]), SessionId(row[1])), *row[2:]) for row in rows]

    async def unfinished(self) -> list[RunRow]:
        """Return all unfinished runs, oldest first. Recovery reads these."""
        rows = await self._all(f"{_RUNS} WHERE r.ended_seq IS NULL ORDER BY r.run_id", ())
        return [_run_row(row) for row in rows]

    async def approvals(
        self, owner: Owner | None, limit: int, after: AskedPlace | None
    ) -> list[Asked]:
        """Return pending requests of one owner or of all, the first to expire first."""
        where = "WHERE (a.expires_at, a.request_id) > (:expires_at, :request_id)"
        where += "" if owner is None else " AND a.owner = :owner"
        expires_at, name = after or (float("-inf"), "")
        place: Parameters = {"owner": owner, "expires_at": expires_at, "request_id": name}
        order = f" ORDER BY a.expires_at, a.request_id LIMIT {limit:d}"
        return await self._asked(where + order, place)

    async def approval(self, request_id: RequestId) -> Asked | None:
        """Return one request, if it is pending."""
        found = await self._asked("WHERE a.request_id = ?", (request_id,))
        return found[0] if found else None

    async def with_children(self) -> list[SessionKey]:
        """Return the sessions with open child runs."""
        rows = await self._all(_WITH_CHILDREN, ())
        return [SessionKey(Owner(owner), SessionId(session_id)) for owner, session_id in rows]

    async def with_rewinds(self) -> list[SessionKey]:
        """Return the sessions with a rewind that was planned and not finished."""
        rows = await self._all(_WITH_REWINDS, ())
        return [SessionKey(Owner(owner), SessionId(session_id)) for owner, session_id in rows]

    async def replay(self, owner: Owner, route: str, key: str) -> Replayed | None:
        """Return the request accepted earlier with this route and key, within its retention."""
        row = await self._one(_REPLAY, (owner, route, key))
        return None if row is None else Replayed(*row)

    async def cursor(self, channel: str) -> str:
        """Return the channel's position after its last recorded update; empty if there is none."""
        row = await self._one("SELECT cursor FROM cursors WHERE channel = ?", (channel,))
        return "" if row is None else str(row[0])

    async def message_digest(self, place: str, message_id: str) -> str:
        """Return the digest of the text last recorded for that message; empty: none or expired."""
        sql = "SELECT digest FROM said WHERE place = ? AND message_id = ?"
        row = await self._one(sql, (place, message_id))
        return row[0] if row else ""

    async def seen(self, channel: str, external_id: str) -> bool:
        """Tell if this update of the channel was recorded before, within its retention."""
        sql = "SELECT 1 FROM taken WHERE channel = ? AND external_id = ?"
        return await self._one(sql, (channel, external_id)) is not None

    async def undelivered(self) -> list[Outbound]:
        """Return all messages that are neither sent nor given up, in the order of queueing."""
        where = f"WHERE o.status IN ({_marks(_UNDELIVERED)}) ORDER BY o.number"
        return await self._outbox(where, _UNDELIVERED)

    async def deliveries(self, status: frozenset[Sending], limit: int) -> list[Outbound]:
        """Return the messages in one of these states, newest first."""
        wanted = sorted(status)
        some = f"SELECT number FROM outbox WHERE status IN ({_marks(wanted)})"
        some += f" ORDER BY number DESC LIMIT {limit:d}"  # before the messages themselves are read
        where = f"WHERE o.number IN ({some}) ORDER BY o.number DESC"
        return await self._outbox(where, wanted)

    async def delivery(self, delivery_id: DeliveryId) -> Outbound | None:
        """Return one message, within its retention."""
        found = await self._outbox("WHERE o.delivery_id = ?", (delivery_id,))
        return found[0] if found else None

    def close_readers(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()

    async def _all(self, sql: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        return await self._read(lambda c: c.execute(sql, parameters).fetchall())

    async def _one(self, sql: str, parameters: Parameters) -> tuple[Any, ...] | None:
        rows = await self._all(sql, parameters)
        return rows[0] if rows else None

    async def _records(self, stream: int, sql: str, parameters: Parameters) -> list[Record]:
        def read(connection: sqlite3.Connection) -> list[Record]:
            rows = connection.execute(sql, parameters).fetchall()
            return [self._record(stream, row) for row in rows]

        return await self._read(read)

    async def _outbox(self, where: str, parameters: Parameters) -> list[Outbound]:
        def read(connection: sqlite3.Connection) -> list[Outbound]:
            return [self._outbound(row) for row in connection.execute(_OUTBOX + where, parameters)]

        return await self._read(read)

    async def _asked(self, where: str, parameters: Parameters) -> list[Asked]:
        def read(connection: sqlite3.Connection) -> list[Asked]:
            rows = connection.execute(_APPROVALS + where, parameters)
            return [self._request(*row) for row in rows]

        return await self._read(read)

    def _request(
        self, owner: str, session_id: str, version: int, data: bytes, blob: str | None
    ) -> Asked:
        fact = codec.decode(data if blob is None else self._blobs.get(blob), version)
        assert isinstance(fact, ApprovalRequested)
        return Asked(SessionKey(Owner(owner), SessionId(session_id)), fact)

    def _outbound(self, row: tuple[Any, ...]) -> Outbound:
        id_, queued, status, attempts, repeated, doubts, due, external, reason, updated = row[:10]
        owner, session_id, version, data, blob = row[10:]
        fact = codec.decode(data if blob is None else self._blobs.get(blob), version)
        assert isinstance(fact, DeliveryQueued)
        state = Sending(status)
        now = Delivery(id_, queued, state, attempts, bool(repeated), doubts, due, external, reason)
        return Outbound(fact, now, SessionKey(owner, session_id), updated)

    def _record(self, stream: int, row: tuple[Any, ...]) -> Record:
        seq, at, name, version, data, blob, run_id, call_id = row
        if (which := _DELTA_TYPES.get(name)) is not None:
            return Record(
                stream, seq, codec.time_of(at), delta(which, run_id, version, call_id, data)
            )
        if blob is not None:
            data = self._blobs.get(blob)
        return Record(stream, seq, codec.time_of(at), codec.decode(data, version))

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        def work() -> T:
            connection = self._idle.pop()
            try:
                return query(connection)
            finally:
                self._idle.append(connection)

        return await anyio.to_thread.run_sync(work, limiter=self._limit)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA query_only = 1")
    connection.execute("SELECT 1 FROM sessions LIMIT 1").fetchall()  # opens all file descriptors
    return connection


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _run_row(row: tuple[Any, ...]) -> RunRow:
    run_id, owner, session_id, stream, first, ended, status, created, updated, model, last, stop = (
        row
    )
    key = SessionKey(Owner(owner), SessionId(session_id))
    state = RunPhase(status)
    return RunRow(
        run_id, key, stream, first, ended, state, created, updated, model, last, bool(stop)
    )
