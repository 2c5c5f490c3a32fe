"""Sessions in memory: folds that may be lost, because the journal can rebuild them.

A session that is driven or asked about is *loaded*: its fold and its transcript evolve with each
fact as it is enqueued, and facts are redacted before that. Decisions are made on the fold; readers
are shown the fold of what is committed (`LoadedSession.committed`). `change` loads, decides and
appends, with no await between the decision and its record. A failed commit voids every fold, and
callers load the session again. Idle sessions stay in memory for a while, so that a long
conversation is not read for each turn. A session that waits for a place with big inputs leaves
memory at once, and is loaded again when it has a place.

A session with a compacted history is loaded from its checkpoint, which the compaction leaves: the
facts before that are not read, however many they are. Its transcript then serves the model; `whole`
reads the rest for people, and `load_whole` for decisions about earlier messages.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain

import anyio

from holdfast.core.approval.approval import Grant, PostureSeen, Standing
from holdfast.core.chat import chats
from holdfast.core.events import TERMINAL, Delta, ToolProgress
from holdfast.core.redaction import Redactor
from holdfast.core.run import run as run_machine
from holdfast.core.run.child import ChildBegun, ChildEnded
from holdfast.core.run.context import HistoryCompacted
from holdfast.core.run.process import (
    PortClosed,
    PortPublished,
    ProcessEnded,
    ProcessMatched,
    ProcessStarted,
)
from holdfast.core.run.run import MessageVoided, ModelAnswered, Run, RunInterrupted
from holdfast.core.session import checkpoint, replies
from holdfast.core.session import session as session_machine
from holdfast.core.session.history import MESSAGE_FACTS, MessagesLeftOut, Transcript
from holdfast.core.session.rewound import RewindPlanned
from holdfast.core.session.session import Session
from holdfast.core.types import Fact, RunId, SessionKey
from holdfast.engine.clock import Clock
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Conflict, Journal, Pending, RunRow, StreamRow

KEEP_IDLE = 256
RETRY_CONFLICTS = 5
BIG = 64 * 1024  # a session that only waits leaves memory if its inputs have more bytes

_DRIVEN = frozenset({run_machine.RunPhase.QUEUED, run_machine.RunPhase.RUNNING})
_ENDS: frozenset[type[Fact]] = frozenset(TERMINAL)
_IN_TRANSCRIPT = frozenset(MESSAGE_FACTS)
_END_PARTIAL: frozenset[type[Fact]] = frozenset({ModelAnswered, MessageVoided})
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
    PortPublished,
    PortClosed,
    ChildBegun,
    ChildEnded,
    session_machine.SessionReopened,
    session_machine.ModelChosen,
    session_machine.SessionTitled,
    RewindPlanned,
    *chats.KEPT,
)


class LoadedSession:
    """One session in memory."""

    __slots__ = (
        "_ahead",
        "begins_at",
        "head",
        "key",
        "last_at",
        "partial",
        "pins",
        "session",
        "stream",
        "transcript",
        "void",
    )

    def __init__(self, session: Session, stream: int, head: int, last_at: float) -> None:
        self.session = session
        self.key: SessionKey = session.key
        self.stream = stream
        self.head = head
        self.last_at = last_at  # when its last record was written
        self.transcript = Transcript()
        self.begins_at = 0  # the number of the fact after which it was read
        self.partial = 0  # the turn whose text has been streamed but not answered
        self.pins = 0
        self._ahead: list[tuple[Pending, Session]] = []  # on their way, and what was before each
        self.void = False

    def move(self, after: Session, pending: Pending, at: float) -> None:
        """Replace the session by the one after the facts of `pending`."""
        self._settle()
        self._ahead.append((pending, self.session))
        self.session, self.head, self.last_at = after, pending.seq, at

    def take(self, facts: Sequence[Fact]) -> None:
        """Add their messages to the transcript."""
        for fact in facts:
            if type(fact) in _IN_TRANSCRIPT:
                self.transcript.add(fact)
            if type(fact) in _END_PARTIAL:
                self.partial = 0

    def committed(self) -> Session:
        """Return the session as the journal has it: a reader may see no more."""
        self._settle()
        return self._ahead[0][1] if self._ahead else self.session

    async def landed(self) -> None:
        """Wait until everything appended so far is durable; raise if that failed."""
        if self._ahead:
            await self._ahead[-1][0].wait()

    @property
    def is_settled(self) -> bool:
        """Return whether all that was appended is durable."""
        self._settle()
        return not self._ahead

    @property
    def is_driven(self) -> bool:
        """Return whether one of its runs is driven, or waits for a place."""
        for run in self.session.runs.values():
            if run.status in _DRIVEN:
                return True
        return False

    def _settle(self) -> None:
        while self._ahead and self._ahead[0][0].durable:
            del self._ahead[0]


Decide = Callable[[LoadedSession | None], Sequence[Fact]]


class _Loading:
    """A block that keeps one session in memory. A class is faster, and every drive enters one."""

    __slots__ = ("_key", "_loaded", "_sessions", "_whole")

    def __init__(self, sessions: "Sessions", key: SessionKey, *, whole: bool = False) -> None:
        self._sessions = sessions
        self._key = key
        self._whole = whole
        self._loaded: LoadedSession | None = None

    async def __aenter__(self) -> LoadedSession | None:
        self._loaded = loaded = await self._sessions.pin(self._key)
        if self._whole and loaded is not None:
            try:
                loaded.transcript = await self._sessions.whole(loaded)
            except BaseException:
                self._sessions.unpin(loaded)
                raise
        return loaded

    async def __aexit__(self, *raised: object) -> None:
        if self._loaded is not None:
            self._sessions.unpin(self._loaded)


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
        self._loaded: dict[SessionKey, LoadedSession] = {}
        self._idle: OrderedDict[SessionKey, None] = OrderedDict()
        self._by_stream: dict[int, SessionKey] = {}
        self._by_run: dict[RunId, SessionKey] = {}
        self._loading: dict[SessionKey, anyio.Event] = {}
        self._failures = 0  # commits that failed so far
        self._sizes: dict[RunId, int] = {}  # of the inputs of runs that wait for a place
        self.queued_bytes = 0  # all of these, also of sessions that have left memory
        self.counts: Counter[run_machine.RunPhase] = Counter()  # of unfinished runs
        journal.on_failure(self._void)

    def recount(self, unfinished: Sequence[RunRow]) -> None:
        """Count unfinished runs again: from memory where they are loaded, else from the rows."""
        self.counts.clear()
        self.counts.update(r.status for h in self._loaded.values() for r in h.session.runs.values())
        self.counts.update(row.status for row in unfinished if row.key not in self._loaded)

    def key_of(self, stream: int) -> SessionKey | None:
        """Return the session of a stream, if it is in memory."""
        return self._by_stream.get(stream)

    def running(self, run_id: RunId) -> tuple[LoadedSession, Run] | None:
        """Return the fold of an unfinished run, if it is in memory."""
        if (key := self._by_run.get(run_id)) is None or (loaded := self._loaded.get(key)) is None:
            return None
        found = loaded.session.runs.get(run_id)
        return None if found is None else (loaded, found)

    def load(self, key: SessionKey) -> "_Loading":
        """Load the session and keep it in memory for the block; None if there is none."""
        return _Loading(self, key)

    def load_whole(self, key: SessionKey) -> "_Loading":
        """The same, with the whole transcript: to undo messages, or to decide about earlier ones."""
        return _Loading(self, key, whole=True)

    async def whole(self, loaded: LoadedSession) -> Transcript:
        """Return its whole transcript as it is when this returns. Do not change it."""
        if loaded.transcript.added is None:
            return loaded.transcript
        upto = loaded.begins_at
        before = await self._journal.facts(loaded.stream, MESSAGE_FACTS, (), upto=upto)
        added = loaded.transcript.added
        if added is None:  # another caller was faster
            return loaded.transcript
        whole = Transcript()
        for fact in chain((record.fact for record in before), added):
            whole.add(fact)
        return whole

    async def change(self, key: SessionKey, decide: Decide) -> None:
        """Load the session, decide, and append the facts; durable when this returns.

        Nothing comes between the decision and its record. `decide` gets None if there is no such
        session, and is called again if the session has moved on since it was loaded.
        """
        await self._change(lambda: self.load(key), decide)

    async def change_whole(self, key: SessionKey, decide: Decide) -> None:
        """The same, with the whole transcript: to undo messages, or to decide about earlier ones."""
        await self._change(lambda: self.load_whole(key), decide)

    async def _change(self, load: Callable[[], "_Loading"], decide: Decide) -> None:
        for _ in range(RETRY_CONFLICTS):
            try:
                async with load() as loaded:
                    facts = decide(loaded)
                    if loaded is not None and facts:
                        await self.append(loaded, *facts).wait()
                    return
            except Conflict:
                continue
        raise JournalUnavailable("the session is busy; try again", retry_after_s=1)

    async def pin(self, key: SessionKey) -> LoadedSession | None:
        """Load the session and keep it in memory until `unpin`; None if there is none."""
        loaded = self._loaded.get(key) or await self._load_once(key)
        if loaded is not None:
            loaded.pins += 1
            self._idle.pop(key, None)
        return loaded

    def unpin(self, loaded: LoadedSession) -> None:
        """Release what `pin` returned."""
        loaded.pins -= 1
        self.rest(loaded)

    def create(self, key: SessionKey) -> LoadedSession:
        """Create a session in memory. Its first append makes it durable."""
        row = self._journal.open_stream(key)
        loaded = LoadedSession(Session(key), row.stream, row.head, row.last_at)
        self._keep(loaded)
        return loaded

    def append(self, loaded: LoadedSession, *facts: Fact) -> Pending:
        """Evolve the fold and enqueue the facts: all of them, or none and an exception."""
        if loaded.void:
            raise JournalUnavailable("the session was voided by a failed commit; load it again")
        now = self._clock.now()
        facts = tuple(map(self._redactor.cleaned, facts))
        before = after = loaded.session
        ended: list[Run] = []
        reported = False
        for fact in facts:
            after = session_machine.evolve(after, fact, now)
            reported = reported or type(fact) in replies.REPORTED
            if type(fact) in _ENDS and after.ended is not None:
                ended.append(after.ended)
        if reported and self._split is not None:
            # The messages to chats about it are queued in the same append.
            facts += replies.messages(before, after, facts, self._split)
        if after.runs is before.runs:
            changed = ended
        else:
            changed = [r for r in after.runs.values() if before.runs.get(r.id) is not r] + ended
        try:
            pending = self._journal.append(loaded.stream, loaded.head, now, facts, changed)
        except Conflict:
            self._discard(loaded)  # the next caller loads it again
            raise
        loaded.move(after, pending, now)
        loaded.take(facts)
        if HistoryCompacted in map(type, facts):
            self._keep_checkpoint(loaded)
        if changed:
            self._count(loaded, before, changed)
            if not loaded.pins:
                self._rest(loaded)
        return pending

    def delta(self, loaded: LoadedSession, delta: Delta) -> None:
        """Enqueue streamed text. No decision depends on it."""
        if loaded.void:
            raise JournalUnavailable("the session was voided by a failed commit; load it again")
        if not isinstance(delta, ToolProgress):
            loaded.partial = delta.turn
        loaded.last_at = self._clock.now()
        loaded.head = self._journal.delta(loaded.stream, loaded.last_at, delta)

    def rest(self, loaded: LoadedSession) -> None:
        """Let it leave memory, unless something still needs it."""
        if not loaded.void and self._loaded.get(loaded.key) is loaded:
            self._rest(loaded)
            if self._sizes and self._only_waits(loaded):
                self._idle.pop(loaded.key, None)
                self._drop(loaded)

    def _measure(self, session: Session, run: Run) -> None:
        """Keep the size of the inputs of a run that waits for a place."""
        self.queued_bytes -= self._sizes.pop(run.id, 0)
        if run.status is run_machine.RunPhase.QUEUED:
            size = self._sizes[run.id] = sum(
                [session.inputs[name].admitted.size for name in run.unread]
            )
            self.queued_bytes += size

    def _count(self, loaded: LoadedSession, before: Session, changed: list[Run]) -> None:
        key = loaded.key
        for run in changed:
            self._measure(loaded.session, run)
            if (old := before.runs.get(run.id)) is not None:
                self.counts[old.status] -= 1
            if run.status.final:
                self._by_run.pop(run.id, None)
            else:
                self.counts[run.status] += 1
                self._by_run[run.id] = key

    async def _load_once(self, key: SessionKey) -> LoadedSession | None:
        while (loading := self._loading.get(key)) is not None:
            await loading.wait()
        if (loaded := self._loaded.get(key)) is not None:
            return loaded
        done = self._loading[key] = anyio.Event()
        try:
            return await self._read(key)
        finally:
            del self._loading[key]
            done.set()

    async def _read(self, key: SessionKey) -> LoadedSession | None:
        """The session as it is on disk; read again if a commit failed meanwhile."""
        while True:
            failures = self._failures
            loaded = await self._fold(key)
            if failures == self._failures:
                break
        if loaded is not None:
            for run in loaded.session.runs.values():
                self._by_run[run.id] = key
                self._measure(loaded.session, run)
            self._keep(loaded)
        return loaded

    async def _fold(self, key: SessionKey) -> LoadedSession | None:
        """Fold what is not final from its facts; of what is final, only what is still read."""
        row = await self._journal.stream_of(key)
        if row is None:
            return None
        runs = await self._journal.open_runs(row.stream)
        loaded = await self._fold_from_checkpoint(row, runs)
        if loaded is None:
            loaded = LoadedSession(Session(key), row.stream, row.head, row.last_at)
            await self._follow(loaded, runs)
            if loaded.transcript.compacted is not None:
                self._keep_checkpoint(loaded)
        for run in loaded.session.runs.values():
            turn = run.turn + 1
            if run.driven and await self._journal.has_deltas(row.stream, run.id, turn):
                loaded.partial = turn
        return loaded

    async def _fold_from_checkpoint(
        self, row: StreamRow, runs: Sequence[RunId]
    ) -> LoadedSession | None:
        """Go on from the checkpoint, if there is one and nothing was undone from before it."""
        kept = await self._journal.checkpoint(row.stream)
        if kept is None or (found := checkpoint.decode(kept[1])) is None:
            return None
        session = checkpoint.with_runs(found.session, frozenset(runs))
        loaded = LoadedSession(session, row.stream, row.head, row.last_at)
        loaded.transcript, loaded.begins_at = Transcript.restored(found.excerpt), kept[0]
        try:
            await self._follow(loaded, runs)
        except MessagesLeftOut:
            return None
        return loaded

    async def _follow(self, loaded: LoadedSession, runs: Sequence[RunId]) -> None:
        """Apply the facts after those it begins with. `runs` are unfinished."""
        unfinished = frozenset(runs)
        kinds, session = (*MESSAGE_FACTS, *_SESSION_FACTS), loaded.session
        for record in await self._journal.facts(loaded.stream, kinds, runs, after=loaded.begins_at):
            loaded.transcript.add(record.fact)
            run_id = getattr(record.fact, "run_id", None)
            if run_id is None or run_id in unfinished:
                session = session_machine.evolve(session, record.fact, record.at)
            else:
                session = session_machine.evolve_lasting(session, record.fact)
        loaded.session = session

    def _keep_checkpoint(self, loaded: LoadedSession) -> None:
        if (data := checkpoint.encode(loaded.session, loaded.transcript)) is not None:
            self._journal.keep_checkpoint(loaded.stream, loaded.head, data)

    def _keep(self, loaded: LoadedSession) -> None:
        self._loaded[loaded.key] = loaded
        self._by_stream[loaded.stream] = loaded.key
        self._rest(loaded)

    def _rest(self, loaded: LoadedSession) -> None:
        """Let it leave memory when it is idle: not while it is pinned or has a run to be driven."""
        if loaded.pins or loaded.void or loaded.is_driven:
            self._idle.pop(loaded.key, None)
            return
        self._idle[loaded.key] = None
        while len(self._idle) > KEEP_IDLE:
            self._drop(self._loaded[self._idle.popitem(last=False)[0]])

    def _only_waits(self, loaded: LoadedSession) -> bool:
        """Return whether it only waits for a place, with big inputs in memory."""
        if loaded.pins or loaded.void or not loaded.is_settled:
            return False
        runs = loaded.session.runs
        return sum(self._sizes.get(r, 0) for r in runs) > BIG and not any(
            r.status is run_machine.RunPhase.RUNNING for r in runs.values()
        )

    def _discard(self, loaded: LoadedSession) -> None:
        """Discard a fold that is wrong."""
        loaded.void = True
        self._idle.pop(loaded.key, None)
        if self._loaded.get(loaded.key) is loaded:
            self._drop(loaded)

    def _drop(self, loaded: LoadedSession) -> None:
        del self._loaded[loaded.key]
        del self._by_stream[loaded.stream]
        for run_id in loaded.session.runs:
            self._by_run.pop(run_id, None)
        self._journal.forget(loaded.stream)

    def _forget_sizes(self, loaded: LoadedSession) -> None:
        for run_id in loaded.session.runs:
            self.queued_bytes -= self._sizes.pop(run_id, 0)

    def _void(self) -> None:
        self._failures += 1
        for loaded in self._loaded.values():
            loaded.void = True
            self.counts.subtract(r.status for r in loaded.session.runs.values())
            self._forget_sizes(loaded)
        for index in (self._loaded, self._idle, self._by_stream, self._by_run):
            index.clear()
