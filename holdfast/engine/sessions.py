"""The folds in memory: what may be lost, because the journal can tell it again.

A session that is driven or asked about is *held*: its fold and its transcript evolve
with each fact as it is enqueued, and no fact is enqueued with a secret in it. Deciding and enqueueing happen here with no await in
between, so nothing can come between a decision and its record. A failed commit voids
every fold; whoever held one loads it again. Idle sessions stay for a while, so that a
long conversation is not read anew for each turn.
"""

from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from holdfast.core import chats, replies
from holdfast.core import run as run_machine
from holdfast.core import session as session_machine
from holdfast.core.approval import Grant, PostureSeen, Standing
from holdfast.core.child import ChildBegun, ChildEnded
from holdfast.core.events import Delta, ToolProgress
from holdfast.core.history import MESSAGE_FACTS, Transcript
from holdfast.core.process import ProcessEnded, ProcessMatched, ProcessStarted
from holdfast.core.redaction import Redactor
from holdfast.core.run import MessageVoided, ModelAnswered, Run, RunInterrupted
from holdfast.core.session import Session
from holdfast.core.types import Fact, RunId, SessionKey
from holdfast.engine.clock import Clock
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Conflict, Journal, Pending, RunRow

KEEP_IDLE = 256

_DRIVEN = frozenset({run_machine.Status.QUEUED, run_machine.Status.RUNNING})
_SESSION_FACTS: tuple[type[Fact], ...] = (
    session_machine.SessionOpened,
    session_machine.SessionSuspended,
    session_machine.SessionReset,
    RunInterrupted,
    Grant,
    Standing,
    PostureSeen,
    ProcessStarted,
    ProcessMatched,
    ProcessEnded,
    ChildBegun,
    ChildEnded,
    session_machine.SessionReopened,
    session_machine.ModelChosen,
    session_machine.SessionTitled,
    *chats.KEPT,
)


class Held:
    """One session in memory."""

    __slots__ = (
        "head",
        "last_at",
        "partial",
        "pins",
        "said",
        "session",
        "stream",
        "transcript",
        "void",
    )

    def __init__(self, session: Session, stream: int, head: int, last_at: float) -> None:
        self.session = session
        self.stream = stream
        self.head = head
        self.last_at = last_at  # when its last record was written
        self.transcript = Transcript()
        self.partial = 0  # the turn whose text has been streamed but not answered
        self.pins = 0
        self.said: Pending | None = None  # what was appended last
        self.void = False

    @property
    def key(self) -> SessionKey:
        return self.session.key


class Sessions:
    """Every session in memory, by key, by stream and by unfinished run."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        redactor: Redactor | None = None,
        split: replies.Split | None = None,
    ) -> None:
        self._split = split  # None: there are no chats
        self._journal = journal
        self._clock = clock
        self._redactor = redactor or Redactor(())
        self._held: dict[SessionKey, Held] = {}
        self._idle: OrderedDict[SessionKey, None] = OrderedDict()
        self._by_stream: dict[int, SessionKey] = {}
        self._by_run: dict[RunId, SessionKey] = {}
        self._loading: dict[SessionKey, anyio.Event] = {}
        self._failures = 0  # commits that failed so far
        self.counts: Counter[run_machine.Status] = Counter()  # of unfinished runs
        journal.on_failure(self._void)

    def recount(self, unfinished: Sequence[RunRow]) -> None:
        """Count anew: what is in memory as it is there, the rest as it was read."""
        self.counts.clear()
        self.counts.update(r.status for h in self._held.values() for r in h.session.runs.values())
        self.counts.update(row.status for row in unfinished if row.key not in self._held)

    def key_of(self, stream: int) -> SessionKey | None:
        """The session a stream belongs to, if it is in memory."""
        return self._by_stream.get(stream)

    def running(self, run_id: RunId) -> tuple[Held, Run] | None:
        """The fold of an unfinished run, if it is in memory."""
        if (key := self._by_run.get(run_id)) is None or (held := self._held.get(key)) is None:
            return None
        found = held.session.runs.get(run_id)
        return None if found is None else (held, found)

    @asynccontextmanager
    async def hold(self, key: SessionKey) -> AsyncIterator[Held | None]:
        """Keep the session in memory meanwhile; None if there is no such session."""
        held = self._held.get(key) or await self._load(key)
        if held is None:
            yield None
            return
        self._pin(held)
        try:
            yield held
        finally:
            self._unpin(held)

    def create(self, key: SessionKey) -> Held:
        """A session that does not exist yet. Its first append makes it real."""
        row = self._journal.open_stream(key)
        held = Held(Session(key), row.stream, row.head, row.last_at)
        self._keep(held)
        return held

    def append(self, held: Held, *facts: Fact) -> Pending:
        """Evolve the fold and enqueue the facts: all of them, or none and an exception."""
        if held.void:
            raise JournalUnavailable("the session was voided by a failed commit; load it again")
        now = self._clock.now()
        facts = tuple(map(self._redactor.cleaned, facts))
        before, after, ended = held.session, held.session, list[Run]()
        for fact in facts:
            last = after.ended
            after = session_machine.evolve(after, fact, now)
            if after.ended is not None and after.ended is not last:
                ended.append(after.ended)
        if self._split is not None:
            # What chats are to hear of it is queued with it: nothing can come between.
            facts += replies.messages(before, after, facts, self._split)
        changed = [r for r in after.runs.values() if before.runs.get(r.id) is not r] + ended
        try:
            pending = self._journal.append(held.stream, held.head, now, facts, changed)
        except Conflict:
            self._discard(held)  # whoever comes next folds it again
            raise
        held.session, held.head, held.last_at, held.said = after, pending.seq, now, pending
        for fact in facts:
            held.transcript.add(fact)
            if isinstance(fact, ModelAnswered | MessageVoided):
                held.partial = 0
        if changed:
            self._count(held.key, before, changed)
            if not held.pins:
                self._rest(held)
        return pending

    def delta(self, held: Held, delta: Delta) -> None:
        """Enqueue streamed text. Nothing is decided by it."""
        if held.void:
            raise JournalUnavailable("the session was voided by a failed commit; load it again")
        if not isinstance(delta, ToolProgress):
            held.partial = delta.turn
        held.last_at = self._clock.now()
        held.head = self._journal.delta(held.stream, held.last_at, delta)

    def _count(self, key: SessionKey, before: Session, changed: list[Run]) -> None:
        for run in changed:
            if (old := before.runs.get(run.id)) is not None:
                self.counts[old.status] -= 1
            if run.status.final:
                self._by_run.pop(run.id, None)
            else:
                self.counts[run.status] += 1
                self._by_run[run.id] = key

    async def _load(self, key: SessionKey) -> Held | None:
        while (loading := self._loading.get(key)) is not None:
            await loading.wait()
        if (held := self._held.get(key)) is not None:
            return held
        loaded = self._loading[key] = anyio.Event()
        try:
            return await self._read(key)
        finally:
            del self._loading[key]
            loaded.set()

    async def _read(self, key: SessionKey) -> Held | None:
        """The session as it is on disk; read again if a commit failed meanwhile."""
        while True:
            failures = self._failures
            held = await self._fold(key)
            if failures == self._failures:
                break
        if held is not None:
            for run_id in held.session.runs:
                self._by_run[run_id] = key
            self._keep(held)
        return held

    async def _fold(self, key: SessionKey) -> Held | None:
        """Fold what is not final from its facts; of what is final, only what is still read."""
        row = await self._journal.stream_of(key)
        if row is None:
            return None
        held = Held(Session(key), row.stream, row.head, row.last_at)
        runs = await self._journal.open_runs(row.stream)
        unfinished = frozenset(runs)
        facts = await self._journal.facts(row.stream, (*MESSAGE_FACTS, *_SESSION_FACTS), runs)
        session = held.session
        for record in facts:
            held.transcript.add(record.fact)
            run_id = getattr(record.fact, "run_id", None)
            if run_id is None or run_id in unfinished:
                session = session_machine.evolve(session, record.fact, record.at)
            else:
                session = session_machine.recall(session, record.fact)
        held.session = session
        for run in session.runs.values():
            turn = run.turn + 1
            if run.driven and await self._journal.has_deltas(row.stream, run.id, turn):
                held.partial = turn
        return held

    def _keep(self, held: Held) -> None:
        self._held[held.key] = held
        self._by_stream[held.stream] = held.key
        self._rest(held)

    def _rest(self, held: Held) -> None:
        """Let it go some day if nobody needs it now: not while it has a run to be driven."""
        if held.pins or held.void or any(r.status in _DRIVEN for r in held.session.runs.values()):
            self._idle.pop(held.key, None)
            return
        self._idle[held.key] = None
        held.said = None
        while len(self._idle) > KEEP_IDLE:
            self._drop(self._held[self._idle.popitem(last=False)[0]])

    def _discard(self, held: Held) -> None:
        """Its fold is wrong: nobody may go on with it."""
        held.void = True
        self._idle.pop(held.key, None)
        if self._held.get(held.key) is held:
            self._drop(held)

    def _drop(self, held: Held) -> None:
        del self._held[held.key]
        del self._by_stream[held.stream]
        for run_id in held.session.runs:
            self._by_run.pop(run_id, None)
        self._journal.forget(held.stream)

    def _pin(self, held: Held) -> None:
        held.pins += 1
        self._idle.pop(held.key, None)

    def _unpin(self, held: Held) -> None:
        held.pins -= 1
        self._rest(held)

    def _void(self) -> None:
        self._failures += 1
        for held in self._held.values():
            held.void = True
            self.counts.subtract(r.status for r in held.session.runs.values())
        for index in (self._held, self._idle, self._by_stream, self._by_run):
            index.clear()
