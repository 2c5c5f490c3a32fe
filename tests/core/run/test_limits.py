"""When to try again, how long to wait first, and when enough is enough."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.run.limits import Limits, StopRetrying, TryAgain, retry

LIMITS = Limits()


@settings(deadline=None)
@given(attempt=st.integers(1, 4), jitter=st.floats(0, 1, exclude_max=True))
def test_the_wait_doubles_and_jitters_between_half_and_all_of_it(
    attempt: int, jitter: float
) -> None:
    again = retry(LIMITS, attempt, None, jitter)
    ceiling = 0.5 * 2 ** (attempt - 1)
    assert isinstance(again, TryAgain)
    assert ceiling / 2 <= again.after_s <= ceiling


def test_the_wait_never_exceeds_its_cap() -> None:
    patient = Limits(model_attempts=100)
    again = retry(patient, 99, None, 0.999, status=429)
    assert again == TryAgain(60.0 * (0.5 + 0.999 / 2), of=100)


@settings(deadline=None)
@given(asked=st.floats(0, 300), jitter=st.floats(0, 1, exclude_max=True))
def test_a_server_s_retry_after_is_respected(asked: float, jitter: float) -> None:
    again = retry(LIMITS, 1, asked, jitter)
    assert isinstance(again, TryAgain)
    assert asked <= again.after_s <= asked + LIMITS.backoff_s


def test_a_server_that_asks_for_too_long_is_given_up_at_once() -> None:
    assert retry(LIMITS, 1, 301.0, 0.0) == StopRetrying("the server asks to wait 301 s")


@pytest.mark.parametrize("retry_after_s", [None, 1.0])
def test_the_last_attempt_is_the_last(retry_after_s: float | None) -> None:
    assert retry(LIMITS, 5, retry_after_s, 0.0) == StopRetrying("gave up after 5 attempts")


@pytest.mark.promise("SAY-02")
@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_a_busy_server_is_asked_for_minutes_with_growing_waits(status: int) -> None:
    waits = list[float]()
    for attempt in range(1, LIMITS.model_attempts):
        again = retry(LIMITS, attempt, None, 0.5, status=status)
        assert isinstance(again, TryAgain) and again.of == LIMITS.model_attempts
        waits.append(again.after_s)
    assert waits == sorted(waits)
    assert 180 < sum(waits) < 300
    last = retry(LIMITS, LIMITS.model_attempts, None, 0.5, status=status)
    assert isinstance(last, StopRetrying)


@pytest.mark.parametrize("status", [0, 408])
def test_a_server_that_is_not_there_is_given_up_sooner(status: int) -> None:
    assert isinstance(retry(LIMITS, LIMITS.blind_attempts, None, 0.0, status=status), StopRetrying)
    fewer = Limits(model_attempts=2)
    assert isinstance(retry(fewer, 2, None, 0.0, status=status), StopRetrying)


def test_with_several_models_the_next_is_asked_at_once_and_each_round_waits() -> None:
    waits = []
    for attempt in range(1, 10):
        again = retry(Limits(model_attempts=3), attempt, None, 0.0, 3)
        waits.append(again.after_s if isinstance(again, TryAgain) else again.reason)
    assert waits == [0, 0, 0.25, 0, 0, 0.5, 0, 0, "gave up after 9 attempts"]


def test_turns_and_queued_runs_are_limited() -> None:
    limits = Limits(turns=2, queued=2)
    assert [limits.may_turn(n) for n in (1, 2, 3)] == [True, True, False]
    assert [limits.may_queue(n, 0) for n in (0, 1, 2)] == [True, True, False]


def test_the_queue_is_bounded_by_bytes_too() -> None:
    limits = Limits(queued_bytes=10)
    assert [limits.may_queue(1, n) for n in (0, 9, 10)] == [True, True, False]
