"""Ways in which an approval request ends: an answer, its expiry, or the end of its run or call.

Each function returns the facts to append, or refuses; nothing here has effects. A call that
waits for an approval is cleared by a grant; any other answer settles it as denied. A call that
asked while it was working goes on, and its tool gets the answer. A request that was answered
or has expired cannot be answered again.
"""

from holdfast.core.approval import approval, tree
from holdfast.core.approval.approval import Approval, Choice
from holdfast.core.approval.execution import shown_name
from holdfast.core.approval.tree import Tree
from holdfast.core.run.call import CallCleared, CallSettled, CallStatus, Outcome
from holdfast.core.session.placement import works_for
from holdfast.core.session.session import Session
from holdfast.core.types import CallId, Fact, Owner, RequestId, RunId, Value
from holdfast.errors import Refused

CHANGED_TEXT = "Not run: what would run is no longer what was approved."
DENIED_TEXT = "Not run: it was not approved. Do not try another way to the same effect; ask."
ASK_AGAIN_TEXT = (
    "Not run: the approval request was withdrawn, because it is not known whether it is still "
    "valid. If you still need this call, try again: the user is asked again."
)
BECAUSE_TEXT = "The user says why: "
LONGEST_REASON = 2_000  # characters
NAMES = 5  # changed files that are listed
EXPIRED_TEXT = "Not run: it was not approved in time."


_PHRASES = {
    Choice.ONCE: ("yes", "y", "once", "allow", "allow once"),
    Choice.SESSION: ("session", "allow in this session"),
    Choice.DENY: ("no", "n", "deny"),
}
_LONGEST = 40  # characters of a message that can be an answer


def parse_choice(text: str) -> Choice | None:
    """Return the choice that a message consists of; None if it says anything else."""
    if len(text) > _LONGEST:
        return None
    phrase = " ".join(text.casefold().split()).rstrip(".!")
    return next((choice for choice, phrases in _PHRASES.items() if phrase in phrases), None)


class GivenAnswer(Value):
    """A user's answer to one or all requests of a run."""

    run_id: RunId
    choice: Choice
    by: Owner
    request_id: RequestId | None  # None: the oldest
    every: bool
    reason: str = ""  # of a denial


def pending(session: Session, run_id: RunId) -> tuple[Approval, ...]:
    """Return the pending approval requests of a run, oldest first."""
    return tuple(
        a for a in session.approvals.values() if a.requested.run_id == run_id and not a.status.final
    )


def granted(
    session: Session, call_id: CallId, execution: str, trees: tuple[Tree, ...] = ()
) -> bool:
    """Tell if exactly this execution of this call was approved and has not started yet."""
    return any(
        a.status is approval.ApprovalStatus.GRANTED
        and a.requested.call_id == call_id
        and a.requested.execution == execution
        and tree.holds(a.requested.trees, trees)
        for a in session.approvals.values()
    )


def redeem(
    session: Session, call_id: CallId, execution: str, trees: tuple[Tree, ...] = ()
) -> approval.MayRun | approval.Deny:
    """Decide if a call may start now: an approval is for exactly one execution."""
    if granted(session, call_id, execution, trees):
        return approval.MayRun(approval.Ground.APPROVED)
    names = tree.changed(trees_asked_with(session, call_id), trees)[:NAMES]
    changes = f" Changed since then: {', '.join(map(shown_name, names))}." if names else ""
    return approval.Deny(CHANGED_TEXT + changes)


def trees_asked_with(session: Session, call_id: CallId) -> tuple[Tree, ...]:
    """Return the trees in the approval request of a call."""
    asked = (a.requested for a in session.approvals.values())
    return next((request.trees for request in asked if request.call_id == call_id), ())


def answer(session: Session, given: GivenAnswer, now: float) -> tuple[tuple[Fact, ...], int]:
    """Return the facts of an answer and the number of requests it answers, or refuse it."""
    if given.reason and given.choice is not Choice.DENY:
        raise Refused("invalid_reason", "Only a denial takes a reason.", param="reason")
    if len(given.reason) > LONGEST_REASON:
        most = f"A reason has at most {LONGEST_REASON:,} characters."
        raise Refused("invalid_reason", most, param="reason")
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
                    f"This request does not offer {given.choice}. Choose one of: {offered}.",
                    param="choice",
                )
            case _:  # it has expired; `expire` will record that
                pass
    if not resolved:
        raise Refused("approval_not_pending", "This run has no such pending approval.")
    return tuple(facts), resolved


def standing(session: Session, given: GivenAnswer, now: float) -> tuple[approval.Standing, ...]:
    """Return the permissions for all sessions that follow from an accepted answer."""
    return tuple(
        permission
        for asked in _chosen(session, given)
        if approval.decide(asked, given.choice, now) == approval.Accept()
        for permission in approval.standing(asked.requested, given.choice, given.by)
    )


def _chosen(session: Session, given: GivenAnswer) -> tuple[Approval, ...]:
    """Return the requests that an answer is for."""
    waiting = pending(session, given.run_id)
    if given.request_id is not None:
        waiting = tuple(a for a in waiting if a.requested.request_id == given.request_id)
    return waiting if given.every else waiting[:1]


def _accepted(
    session: Session, asked: Approval, given: GivenAnswer, now: float
) -> tuple[Fact, ...]:
    request = asked.requested
    if given.choice is Choice.DENY:
        denied = approval.ApprovalDenied(
            run_id=request.run_id,
            request_id=request.request_id,
            by=given.by,
            reason=given.reason,
        )
        why = f"\n{BECAUSE_TEXT}{given.reason}" if given.reason else ""
        return (denied, *_denied(session, asked, DENIED_TEXT + why))
    granted = approval.ApprovalGranted(
        run_id=request.run_id, request_id=request.request_id, choice=given.choice, by=given.by
    )
    user = works_for(session, session.runs[request.run_id])
    left = approval.grants(request, given.choice, session.key, user, now)
    if not _waits(session, asked):
        return (granted, *left)
    return (granted, *left, CallCleared(run_id=request.run_id, call_id=request.call_id))


def _waits(session: Session, asked: Approval) -> bool:
    """Tell if the call has not started and waits for this answer."""
    request = asked.requested
    call = session.runs[request.run_id].calls.get(request.call_id)
    return call is not None and call.status is CallStatus.ASKED


def expire(session: Session, now: float) -> tuple[Fact, ...]:
    """Return the facts that expire the requests that are due at `now`."""
    facts: list[Fact] = []
    for asked in session.approvals.values():
        request = asked.requested
        if not asked.status.final and now >= request.expires_at:
            expired = approval.ApprovalExpired(run_id=request.run_id, request_id=request.request_id)
            facts += [expired, *_denied(session, asked, EXPIRED_TEXT)]
    return tuple(facts)


def withdraw(session: Session, run_id: RunId, reason: str) -> tuple[Fact, ...]:
    """Return the facts that withdraw the pending requests of a run that ends."""
    return tuple(
        approval.ApprovalWithdrawn(run_id=run_id, request_id=a.requested.request_id, reason=reason)
        for a in pending(session, run_id)
    )


def ask_again(session: Session, reason: str) -> tuple[Fact, ...]:
    """Withdraw all pending requests; the model may repeat its calls, and the user is asked again."""
    facts: list[Fact] = []
    for asked in session.approvals.values():
        if not asked.status.final:
            request = asked.requested
            withdrawn = approval.ApprovalWithdrawn(
                run_id=request.run_id, request_id=request.request_id, reason=reason
            )
            facts += [withdrawn, *_denied(session, asked, ASK_AGAIN_TEXT)]
    return tuple(facts)


def withdraw_call(session: Session, run_id: RunId, call_id: CallId) -> tuple[Fact, ...]:
    """Return the facts that withdraw the requests a call made while it was working."""
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
