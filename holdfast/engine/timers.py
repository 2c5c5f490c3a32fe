"""Timers: retention, keep-alives for silent followers, expiries, the loop's lag."""

import logging
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush

from holdfast.core.types import SessionKey
from holdfast.engine.clock import Clock
from holdfast.engine.live import Live
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Journal

log = logging.getLogger(__name__)

PRUNE_EVERY_S = 600.0
LAG_EVERY_S = 1.0
NUDGE_EVERY_S = 15.0
EXPIRY_EVERY_S = 1.0
REQUEST_KEYS_KEPT_S = 24 * 3600.0


async def prune(journal: Journal, clock: Clock, retention_s: float) -> None:
    """For as long as the process lives: forget deltas and request keys that are old enough."""
    while True:
        now = clock.now()
        if pruned := await journal.prune(now - retention_s, now - REQUEST_KEYS_KEPT_S):
            log.info("pruned deltas", extra={"runs": pruned})
        await clock.sleep(PRUNE_EVERY_S)


async def nudge(live: Live, clock: Clock) -> None:
    """For as long as the process lives: a sign of life for readers that hear nothing."""
    while True:
        await clock.sleep(NUDGE_EVERY_S)
        live.nudge()


class Expiries:
    """Deadlines of sessions. The journal has them all; this is only where to look next."""

    def __init__(self) -> None:
        self._due: list[tuple[float, SessionKey]] = []

    def add(self, at: float, key: SessionKey) -> None:
        """Look at the session at that time."""
        heappush(self._due, (at, key))

    async def watch(self, clock: Clock, expire: Callable[[SessionKey], Awaitable[None]]) -> None:
        """For as long as the process lives: have sessions looked at when something runs out."""
        while True:
            await clock.sleep(EXPIRY_EVERY_S)
            while self._due and self._due[0][0] <= clock.now():
                at, key = heappop(self._due)
                try:
                    await expire(key)
                except JournalUnavailable:
                    heappush(self._due, (at, key))
                    break


class Lag:
    """The lag of the event loop: how late a sleeper wakes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ms = 0.0

    async def watch(self) -> None:
        """For as long as the process lives: sleep, and see by how much it was too long."""
        while True:
            before = self._clock.now()
            await self._clock.sleep(LAG_EVERY_S)
            late = self._clock.now() - before - LAG_EVERY_S
            self.ms = max(0.0, late) * 1000
