"""The memory of which models have just failed, so that runs ask others first.

It may be lost: without it a run asks the model that fails once more, and falls back then.
"""

from collections.abc import Sequence

from holdfast.core.types import Value
from holdfast.models.model import Candidate

TRIPS_AFTER = 3  # failures in a row
RESTS_S = 60.0


class _Trouble(Value):
    failures: int
    until: float  # the model is asked last before this time


class Breaker:
    """Orders candidates by whether they have answered lately."""

    def __init__(self) -> None:
        self._trouble: dict[str, _Trouble] = {}

    def order(self, chain: Sequence[Candidate], now: float) -> tuple[Candidate, ...]:
        """Return the candidates, those in trouble last. A single one is asked in any case."""
        if not self._trouble:
            return tuple(chain)
        return tuple(sorted(chain, key=lambda c: self._rests(c.id, now)))

    def failed(self, name: str, now: float, retry_after_s: float | None) -> None:
        """Count a failure. A server that asks for a wait gets it."""
        failures = self._trouble[name].failures + 1 if name in self._trouble else 1
        rest_s = retry_after_s or (RESTS_S if failures >= TRIPS_AFTER else 0.0)
        self._trouble[name] = _Trouble(failures, now + rest_s)

    def answered(self, name: str) -> None:
        """Forget its failures."""
        self._trouble.pop(name, None)

    def _rests(self, name: str, now: float) -> bool:
        return name in self._trouble and now < self._trouble[name].until
