"""Limits on runs and retries, and the decision when to give up."""

from holdfast.core.types import Value


class Limits(Value):
    """The limits of one process. Each can be configured."""

    running: int = 1_024  # runs driven at once; runs that wait for something do not count
    queued: int = 10_000  # runs that may wait to be driven
    queued_bytes: int = 256 << 20  # total input of these
    turns: int = 90  # model requests in one run
    model_attempts: int = 12  # attempts at one turn, if the server says that it is busy
    blind_attempts: int = 5  # and otherwise: no answer, or half of one
    run_usd: float = 0.0  # what one run may spend on models; 0: no limit
    backoff_s: float = 0.5
    backoff_cap_s: float = 60.0  # 12 attempts take three to five minutes
    retry_after_cap_s: float = 300.0

    def may_turn(self, turn: int) -> bool:
        """Tell if a run may ask the model for answer number `turn` (from 1)."""
        return turn <= self.turns

    def may_queue(self, queued: int, size: int) -> bool:
        """Tell if one more run may be queued, besides `queued` runs with `size` bytes of input."""
        return queued < self.queued and size < self.queued_bytes


class TryAgain(Value):
    after_s: float
    of: int = 0  # the number of attempts after which to give up


class StopRetrying(Value):
    reason: str


def is_busy(status: int) -> bool:
    """Tell if a server that answers with this HTTP status may well answer in some minutes."""
    return status == 429 or status >= 500


def retry(
    limits: Limits,
    attempt: int,
    retry_after_s: float | None,
    jitter: float,
    candidates: int = 1,
    status: int = 0,
) -> TryAgain | StopRetrying:
    """Decide what follows after attempt number `attempt` (from 1) failed. `jitter`: in [0, 1).

    With several candidates the next one is asked at once; each round through all of them waits.
    `status` is what the server answered, if it did.
    """
    most = limits.model_attempts
    if not is_busy(status):
        most = min(most, limits.blind_attempts)
    of = most * candidates
    if attempt >= of:
        return StopRetrying(f"gave up after {attempt} attempts")
    if attempt % candidates:
        return TryAgain(0.0, of)
    attempt //= candidates
    if retry_after_s is not None:
        if retry_after_s > limits.retry_after_cap_s:
            return StopRetrying(f"the server asks to wait {retry_after_s:.0f} s")
        return TryAgain(retry_after_s + jitter * limits.backoff_s, of)
    ceiling = min(limits.backoff_cap_s, limits.backoff_s * 2.0 ** (attempt - 1))
    return TryAgain(ceiling * (0.5 + jitter / 2), of)
