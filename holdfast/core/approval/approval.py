"""The approval: a question about one exact execution, and the one answer that counts.

A request is recorded before it is shown. The first answer wins; a later one finds nothing
pending. A request expires after a time and is withdrawn when its run ends. The answer `session`
leaves a grant that outlives the call; `once` is for this call only.

decision.py decides if a question is needed. Here are what it depends on and what it can decide.
"""

from enum import IntEnum, StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core.approval.rules import Permission
from holdfast.core.approval.tree import Tree
from holdfast.core.machine import moved
from holdfast.core.types import CallId, Fact, Owner, RequestId, RunId, SessionKey, Value


class ApprovalStatus(StrEnum):
    PENDING = "pending"
    GRANTED = "granted"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"

    @property
    def final(self) -> bool:
        return self is not ApprovalStatus.PENDING


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
    offers: tuple[Permission, ...] = ()  # what `session` would permit
    trees: tuple[Tree, ...] = ()  # files that must not change until it starts


class ApprovalGranted(Fact, tag="approval.granted"):
    run_id: RunId
    request_id: RequestId
    choice: Choice
    by: Owner


class ApprovalDenied(Fact, tag="approval.denied", omit_defaults=True):
    run_id: RunId
    request_id: RequestId
    by: Owner
    reason: str = ""  # in the user's words; the model reads it


class ApprovalExpired(Fact, tag="approval.expired"):
    run_id: RunId
    request_id: RequestId


class ApprovalWithdrawn(Fact, tag="approval.withdrawn"):
    run_id: RunId
    request_id: RequestId
    reason: str


Event = ApprovalGranted | ApprovalDenied | ApprovalExpired | ApprovalWithdrawn

P = ApprovalStatus.PENDING

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[ApprovalStatus, type[Event]], ApprovalStatus] = {
    (P, ApprovalGranted): ApprovalStatus.GRANTED,
    (P, ApprovalDenied): ApprovalStatus.DENIED,
    (P, ApprovalExpired): ApprovalStatus.EXPIRED,
    (P, ApprovalWithdrawn): ApprovalStatus.WITHDRAWN,
}


class Approval(msgspec.Struct, frozen=True):
    requested: ApprovalRequested
    status: ApprovalStatus = ApprovalStatus.PENDING


def evolve(approval: Approval, event: Event) -> Approval:
    """Return `approval` after `event`. A late answer is illegal: check with `decide` first."""
    name = approval.requested.request_id
    return replace(approval, status=moved(TRANSITIONS, approval.status, event, "approval", name))


class Accept(Value):
    """The answer is valid."""


class TooLate(Value):
    """The request was answered, has expired or was withdrawn."""

    status: ApprovalStatus


class NotOffered(Value):
    """The request does not offer that choice."""


Verdict = Accept | TooLate | NotOffered


def decide(approval: Approval, choice: Choice, now: float) -> Verdict:
    """Decide if `choice`, given at `now`, answers `approval`. Total; the first answer wins."""
    if approval.status.final:
        return TooLate(approval.status)
    if now >= approval.requested.expires_at:
        return TooLate(ApprovalStatus.EXPIRED)
    return Accept() if choice in approval.requested.choices else NotOffered()


class ApprovalMode(StrEnum):
    ASK = "ask"
    SANDBOXED = "sandboxed"  # at L2 and above, executions without extra wants run unasked


class Level(IntEnum):
    """The strength of the sandbox, as measured at the start."""

    L0 = 0
    L1 = 1
    L2 = 2
    L3 = 3


class Posture(Value):
    """The sandbox as a test process measured it: what it blocked and what it did not.

    `note` is for people.
    """

    level: Level
    blocked: tuple[str, ...]
    open: tuple[str, ...]
    note: str


class PostureSeen(Fact, tag="sandbox.posture"):
    """The sandbox level at which the gateway went on: found at start, or accepted by the operator."""

    level: Level


def is_weaker(before: Level | None, now: Level) -> bool:
    """Tell if the sandbox became weaker, so that work waits until the operator accepts it."""
    return before is not None and now < before


class Role(StrEnum):
    READ = "read"
    RUN = "run"
    APPROVE = "approve"
    ADMIN = "admin"


class RunPrincipal(Value):
    """The user for whom a command would run."""

    owner: Owner
    roles: frozenset[Role]


class RunDoor(Value):
    """The interface the run came from, and whether a question can be answered there."""

    name: str
    answerable: bool
    expiry_s: float


class Grant(Fact, tag="grant"):
    """A permission for one session, from a `session` or `always` answer."""

    permission: Permission
    session: SessionKey
    user: Owner
    expires_at: float


class Standing(Fact, tag="standing"):
    """A permission for all of its owner's sessions until revoked, from an `always` answer."""

    permission: Permission
    by: Owner
    revoked: bool = False


class ExecutionContext(Value):
    """Everything a decision depends on besides the execution. No field has a default."""

    principal: RunPrincipal
    session: SessionKey
    door: RunDoor
    mode: ApprovalMode
    cautious: bool  # the model makes mistakes: only what a person granted runs unasked
    level: Level
    workspace: str
    grants: tuple[Grant, ...]
    standing: tuple[Permission, ...]  # the operator's: `always` answers and rules in the config
    open_prompts: int
    now: float


GRANT_S = 8 * 3600.0
EXPIRY_S = 7 * 86_400.0
UNSANDBOXED = "UNSANDBOXED"  # the first line of a question about an execution without a sandbox


class Ground(StrEnum):
    """The reason why an execution may run unasked."""

    HARMLESS = "harmless"
    GRANTED = "granted"
    CONFINED = "confined"
    APPROVED = "approved"  # exactly this execution, once


class MayRun(Value):
    ground: Ground


class MustAsk(Value):
    choices: tuple[Choice, ...]
    offers: tuple[Permission, ...]
    command: str
    description: str
    expires_at: float


class Deny(Value):
    reason: str


Decision = MayRun | MustAsk | Deny


def grants(
    requested: ApprovalRequested, choice: Choice, session: SessionKey, user: Owner, now: float
) -> tuple[Grant, ...]:
    """Return the grants for the session that `choice` gives. `once` gives none."""
    if choice not in (Choice.SESSION, Choice.ALWAYS):
        return ()
    return tuple(
        Grant(permission=offer, session=session, user=user, expires_at=now + GRANT_S)
        for offer in requested.offers
    )


def limit_choice(choice: Choice, roles: frozenset[Role]) -> Choice:
    """Return the choice to record: from anyone but an administrator, `always` means `session`."""
    lesser = choice is Choice.ALWAYS and Role.ADMIN not in roles
    return Choice.SESSION if lesser else choice


def standing(requested: ApprovalRequested, choice: Choice, by: Owner) -> tuple[Standing, ...]:
    """Return the permissions for all sessions that `choice` gives."""
    if choice is not Choice.ALWAYS:
        return ()
    return tuple(Standing(permission=offer, by=by) for offer in requested.offers)


def permissions(context: ExecutionContext) -> tuple[Permission, ...]:
    """Return the permissions in force. A grant that expires later than possible is ignored."""
    return context.standing + tuple(
        grant.permission
        for grant in context.grants
        if grant.session == context.session
        and grant.user == context.principal.owner
        and context.now < grant.expires_at <= context.now + GRANT_S
    )
