"""Limits on runs and retries, and the decision when to give up."""

from holdfast.core.types import Value


class Limits(Value):
    """The limits of one process. Each can be configured."""

    running: int = 1_024  # runs driven at once; runs that wait for something do not count
    queued: int = 10_000  # runs that may wait to be driven
    queued_bytes: int = 256 << 20  # total input of these
    turns: int = 90  # model requests in one run
    model_attempts: int = 5  # attempts at one turn
    run_usd: float = 0.0  # what one run may spend on models; 0: no limit
    backoff_s: float = 0.5
    backoff_cap_s: float = 30.0
    retry_after_cap_s: float = 120.0

    def may_turn(self, turn: int) -> bool:
        """Tell if a run may ask the model for answer number `turn` (from 1)."""
        return turn <= self.turns

    def may_queue(self, queued: int, size: int) -> bool:
        """Tell if one more run may be queued, besides `queued` runs with `size` bytes of input."""
        return queued < self.queued and size < self.queued_bytes


class TryAgain(Value):
    after_s: float


class StopRetrying(Value):
    reason: str


def retry(
    limits: Limits, attempt: int, retry_after_s: float | None, jitter: float, candidates: int = 1
) -> TryAgain | StopRetrying:
    """Decide what follows after attempt number `attempt` (from 1) failed. `jitter`: in [0, 1).

    With several candidates the next one is asked at once; each round through all of them waits.
    """
    if attempt >= limits.model_attempts * candidates:
        return StopRetrying(f"gave up after {attempt} attempts")
    if attempt % candidates:
        return TryAgain(0.0)
    attempt //= candidates
    if retry_after_s is not None:
        if retry_after_s > limits.retry_after_cap_s:
            return StopRetrying(f"the server asks to wait {retry_after_s:.0f} s")
        return TryAgain(retry_after_s + jitter * limits.backoff_s)
    ceiling = min(limits.backoff_cap_s, limits.backoff_s * 2.0 ** (attempt - 1))
    return TryAgain(ceiling * (0.5 + jitter / 2))
