"""The approval: a question about one exact execution, and the one answer that counts.

A request is written down before it is shown. The first answer wins; a later one
finds nothing pending. It expires on its own, and it is withdrawn when its run ends.
`session` is a grant that outlives the call; `once` is used up by it.
"""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core.types import CallId, Fact, Owner, RequestId, RunId, Value
from holdfast.errors import IllegalTransition


class Status(StrEnum):
    PENDING = "pending"
    GRANTED = "granted"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"

    @property
    def final(self) -> bool:
        return self is not Status.PENDING


class Choice(StrEnum):
    ONCE = "once"
    SESSION = "session"
    ALWAYS = "always"
    DENY = "deny"


class ApprovalRequested(Fact, tag="approval.requested"):
    run_id: RunId
    call_id: CallId
    request_id: RequestId
    command: str
    description: str
    execution: str  # sha256 of the exact execution
    choices: tuple[Choice, ...]
    expires_at: float


class ApprovalGranted(Fact, tag="approval.granted"):
    run_id: RunId
    request_id: RequestId
    choice: Choice
    by: Owner


class ApprovalDenied(Fact, tag="approval.denied"):
    run_id: RunId
    request_id: RequestId
    by: Owner


class ApprovalExpired(Fact, tag="approval.expired"):
    run_id: RunId
    request_id: RequestId


class ApprovalWithdrawn(Fact, tag="approval.withdrawn"):
    run_id: RunId
    request_id: RequestId
    reason: str


Event = ApprovalGranted | ApprovalDenied | ApprovalExpired | ApprovalWithdrawn

P = Status.PENDING

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[Status, type[Event]], Status] = {
    (P, ApprovalGranted): Status.GRANTED,
    (P, ApprovalDenied): Status.DENIED,
    (P, ApprovalExpired): Status.EXPIRED,
    (P, ApprovalWithdrawn): Status.WITHDRAWN,
}


class Approval(msgspec.Struct, frozen=True):
    requested: ApprovalRequested
    status: Status = Status.PENDING


def evolve(approval: Approval, event: Event) -> Approval:
    """What `event` means for `approval`. An answer too late is illegal: refuse it first."""
    try:
        return replace(approval, status=TRANSITIONS[approval.status, type(event)])
    except KeyError:
        raise IllegalTransition(
            f"{type(event).__name__} while approval {approval.requested.request_id} "
            f"is {approval.status}"
        ) from None


class Accept(Value):
    """The answer counts."""


class TooLate(Value):
    """Somebody or something answered before."""

    status: Status


class NotOffered(Value):
    """The request does not offer that choice."""


Verdict = Accept | TooLate | NotOffered


def decide(approval: Approval, choice: Choice, now: float) -> Verdict:
    """Whether `choice`, given at `now`, answers `approval`. Total; the first answer wins."""
    if approval.status.final:
        return TooLate(approval.status)
    if now >= approval.requested.expires_at:
        return TooLate(Status.EXPIRED)
    return Accept() if choice in approval.requested.choices else NotOffered()
