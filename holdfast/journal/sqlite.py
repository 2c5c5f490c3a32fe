"""The embedded store: SQLite in WAL mode, one writer thread, group commit.

The loop numbers and enqueues; the thread commits. While a batch is being committed
the next one gathers, so batches grow with the load and nobody waits on purpose. A
batch closes when the one before is committed *and* published. `synchronous` is FULL
for a batch that holds something one acts upon, NORMAL for any other: a FULL commit
flushes the whole WAL, and so everything before it.

This thread's connection is the only one that writes or checkpoints (SQLite before
3.51.3 can lose data otherwise); readers are short, read-only, and few.

A disk that is full fails the batch, and with it all that was enqueued behind it. A
ballast file is given up first, so that what was accepted can still be finished. An
error of the disk itself is not survivable here: nothing more is accepted, and the
process should end and recover.
"""

import os
import queue
import sqlite3
import threading
import time
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from holdfast.core.events import ACTED_UPON, TERMINAL, Delta, MessageDelta, ReasoningDelta, Record
from holdfast.core.inbox import InputAdmitted
from holdfast.core.run import Run, Status
from holdfast.core.session import SessionOpened
from holdfast.core.types import Fact, Owner, RunId, SessionId, SessionKey, kind
from holdfast.errors import JournalUnavailable
from holdfast.journal import codec
from holdfast.journal.blobs import Blobs
from holdfast.journal.journal import (
    Conflict,
    Replayed,
    RunFilter,
    RunRow,
    StreamRow,
)
from holdfast.journal.migrate import migrate

T = TypeVar("T")
_Parameters = Sequence[object] | dict[str, object]
_NO_RUN = RunId("")  # facts carry their own run; only deltas are given one

BLOB_FROM = 64 * 1024  # a fact bigger than this is a file
READERS = 4
SKIP_AFTER_POWER_CUT = 10_000
SPACE_CHECK_S = 0.5
PRUNE_RUNS = 200  # per transaction, so that pruning never holds up a commit for long

_DELTA_TYPES: dict[str, type[Delta]] = {kind(t): t for t in (MessageDelta, ReasoningDelta)}

_INSERT_SESSION = "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, 0)"
_INSERT_EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_DELTA = "INSERT INTO deltas VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_KEY = "INSERT OR REPLACE INTO request_keys VALUES (?, ?, ?, ?, ?, ?)"
_UPSERT_RUN = """
INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)
ON CONFLICT (run_id) DO UPDATE SET
    ended_seq = excluded.ended_seq, status = excluded.status, stopping = excluded.stopping,
    updated_at = excluded.updated_at, model = excluded.model, last_event = excluded.last_event
"""
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
_RECORDS = """
SELECT seq, at, kind, version, data, blob FROM events
WHERE stream = :stream AND seq > :after AND run_id = :run
UNION ALL
SELECT seq, at, kind, turn, text, NULL FROM deltas
WHERE stream = :stream AND seq > :after AND run_id = :run
ORDER BY seq LIMIT :limit
"""


class _Growing:
    """A delta that may still grow: its batch has not closed."""

    __slots__ = ("at", "kind", "parts", "run_id", "seq", "stream", "turn")

    def __init__(self, stream: int, seq: int, at: float, delta: Delta) -> None:
        self.stream = stream
        self.seq = seq
        self.at = at
        self.kind = type(delta)
        self.run_id = delta.run_id
        self.turn = delta.turn
        self.parts = [delta.text]

    def takes(self, delta: Delta) -> bool:
        return self.turn == delta.turn and self.kind is type(delta) and self.run_id == delta.run_id

    def closed(self) -> Record:
        fact = self.kind(run_id=self.run_id, turn=self.turn, text="".join(self.parts))
        return Record(self.stream, self.seq, self.at, fact)


class _Batch:
    """What is committed together."""

    __slots__ = ("done", "entries", "error", "full", "keys", "records", "runs", "tails")

    def __init__(self) -> None:
        self.entries: list[Record | _Growing] = []
        self.tails: dict[int, _Growing] = {}
        self.runs: dict[RunId, tuple[object, ...]] = {}
        self.keys: dict[int, SessionKey] = {}
        self.records: list[Record] = []
        self.full = False
        self.error: JournalUnavailable | None = None
        self.done = anyio.Event()

    def close(self) -> None:
        self.records = [e if type(e) is Record else e.closed() for e in self.entries]  # type: ignore[union-attr]

    async def wait(self) -> None:
        await self.done.wait()
        if self.error is not None:
            raise self.error


class _Pending:
    """One append on its way."""

    __slots__ = ("_batch", "seq")

    def __init__(self, batch: _Batch, seq: int) -> None:
        self._batch = batch
        self.seq = seq

    async def wait(self) -> None:
        await self._batch.wait()


class SqliteJournal:
    """The `Journal` on one SQLite file. Made by `open`; belongs to the loop that opened it."""

    def __init__(
        self,
        path: Path,
        blobs: Blobs,
        writer: sqlite3.Connection,
        loop: AbstractEventLoop,
        low_water: int,
        ballast: int,
    ) -> None:
        self._path = path
        self._blobs = blobs
        self._loop = loop
        self._low_water = low_water
        self._ballast = _Ballast(path.with_name("ballast"), ballast)
        self._heads: dict[int, int] = {}
        self._keys: dict[int, SessionKey] = {}
        self._next_stream = 1 + (
            writer.execute("SELECT max(stream) FROM sessions").fetchone()[0] or 0
        )
        self._batch = _Batch()
        self._inflight: _Batch | None = None
        self._kicked = False
        self._closing = False
        self._broken = ""
        self._broke = anyio.Event()
        self._space = "ok"
        self._space_checked = 0.0
        self._committed: list[Callable[[Sequence[Record]], None]] = []
        self._failed: list[Callable[[], None]] = []
        self._work: queue.SimpleQueue[_Batch | Callable[[sqlite3.Connection], None] | None] = (
            queue.SimpleQueue()
        )
        self._idle_readers = [_connect_reader(path) for _ in range(READERS)]
        self._reading = anyio.CapacityLimiter(READERS)
        self._thread = threading.Thread(target=self._write, args=(writer,), name="journal")
        self._thread.daemon = True  # a stuck disk must not hold the exit
        self._thread.start()

    @classmethod
    async def open(
        cls,
        path: Path,
        blobs: Blobs,
        *,
        boot_id: str = "",
        low_water: int = 0,
        ballast: int = 0,
    ) -> "SqliteJournal":
        """Open or create the journal at `path`; only the owner of the home may."""
        writer = await anyio.to_thread.run_sync(_connect_writer, path, boot_id)
        return cls(path, blobs, writer, get_running_loop(), low_water, ballast)

    # --- appending: on the loop, without waiting -------------------------------------------

    def open_stream(self, key: SessionKey) -> StreamRow:
        """Give a session that does not exist yet its stream. Durable with its first append."""
        stream = self._next_stream
        self._next_stream += 1
        self._heads[stream] = 0
        self._keys[stream] = key
        return StreamRow(key, stream, 0, 0.0)

    def append(
        self, stream: int, expected_seq: int, at: float, facts: Sequence[Fact], runs: Sequence[Run]
    ) -> _Pending:
        """Number and enqueue facts that belong together, with the runs they led to."""
        seq = self._head(stream)
        if seq != expected_seq:
            raise Conflict(f"stream {stream} is at {seq}, not at {expected_seq}")
        batch = self._batch
        batch.tails.pop(stream, None)
        first, ended = seq + 1, None
        for fact in facts:
            seq += 1
            batch.entries.append(Record(stream, seq, at, fact))
            if type(fact) in ACTED_UPON:
                batch.full = True
                if type(fact) in TERMINAL:
                    ended = seq
        self._heads[stream] = seq
        key = batch.keys[stream] = self._keys[stream]
        for run in runs:
            batch.runs[run.id] = (
                run.id, key.owner, stream, first, ended if run.status.final else None, run.status,
                bool(run.stop_reason), run.created_at, run.updated_at, run.model, run.last_event,
            )  # fmt: skip
        self._kick()
        return _Pending(batch, seq)

    def delta(self, stream: int, at: float, delta: Delta) -> int:
        """Enqueue streamed text, merged with its neighbour if that still waits; the new head."""
        batch = self._batch
        tail = batch.tails.get(stream)
        if tail is not None and tail.takes(delta):
            tail.parts.append(delta.text)
            return tail.seq
        seq = self._head(stream) + 1
        self._heads[stream] = seq
        batch.keys[stream] = self._keys[stream]
        tail = batch.tails[stream] = _Growing(stream, seq, at, delta)
        batch.entries.append(tail)
        self._kick()
        return seq

    def forget(self, stream: int) -> None:
        """Nobody holds this stream's fold any more; its head may leave memory."""
        self._heads.pop(stream, None)
        self._keys.pop(stream, None)

    def on_commit(self, listener: Callable[[Sequence[Record]], None]) -> None:
        """Call `listener` on the loop with every committed batch, in order."""
        self._committed.append(listener)

    def on_failure(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the loop when a commit failed: every fold in memory is void."""
        self._failed.append(listener)

    def state(self) -> str:
        """`ok`, or why facts cannot be taken."""
        if self._broken:
            return self._broken
        now = time.monotonic()
        if now - self._space_checked >= SPACE_CHECK_S:
            self._space_checked = now
            free = disk_free(self._path.parent)
            if free < self._low_water:
                mb = 1024 * 1024
                self._space = (
                    f"the disk is nearly full: {free // mb} MB free below {self._path.parent}, "
                    f"{self._low_water // mb} MB needed"
                )
            else:
                self._space = "ok"
        return self._space

    def _head(self, stream: int) -> int:
        if self._broken or self._closing:
            raise JournalUnavailable(self._broken or "the journal is closing")
        try:
            return self._heads[stream]
        except KeyError:
            raise Conflict(f"stream {stream} is not open; load it again") from None

    def _kick(self) -> None:
        if self._inflight is None and not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._close_batch)

    def _close_batch(self) -> None:
        self._kicked = False
        if self._inflight is not None or not self._batch.entries:
            return
        batch, self._batch = self._batch, _Batch()
        batch.close()
        self._inflight = batch
        self._work.put(batch)

    def _published(self, batch: _Batch) -> None:
        """On the loop, after the thread is done with `batch`."""
        self._inflight = None
        if batch.error is not None:
            self._fail(batch, batch.error)
            return
        for listener in self._committed:
            listener(batch.records)
        batch.done.set()
        self._close_batch()

    def _fail(self, batch: _Batch, error: JournalUnavailable) -> None:
        behind, self._batch = self._batch, _Batch()
        self._heads.clear()
        self._keys.clear()
        if self._broken:
            self._broke.set()
        for listener in self._failed:
            listener()
        for lost in (batch, behind):
            lost.error = error
            lost.done.set()

    # --- the writer thread -----------------------------------------------------------------

    def _write(self, connection: sqlite3.Connection) -> None:
        self._ballast.fill()
        while (work := self._work.get()) is not None:
            if isinstance(work, _Batch):
                self._commit(connection, work)
                try:
                    self._loop.call_soon_threadsafe(self._published, work)
                except RuntimeError:  # the loop is gone: so is everybody who could be told
                    break
            else:
                work(connection)
        connection.close()

    def _commit(self, connection: sqlite3.Connection, batch: _Batch) -> None:
        try:
            try:
                self._transact(connection, batch)
            except (sqlite3.OperationalError, OSError) as error:
                if not _is_full(error) or not self._ballast.release():
                    raise
                self._transact(connection, batch)
        except (sqlite3.Error, OSError) as error:
            reason = f"the journal cannot be written: {error}"
            if isinstance(error, sqlite3.Error) and not _is_full(error):
                self._broken = reason
            batch.error = JournalUnavailable(reason, retry_after_s=5)

    def _transact(self, connection: sqlite3.Connection, batch: _Batch) -> None:
        connection.execute(
            "PRAGMA synchronous = FULL" if batch.full else "PRAGMA synchronous = NORMAL"
        )
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._insert(connection, batch)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _insert(self, connection: sqlite3.Connection, batch: _Batch) -> None:
        events: list[tuple[object, ...]] = []
        deltas: list[tuple[object, ...]] = []
        for stream, seq, at, fact in batch.records:
            key = batch.keys[stream]
            run_id: RunId | None = getattr(fact, "run_id", None)
            if type(fact) is MessageDelta or type(fact) is ReasoningDelta:
                deltas.append(
                    (stream, seq, key.owner, run_id, at, kind(fact), fact.turn, fact.text)
                )
                continue
            data, blob = codec.encode(fact), None
            if len(data) > BLOB_FROM:
                data, blob = b"", self._blobs.put(data)
            events.append(
                (stream, seq, key.owner, run_id, at, kind(fact), codec.VERSION, data, blob)
            )
            if type(fact) is SessionOpened:
                row = (stream, key.owner, key.session_id, fact.workspace, fact.platform, at)
                connection.execute(_INSERT_SESSION, row)
            elif type(fact) is InputAdmitted and fact.idempotency is not None:
                request = fact.idempotency
                named = (key.owner, request.route, request.key, request.fingerprint, run_id, at)
                connection.execute(_INSERT_KEY, named)
        connection.executemany(_INSERT_EVENT, events)
        if deltas:
            connection.executemany(_INSERT_DELTA, deltas)
        if batch.runs:
            connection.executemany(_UPSERT_RUN, batch.runs.values())

    # --- reading ---------------------------------------------------------------------------

    async def stream_of(self, key: SessionKey) -> StreamRow | None:
        """The session's stream, if it exists; its head is then known to `append`."""
        row = await self._one(_HEAD, (key.owner, key.session_id))
        if row is None:
            return None
        stream: int = row[0]
        # A head in memory is newer than one that was read: something may be on its way.
        head = self._heads.setdefault(stream, row[1])
        self._keys.setdefault(stream, key)
        return StreamRow(key, stream, head, row[2])

    async def facts(
        self, stream: int, kinds: Sequence[type[Fact]], runs: Sequence[RunId]
    ) -> list[Record]:
        """All facts of these kinds or of these runs, in order. Never deltas."""
        names, ids = [kind(k) for k in kinds], list(runs)
        sql = (
            "SELECT seq, at, kind, version, data, blob FROM events WHERE stream = ? "
            f"AND (kind IN ({_marks(names)}) OR run_id IN ({_marks(ids)})) ORDER BY seq"
        )
        return await self._read_records(stream, sql, (stream, *names, *ids))

    async def open_runs(self, stream: int) -> list[RunId]:
        """The stream's runs that have not ended."""
        rows = await self._all(
            "SELECT run_id FROM runs WHERE stream = ? AND ended_seq IS NULL", (stream,)
        )
        return [RunId(row[0]) for row in rows]

    async def records(self, stream: int, run_id: RunId, after: int, limit: int) -> list[Record]:
        """Up to `limit` records of one run, deltas included, numbered higher than `after`."""
        parameters = {"stream": stream, "run": run_id, "after": after, "limit": limit}
        return await self._read_records(stream, _RECORDS, parameters, run_id)

    async def has_deltas(self, stream: int, run_id: RunId, turn: int) -> bool:
        """Whether text of this turn has been streamed to readers."""
        sql = "SELECT 1 FROM deltas WHERE stream = ? AND run_id = ? AND turn = ? LIMIT 1"
        return await self._one(sql, (stream, run_id, turn)) is not None

    async def run(self, run_id: RunId) -> RunRow | None:
        """One run's projection."""
        row = await self._one(f"{_RUNS} WHERE r.run_id = ?", (run_id,))
        return None if row is None else _run_row(row)

    async def runs(self, query: RunFilter) -> list[RunRow]:
        """Runs of one owner, newest first."""
        where, parameters = ["r.owner = ?"], list[object]([query.owner])
        if query.session_id is not None:
            where.append("s.session_id = ?")
            parameters.append(query.session_id)
        if query.status:
            where.append(f"r.status IN ({', '.join('?' * len(query.status))})")
            parameters.extend(sorted(query.status))
        if query.after is not None:
            where.append(
                "(r.created_at, r.run_id) < (SELECT created_at, run_id FROM runs WHERE run_id = ?)"
            )
            parameters.append(query.after)
        sql = (
            f"{_RUNS} WHERE {' AND '.join(where)} "
            f"ORDER BY r.created_at DESC, r.run_id DESC LIMIT {query.limit:d}"
        )
        return [_run_row(r) for r in await self._all(sql, parameters)]

    async def unfinished(self) -> list[RunRow]:
        """Every run that has not ended, oldest first. This is what recovery reads."""
        rows = await self._all(f"{_RUNS} WHERE r.ended_seq IS NULL ORDER BY r.created_at", ())
        return [_run_row(r) for r in rows]

    async def replay(self, owner: Owner, route: str, key: str) -> Replayed | None:
        """The request accepted before under this route and key, within its retention."""
        row = await self._one(
            "SELECT k.run_id, s.session_id, k.fingerprint FROM request_keys k "
            "JOIN runs r USING (run_id) JOIN sessions s USING (stream) "
            "WHERE k.owner = ? AND k.route = ? AND k.key = ?",
            (owner, route, key),
        )
        return None if row is None else Replayed(*row)

    async def prune(self, deltas_before: float, keys_before: float) -> int:
        """Forget deltas of runs that ended, and request keys, older than this."""
        pruned = 0
        while True:
            done = anyio.Event()
            result: list[int] = []

            def job(
                connection: sqlite3.Connection,
                done: anyio.Event = done,
                result: list[int] = result,
            ) -> None:
                result.append(_prune(connection, deltas_before, keys_before))
                self._loop.call_soon_threadsafe(done.set)

            self._work.put(job)
            await done.wait()
            pruned += result[0]
            if result[0] < PRUNE_RUNS:
                return pruned

    async def broken(self) -> str:
        """Return, with the reason, once the file cannot be trusted any more."""
        await self._broke.wait()
        return self._broken

    async def aclose(self) -> None:
        """Commit what is enqueued, then let go of the file."""
        self._closing = True
        last = self._batch if self._batch.entries else self._inflight
        if last is not None:
            await last.done.wait()
        self._work.put(None)
        await anyio.to_thread.run_sync(self._thread.join, abandon_on_cancel=True)
        for reader in self._idle_readers:
            reader.close()
        self._idle_readers.clear()

    async def _all(self, sql: str, parameters: _Parameters) -> list[tuple[Any, ...]]:
        return await self._read(lambda c: c.execute(sql, parameters).fetchall())

    async def _one(self, sql: str, parameters: _Parameters) -> tuple[Any, ...] | None:
        rows = await self._all(sql, parameters)
        return rows[0] if rows else None

    async def _read_records(
        self, stream: int, sql: str, parameters: _Parameters, run_id: RunId = _NO_RUN
    ) -> list[Record]:
        def read(connection: sqlite3.Connection) -> list[Record]:
            rows = connection.execute(sql, parameters).fetchall()
            return [self._record(stream, run_id, row) for row in rows]

        return await self._read(read)

    def _record(self, stream: int, run_id: RunId, row: tuple[Any, ...]) -> Record:
        seq, at, name, version, data, blob = row
        if (delta := _DELTA_TYPES.get(name)) is not None:
            return Record(stream, seq, at, delta(run_id=run_id, turn=version, text=data))
        if blob is not None:
            data = self._blobs.get(blob)
        return Record(stream, seq, at, codec.decode(data, version))

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        def work() -> T:
            connection = self._idle_readers.pop()
            try:
                return query(connection)
            finally:
                self._idle_readers.append(connection)

        return await anyio.to_thread.run_sync(work, limiter=self._reading)


class _Ballast:
    """Space kept back, to be given up when the disk is full."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def fill(self) -> None:
        if self._size == 0 or disk_free(self._path.parent) < 4 * self._size:
            return
        with self._path.open("ab") as file:
            if file.tell() < self._size:
                try:
                    os.posix_fallocate(file.fileno(), 0, self._size)
                except OSError:
                    return

    def release(self) -> bool:
        """Give the space up; whether there was any."""
        try:
            held = self._path.stat().st_size > 0
            self._path.unlink()
        except FileNotFoundError:
            return False
        return held


def disk_free(directory: Path) -> int:
    """Bytes an ordinary user may still write below `directory`."""
    figures = os.statvfs(directory)
    return figures.f_bavail * figures.f_frsize


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _is_full(error: Exception) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno == 28


def _connect_writer(path: Path, boot_id: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA journal_size_limit = 16777216")
    connection.execute("PRAGMA synchronous = FULL")
    migrate(connection, "sqlite")
    _note_boot(connection, boot_id)
    return connection


def _note_boot(connection: sqlite3.Connection, boot_id: str) -> None:
    """After a power cut, numbers that readers may have seen are not used again."""
    known = connection.execute("SELECT boot_id FROM machine").fetchone()
    if known is not None and known[0] == boot_id:
        return
    connection.execute("BEGIN IMMEDIATE")
    if known is not None:
        connection.execute(
            "UPDATE sessions SET floor = ? + max(floor, "
            "coalesce((SELECT max(seq) FROM events e WHERE e.stream = sessions.stream), 0), "
            "coalesce((SELECT max(seq) FROM deltas d WHERE d.stream = sessions.stream), 0)) "
            "WHERE stream IN (SELECT stream FROM runs WHERE ended_seq IS NULL)",
            (SKIP_AFTER_POWER_CUT,),
        )
    connection.execute("DELETE FROM machine")
    connection.execute("INSERT INTO machine VALUES (?)", (boot_id,))
    connection.execute("COMMIT")


def _connect_reader(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA query_only = 1")
    return connection


def _prune(connection: sqlite3.Connection, deltas_before: float, keys_before: float) -> int:
    connection.execute("BEGIN IMMEDIATE")
    ended = connection.execute(
        "SELECT run_id, stream, first_seq, ended_seq FROM runs "
        "WHERE ended_seq IS NOT NULL AND pruned = 0 AND updated_at < ? LIMIT ?",
        (deltas_before, PRUNE_RUNS),
    ).fetchall()
    connection.executemany(
        "DELETE FROM deltas WHERE run_id = ? AND stream = ? AND seq BETWEEN ? AND ?", ended
    )
    connection.executemany(
        "UPDATE runs SET pruned = 1 WHERE run_id = ?", [(row[0],) for row in ended]
    )
    connection.execute("DELETE FROM request_keys WHERE at < ?", (keys_before,))
    connection.execute("COMMIT")
    return len(ended)


def _run_row(row: tuple[Any, ...]) -> RunRow:
    run_id, owner, session_id, stream, first, ended, status, created, updated, model, last = row[
        :11
    ]
    key = SessionKey(Owner(owner), SessionId(session_id))
    state = Status(status)
    return RunRow(
        run_id, key, stream, first, ended, state, created, updated, model, last, bool(row[11])
    )
