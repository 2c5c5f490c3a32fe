"""Children: what is wanted of them is done, and what became of them is told.

The journal says which children a session has begun and not been told the end of. Whatever
may have changed something for one of them (it was begun, it ended, its parent was stopped, we
have just started) leads to the same look at both sessions, and to the next step. A look that
fails, because the journal cannot be written or read, is repeated; nothing else ends for it.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from secrets import token_hex

import anyio
from anyio.abc import TaskGroup

from holdfast.core import delegation
from holdfast.core.child import Child, ChildBegun
from holdfast.core.delegation import Ending
from holdfast.core.events import TERMINAL, Record
from holdfast.core.inbox import InputAdmitted
from holdfast.core.run import Run, RunCancelled, RunCompleted, RunFailed, RunQueued, StopAsked
from holdfast.core.session import go_on, stop
from holdfast.core.types import InputId, RunId, SessionKey
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Conflict, Journal

log = logging.getLogger(__name__)

TRY_AGAIN_S = 0.5
LOOK_AGAIN_S = 2.0  # after what should not have been raised
MADE_S = 1.0  # that somebody who asks for a child waits for it to be made

_HEARD = (ChildBegun, InputAdmitted, StopAsked, *TERMINAL)


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
        self._tasks = tasks
        self._model = model
        self._need = need  # somebody needs a session that was left aside
        self._open: dict[RunId, tuple[SessionKey, RunId]] = {}  # each, and whose it is
        self._of: dict[RunId, set[RunId]] = {}  # those of one run
        self._aside: set[SessionKey] = set()
        self._looks: dict[RunId, _Look] = {}  # under way

    async def start(self, *, aside: bool) -> None:
        """Take up what an earlier process left; or leave it until somebody needs the session."""
        keys = await self._journal.with_children()
        if aside:
            self._aside = set(keys).difference(key for key, _ in self._open.values())
            return
        for key in keys:
            await self._take_up(key)

    async def need(self, key: SessionKey) -> None:
        """Somebody needs a session that may have been left aside."""
        if key in self._aside:
            self._aside.discard(key)
            await self._take_up(key)

    async def _take_up(self, key: SessionKey) -> None:
        try:
            async with self._sessions.hold(key) as held:
                if held is not None:
                    self.notice(held)
        except Exception:
            # One session that cannot be read must not keep the others from being told.
            log.exception("children left aside", extra={"session_id": key.session_id})

    def notice(self, held: Held) -> None:
        """A session was brought back: see to its children."""
        for child in held.session.children.values():
            self._look(held.key, child.begun)

    def committed(self, records: Sequence[Record]) -> None:
        """On the loop, after every commit: look again where something has changed."""
        for record in records:
            fact = record.fact
            if not isinstance(fact, _HEARD):
                continue
            if isinstance(fact, ChildBegun | InputAdmitted):
                if (key := self._sessions.key_of(record.stream)) is not None:
                    self._hear(key, fact)
                continue
            concerned = (fact.run_id, *self._of.get(fact.run_id, ()))
            for child in concerned:
                if child in self._open:
                    self._look_again(child)

    def _hear(self, key: SessionKey, fact: ChildBegun | InputAdmitted) -> None:
        if isinstance(fact, ChildBegun):
            self._look(key, fact)
            return
        for child, (whose, _) in self._open.items():
            if whose == key:  # somebody has spoken there: what waits for that goes on
                self._tasks.start_soon(self._go_on, key, child)

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
            except (JournalUnavailable, Conflict):
                look.again = True
                await self._clock.sleep(TRY_AGAIN_S)
            except Exception:
                log.exception("a child is looked at again", extra={"run_id": child})
                look.again = True
                await self._clock.sleep(LOOK_AGAIN_S)
        del self._looks[child]
        look.done.set()

    async def _step(self, key: SessionKey, child: RunId) -> None:
        async with self._sessions.hold(key) as held:
            known = held.session.children.get(child) if held else None
            if held is None or known is None:
                self._forget(child)
                return
            own = delegation.session_of(key, child)
            await self._need(own)
            on_its_way, found = await self._find(own, child)
            if on_its_way:
                return  # it will be heard of when it is on the disk
            match delegation.next_step(known, found):
                case delegation.Create():
                    await self._create(held, known, own)
                case delegation.End(reason=reason):
                    await self._stop(own, child, reason)
                case delegation.Tell(ending=ending):
                    await self._tell(held, child, ending)
                case delegation.Leave():
                    pass

    async def _find(self, own: SessionKey, child: RunId) -> tuple[bool, Run | Ending | None]:
        """What its own session says of it; and whether that is still on its way to the disk."""
        async with self._sessions.hold(own) as there:
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

    async def _create(self, held: Held, child: Child, own: SessionKey) -> None:
        facts = delegation.made(held.session, child, self._model)
        async with self._sessions.hold(own) as there:
            if there is None:
                opened = delegation.opened(held.session, child)
                there = self._sessions.create(own)
                await self._sessions.append(there, opened, *facts).wait()
            else:
                await self._sessions.append(there, *facts).wait()

    async def _stop(self, own: SessionKey, child: RunId, reason: str) -> None:
        async with self._sessions.hold(own) as there:
            now = there.session.runs.get(child) if there else None
            if there is not None and now is not None and not now.stop_reason:
                await self._sessions.append(there, *stop(there.session, child, reason)).wait()

    async def _go_on(self, key: SessionKey, child: RunId) -> None:
        own = delegation.session_of(key, child)
        try:
            async with self._sessions.hold(own) as there:
                if there is not None and (facts := go_on(there.session)):
                    await self._sessions.append(there, *facts).wait()
        except (JournalUnavailable, Conflict):
            return  # the next words will do
        for deeper in self._of.get(child, ()):
            self._tasks.start_soon(self._go_on, own, deeper)

    async def _tell(self, held: Held, child: RunId, ending: Ending) -> None:
        known = held.session.children.get(child)
        if known is not None:
            made_at = f"{int(self._clock.now() * 1000):012x}"
            after = RunQueued(
                run_id=RunId(f"run_{made_at}{token_hex(10)}"),
                input_id=InputId(f"in_{token_hex(12)}"),
                model=held.session.model or self._model,
                origin=known.begun.origin,
            )
            facts = delegation.told(held.session, known, ending, after)
            await self._sessions.append(held, *facts).wait()
        self._forget(child)

    def _forget(self, child: RunId) -> None:
        if (whose := self._open.pop(child, None)) is not None:
            siblings = self._of[whose[1]]
            siblings.discard(child)
            if not siblings:
                del self._of[whose[1]]
