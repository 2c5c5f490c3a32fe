"""Answers: the first counts, for exactly what was asked, and the end withdraws the rest."""

import pytest

from holdfast.core import answers, run, session
from holdfast.core.answers import Given
from holdfast.core.approval import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    ApprovalWithdrawn,
    Choice,
)
from holdfast.core.call import CallAsked, CallCleared, CallSettled, CallStarted, Outcome
from holdfast.core.inbox import InputAdmitted, InputPromoted
from holdfast.core.messages import Proposal
from holdfast.core.run import ModelAnswered, RunQueued, RunStarted, Status
from holdfast.core.session import Session
from holdfast.core.types import (
    CallId,
    Fact,
    InputId,
    Owner,
    RequestId,
    RunId,
    SessionId,
    SessionKey,
)
from holdfast.errors import IllegalTransition, Refused

RUN, ME = RunId("r"), Owner("me")
C1, C2 = CallId("c1"), CallId("c2")
Q1, Q2 = RequestId("q1"), RequestId("q2")


def fold(*facts: Fact, before: Session | None = None) -> Session:
    folded = before or Session(SessionKey(ME, SessionId("s")))
    for fact in facts:
        folded = session.evolve(folded, fact, 1.0)
    return folded


def asked(call_id: CallId, request_id: RequestId, *choices: Choice) -> tuple[Fact, Fact]:
    return (
        ApprovalRequested(
            run_id=RUN,
            call_id=call_id,
            request_id=request_id,
            command="rm -rf .",
            description="removes everything",
            execution=f"hash of {call_id}",
            choices=choices or (Choice.ONCE, Choice.DENY),
            expires_at=100.0,
        ),
        CallAsked(run_id=RUN, call_id=call_id, request_id=request_id),
    )


def waiting(*questions: tuple[Fact, Fact]) -> Session:
    """A session whose run waits for the answers to `questions`."""
    calls = tuple(Proposal(c, "terminal", "{}") for c in (C1, C2)[: len(questions)])
    begun = fold(
        InputAdmitted(input_id=InputId("i"), run_id=RUN, text="go"),
        RunQueued(run_id=RUN, input_id=InputId("i")),
        RunStarted(run_id=RUN),
        InputPromoted(input_id=InputId("i"), run_id=RUN),
        ModelAnswered(run_id=RUN, turn=1, text="", calls=calls),
    )
    return fold(*(fact for pair in questions for fact in pair), before=begun)


BOTH = waiting(asked(C1, Q1), asked(C2, Q2))


def given(
    choice: Choice = Choice.ONCE, request_id: RequestId | None = None, every: bool = False
) -> Given:
    return Given(RUN, choice, ME, request_id, every)


def test_a_run_waits_while_every_call_it_has_open_was_asked_for() -> None:
    assert BOTH.runs[RUN].status is Status.WAITING
    assert [a.requested.request_id for a in answers.pending(BOTH, RUN)] == [Q1, Q2]
    assert answers.pending(BOTH, RunId("other")) == ()


@pytest.mark.promise("RUN-13")
def test_without_a_name_the_oldest_is_answered() -> None:
    facts, resolved = answers.answer(BOTH, given(), 1.0)
    assert resolved == 1
    assert facts == (
        ApprovalGranted(run_id=RUN, request_id=Q1, choice=Choice.ONCE, by=ME),
        CallCleared(run_id=RUN, call_id=C1),
    )
    after = fold(*facts, before=BOTH)
    assert after.runs[RUN].status is Status.QUEUED
    assert [a.requested.request_id for a in answers.pending(after, RUN)] == [Q2]


@pytest.mark.promise("RUN-13")
def test_a_named_one_or_all_are_answered() -> None:
    facts, resolved = answers.answer(BOTH, given(request_id=Q2), 1.0)
    assert (resolved, facts[1]) == (1, CallCleared(run_id=RUN, call_id=C2))
    facts, resolved = answers.answer(BOTH, given(every=True), 1.0)
    assert (resolved, len(facts)) == (2, 4)


def test_a_denied_call_is_settled_and_the_model_is_told() -> None:
    facts, _ = answers.answer(BOTH, given(Choice.DENY), 1.0)
    assert facts[0] == ApprovalDenied(run_id=RUN, request_id=Q1, by=ME)
    (settled,) = (f for f in facts if isinstance(f, CallSettled))
    assert (settled.outcome, settled.tool) == (Outcome.DENIED, "terminal")
    assert fold(*facts, before=BOTH).runs[RUN].status is Status.WAITING


@pytest.mark.promise("RUN-12")
def test_an_answer_to_nothing_is_refused() -> None:
    for wrong in (
        given(request_id=RequestId("q9")),
        Given(RunId("x"), Choice.ONCE, ME, None, True),
    ):
        with pytest.raises(Refused) as refused:
            answers.answer(BOTH, wrong, 1.0)
        assert refused.value.code == "approval_not_pending"


def test_a_second_answer_comes_too_late() -> None:
    after = fold(*answers.answer(BOTH, given(request_id=Q1), 1.0)[0], before=BOTH)
    with pytest.raises(Refused):
        answers.answer(after, given(request_id=Q1), 1.0)


def test_an_answer_after_the_time_is_none_and_the_clock_says_so() -> None:
    with pytest.raises(Refused):
        answers.answer(BOTH, given(), 100.0)
    assert answers.expire(BOTH, 99.9) == ()
    facts = answers.expire(BOTH, 100.0)
    assert [f.request_id for f in facts if isinstance(f, ApprovalExpired)] == [Q1, Q2]
    after = fold(*facts, before=BOTH)
    assert after.runs[RUN].status is Status.QUEUED  # the model hears of it
    assert after.approvals == {}
    assert answers.expire(after, 200.0) == ()


def test_a_choice_that_was_not_offered_is_refused_and_answers_nothing() -> None:
    with pytest.raises(Refused) as refused:
        answers.answer(BOTH, given(Choice.SESSION), 1.0)
    assert refused.value.code == "invalid_approval_choice"
    assert "once, deny" in str(refused.value)


def test_a_grant_is_for_exactly_one_execution_and_used_up_by_its_start() -> None:
    after = fold(*answers.answer(BOTH, given(), 1.0)[0], before=BOTH)
    assert answers.granted(after, C1, "hash of c1")
    assert not answers.granted(after, C1, "hash of something else")
    assert not answers.granted(after, C2, "hash of c2")
    begun = fold(
        run.RunResumed(run_id=RUN),
        CallStarted(run_id=RUN, call_id=C1, tool="terminal"),
        before=after,
    )
    assert not answers.granted(begun, C1, "hash of c1")
    assert answers.expire(fold(before=after), 1.0) == ()


def test_the_end_of_a_run_withdraws_what_it_asked() -> None:
    facts = answers.withdraw(BOTH, RUN, "stopped")
    assert [f.request_id for f in facts if isinstance(f, ApprovalWithdrawn)] == [Q1, Q2]
    assert fold(*facts, before=BOTH).approvals == {}
    assert answers.withdraw(BOTH, RunId("other"), "stopped") == ()


def test_an_answer_nobody_waits_for_is_illegal_in_the_journal() -> None:
    with pytest.raises(IllegalTransition):
        fold(ApprovalDenied(run_id=RUN, request_id=RequestId("q9"), by=ME), before=BOTH)
