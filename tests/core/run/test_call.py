"""A call that may have had its effect is never started twice, unless its tool says so."""

import pytest

from holdfast.core.messages import Proposal
from holdfast.core.run.call import (
    ABORTED_TEXT,
    UNKNOWN_TEXT,
    Adopt,
    Begin,
    Call,
    CallAsked,
    CallCleared,
    CallParked,
    CallSettled,
    CallStarted,
    CallStatus,
    Event,
    LeaveCall,
    OnCrash,
    Outcome,
    Settle,
    Step,
    abort,
    cut,
    evolve,
    next_step,
)
from holdfast.core.run.files import ChangeKind, FileChange, FileChanging
from holdfast.core.types import CallId, RequestId, RunId
from holdfast.errors import IllegalTransition

RUN, CALL = RunId("run"), CallId("call")
PROPOSAL = Proposal(CALL, "write_file", "{}")
WAITS = CallParked(run_id=RUN, call_id=CALL, reason="child")
CHANGING = FileChanging(
    run_id=RUN, call_id=CALL, change=FileChange("a", ChangeKind.PATCHED, before="0", after="1")
)
FACTS: dict[str, Event] = {
    "a person is asked": CallAsked(run_id=RUN, call_id=CALL, request_id=RequestId("q")),
    "a person agrees": CallCleared(run_id=RUN, call_id=CALL),
    "it begins": CallStarted(run_id=RUN, call_id=CALL, tool="write_file"),
    "it is about to change a file": CHANGING,
    "it waits": WAITS,
    "it ends": CallSettled(
        run_id=RUN, call_id=CALL, tool="write_file", outcome=Outcome.OK, text="done"
    ),
}
ALLOWED = {
    ("proposed", "a person is asked"): "asked",
    ("proposed", "it begins"): "started",
    ("proposed", "it ends"): "settled",
    ("asked", "a person agrees"): "cleared",
    ("asked", "it ends"): "settled",
    ("cleared", "it begins"): "started",
    ("cleared", "it ends"): "settled",
    ("started", "it is about to change a file"): "started",
    ("started", "it waits"): "parked",
    ("started", "it ends"): "settled",
    ("parked", "it ends"): "settled",
    ("doubtful", "it begins"): "started",
    ("doubtful", "it ends"): "settled",
}


@pytest.mark.parametrize("status", CallStatus)
@pytest.mark.parametrize("fact", FACTS)
def test_every_status_meets_every_fact_as_stated(status: CallStatus, fact: str) -> None:
    call = Call(PROPOSAL, status)
    if (status.value, fact) in ALLOWED:
        after = CallStatus(ALLOWED[status.value, fact])
        waits_for = WAITS if after is CallStatus.PARKED else None
        changing = (CHANGING.change,) if FACTS[fact] is CHANGING else ()
        assert evolve(call, FACTS[fact]) == Call(PROPOSAL, after, waits_for, changing=changing)
    else:
        with pytest.raises(IllegalTransition, match=f"while call call is {status}"):
            evolve(call, FACTS[fact])
        assert call == Call(PROPOSAL, status)


def test_the_question_of_a_parked_call_is_known_until_it_is_answered() -> None:
    asks = CallParked(run_id=RUN, call_id=CALL, reason="asks", question="Which?", options=("a",))
    call = Call(PROPOSAL, CallStatus.STARTED)
    assert call.question == ""
    call = evolve(call, asks)
    assert (call.parked, call.question) == (asks, "Which?")
    assert (cut(call).parked, cut(call).question) == (asks, "Which?")
    assert evolve(call, FACTS["it ends"]).question == ""
    waits = evolve(Call(PROPOSAL, CallStatus.STARTED), WAITS)
    assert (waits.parked, waits.question) == (WAITS, "")


@pytest.mark.parametrize("status", CallStatus)
def test_every_call_that_is_not_settled_can_be_settled(status: CallStatus) -> None:
    assert ((status.value, "it ends") in ALLOWED) is not status.final


def test_a_call_waits_while_asked_or_parked_and_ends_when_settled() -> None:
    assert {s for s in CallStatus if s.waiting} == {CallStatus.ASKED, CallStatus.PARKED}
    assert {s for s in CallStatus if s.final} == {CallStatus.SETTLED}


@pytest.mark.parametrize("status", CallStatus)
def test_the_end_of_the_process_puts_only_a_call_in_flight_in_doubt(status: CallStatus) -> None:
    after = cut(Call(PROPOSAL, status)).status
    assert after is (CallStatus.DOUBTFUL if status is CallStatus.STARTED else status)


UNKNOWN = Settle(Outcome.UNKNOWN, UNKNOWN_TEXT)
ABORTED = Settle(Outcome.ABORTED, ABORTED_TEXT)
STEPS: dict[tuple[str, str], Step] = {
    ("proposed", "repeat"): Begin(),
    ("proposed", "unknown"): Begin(),
    ("proposed", "adopt"): Begin(),
    ("asked", "repeat"): LeaveCall(),
    ("asked", "unknown"): LeaveCall(),
    ("asked", "adopt"): LeaveCall(),
    ("cleared", "repeat"): Begin(),
    ("cleared", "unknown"): Begin(),
    ("cleared", "adopt"): Begin(),
    ("started", "repeat"): UNKNOWN,
    ("started", "unknown"): UNKNOWN,
    ("started", "adopt"): UNKNOWN,
    ("parked", "repeat"): LeaveCall(),
    ("parked", "unknown"): LeaveCall(),
    ("parked", "adopt"): LeaveCall(),
    ("doubtful", "repeat"): Begin(),
    ("doubtful", "unknown"): UNKNOWN,
    ("doubtful", "adopt"): Adopt(),
    ("settled", "repeat"): LeaveCall(),
    ("settled", "unknown"): LeaveCall(),
    ("settled", "adopt"): LeaveCall(),
}


@pytest.mark.promise("BACK-10")
@pytest.mark.parametrize("status", CallStatus)
@pytest.mark.parametrize("on_crash", OnCrash)
def test_every_call_has_exactly_one_next_step(status: CallStatus, on_crash: OnCrash) -> None:
    assert next_step(Call(PROPOSAL, status), on_crash) == STEPS[status.value, on_crash.value]


@pytest.mark.parametrize("status", [s for s in CallStatus if not s.final])
@pytest.mark.parametrize("on_crash", OnCrash)
def test_a_stopped_call_is_unknown_only_if_it_may_have_had_effects(
    status: CallStatus, on_crash: OnCrash
) -> None:
    begun = status in (CallStatus.STARTED, CallStatus.DOUBTFUL)
    expected = ABORTED if on_crash is OnCrash.REPEAT or not begun else UNKNOWN
    assert abort(Call(PROPOSAL, status), on_crash) == expected


def test_an_announced_change_is_known_after_a_cut_and_not_after_a_new_start() -> None:
    call = cut(evolve(Call(PROPOSAL, CallStatus.STARTED), CHANGING))
    assert (call.status, call.changing) == (CallStatus.DOUBTFUL, (CHANGING.change,))
    again = evolve(call, CallStarted(run_id=RUN, call_id=CALL, tool="write_file"))
    assert again.changing == ()
