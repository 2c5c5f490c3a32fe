"""Time comes from outside: every timed wait of the engine takes one of these."""

from typing import Protocol


class Clock(Protocol):
    """The wall clock and the way to wait on it."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...
