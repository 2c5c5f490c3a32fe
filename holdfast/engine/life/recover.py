"""The way up: fold what is not final, settle what is in doubt, wake.

Every start is a recovery, after a clean stop as after `kill -9`. The same is done for
single sessions when the journal could not be written for a while: their drives are
gone, as after a crash, and are brought back once it can. A start over a disk that is full
serves what can be read, and brings the rest back in the same way.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import anyio

from holdfast.core.run import Cause, Run, Status
from holdfast.core.session import OnStart, found_cut, recover
from holdfast.core.suspects import Judgement, judge
from holdfast.core.types import RunId, SessionKey
from holdfast.engine.clock import Clock
from holdfast.engine.coordinator import Coordinator
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Conflict, Journal, RunRow

log = logging.getLogger(__name__)

TRY_AGAIN_S = 0.5

_CUT = frozenset({Status.RUNNING, Status.INTERRUPTED})
_Plan = tuple[OnStart, Cause, Judgement]


class Recovery:
    """Brings sessions back whose drives are gone."""

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        coordinator: Coordinator,
        clock: Clock,
        policy: OnStart,
        noticed: Callable[[Held], None],
    ) -> None:
        self._journal = journal
        self._sessions = sessions
        self._coordinator = coordinator
        self._clock = clock
        self._policy = policy
        self._noticed = noticed
        self._orphans: dict[SessionKey, _Plan] = {}
        self._aside: dict[SessionKey, anyio.Lock] = {}  # one at a time fetches it back
        self._cut: frozenset[SessionKey] = frozenset()  # where the start found something cut
        self._lost = anyio.Event()
        journal.on_failure(self._failed)

    async def start(self, only: frozenset[RunId] | None) -> int:
        """What a new process does first; how many runs it found unfinished.

        A process that will not stay long names the runs it came for, if any. Sessions without
        one are left aside, as they are, until somebody needs them.
        """
        unfinished = await self._journal.unfinished()
        self._sessions.recount(unfinished)
        keys = dict.fromkeys(row.key for row in unfinished)
        wanted = keys if only is None else {r.key: None for r in unfinished if r.run_id in only}
        for key in keys:
            self._coordinator.orphan(key)
            if key not in wanted:  # else somebody who needs it now would bring it back before us
                self._aside[key] = anyio.Lock()
        self._cut = frozenset(row.key for row in unfinished if row.status in _CUT)
        judgement = await self._judge([r for r in unfinished if r.key in wanted])
        async with anyio.create_task_group() as together:  # so that they share their commits
            for key in wanted:
                self._orphans[key] = (self._policy, Cause.CRASH, judgement)
                together.start_soon(self._bring_back, key)
        return len(unfinished)

    async def _judge(self, unfinished: Sequence[RunRow]) -> Judgement:
        """Over all that is brought back, before any of it is: who may be what ended the process."""
        concerned = {r.key: None for r in unfinished if r.status is not Status.WAITING}
        if self._cut.isdisjoint(concerned):
            return Judgement()
        return await self._judge_keys(concerned)

    async def _judge_keys(self, keys: Iterable[SessionKey]) -> Judgement:
        found: list[tuple[Run, bool]] = []
        read: set[SessionKey] = set()

        async def look(key: SessionKey) -> None:
            try:
                async with self._sessions.hold(key) as held:
                    if held is not None:
                        cut = found_cut(held.session, held.last_at)
                        found.extend((run, said is not None) for run, said in cut)
                        read.add(key)
            except Exception:  # noqa: BLE001  told when it is brought back
                return

        async with anyio.create_task_group() as together:
            for key in keys:
                together.start_soon(look, key)
        just_cut = [run.id for run, said in found if said]
        others = bool(self._cut - read)
        return judge([run for run, _ in found], just_cut, self._clock.now(), others=others)

    async def need(self, key: SessionKey) -> None:
        """Somebody needs a session that was left aside."""
        await self._fetch(key, OnStart.RESUME)

    async def watch(self, key: SessionKey) -> None:
        """Somebody watches one: it goes on, or waits, as after any other start."""
        await self._fetch(key, self._policy)

    async def _fetch(self, key: SessionKey, policy: OnStart) -> None:
        if (lock := self._aside.get(key)) is None:
            return
        async with lock:
            if key not in self._aside:
                return
            judgement = await self._judge_keys((key,)) if key in self._cut else Judgement()
            self._orphans[key] = (policy, Cause.CRASH, judgement)
            try:
                await self._bring_back(key)
            finally:
                del self._aside[key]
                if key in self._orphans:  # it cannot be written, or whoever asked has left
                    self._lost.set()

    def orphaned(self, key: SessionKey) -> None:
        """The session's drive is gone because the journal could not be written."""
        self._orphans[key] = (OnStart.RESUME, Cause.JOURNAL, Judgement())
        self._lost.set()

    def _failed(self) -> None:
        self._lost.set()

    async def tend(self) -> None:
        """For as long as the process lives: after a failed commit, put right what it left."""
        while True:
            await self._lost.wait()
            self._lost = anyio.Event()
            await self._clock.sleep(TRY_AGAIN_S)
            self._sessions.recount(await self._journal.unfinished())
            if self._orphans:
                await self._bring_back_orphans()

    async def _bring_back_orphans(self) -> None:
        back = [await self._bring_back(key) for key in tuple(self._orphans)]
        if all(back):
            log.info("journal can be written again")
        else:
            self._lost.set()

    async def _bring_back(self, key: SessionKey) -> bool:
        """Write down that the session's runs were cut, and go on; False: it cannot be written."""
        if (plan := self._orphans.get(key)) is None:
            return True  # somebody was faster
        policy, cause, judgement = plan
        try:
            async with self._sessions.hold(key) as held:
                if held is not None:
                    if facts := recover(held.session, policy, held.last_at, cause, judgement):
                        await self._sessions.append(held, *facts).wait()
                    self._noticed(held)
        except (JournalUnavailable, Conflict):
            return False
        except Exception:
            # A session that cannot be read must not keep the others from coming back.
            log.exception("session left aside", extra={"session_id": key.session_id})
            self._orphans.pop(key, None)
            return True
        self._orphans.pop(key, None)
        self._coordinator.adopt(key)
        return True
