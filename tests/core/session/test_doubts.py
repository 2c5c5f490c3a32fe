"""What a start doubts: nothing is used twice, nothing is sent twice, and somebody is told."""

import pytest

from holdfast.core.approval.approval import (
    GRANT_S,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    ApprovalWithdrawn,
    Choice,
    Grant,
)
from holdfast.core.approval.rules import HostRule
from holdfast.core.chat import delivery
from holdfast.core.chat.delivery import Delivery, DeliveryStatus, SendDoubted, SendHeld
from holdfast.core.inbox import InputAdmitted, InputPromoted, InputSuperseded
from holdfast.core.life.evidence import Doubt
from holdfast.core.messages import Proposal
from holdfast.core.run.call import CallAsked, CallCleared, CallSettled, CallStarted, Outcome
from holdfast.core.run.run import ModelAnswered, RunFailed, RunQueued, RunStarted
from holdfast.core.session import answers, doubts, session
from holdfast.core.session.session import Session, SessionOpened
from holdfast.core.types import (
    OPERATOR,
    CallId,
    DeliveryId,
    Fact,
    InputId,
    RequestId,
    RunId,
    SessionId,
    SessionKey,
)

pytestmark = pytest.mark.promise("TIME-02", "TIME-03")

KEY = SessionKey(OPERATOR, SessionId("s"))
RUN, CALL, INPUT, ASKED = RunId("r"), CallId("c"), InputId("i"), RequestId("q")


def _fold(*facts: Fact) -> Session:
    now = Session(KEY)
    for fact in facts:
        now = session.evolve(now, fact, 1.0)
    return now


def _asking(*more: Fact) -> Session:
    requested = ApprovalRequested(
        run_id=RUN, call_id=CALL, request_id=ASKED, command="rm x", description="", execution="h",
        choices=(Choice.ONCE, Choice.DENY), expires_at=100.0,
    )  # fmt: skip
    return _fold(
        SessionOpened(session_id=KEY.session_id, workspace="/w", platform="cli"),
        InputAdmitted(input_id=INPUT, run_id=RUN, text="hi"),
        RunQueued(run_id=RUN, input_id=INPUT, model="m"),
        RunStarted(run_id=RUN),
        InputPromoted(input_id=INPUT, run_id=RUN),
        ModelAnswered(run_id=RUN, turn=1, text="", calls=(Proposal(CALL, "terminal", "{}"),)),
        requested,
        CallAsked(run_id=RUN, call_id=CALL, request_id=ASKED),
        *more,
    )


GRANTED = ApprovalGranted(run_id=RUN, request_id=ASKED, choice=Choice.ONCE, by=OPERATOR)


@pytest.mark.parametrize("doubt", [Doubt.CLOCK, Doubt.AUDIT])
def test_pending_requests_are_asked_again_if_time_or_audit_are_doubtful(doubt: Doubt) -> None:
    facts = doubts.settle(_asking(), doubt)
    withdrawn, settled = facts
    assert isinstance(withdrawn, ApprovalWithdrawn)
    assert withdrawn.request_id == ASKED
    assert isinstance(settled, CallSettled)
    assert (settled.outcome, settled.text) == (Outcome.DENIED, answers.ASK_AGAIN_TEXT)
    after = _asking(*facts)
    assert not doubts.settle(after, doubt)


def test_an_answered_request_is_not_asked_again() -> None:
    for answered in (GRANTED, ApprovalExpired(run_id=RUN, request_id=ASKED)):
        assert doubts.settle(_asking(answered), Doubt.CLOCK) == ()


@pytest.mark.parametrize(
    "more",
    [
        (),
        (GRANTED, CallCleared(run_id=RUN, call_id=CALL)),
        (
            GRANTED,
            CallCleared(run_id=RUN, call_id=CALL),
            RunStarted(run_id=RUN),
            CallStarted(run_id=RUN, call_id=CALL, tool="terminal", preview=""),
        ),
    ],
)
def test_after_a_restore_no_run_goes_on_wherever_it_stood(more: tuple[Fact, ...]) -> None:
    facts = doubts.settle(_asking(*more), Doubt.RESTORED)
    assert isinstance(facts[-1], RunFailed)
    assert facts[-1].code == doubts.RESTORED_CODE
    assert isinstance(facts[0], ApprovalWithdrawn) is not bool(more)
    after = _asking(*more, *facts)
    assert not after.runs
    assert not doubts.settle(after, Doubt.RESTORED)


def test_after_a_restore_unread_inputs_are_closed() -> None:
    now = _fold(
        SessionOpened(session_id=KEY.session_id, workspace="/w", platform="cli"),
        InputAdmitted(input_id=INPUT, run_id=RUN, text="hi"),
        RunQueued(run_id=RUN, input_id=INPUT, model="m"),
    )
    superseded, failed = doubts.settle(now, Doubt.RESTORED)
    assert isinstance(superseded, InputSuperseded)
    assert isinstance(failed, RunFailed)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (DeliveryStatus.PENDING, [SendHeld]),
        (DeliveryStatus.RETRY, [SendHeld]),
        (DeliveryStatus.AMBIGUOUS, [SendHeld]),
        (DeliveryStatus.SENDING, [SendDoubted, SendHeld]),
        (DeliveryStatus.HELD, []),
    ],
)
def test_after_a_restore_a_message_on_its_way_is_held(
    status: DeliveryStatus, said: list[type]
) -> None:
    message = Delivery(DeliveryId("d"), status=status)
    facts = doubts.hold(message)
    assert [type(fact) for fact in facts] == said
    for fact in facts:
        message = delivery.evolve(message, fact)
    assert message.status is DeliveryStatus.HELD


def test_a_grant_from_before_the_doubt_does_not_count() -> None:
    grants = tuple(
        Grant(permission=HostRule(name="h"), session=KEY, user=OPERATOR, expires_at=at + GRANT_S)
        for at in (10.0, 20.0)
    )
    assert doubts.granted_since(grants, 15.0) == grants[1:]
    assert doubts.granted_since(grants, 0.0) == grants
