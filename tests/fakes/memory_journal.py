"""A journal without a file: a `Disk` outlives processes, and this is the `Journal` of one of them.

Everything happens on the loop. A batch gathers, is written, is published: three moments with
a delay before each, so that a process can end between any two of them. `cut` ends it as
`kill -9` would: what was not written is gone, what was is on the `Disk`, whether anybody was
told or not. Open another `MemoryJournal` over the same disk and go on.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from holdfast.core.chat.delivery import DeliveryStatus as Sending
from holdfast.core.events import TERMINAL, Delta, Record, run_of
from holdfast.core.life.evidence import Doubt
from holdfast.core.run.run import Run
from holdfast.core.types import DeliveryId, Fact, Owner, RequestId, RunId, SessionKey
from holdfast.errors import JournalUnavailable
from holdfast.gateway import AskedPlace
from holdfast.journal import codec
from holdfast.journal.batch import Growing
from holdfast.journal.journal import (
    LAST,
    Asked,
    Conflict,
    Outbound,
    Replayed,
    RunFilter,
    RunRow,
    SessionRow,
    StreamRow,
)
from tests.fakes.memory_disk import DELTAS, Batch, Disk, Request

log = logging.getLogger(__name__)


class _Pending:
    """One append on its way."""

    __slots__ = ("_batch", "seq")

    def __init__(self, batch: Batch, seq: int) -> None:
        self._batch = batch
        self.seq = seq

    @property
    def durable(self) -> bool:
        return self._batch.durable

    async def wait(self) -> None:
        await self._batch.settled()
        if self._batch.error is not None:
            raise self._batch.error


class MemoryReader:
    """The reading half. Every reading lets others go first, and again before it answers."""

    def __init__(self, disk: Disk, pause: Callable[[], float]) -> None:
        self._disk = disk
        self._pause = pause

    async def _turn(self) -> None:
        if delay := self._pause():
            await asyncio.sleep(delay)  # sleep: how slow a disk is; of no time, in a simulation
        else:
            await asyncio.sleep(0)

    async def facts(
        self,
        stream: int,
        kinds: Sequence[type[Fact]],
        runs: Sequence[RunId],
        after: int = 0,
        upto: int = LAST,
    ) -> list[Record]:
        """All facts of these kinds or of these runs, in order. Never deltas."""
        await self._turn()
        of_kinds, of_runs = frozenset(kinds), frozenset(runs)
        return [
            r
            for r in self._disk.records(stream)
            if not isinstance(r.fact, DELTAS)
            and after < r.seq <= upto
            and (type(r.fact) in of_kinds or run_of(r.fact) in of_runs)
        ]

    async def checkpoint(self, stream: int) -> tuple[int, bytes] | None:
        """The last one that was kept, and its number."""
        await self._turn()
        return self._disk.checkpoints.get(stream)

    async def open_runs(self, stream: int) -> list[RunId]:
        """The stream's runs that have not ended."""
        await self._turn()
        return [row.run_id for row in self._disk.open.values() if row.stream == stream]

    async def has_deltas(self, stream: int, run_id: RunId, turn: int) -> bool:
        """Whether text of this turn has been streamed to readers."""
        await self._turn()
        return any(
            isinstance(r.fact, DELTAS) and (r.fact.run_id, r.fact.turn) == (run_id, turn)
            for r in self._disk.records(stream)
        )

    async def records(
        self, stream: int, run_id: RunId | None, after: int, limit: int
    ) -> list[Record]:
        """Up to `limit` records of one run, or of all, numbered higher than `after`."""
        await self._turn()
        found = (
            r
            for r in self._disk.records(stream)
            if r.seq > after and (run_id is None or run_of(r.fact) == run_id)
        )
        return [record for record, _ in zip(found, range(limit), strict=False)]

    async def run(self, run_id: RunId) -> RunRow | None:
        """One run's projection."""
        await self._turn()
        return self._disk.runs.get(run_id)

    async def runs(self, query: RunFilter) -> list[RunRow]:
        """Runs of one owner or of all, newest first."""
        await self._turn()
        found = [
            row
            for run_id, row in sorted(self._disk.runs.items(), reverse=True)
            if query.owner in (None, row.key.owner)
            and (not query.status or row.status in query.status)
            and query.session_id in (None, row.key.session_id)
            and (query.after is None or run_id < query.after)
        ]
        return found[: query.limit]

    async def session(self, key: SessionKey) -> SessionRow | None:
        """What a list would show of it, whether it is listed or not."""
        await self._turn()
        found = self._disk.sessions.get(key)
        return None if found is None else self._disk.shown(found)

    async def sessions(
        self, owner: Owner | None, limit: int, after: SessionKey | None
    ) -> list[SessionRow]:
        """Sessions of one owner or of all, after the named one, by `updated_at`, newest first."""
        await self._turn()
        rows = self._disk.listed(owner)
        if after is not None:
            found = self._disk.sessions.get(after)
            last = (0.0, 0) if found is None else _place(self._disk.shown(found))
            rows = [row for row in rows if _place(row) < last]
        return sorted(rows, key=_place, reverse=True)[:limit]

    async def changed_sessions(self, owner: Owner, since: float) -> list[SessionRow]:
        """Of the same all whose `changed_at` is not before `since`, the latest change first."""
        await self._turn()
        rows = [row for row in self._disk.listed(owner) if row.changed_at >= since]
        return sorted(rows, key=lambda row: (row.changed_at, row.stream), reverse=True)

    async def unfinished(self) -> list[RunRow]:
        """Every run that has not ended, oldest first."""
        await self._turn()
        return [row for _, row in sorted(self._disk.open.items())]

    async def replay(self, owner: Owner, route: str, key: str) -> Replayed | None:
        """The request accepted before under this route and key, within its retention."""
        await self._turn()
        found = self._disk.requests.get(Request(owner, route, key))
        return None if found is None else found[0]

    async def approvals(
        self, owner: Owner | None, limit: int, after: AskedPlace | None
    ) -> list[Asked]:
        """Requests that wait, of one owner or of all, the first to expire first."""
        await self._turn()
        found = [a for a in self._disk.asked.values() if owner in (None, a.key.owner)]
        found = sorted(found, key=_asked_place)
        return [a for a in found if after is None or _asked_place(a) > after][:limit]

    async def approval(self, request_id: RequestId) -> Asked | None:
        """One request, if it waits."""
        await self._turn()
        return self._disk.asked.get(request_id)

    async def with_children(self) -> list[SessionKey]:
        """The sessions that have begun children and not been told of their end."""
        await self._turn()
        return [key for key, count in self._disk.children.items() if count > 0]

    async def with_rewinds(self) -> list[SessionKey]:
        """The sessions with a rewind that was planned and not finished."""
        await self._turn()
        return list(self._disk.rewinding)

    async def cursor(self, channel: str) -> str:
        """Where the channel's stream stood when the last of its updates was taken; or empty."""
        await self._turn()
        return self._disk.cursors.get(channel, "")

    async def message_digest(self, place: str, message_id: str) -> str:
        """The digest of the words last taken under that name; empty: none, or long ago."""
        await self._turn()
        return self._disk.said.get((place, message_id), ("", 0.0))[0]

    async def seen(self, channel: str, external_id: str) -> bool:
        """Whether this update of the channel was taken before, within its retention."""
        await self._turn()
        return (channel, external_id) in self._disk.taken

    async def undelivered(self) -> list[Outbound]:
        """Every message that is neither sent nor given up, in the order they were queued."""
        await self._turn()
        return [o for o in self._disk.outbox.values() if not o.now.status.final]

    async def deliveries(self, status: frozenset[Sending], limit: int) -> list[Outbound]:
        """Messages that are in one of these states, newest first."""
        await self._turn()
        found = [o for o in self._disk.outbox.values() if o.now.status in status]
        return found[::-1][:limit]

    async def delivery(self, delivery_id: DeliveryId) -> Outbound | None:
        """One message, within its retention."""
        await self._turn()
        return self._disk.outbox.get(delivery_id)

    @property
    def doubt(self) -> Doubt | None:
        """Nothing is doubted in memory."""
        return None

    @property
    def trusted_since(self) -> float:
        """All of it."""
        return 0.0

    async def trust(self) -> None:
        """There is nothing to note."""

    async def prune(self, deltas_before: float, keys_before: float) -> int:
        """Forget deltas of runs that ended, and request keys, older than this."""
        await self._turn()
        return self._disk.prune(deltas_before, keys_before)


class MemoryJournal(MemoryReader):
    """The `Journal` of one process. `pause` says how long the disk takes for its next move."""

    def __init__(self, disk: Disk, pause: Callable[[], float] = float) -> None:
        super().__init__(disk, pause)
        self._next_stream = 1 + max(disk.streams, default=0)
        self._heads: dict[int, int] = {}
        self._keys: dict[int, SessionKey] = {}
        self._leaving: dict[SessionKey, Batch] = {}  # forgotten, with what is not on disk yet
        self._batch = Batch()
        self._inflight: Batch | None = None
        self._next: asyncio.Handle | None = None  # the writer's next move
        self._closed = ""  # why nothing can be appended any more
        self._dead = False
        self._committed: list[Callable[[Sequence[Record]], None]] = []
        self._failed: list[Callable[[], None]] = []

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
        await self._turn()
        found = self._disk.sessions.get(key)
        if found is None:
            return None
        row = found.row()
        # A head in memory is newer than one that was read: something may be on its way.
        head = self._heads.setdefault(row.stream, row.head)
        self._keys.setdefault(row.stream, key)
        return StreamRow(key, row.stream, head, row.last_at)

    def append(
        self, stream: int, expected_seq: int, at: float, facts: Sequence[Fact], runs: Sequence[Run]
    ) -> _Pending:
        """Number and enqueue facts that belong together, with the runs they led to."""
        head = self._head(stream)
        if head != expected_seq:
            raise Conflict(f"stream {stream} is at {head}, not at {expected_seq}")
        for fact in facts:
            codec.encode(fact)  # what has no written form is the error of whoever says it
        batch = self._batch
        batch.tails.pop(stream, None)
        batch.entries += (Record(stream, head + n, at, f) for n, f in enumerate(facts, 1))
        self._heads[stream] = head + len(facts)
        batch.keys[stream] = self._keys[stream]
        for run in runs:
            batch.runs[run.id] = self._row(run, stream, facts, head + 1)
        self._kick()
        return _Pending(batch, self._heads[stream])

    def _row(self, run: Run, stream: int, facts: Sequence[Fact], first: int) -> RunRow:
        ends = (n for n, f in enumerate(facts, first) if isinstance(f, TERMINAL))
        ended = next((n for n in ends if run_of(facts[n - first]) == run.id), None)
        begun = next((n for n, f in enumerate(facts, first) if run_of(f) == run.id), first)
        places = [self._batch, self._inflight, self._disk]  # the newest knows best
        known = next((p.runs[run.id] for p in places if p and run.id in p.runs), None)
        return RunRow(
            run_id=run.id,
            key=self._keys[stream],
            stream=stream,
            first_seq=known.first_seq if known else begun,
            ended_seq=ended,
            status=run.status,
            created_at=run.created_at,
            updated_at=run.updated_at,
            model=run.model,
            last_event=run.last_event,
            stopping=bool(run.stop_reason),
        )

    def delta(self, stream: int, at: float, delta: Delta) -> int:
        """Enqueue streamed text, merged with its neighbour if that still waits; the new head."""
        batch = self._batch
        tail = batch.tails.get(stream)
        if tail is not None and tail.takes(delta):
            tail.add(delta.text)
            return tail.seq
        seq = self._heads[stream] = self._head(stream) + 1
        batch.keys[stream] = self._keys[stream]
        tail = batch.tails[stream] = Growing(stream, seq, at, delta)
        batch.entries.append(tail)
        self._kick()
        return seq

    def keep_checkpoint(self, stream: int, seq: int, data: bytes) -> None:
        """Keep what the facts up to `seq` led to; committed with the next facts, after those."""
        self._batch.checkpoints[stream] = (seq, data)

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
        return "the disk is full" if self._disk.full else "ok"

    async def aclose(self) -> None:
        """Commit what is enqueued, then let go of the disk."""
        self._closed = self._closed or "the journal is closing"
        last = self._batch if self._batch.entries else self._inflight
        if last is not None:
            await last.settled()

    def cut(self) -> None:
        """The process is killed: from here on nothing of it reaches the disk, or anybody."""
        self._closed, self._dead = "the process is dead", True
        self._committed.clear()
        self._failed.clear()
        if self._next is not None:
            self._next.cancel()
        for batch in (self._inflight, self._batch):
            if batch is not None:
                batch.settle(JournalUnavailable(self._closed))

    def _head(self, stream: int) -> int:
        if self._closed:
            raise JournalUnavailable(self._closed)
        try:
            return self._heads[stream]
        except KeyError:
            raise Conflict(f"stream {stream} is not open; load it again") from None

    def _after_pause(self, move: Callable[[], None]) -> None:
        if not self._dead:
            loop, pause = asyncio.get_running_loop(), self._pause()
            self._next = loop.call_later(pause, move) if pause else loop.call_soon(move)

    def _kick(self) -> None:
        if self._inflight is None and self._next is None:
            self._after_pause(self._close)

    def _close(self) -> None:
        """From here on the next batch gathers."""
        batch, self._batch = self._batch, Batch()
        batch.records = [e.closed() if isinstance(e, Growing) else e for e in batch.entries]
        self._inflight = batch
        self._after_pause(self._write)

    def _write(self) -> None:
        assert self._inflight is not None
        try:
            self._disk.write(self._inflight)
        except JournalUnavailable as error:
            self._fail(self._inflight, error)
        else:
            self._after_pause(self._publish)

    def _publish(self) -> None:
        batch, self._inflight, self._next = self._inflight, None, None
        assert batch is not None
        for listener in self._committed:
            _tell(listener, batch.records)
        if self._leaving:
            self._leaving = {k: b for k, b in self._leaving.items() if b is not batch}
        batch.settle()
        if self._batch.entries:
            self._kick()

    def _fail(self, batch: Batch, error: JournalUnavailable) -> None:
        behind, self._batch = self._batch, Batch()
        self._inflight = self._next = None
        self._heads.clear()
        self._keys.clear()
        self._leaving.clear()
        for listener in self._failed:
            _tell(listener)
        for lost in (batch, behind):
            lost.settle(error)


def _asked_place(asked: Asked) -> AskedPlace:
    return asked.requested.expires_at, asked.requested.request_id


def _place(row: SessionRow) -> tuple[float, int]:
    return row.updated_at, row.stream


def _tell(listener: Callable[..., None], *about: object) -> None:
    try:
        listener(*about)
    except Exception:
        log.exception("a listener of the journal failed")
