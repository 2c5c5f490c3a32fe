"""A clock that moves when the test says so."""

import anyio

from holdfast.core.life.timeline import Reading

FIRST_BOOT = Reading("boot", 1.0, 1_700_000_000.0)  # for a journal that is opened without a machine


class ManualClock:
    """Stands still until `advance`; whoever sleeps on it wakes when it gets there."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._sleepers: list[tuple[float, anyio.Event]] = []
        self._asleep = anyio.Event()

    def now(self) -> float:
        """Seconds since the epoch, as far as anybody here is concerned."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return once the test has moved the clock that far."""
        sleeper = (self._now + seconds, anyio.Event())
        self._sleepers.append(sleeper)
        self._asleep.set()
        self._asleep = anyio.Event()
        try:
            await sleeper[1].wait()
        finally:
            self._sleepers.remove(sleeper)

    def advance(self, seconds: float) -> None:
        """Move on, and wake whoever is due."""
        self._now += seconds
        for due_at, woken in self._sleepers:
            if due_at <= self._now:
                woken.set()

    async def due_within(self, seconds: float) -> None:
        """Return when somebody sleeps who is due that soon."""
        while not any(
            due_at <= self._now + seconds and not woken.is_set() for due_at, woken in self._sleepers
        ):
            await self._asleep.wait()
