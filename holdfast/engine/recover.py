"""The way up: fold what is not final, settle what is in doubt, wake.

Every start is a recovery, after a clean stop as after `kill -9`. The same is done for
single sessions when the journal could not be written for a while: their drives are
gone, as after a crash, and are brought back once it can.
"""

import logging

import anyio

from holdfast.core.run import Cause
from holdfast.core.session import OnStart, recover
from holdfast.core.types import SessionKey
from holdfast.engine.clock import Clock
from holdfast.engine.coordinator import Coordinator
from holdfast.engine.sessions import Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Conflict, Journal

log = logging.getLogger(__name__)

TRY_AGAIN_S = 0.5


class Recovery:
    """Brings sessions back whose drives are gone."""

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        coordinator: Coordinator,
        clock: Clock,
        policy: OnStart,
    ) -> None:
        self._journal = journal
        self._sessions = sessions
        self._coordinator = coordinator
        self._clock = clock
        self._policy = policy
        self._orphans: dict[SessionKey, None] = {}
        self._lost = anyio.Event()

    async def start(self) -> int:
        """What a new process does first; how many runs it found unfinished."""
        unfinished = await self._journal.unfinished()
        for row in unfinished:
            self._sessions.counts[row.status] += 1
        async with anyio.create_task_group() as together:  # so that they share their commits
            for key in dict.fromkeys(row.key for row in unfinished):
                together.start_soon(self._bring_back, key, self._policy, Cause.CRASH)
        return len(unfinished)

    def orphaned(self, key: SessionKey) -> None:
        """The session's drive is gone because the journal could not be written."""
        self._orphans[key] = None
        self._lost.set()

    async def tend(self) -> None:
        """For as long as the process lives: bring orphans back when the journal can be written."""
        while True:
            await self._lost.wait()
            self._lost = anyio.Event()
            while self._orphans:
                await self._clock.sleep(TRY_AGAIN_S)
                if self._journal.state() == "ok":
                    await self._bring_back_orphans()

    async def _bring_back_orphans(self) -> None:
        for key in tuple(self._orphans):
            try:
                await self._bring_back(key, OnStart.RESUME, Cause.JOURNAL)
            except (JournalUnavailable, Conflict):
                return
            self._orphans.pop(key, None)
        log.info("journal can be written again")

    async def _bring_back(self, key: SessionKey, policy: OnStart, cause: Cause) -> None:
        async with self._sessions.hold(key) as held:
            if held is None:
                return
            if facts := recover(held.session, policy, held.last_at, cause):
                await self._sessions.append(held, *facts).wait()
        self._coordinator.wake(key, first=True)
