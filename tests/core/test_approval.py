"""One request, one answer: the first in time counts, and silence expires."""

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.approval import (
    Accept,
    Approval,
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    ApprovalWithdrawn,
    Choice,
    Event,
    NotOffered,
    Status,
    TooLate,
    decide,
    evolve,
)
from holdfast.core.types import OPERATOR, CallId, RequestId, RunId
from holdfast.errors import IllegalTransition

RUN, REQUEST = RunId("run"), RequestId("request")
REQUESTED = ApprovalRequested(
    run_id=RUN,
    call_id=CallId("call"),
    request_id=REQUEST,
    command="rm notes.txt",
    description="Delete a file",
    execution="0" * 64,
    choices=(Choice.ONCE, Choice.DENY),
    expires_at=100.0,
)
FACTS: dict[str, Event] = {
    "yes": ApprovalGranted(run_id=RUN, request_id=REQUEST, choice=Choice.ONCE, by=OPERATOR),
    "no": ApprovalDenied(run_id=RUN, request_id=REQUEST, by=OPERATOR),
    "time is up": ApprovalExpired(run_id=RUN, request_id=REQUEST),
    "its run ended": ApprovalWithdrawn(run_id=RUN, request_id=REQUEST, reason="stopped"),
}
ALLOWED = {
    ("pending", "yes"): "granted",
    ("pending", "no"): "denied",
    ("pending", "time is up"): "expired",
    ("pending", "its run ended"): "withdrawn",
}


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("fact", FACTS)
def test_every_status_meets_every_fact_as_stated(status: Status, fact: str) -> None:
    approval = Approval(REQUESTED, status)
    if (status.value, fact) in ALLOWED:
        expected = Approval(REQUESTED, Status(ALLOWED[status.value, fact]))
        assert evolve(approval, FACTS[fact]) == expected
    else:
        with pytest.raises(IllegalTransition, match=f"while approval request is {status}"):
            evolve(approval, FACTS[fact])
        assert approval == Approval(REQUESTED, status)


def test_only_a_pending_request_is_open() -> None:
    assert [s for s in Status if not s.final] == [Status.PENDING]


@pytest.mark.parametrize("status", [s for s in Status if s.final])
@pytest.mark.parametrize("choice", Choice)
def test_an_answer_after_the_first_is_too_late_and_says_what_came_before(
    status: Status, choice: Choice
) -> None:
    assert decide(Approval(REQUESTED, status), choice, now=0.0) == TooLate(status)


@pytest.mark.parametrize("choice", Choice)
def test_an_answer_at_or_after_the_expiry_is_too_late(choice: Choice) -> None:
    assert decide(Approval(REQUESTED), choice, now=100.0) == TooLate(Status.EXPIRED)


@pytest.mark.parametrize("choice", Choice)
def test_only_what_was_offered_can_be_chosen(choice: Choice) -> None:
    offered = choice in (Choice.ONCE, Choice.DENY)
    expected = Accept() if offered else NotOffered()
    assert decide(Approval(REQUESTED), choice, now=99.9) == expected


class Question(RuleBasedStateMachine):
    """Many people press many buttons while the clock runs and the run may end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.journal: list[Event] = []
        self.approval = Approval(REQUESTED)

    def record(self, fact: Event) -> None:
        self.approval = evolve(self.approval, fact)
        self.journal.append(fact)

    @rule(seconds=st.floats(0, 60))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(choice=st.sampled_from(Choice))
    def somebody_answers(self, choice: Choice) -> None:
        before = self.approval
        match decide(before, choice, self.now):
            case Accept():
                assert before.status is Status.PENDING and self.now < REQUESTED.expires_at
                self.record(FACTS["no" if choice is Choice.DENY else "yes"])
            case TooLate():
                assert before.status.final or self.now >= REQUESTED.expires_at
            case NotOffered():
                assert choice not in REQUESTED.choices

    @precondition(lambda self: not self.approval.status.final)
    @rule()
    def the_timer_looks(self) -> None:
        if self.now >= REQUESTED.expires_at:
            self.record(FACTS["time is up"])

    @precondition(lambda self: not self.approval.status.final)
    @rule()
    def its_run_ends(self) -> None:
        self.record(FACTS["its run ended"])

    @invariant()
    def there_is_at_most_one_answer_and_the_journal_tells_it(self) -> None:
        assert len(self.journal) <= 1
        assert self.approval.status.final is bool(self.journal)


TestQuestion = Question.TestCase
TestQuestion.settings = settings(
    max_examples=100, phases=set(Phase) - {Phase.explain}, deadline=None
)
