"""Children: what is wanted of them is done, and what became of them is told.

The journal says which children a session has begun and not been told the end of. Whatever
may have changed something for one of them (it was begun, it ended, its parent was stopped, we
have just started) leads to the same look at both sessions, and to the next step. A look that
fails, because the journal cannot be written or read, is repeated; nothing else ends for it.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from holdfast.core.events import TERMINAL, Record, run_of
from holdfast.core.inbox import InputAdmitted
from holdfast.core.run.child import Child, ChildBegun
from holdfast.core.run.run import Run, RunCancelled, RunCompleted, RunFailed, RunQueued, StopAsked
from holdfast.core.session import delegation
from holdfast.core.session.delegation import Ending
from holdfast.core.session.session import requeue_interrupted, stop
from holdfast.core.types import Fact, RunId, SessionKey
from holdfast.engine.clock import Clock
from holdfast.engine.commits import Commits
from holdfast.engine.ids import Ids
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Journal

log = logging.getLogger(__name__)

TRY_AGAIN_S = 0.5
LOOK_AGAIN_S = 2.0  # after what should not have been raised
MADE_S = 1.0  # that a reader of a child waits for it to be made


@dataclass(slots=True)
class _Look:
    again: bool = True  # something has happened since
    done: anyio.Event = field(default_factory=anyio.Event)


class Children:
    """Looks after the open children of all sessions."""

    def __init__(
        self,
        sessions: Sessions,
        journal: Journal,
        clock: Clock,
        tasks: TaskGroup,
        model: str,
        need: Callable[[SessionKey], Awaitable[None]],
    ) -> None:
        self._sessions = sessions
        self._journal = journal
        self._clock = clock
        self._ids = Ids(clock)
        self._tasks = tasks
        self._model = model
        self._need = need  # resumes a session whose recovery was deferred
        self._open: dict[RunId, tuple[SessionKey, RunId]] = {}  # each, and whose it is
        self._of: dict[RunId, set[RunId]] = {}  # those of one run
        self._aside: set[SessionKey] = set()
        self._early: set[SessionKey] | None = set()  # needed before the start; None: it has been
        self._looks: dict[RunId, _Look] = {}  # under way

    async def start(self, *, aside: bool) -> None:
        """Take up what an earlier process left; `aside`: only when the session is needed."""
        keys = await self._journal.with_children()
        early, self._early = self._early or set(), None
        if aside:
            self._aside = set(keys).difference(early, (key for key, _ in self._open.values()))
            keys = [key for key in keys if key in early]
        for key in keys:
            await self._take_up(key)

    async def need(self, key: SessionKey) -> None:
        """Take up the children of a session whose recovery was deferred."""
        if self._early is not None:
            self._early.add(key)
        elif key in self._aside:
            self._aside.discard(key)
            await self._take_up(key)

    async def _take_up(self, key: SessionKey) -> None:
        try:
            async with self._sessions.load(key) as loaded:
                if loaded is not None:
                    self.notice(loaded)
        except Exception:
            # One session that cannot be read must not keep the others from being told.
            log.exception(
                "children not taken up: the session cannot be read",
                extra={"session_id": key.session_id},
            )

    def notice(self, loaded: LoadedSession) -> None:
        """A session was brought back: see to its children."""
        for child in loaded.session.children.values():
            self._look(loaded.key, child.begun)

    def subscribe(self, commits: Commits) -> None:
        """Get from the journal what concerns children."""
        commits.subscribe((ChildBegun,), self._begun)
        commits.subscribe((InputAdmitted,), self._admitted)
        commits.subscribe((StopAsked, *TERMINAL), self._changed)

    def _begun(self, record: Record) -> None:
        assert isinstance(record.fact, ChildBegun)
        if (key := self._sessions.key_of(record.stream)) is not None:
            self._look(key, record.fact)

    def _admitted(self, record: Record) -> None:
        """Let children of a session that got an input go on: they may have waited for one."""
        if not self._open or (key := self._sessions.key_of(record.stream)) is None:
            return
        for child, (parent, _) in self._open.items():
            if parent == key:
                self._tasks.start_soon(self._go_on, key, child)

    def _changed(self, record: Record) -> None:
        """Look again at a child that ended or stops, and at the children of such a run."""
        run_id = run_of(record.fact)
        if not self._open or run_id is None:
            return
        for child in (run_id, *self._of.get(run_id, ())):
            if child in self._open:
                self._look_again(child)

    def _look(self, key: SessionKey, begun: ChildBegun) -> None:
        self._open[begun.child] = (key, begun.run_id)
        self._of.setdefault(begun.run_id, set()).add(begun.child)
        self._look_again(begun.child)

    def _look_again(self, child: RunId) -> None:
        if (look := self._looks.get(child)) is not None:
            look.again = True
            return
        look = self._looks[child] = _Look()
        self._tasks.start_soon(self._see_to, self._open[child][0], child, look)

    async def made(self, run_id: RunId) -> None:
        """Return when a child that is known to be wanted is there, if that does not take long."""
        if (look := self._looks.get(run_id)) is not None:
            with anyio.move_on_after(MADE_S):
                await look.done.wait()

    async def _see_to(self, key: SessionKey, child: RunId, look: _Look) -> None:
        """Do what there is to do for it, however often that has to be tried."""
        while look.again:
            look.again = False
            try:
                await self._step(key, child)
            except JournalUnavailable:
                look.again = True
                await self._clock.sleep(TRY_AGAIN_S)
            except Exception:
                log.exception("a child is looked at again", extra={"run_id": child})
                look.again = True
                await self._clock.sleep(LOOK_AGAIN_S)
        del self._looks[child]
        look.done.set()

    async def _step(self, key: SessionKey, child: RunId) -> None:
        async with self._sessions.load(key) as loaded:
            known = loaded.session.children.get(child) if loaded else None
            if loaded is None or known is None:
                self._forget(child)
                return
            own = delegation.child_session(key, child)
            await self._need(own)
            on_its_way, found = await self._find(own, child)
            if on_its_way:
                return  # it will be heard of when it is on the disk
            match delegation.next_step(known, found):
                case delegation.Create():
                    await self._create(loaded, known, own)
                case delegation.End(reason=reason):
                    await self._stop(own, child, reason)
                case delegation.Tell(ending=ending):
                    await self._tell(loaded, child, ending)
                case delegation.LeaveChild():
                    pass

    async def _find(self, own: SessionKey, child: RunId) -> tuple[bool, Run | Ending | None]:
        """Find a child in its own session; True if it is still on its way to the disk."""
        async with self._sessions.load(own) as there:
            if there is None:
                return False, None
            if (now := there.session.runs.get(child)) is not None:
                return False, now
        row = await self._journal.run(child)
        if row is None:
            return False, None
        if row.ended_seq is None:
            return True, None
        last = await self._journal.records(row.stream, child, row.ended_seq - 1, 1)
        ending = last[0].fact
        assert isinstance(ending, RunCompleted | RunFailed | RunCancelled)
        return False, ending

    async def _create(self, loaded: LoadedSession, child: Child, own: SessionKey) -> None:
        facts = delegation.created(loaded.session, child, self._model)
        async with self._sessions.load(own) as there:
            if there is None:
                opened = delegation.opened(loaded.session, child)
                there = self._sessions.create(own)
                await self._sessions.append(there, opened, *facts).wait()
            else:
                await self._sessions.append(there, *facts).wait()

    async def _stop(self, own: SessionKey, child: RunId, reason: str) -> None:
        def decide(there: LoadedSession | None) -> tuple[Fact, ...]:
            now = there.session.runs.get(child) if there else None
            if there is None or now is None or now.stop_reason:
                return ()
            return stop(there.session, child, reason)

        await self._sessions.change(own, decide)

    async def _go_on(self, key: SessionKey, child: RunId) -> None:
        own = delegation.child_session(key, child)
        try:
            await self._sessions.change(
                own, lambda there: requeue_interrupted(there.session) if there else ()
            )
        except JournalUnavailable:
            return  # the next words will do
        for deeper in self._of.get(child, ()):
            self._tasks.start_soon(self._go_on, own, deeper)

    async def _tell(self, loaded: LoadedSession, child: RunId, ending: Ending) -> None:
        known = loaded.session.children.get(child)
        if known is not None:
            after = RunQueued(
                run_id=self._ids.run(),
                input_id=self._ids.input(),
                model=loaded.session.model or self._model,
                origin=known.begun.origin,
            )
            facts = delegation.reported(loaded.session, known, ending, after)
            await self._sessions.append(loaded, *facts).wait()
        self._forget(child)

    def _forget(self, child: RunId) -> None:
        if (whose := self._open.pop(child, None)) is not None:
            siblings = self._of[whose[1]]
            siblings.discard(child)
            if not siblings:
                del self._of[whose[1]]
