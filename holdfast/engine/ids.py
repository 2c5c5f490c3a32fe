"""New ids for sessions, runs and inputs.

The ids of sessions and runs rise with time: neighbours lie together on disk, and lists are in
order. Randomness is read for many ids at once, because each read may cost a switch of threads.
"""

from secrets import token_hex

from holdfast.core.types import InputId, RunId, SessionId
from holdfast.engine.clock import Clock

_POOL = 4096  # bytes
_MOST_IN_MS = 1 << 16  # then the order within one millisecond is lost


class Ids:
    """Makes ids. Not to be shared with another process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pool = ""
        self._used = 0
        self._at_ms = 0  # of the latest id that rises
        self._in_ms = 0  # how many of that millisecond came before it

    def session(self) -> SessionId:
        """Make the id of a session."""
        return SessionId(f"ses_{self._rising()}")

    def run(self) -> RunId:
        """Make the id of a run."""
        return RunId(f"run_{self._rising()}")

    def input(self) -> InputId:
        """Make the id of an input."""
        return InputId(f"in_{self._random(24)}")

    def _rising(self) -> str:
        at_ms = int(self._clock.now() * 1000)
        self._in_ms = (self._in_ms + 1) % _MOST_IN_MS if at_ms == self._at_ms else 0
        self._at_ms = at_ms
        return f"{at_ms:012x}{self._in_ms:04x}{self._random(16)}"

    def _random(self, digits: int) -> str:
        start, self._used = self._used, self._used + digits
        if self._used > len(self._pool):
            self._pool = token_hex(_POOL)
            start, self._used = 0, digits
        return self._pool[start : self._used]
