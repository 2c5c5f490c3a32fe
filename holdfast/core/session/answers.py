"""Answers to what a session's calls wait for: given by somebody, by the clock, or by the end.

Each function says which facts an answer makes, or why it makes none; nothing here does
anything. A call that was asked for is cleared by a grant, and settled as denied by
anything else; one that asked while it works goes on, and hears the answer itself. A request
that was answered, or that ran out, can not be answered again.
"""

from holdfast.core import approval
from holdfast.core.approval import Approval, Choice
from holdfast.core.call import CallCleared, CallSettled, Outcome, Status
from holdfast.core.session import Session
from holdfast.core.types import CallId, Fact, Owner, RequestId, RunId, Value
from holdfast.core.words import works_for
from holdfast.errors import Refused

CHANGED_TEXT = "Not run: what would run is no longer what was approved."
DENIED_TEXT = "Not run: it was not approved. Do not try another way to the same effect; ask."
EXPIRED_TEXT = "Not run: nobody approved it in time."


class Given(Value):
    """What somebody said to which requests of which run."""

    run_id: RunId
    choice: Choice
    by: Owner
    request_id: RequestId | None  # None: the oldest
    every: bool


def pending(session: Session, run_id: RunId) -> tuple[Approval, ...]:
    """What of a run waits for an approval, oldest first."""
    return tuple(
        a for a in session.approvals.values() if a.requested.run_id == run_id and not a.status.final
    )


def granted(session: Session, call_id: CallId, execution: str) -> bool:
    """Whether exactly this execution of this call has been approved, and not been used yet."""
    return any(
        a.status is approval.Status.GRANTED
        and a.requested.call_id == call_id
        and a.requested.execution == execution
        for a in session.approvals.values()
    )


def redeem(session: Session, call_id: CallId, execution: str) -> approval.Run | approval.Deny:
    """What an approval is worth now that its call begins: it is for exactly one execution."""
    if granted(session, call_id, execution):
        return approval.Run(approval.Ground.APPROVED)
    return approval.Deny(CHANGED_TEXT)


def answer(session: Session, given: Given, now: float) -> tuple[tuple[Fact, ...], int]:
    """The facts an answer makes, and to how many requests it is one; or a refusal."""
    facts: list[Fact] = []
    resolved = 0
    for asked in _chosen(session, given):
        match approval.decide(asked, given.choice, now):
            case approval.Accept():
                facts.extend(_accepted(session, asked, given, now))
                resolved += 1
            case approval.NotOffered():
                offered = ", ".join(asked.requested.choices)
                raise Refused(
                    "invalid_approval_choice",
                    f"This request offers {offered}; not {given.choice}.",
                    param="choice",
                )
            case _:  # it ran out; the clock will say so
                pass
    if not resolved:
        raise Refused("approval_not_pending", "Nothing of this run waits for that approval.")
    return tuple(facts), resolved


def stands(session: Session, given: Given, now: float) -> tuple[approval.Standing, ...]:
    """What an answer leaves behind for all sessions, where it counts."""
    return tuple(
        standing
        for asked in _chosen(session, given)
        if approval.decide(asked, given.choice, now) == approval.Accept()
        for standing in approval.stands(asked.requested, given.choice, given.by)
    )


def _chosen(session: Session, given: Given) -> tuple[Approval, ...]:
    """The requests that are meant."""
    waiting = pending(session, given.run_id)
    if given.request_id is not None:
        waiting = tuple(a for a in waiting if a.requested.request_id == given.request_id)
    return waiting if given.every else waiting[:1]


def _accepted(session: Session, asked: Approval, given: Given, now: float) -> tuple[Fact, ...]:
    request = asked.requested
    if given.choice is Choice.DENY:
        denied = approval.ApprovalDenied(
            run_id=request.run_id, request_id=request.request_id, by=given.by
        )
        return (denied, *_denied(session, asked, DENIED_TEXT))
    granted = approval.ApprovalGranted(
        run_id=request.run_id, request_id=request.request_id, choice=given.choice, by=given.by
    )
    user = works_for(session, session.runs[request.run_id])
    left = approval.grants(request, given.choice, session.key, user, now)
    if not _waits(session, asked):
        return (granted, *left)
    return (granted, *left, CallCleared(run_id=request.run_id, call_id=request.call_id))


def _waits(session: Session, asked: Approval) -> bool:
    """Whether the call has not begun yet, and will not without an answer."""
    request = asked.requested
    call = session.runs[request.run_id].calls.get(request.call_id)
    return call is not None and call.status is Status.ASKED


def expire(session: Session, now: float) -> tuple[Fact, ...]:
    """What the time `now` means for requests nobody has answered."""
    facts: list[Fact] = []
    for asked in session.approvals.values():
        request = asked.requested
        if not asked.status.final and now >= request.expires_at:
            expired = approval.ApprovalExpired(run_id=request.run_id, request_id=request.request_id)
            facts += [expired, *_denied(session, asked, EXPIRED_TEXT)]
    return tuple(facts)


def withdraw(session: Session, run_id: RunId, reason: str) -> tuple[Fact, ...]:
    """What the end of a run means for the requests it leaves behind."""
    return tuple(
        approval.ApprovalWithdrawn(run_id=run_id, request_id=a.requested.request_id, reason=reason)
        for a in pending(session, run_id)
    )


def withdraw_call(session: Session, run_id: RunId, call_id: CallId) -> tuple[Fact, ...]:
    """What the end of a call means for what it asked while it worked."""
    return tuple(
        approval.ApprovalWithdrawn(
            run_id=run_id, request_id=a.requested.request_id, reason="the call has ended"
        )
        for a in pending(session, run_id)
        if a.requested.call_id == call_id
    )


def _denied(session: Session, asked: Approval, text: str) -> tuple[CallSettled, ...]:
    if not _waits(session, asked):
        return ()
    request = asked.requested
    call = session.runs[request.run_id].calls[request.call_id]
    settled = CallSettled(
        run_id=request.run_id,
        call_id=request.call_id,
        tool=call.proposal.tool,
        outcome=Outcome.DENIED,
        text=text,
    )
    return (settled,)
