"""Budgets, retries, and when to give up. Every number here is a decision, none an accident."""

from holdfast.core.types import Value


class Limits(Value):
    """What one process takes on. All of it can be configured."""

    running: int = 1_024  # runs driven at once; those that wait hold no place
    queued: int = 10_000  # runs that may wait for a place
    turns: int = 90  # model requests in one run
    model_attempts: int = 5  # tries of one turn
    backoff_s: float = 0.5
    backoff_cap_s: float = 30.0
    retry_after_cap_s: float = 120.0


class TryAgain(Value):
    after_s: float


class GiveUp(Value):
    reason: str


def retry(
    limits: Limits, attempt: int, retry_after_s: float | None, jitter: float
) -> TryAgain | GiveUp:
    """What to do after the `attempt`th try (from 1) failed for now. `jitter` is in [0, 1)."""
    if attempt >= limits.model_attempts:
        return GiveUp(f"gave up after {attempt} attempts")
    if retry_after_s is not None:
        if retry_after_s > limits.retry_after_cap_s:
            return GiveUp(f"the server asks to wait {retry_after_s:.0f} s")
        return TryAgain(retry_after_s + jitter * limits.backoff_s)
    ceiling = min(limits.backoff_cap_s, limits.backoff_s * 2.0 ** (attempt - 1))
    return TryAgain(ceiling * (0.5 + jitter / 2))


def may_turn(limits: Limits, turn: int) -> bool:
    """Whether a run may ask the model for its `turn`th answer (from 1)."""
    return turn <= limits.turns


def may_queue(limits: Limits, queued: int) -> bool:
    """Whether one more run may wait for a place."""
    return queued < limits.queued
