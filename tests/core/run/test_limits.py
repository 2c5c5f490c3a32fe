"""When to try again, how long to wait first, and when enough is enough."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.limits import GiveUp, Limits, TryAgain, may_queue, may_turn, retry

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
    assert retry(patient, 99, None, 0.999) == TryAgain(30.0 * (0.5 + 0.999 / 2))


@settings(deadline=None)
@given(asked=st.floats(0, 120), jitter=st.floats(0, 1, exclude_max=True))
def test_a_server_that_says_when_is_never_asked_sooner(asked: float, jitter: float) -> None:
    again = retry(LIMITS, 1, asked, jitter)
    assert isinstance(again, TryAgain)
    assert asked <= again.after_s <= asked + LIMITS.backoff_s


def test_a_server_that_asks_for_too_long_is_given_up_at_once() -> None:
    assert retry(LIMITS, 1, 121.0, 0.0) == GiveUp("the server asks to wait 121 s")


@pytest.mark.parametrize("retry_after_s", [None, 1.0])
def test_the_last_attempt_is_the_last(retry_after_s: float | None) -> None:
    assert retry(LIMITS, 5, retry_after_s, 0.0) == GiveUp("gave up after 5 attempts")


def test_a_run_has_as_many_turns_and_the_queue_as_many_places_as_it_says() -> None:
    limits = Limits(turns=2, queued=2)
    assert [may_turn(limits, n) for n in (1, 2, 3)] == [True, True, False]
    assert [may_queue(limits, n) for n in (0, 1, 2)] == [True, True, False]
