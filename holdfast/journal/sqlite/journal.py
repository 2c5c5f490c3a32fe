"""The embedded store: SQLite in WAL mode, one writer thread, group commit.

The loop numbers and enqueues; the thread commits. While one batch is being committed, the next
one collects records, so batches grow with the load and there is no artificial delay. A batch
closes when the one before it is committed *and* published.

When a commit fails, everything enqueued behind it fails too, because those records were numbered
and decided after it. All sessions have to be loaded again from disk.
"""

import logging
import sqlite3
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from holdfast.core.events import ACTED_UPON, TERMINAL, Delta, Record
from holdfast.core.life.evidence import Doubt, Mark
from holdfast.core.life.timeline import Begun, Reading
from holdfast.core.run.run import Run
from holdfast.core.types import Fact, RunId, SessionKey
from holdfast.errors import JournalUnavailable, Misconfigured
from holdfast.journal import codec, mark
from holdfast.journal.batch import Batch, Growing
from holdfast.journal.blobs import Blobs
from holdfast.journal.journal import Conflict, StreamRow
from holdfast.journal.sqlite import boots
from holdfast.journal.sqlite.projections import run_row
from holdfast.journal.sqlite.reader import SqliteReader
from holdfast.journal.sqlite.writer import (
    PRUNE_RUNS,
    Ballast,
    SqliteWriter,
    WritingConnection,
    connect,
    disk_free,
    is_locked,
    prune,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

SPACE_CHECK_S = 0.5
SLOW_S = 10.0  # a write that waits so long for the disk is reported, and no new work is taken
# A batch stays open for a few turns of the loop, but never longer than PATIENCE_S. A turn of an
# idle loop takes microseconds; a busy one takes longer, so the batch grows with the load.
PATIENCE_TURNS = 4
PATIENCE_S = 0.005
_MB = 1024 * 1024


class _Pending:
    """One append that waits for its commit."""

    __slots__ = ("_batch", "seq")

    def __init__(self, batch: Batch, seq: int) -> None:
        self._batch = batch
        self.seq = seq

    @property
    def durable(self) -> bool:
        return self._batch.durable

    def wait(self) -> Coroutine[Any, Any, None]:
        return self._batch.wait()


class SqliteJournal(SqliteReader):
    """The `Journal` on one SQLite file. Made by `open`; belongs to the loop that opened it."""

    def __init__(
        self,
        path: Path,
        blobs: Blobs,
        connection: WritingConnection,
        loop: AbstractEventLoop,
        low_water: int,
        ballast: Ballast,
        begun: Begun,
        slow_s: float,
    ) -> None:
        super().__init__(path, blobs)
        self.begun = begun  # journal time
        self._trust = boots.trust_in(connection)
        self._directory = path.parent
        self._loop = loop
        self._low_water = low_water
        self._heads: dict[int, int] = {}
        self._keys: dict[int, SessionKey] = {}
        self._leaving: dict[SessionKey, Batch] = {}  # forgotten before their batch was on disk
        newest = connection.execute("SELECT max(stream) FROM sessions").fetchone()[0]
        self._next_stream = 1 + (newest or 0)
        self._batch = Batch(self._loop)
        self._inflight: Batch | None = None
        self._inflight_since = 0.0
        self._slow_s = slow_s
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
        now: Reading,
        ledger: Path | None = None,
        low_water: int = 0,
        ballast: int = 0,
        max_pages: int = 0,
        slow_s: float = SLOW_S,
    ) -> "SqliteJournal":
        """Open or create the journal at `path`. Only the owner of the home may do this.

        `now` is the reading of the machine's clocks. `ledger` is the audit to compare the journal
        with. Below `low_water` free bytes, `state` reports that no new work should be taken.
        `ballast` bytes are reserved for a full disk. `max_pages` limits the size of the file; 0
        is no limit. A write that takes `slow_s` is reported by `state`.
        """
        kept = Ballast(path.with_name("ballast"), ballast)
        connection, begun = await anyio.to_thread.run_sync(_connect, path, now, ledger, kept)
        if max_pages:
            connection.execute(f"PRAGMA max_page_count = {max_pages:d}")
        loop = get_running_loop()
        journal = cls(path, blobs, connection, loop, low_water, kept, begun, slow_s)
        if ledger is not None:
            journal._writer.count_start(path.parent)
        return journal

    def open_stream(self, key: SessionKey) -> StreamRow:
        """Give a new session its stream. It becomes durable with its first append."""
        stream = self._next_stream
        self._next_stream += 1
        self._heads[stream] = 0
        self._keys[stream] = key
        return StreamRow(key, stream, 0, 0.0)

    async def stream_of(self, key: SessionKey) -> StreamRow | None:
        """Return the session's stream, if it exists; `append` knows its head from then on."""
        while (batch := self._leaving.get(key)) is not None:  # not all of it is on disk yet
            await batch.settled()
        row = await self.head(key)
        if row is None:
            return None
        # A head in memory is newer than the one on disk, as records may wait for their commit.
        head = self._heads.setdefault(row.stream, row.head)
        self._keys.setdefault(row.stream, key)
        return StreamRow(key, row.stream, head, row.last_at)

    def append(
        self, stream: int, expected_seq: int, at: float, facts: Sequence[Fact], runs: Sequence[Run]
    ) -> _Pending:
        """Number and enqueue facts that belong together, with the runs after these facts."""
        seq = self._head(stream)
        if seq != expected_seq:
            raise Conflict(f"stream {stream} is at {seq}, not at {expected_seq}")
        # Encode before changing any state: a fact that cannot be encoded is the caller's error.
        data = [codec.encode(fact) for fact in facts]
        batch = self._batch
        batch.tails.pop(stream, None)
        batch.data += data
        ended: dict[RunId, int] = {}
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
            begun = _first(facts, run.id, expected_seq) if known is None else known[3]
            batch.runs[run.id] = run_row(run, key.owner, stream, begun, ended.get(run.id))
        self._kick()
        return _Pending(batch, seq)

    def delta(self, stream: int, at: float, delta: Delta) -> int:
        """Enqueue streamed text, merged with the last piece if possible; return the new head."""
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

    def keep_checkpoint(self, stream: int, seq: int, data: bytes) -> None:
        """Keep what the facts up to `seq` led to; committed with the next facts, after those."""
        self._batch.checkpoints[stream] = (stream, seq, data)

    def forget(self, stream: int) -> None:
        """Drop the stream's head from memory: its session is no longer loaded."""
        self._heads.pop(stream, None)
        key = self._keys.pop(stream, None)
        for batch in (self._batch, self._inflight):
            if key is not None and batch is not None and stream in batch.keys:
                self._leaving[key] = batch
                break  # the newest batch is the last to be committed

    def on_commit(self, listener: Callable[[Sequence[Record]], None]) -> None:
        """Call `listener` on the loop with every committed batch, in order."""
        self._committed.append(listener)

    def on_failure(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the loop when a commit failed: all state in memory is invalid."""
        self._failed.append(listener)

    def state(self) -> str:
        """Return `ok`, or why no facts can be recorded."""
        if self._writer.broken:
            return self._writer.broken
        now = monotonic()
        if self._inflight is not None and now - self._inflight_since >= self._slow_s:
            waited = now - self._inflight_since
            return f"the oldest write has waited {waited:.0f} s for the disk"
        if now - self._space_checked >= SPACE_CHECK_S or self._writer.short:
            self._space_checked = now
            self._space = self._judge_space(disk_free(self._directory))
        return self._space

    def _judge_space(self, free: int) -> str:
        if free >= self._low_water:
            return "ok"
        return (
            f"the disk is nearly full: {free // _MB} MB are free below {self._directory}, "
            f"{self._low_water // _MB} MB are needed for new work"
        )

    async def broken(self) -> str:
        """Wait until the file can no longer be trusted, and return the reason."""
        await self._broke.wait()
        return self._writer.broken

    async def prune(self, deltas_before: float, keys_before: float) -> int:
        """Delete older deltas of ended runs and older request keys."""
        pruned = 0
        while True:
            some = await self._prune_some(deltas_before, keys_before)
            pruned += some
            if some < PRUNE_RUNS:
                return pruned

    async def _prune_some(self, deltas_before: float, keys_before: float) -> int:
        return await self._do(lambda c: prune(c, deltas_before, keys_before)) or 0

    async def keep_offset(self, offset: float) -> None:
        """Record the new offset of the wall clock from journal time, after it was set."""
        await self._do(lambda connection: boots.keep_offset(connection, offset))

    @property
    def commits(self) -> int:
        """The number of synced commits, of this process and earlier ones."""
        return self._writer.commits

    @property
    def doubt(self) -> Doubt | None:
        """The reason why this start does not trust its records; None: it does."""
        return self._trust.doubt

    @property
    def trusted_since(self) -> float:
        """Grants from before this time do not count."""
        return self._trust.since

    async def trust(self) -> None:
        """Record that all consequences of the doubt are in the journal."""
        if await self._do(_trust):
            self._trust = boots.Trust(None, self._trust.since)

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Let the writer do the work after what is queued; None if it failed (a full disk)."""
        done = anyio.Event()
        result: T | None = None

        def job(connection: sqlite3.Connection) -> None:
            nonlocal result
            try:
                result = work(connection)
            except sqlite3.Error:  # even deleting needs space: it is tried again another time
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            finally:
                self._loop.call_soon_threadsafe(done.set)

        self._writer.put(job)
        await done.wait()
        return result

    async def aclose(self) -> None:
        """Commit what is enqueued, then close the file."""
        self._closing = True
        last = self._batch if self._batch.entries else self._inflight
        if last is not None:
            await last.settled()
        await anyio.to_thread.run_sync(self._finish, abandon_on_cancel=True)
        self.close_readers()

    def _finish(self) -> None:
        """End the writer, then mark how far it came."""
        self._writer.finish()
        mark.advance(self._directory, Mark(self._writer.commits))

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
        batch, self._batch = self._batch, Batch(self._loop)
        batch.close()
        self._inflight, self._inflight_since = batch, monotonic()
        self._writer.put(batch)

    def _done(self, batch: Batch) -> None:
        """Publish a committed batch and close the next one. Runs on the loop."""
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
            self._kick()  # not at once: tasks that waited for this batch may append more

    def _fail(self, batch: Batch, error: JournalUnavailable) -> None:
        behind, self._batch = self._batch, Batch(self._loop)
        self._heads.clear()
        self._keys.clear()
        self._leaving.clear()
        for listener in self._failed:
            _tell(listener)
        for lost in (batch, behind):
            lost.error = error
            lost.settle()


def _first(facts: Sequence[Fact], run_id: RunId, head: int) -> int:
    """Return the number of the first fact of the run; `head` is the number before the first."""
    for seq, fact in enumerate(facts, head + 1):
        if getattr(fact, "run_id", None) == run_id:
            return seq
    return head + len(facts)


def _tell(listener: Callable[..., None], *about: object) -> None:
    """Call a listener; its failure must not keep the others from being called."""
    try:
        listener(*about)
    except Exception:
        log.exception("a listener of the journal failed")


def _trust(connection: sqlite3.Connection) -> bool:
    boots.trust(connection)
    return True


def _connect(
    path: Path, now: Reading, ledger: Path | None, ballast: Ballast
) -> tuple[WritingConnection, Begun]:
    """Connect; on a full disk, release the ballast and try again, as opening needs space too."""
    try:
        try:
            return connect(path, now, ledger)
        except sqlite3.OperationalError:
            if not ballast.release():
                raise
            return connect(path, now, ledger)
    except sqlite3.OperationalError as error:
        if is_locked(error):
            raise JournalUnavailable(
                f"another program has locked the journal {path}; stop it (a backup or a database "
                "browser?), then start again"
            ) from error
        raise JournalUnavailable(f"the journal {path} cannot be opened: {error}") from error
    except sqlite3.DatabaseError as error:
        raise Misconfigured(
            f"the journal {path} is damaged: {error}",
            "restore it from a backup, or move it away to start with an empty one",
        ) from error
