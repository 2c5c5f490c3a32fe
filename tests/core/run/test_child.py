"""Children: open from the moment they are wanted until their end is told; stopped with a stop."""

import pytest
from msgspec.structs import replace

from holdfast.core.run.child import Child, ChildBegun, ChildEnded, Children, children_of, evolve
from holdfast.core.run.run import (
    RunCancelled,
    RunFailed,
    RunPhase,
    RunQueued,
    RunRequeued,
    StopAsked,
)
from holdfast.core.session import session
from holdfast.core.session.session import Session, evolve_lasting
from holdfast.core.types import (
    OPERATOR,
    CallId,
    Fact,
    InputId,
    RunId,
    SessionId,
    SessionKey,
    Usage,
)
from holdfast.errors import IllegalTransition

RUN, OTHER, CHILD = RunId("run"), RunId("other"), RunId("child")
CALL = CallId("call")


def begun(child: RunId = CHILD, run_id: RunId = RUN, *, background: bool = False) -> ChildBegun:
    return ChildBegun(run_id=run_id, call_id=CALL, child=child, task="think", background=background)


def ended(child: RunId = CHILD) -> ChildEnded:
    return ChildEnded(child=child, call_id=CALL, status=RunPhase.COMPLETED)


OPEN: Children = {CHILD: Child(begun())}


def test_a_child_is_open_from_its_request_until_its_end_is_reported() -> None:
    assert evolve({}, begun()) == OPEN
    assert evolve(OPEN, ended()) == {}


@pytest.mark.parametrize(("before", "fact"), [(OPEN, begun()), ({}, ended())])
def test_a_child_is_requested_once_and_reported_once(before: Children, fact: Fact) -> None:
    with pytest.raises(IllegalTransition, match="child"):
        evolve(before, fact)


def test_children_of_has_only_the_children_of_that_run() -> None:
    children = evolve(OPEN, begun(RunId("second"), OTHER))
    assert children_of(children, RUN) == (CHILD,)
    assert children_of(children, OTHER) == ("second",)


STOPS = {
    "stop asked": StopAsked(run_id=RUN, reason="enough"),
    "cancelled": RunCancelled(run_id=RUN, reason="enough", usage=Usage()),
}


@pytest.mark.parametrize("fact", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("background", [False, True])
def test_a_stop_is_for_the_children_too(fact: Fact, *, background: bool) -> None:
    children = {CHILD: Child(begun(background=background))}
    assert evolve(children, fact)[CHILD].stop_reason == "enough"
    others = {CHILD: Child(begun(run_id=OTHER))}
    assert evolve(others, fact) is others


def test_the_first_stop_reason_is_kept_and_an_empty_one_is_still_a_stop() -> None:
    stopped = evolve(OPEN, StopAsked(run_id=RUN, reason=""))
    assert stopped[CHILD].stop_reason == "stopped"
    assert evolve(stopped, STOPS["cancelled"]) is stopped


def test_a_run_that_fails_takes_along_only_those_it_waits_for() -> None:
    failed = RunFailed(run_id=RUN, code="stuck", error="stuck", usage=Usage())
    late = RunId("late")
    children = evolve({**OPEN, late: Child(begun(late, background=True))}, failed)
    assert children[CHILD].stop_reason
    assert not children[late].stop_reason


def test_other_facts_mean_nothing_to_children() -> None:
    assert evolve(OPEN, RunRequeued(run_id=RUN)) is OPEN


def test_a_session_knows_its_open_children_also_of_runs_that_ended() -> None:
    empty = Session(SessionKey(OPERATOR, SessionId("s")))
    now = session.evolve(empty, begun(), 1.0)
    assert now == evolve_lasting(empty, begun()) == replace(empty, children=OPEN)
    assert evolve_lasting(now, STOPS["cancelled"]).children[CHILD].stop_reason == "enough"
    queued = RunQueued(run_id=RUN, input_id=InputId("in"))
    live = session.evolve(session.evolve(now, queued, 1.0), STOPS["stop asked"], 2.0)
    assert live.children[CHILD].stop_reason == "enough"
    assert session.evolve(now, ended(), 3.0) == empty
