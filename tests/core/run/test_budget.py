"""What a run may spend: reserved before a request, settled after it, never exceeded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.inbox import InputPromoted
from holdfast.core.run.budget import LEAST_OUTPUT, MAX_OUTPUT, OverBudget, Reserved, reserve
from holdfast.core.run.run import (
    ModelAnswered,
    ModelAsked,
    ModelFailed,
    Run,
    RunInterrupted,
    RunQueued,
    RunRequeued,
    RunResumed,
    RunStarted,
    evolve,
    queue,
)
from holdfast.core.types import Fact, InputId, RunId, Usage

RUN, INPUT = RunId("run_1"), InputId("in_1")
pytestmark = pytest.mark.fault("F-40")

PER_TOKEN = 1e-5


def test_the_worst_case_of_a_request_is_reserved() -> None:
    found = reserve(1.0, 0.0, 1_000, PER_TOKEN, 2 * PER_TOKEN)
    assert isinstance(found, Reserved)
    assert found.max_output == MAX_OUTPUT
    assert found.usd >= 1_000 * PER_TOKEN + MAX_OUTPUT * 2 * PER_TOKEN


def test_an_answer_gets_the_room_that_is_left() -> None:
    found = reserve(1.0, 0.95, 1_000, PER_TOKEN, 2 * PER_TOKEN)
    assert isinstance(found, Reserved)
    assert LEAST_OUTPUT <= found.max_output < MAX_OUTPUT


@pytest.mark.parametrize(("spent", "left"), [(0.98, 0.02), (0.995, 0.005), (1.0, 0.0), (2.0, 0.0)])
def test_what_could_exceed_the_budget_is_not_sent(spent: float, left: float) -> None:
    found = reserve(1.0, spent, 1_000, PER_TOKEN, 2 * PER_TOKEN)
    assert isinstance(found, OverBudget) and found.left_usd == pytest.approx(left)


def test_a_model_that_writes_for_free_is_bounded_by_what_it_reads() -> None:
    assert isinstance(reserve(1.0, 0.0, 1_000, PER_TOKEN, 0.0), Reserved)
    assert isinstance(reserve(1.0, 0.999, 1_000, PER_TOKEN, 0.0), OverBudget)


@given(
    spent=st.floats(0, 2),
    reads=st.integers(0, 200_000),
    prices=st.tuples(st.floats(0, 1e-3), st.floats(0, 1e-3)),
)
def test_no_reservation_exceeds_what_is_left(
    spent: float, reads: int, prices: tuple[float, float]
) -> None:
    found = reserve(1.0, spent, reads, *prices)
    if isinstance(found, Reserved):
        assert spent + found.usd <= 1.0 + 1e-9


def _run(*facts: Fact) -> Run:
    now = queue(RunQueued(run_id=RUN, input_id=INPUT), 1.0)
    begun = (RunStarted(run_id=RUN), InputPromoted(input_id=INPUT, run_id=RUN))
    for fact in (*begun, *facts):
        now = evolve(now, fact, 1.0)  # type: ignore[arg-type]  # all are events of a run
    return now


ASKED = ModelAsked(run_id=RUN, turn=1, attempt=1, model="a/b", reserved_usd=0.3)


def test_the_real_cost_takes_the_place_of_the_reservation() -> None:
    asked = _run(ASKED)
    assert (asked.reserved_usd, asked.usage.cost_usd) == (0.3, 0.0)
    usage = Usage(10, 5, cost_usd=0.1)
    answered = _run(ASKED, ModelAnswered(run_id=RUN, turn=1, text="hi", usage=usage))
    assert (answered.reserved_usd, answered.usage.cost_usd) == (0.0, 0.1)


@pytest.mark.parametrize("cost", [0.0, 0.3])
def test_a_failed_attempt_costs_what_it_may_have_cost(cost: float) -> None:
    failed = ModelFailed(
        run_id=RUN, turn=1, attempt=1, model="a/b", reason="", next_model="a/b", cost_usd=cost
    )
    now = _run(ASKED, failed)
    assert (now.reserved_usd, now.usage.cost_usd) == (0.0, cost)


def test_a_request_that_a_crash_cut_keeps_its_reservation() -> None:
    cut = RunInterrupted(run_id=RUN, cause="crash", reason="", cut_at=1.0)  # type: ignore[arg-type]
    back = (RunRequeued(run_id=RUN), RunResumed(run_id=RUN, cause="crash"))
    assert _run(ASKED, cut, *back).reserved_usd == 0.3
    again = _run(ASKED, cut, *back, ASKED)
    assert (again.reserved_usd, again.usage.cost_usd) == (0.3, 0.3)
