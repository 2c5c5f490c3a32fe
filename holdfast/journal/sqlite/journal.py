"""The embedded store: SQLite in WAL mode, one writer thread, group commit.

The loop numbers and enqueues; the thread commits. While a batch is being committed
the next one gathers, so batches grow with the load and nobody waits on purpose. A
batch closes when the one before is committed *and* published.

A commit that fails takes with it all that was enqueued behind it: those records were
numbered and decided on top of it. Everybody starts again from what is on disk.
"""

import logging
import sqlite3
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

import anyio
import anyio.to_thread

from holdfast.core.events import ACTED_UPON, TERMINAL, Delta, Record
from holdfast.core.run import Run
from holdfast.core.types import Fact, RunId, SessionKey
from holdfast.errors import JournalUnavailable
from holdfast.journal import codec
from holdfast.journal.batch import Batch, Growing
from holdfast.journal.blobs import Blobs
from holdfast.journal.journal import Conflict, StreamRow
from holdfast.journal.projections import first_of, run_row
from holdfast.journal.sqlite_reader import SqliteReader
from holdfast.journal.sqlite_writer import (
    PRUNE_RUNS,
    Ballast,
    SqliteWriter,
    connect,
    disk_free,
    prune,
)

log = logging.getLogger(__name__)

SPACE_CHECK_S = 0.5
# A batch stays open for some turns of the loop, and never longer than this. An idle loop
# turns in microseconds; a busy one takes longer, and the batch grows with the load.
PATIENCE_TURNS = 4
PATIENCE_S = 0.005
_MB = 1024 * 1024


class _Pending:
    """One append on its way."""

    __slots__ = ("_batch", "seq")

    def __init__(self, batch: Batch, seq: int) -> None:
        self._batch = batch
        self.seq = seq

    async def wait(self) -> None:
        await self._batch.wait()


class SqliteJournal(SqliteReader):
    """The `Journal` on one SQLite file. Made by `open`; belongs to the loop that opened it."""

    def __init__(
        self,
        path: Path,
        blobs: Blobs,
        connection: sqlite3.Connection,
        loop: AbstractEventLoop,
        low_water: int,
        ballast: Ballast,
    ) -> None:
        super().__init__(path, blobs)
        self._directory = path.parent
        self._loop = loop
        self._low_water = low_water
        self._heads: dict[int, int] = {}
        self._keys: dict[int, SessionKey] = {}
        self._leaving: dict[SessionKey, Batch] = {}  # forgotten, with what is not on disk yet
        newest = connection.execute("SELECT max(stream) FROM sessions").fetchone()[0]
        self._next_stream = 1 + (newest or 0)
        self._batch = Batch()
        self._inflight: Batch | None = None
        self._kicked = False
        self._closing = False
        self._broke = anyio.Event()
        self._space = "ok"
        self._space_checked = 0.0
        self._committed: list[Callable[[Sequence[Record]], None]] = []
        self._failed: list[Callable[[], None]] = []
        self._writer = SqliteWriter(connection, blobs, ballast, loop, self._done, self._broke.set)

    @classmethod
    async def open(
        cls,
        path: Path,
        blobs: Blobs,
        *,
        boot_id: str = "",
        low_water: int = 0,
        ballast: int = 0,
        max_pages: int = 0,
    ) -> "SqliteJournal":
        """Open or create the journal at `path`; only the owner of the home may.

        Below `low_water` free bytes no new work should be taken. `ballast` bytes are kept back
        for a full disk. A file of `max_pages` does not grow any more; 0 sets no such bound.
        """
        kept = Ballast(path.with_name("ballast"), ballast)
        connection = await anyio.to_thread.run_sync(_connect, path, boot_id, kept)
        if max_pages:
            connection.execute(f"PRAGMA max_page_count = {max_pages:d}")
        return cls(path, blobs, connection, get_running_loop(), low_water, kept)

    def open_stream(self, key: SessionKey) -> StreamRow:
        """Give a session that does not exist yet its stream. Durable with its first append."""
        stream = self._next_stream
        self._next_stream += 1
        self._heads[stream] = 0
        self._keys[stream] = key
        return StreamRow(key, stream, 0, 0.0)

    async def stream_of(self, key: SessionKey) -> StreamRow | None:
        """The session's stream, if it exists; its head is then known to `append`."""
        while (batch := self._leaving.get(key)) is not None:  # the disk does not know all yet
            await batch.settled()
        row = await self.head(key)
        if row is None:
            return None
        # A head in memory is newer than one that was read: something may be on its way.
        head = self._heads.setdefault(row.stream, row.head)
        self._keys.setdefault(row.stream, key)
        return StreamRow(key, row.stream, head, row.last_at)

    def append(
        self, stream: int, expected_seq: int, at: float, facts: Sequence[Fact], runs: Sequence[Run]
    ) -> _Pending:
        """Number and enqueue facts that belong together, with the runs they led to."""
        seq = self._head(stream)
        if seq != expected_seq:
            raise Conflict(f"stream {stream} is at {seq}, not at {expected_seq}")
        # Before anything is touched: what has no written form is the error of whoever says it.
        data = [codec.encode(fact) for fact in facts]
        batch = self._batch
        batch.tails.pop(stream, None)
        batch.data += data
        first, ended = seq + 1, dict[RunId, int]()
        for fact in facts:
            seq += 1
            batch.entries.append(Record(stream, seq, at, fact))
            if type(fact) in ACTED_UPON:
                batch.full = True
                if isinstance(fact, TERMINAL):
                    ended[fact.run_id] = seq
        self._heads[stream] = seq
        key = batch.keys[stream] = self._keys[stream]
        for run in runs:
            known = batch.runs.get(run.id)
            begun = first_of(run.id, facts, first) if known is None else known[3]
            batch.runs[run.id] = run_row(run, key.owner, stream, begun, ended.get(run.id))
        self._kick()
        return _Pending(batch, seq)

    def delta(self, stream: int, at: float, delta: Delta) -> int:
        """Enqueue streamed text, merged with its neighbour if that still waits; the new head."""
        batch = self._batch
        tail = batch.tails.get(stream)
        if tail is not None and tail.takes(delta):
            tail.add(delta.text)
            return tail.seq
        seq = self._head(stream) + 1
        self._heads[stream] = seq
        batch.keys[stream] = self._keys[stream]
        tail = batch.tails[stream] = Growing(stream, seq, at, delta)
        batch.entries.append(tail)
        batch.data.append(b"")
        self._kick()
        return seq

    def forget(self, stream: int) -> None:
        """Nobody holds this stream's fold any more; its head may leave memory."""
        self._heads.pop(stream, None)
        key = self._keys.pop(stream, None)
        for batch in (self._batch, self._inflight):
            if key is not None and batch is not None and stream in batch.keys:
                self._leaving[key] = batch
                break  # the newest is the last to arrive

    def on_commit(self, listener: Callable[[Sequence[Record]], None]) -> None:
        """Call `listener` on the loop with every committed batch, in order."""
        self._committed.append(listener)

    def on_failure(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the loop when a commit failed: every fold in memory is void."""
        self._failed.append(listener)

    def state(self) -> str:
        """`ok`, or why facts cannot be taken."""
        if self._writer.broken:
            return self._writer.broken
        now = monotonic()
        if now - self._space_checked >= SPACE_CHECK_S or self._writer.short:
            self._space_checked = now
            self._space = self._judge_space(disk_free(self._directory))
        return self._space

    def _judge_space(self, free: int) -> str:
        if free >= self._low_water:
            return "ok"
        return (
            f"the disk is nearly full: {free // _MB} MB are free below {self._directory}, "
            f"{self._low_water // _MB} MB are needed to take new work"
        )

    async def broken(self) -> str:
        """Return, with the reason, once the file cannot be trusted any more."""
        await self._broke.wait()
        return self._writer.broken

    async def prune(self, deltas_before: float, keys_before: float) -> int:
        """Forget deltas of runs that ended, and request keys, older than this."""
        pruned = 0
        while True:
            some = await self._prune_some(deltas_before, keys_before)
            pruned += some
            if some < PRUNE_RUNS:
                return pruned

    async def _prune_some(self, deltas_before: float, keys_before: float) -> int:
        done = anyio.Event()
        pruned = 0

        def job(connection: sqlite3.Connection) -> None:
            nonlocal pruned
            try:
                pruned = prune(connection, deltas_before, keys_before)
            except sqlite3.Error:  # deleting needs room too: another time, then
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            finally:
                self._loop.call_soon_threadsafe(done.set)

        self._writer.put(job)
        await done.wait()
        return pruned

    async def aclose(self) -> None:
        """Commit what is enqueued, then let go of the file."""
        self._closing = True
        last = self._batch if self._batch.entries else self._inflight
        if last is not None:
            await last.settled()
        await anyio.to_thread.run_sync(self._writer.finish, abandon_on_cancel=True)
        self.close_readers()

    def _head(self, stream: int) -> int:
        if self._closing or self._writer.broken:
            raise JournalUnavailable(self._writer.broken or "the journal is closing")
        try:
            return self._heads[stream]
        except KeyError:
            raise Conflict(f"stream {stream} is not open; load it again") from None

    def _kick(self) -> None:
        if self._inflight is None and not self._kicked:
            self._kicked = True
            until = self._loop.time() + PATIENCE_S
            self._loop.call_soon(self._close_batch, PATIENCE_TURNS, until)

    def _close_batch(self, turns: int, until: float) -> None:
        if turns and self._loop.time() < until:
            self._loop.call_soon(self._close_batch, turns - 1, until)
            return
        self._kicked = False
        if self._inflight is not None or not self._batch.entries:
            return
        batch, self._batch = self._batch, Batch()
        batch.close()
        self._inflight = batch
        self._writer.put(batch)

    def _done(self, batch: Batch) -> None:
        """On the loop, after the thread is done with `batch`: publish it, close the next."""
        self._inflight = None
        if batch.error is not None:
            self._fail(batch, batch.error)
            return
        for listener in self._committed:
            _tell(listener, batch.records)
        if self._leaving:
            self._leaving = {k: b for k, b in self._leaving.items() if b is not batch}
        batch.settle()
        if self._batch.entries:
            self._kick()  # not at once: whoever was waiting for this one may have more to say

    def _fail(self, batch: Batch, error: JournalUnavailable) -> None:
        behind, self._batch = self._batch, Batch()
        self._heads.clear()
        self._keys.clear()
        self._leaving.clear()
        for listener in self._failed:
            _tell(listener)
        for lost in (batch, behind):
            lost.error = error
            lost.settle()


def _tell(listener: Callable[..., None], *about: object) -> None:
    """Whatever it makes of it: the others are told too, and whoever waits is woken."""
    try:
        listener(*about)
    except Exception:
        log.exception("a listener of the journal failed")


def _connect(path: Path, boot_id: str, ballast: Ballast) -> sqlite3.Connection:
    """Opening needs room too: the ballast's, if there is no other."""
    try:
        try:
            return connect(path, boot_id)
        except sqlite3.OperationalError:
            if not ballast.release():
                raise
            return connect(path, boot_id)
    except sqlite3.OperationalError as error:
        raise JournalUnavailable(f"the journal {path} cannot be opened: {error}") from error
