"""The approval: a question about one exact execution, and the one answer that counts.

A request is recorded before it is shown. The first answer wins; a later one finds nothing
pending. A request expires after a time and is withdrawn when its run ends. The answer `session`
leaves a grant that outlives the call; `once` is for this call only.

`decide_execution` is the only place that decides if the user has to be asked: it lists the
permissions that an execution lacks. If it lacks none, it runs. Otherwise the user is asked or,
if that is not possible, the execution is denied. There is no other way to run. `session` is
offered only if each missing permission can be written down exactly: this line in this directory,
that host. Without a sandbox every execution lacks a permission, whatever was granted.
"""

import re
from enum import IntEnum, StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core.approval import rules
from holdfast.core.approval.execution import (
    ExecutionRequest,
    Opaque,
    Parsed,
    describe_checks,
    quote,
    render_all,
)
from holdfast.core.approval.harmless import HARMLESS
from holdfast.core.approval.rules import (
    CommandPlace,
    HostRule,
    LineRule,
    Permission,
    Rule,
    describe,
)
from holdfast.core.approval.tree import Tree
from holdfast.core.machine import moved
from holdfast.core.text.escape import escape, is_hidden
from holdfast.core.types import OPERATOR, CallId, Fact, Owner, RequestId, RunId, SessionKey, Value


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
OPEN_PROMPTS = 10
PURPOSE = 500  # characters of the model's stated purpose that are shown
UNSANDBOXED = "UNSANDBOXED"  # the first line of a question about an execution without a sandbox
ONLY_ONCE = "Can only be allowed once: {}."
NO_SANDBOX = "it runs without a sandbox, because none is available"
OUTSIDE_SANDBOX = "it runs outside the sandbox"
OPEN_INPUT = "it takes more input later, without another question"
DETACHED = "it keeps running after the gateway stops"
CANNOT_BE_GIVEN = "It needs an approval, which cannot be given here"
TOO_MANY_PROMPTS = f"{OPEN_PROMPTS} requests of this session wait for an answer, the maximum."
_HARMLESS_VARIABLES = frozenset("LANG LC_ALL LC_CTYPE TERM TZ COLUMNS LINES NO_COLOR".split())


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


class Single(Value):
    """A missing permission that can be given for this one execution only."""

    why: str


Lacking = tuple[Permission | Single, ...]


def decide_execution(request: ExecutionRequest, context: ExecutionContext) -> Decision:
    """Decide to run, ask or deny. Total; it runs only if no permission is missing."""
    if not context.principal.roles & {Role.RUN, Role.ADMIN}:
        return Deny("You may not run commands here.")
    ground = _ground(request, context)
    lacking = _lacking(request, context, ground)
    if ground is not None and not lacking:
        return MayRun(ground)
    offers = tuple(lack for lack in lacking if not isinstance(lack, Single))
    grantable = len(offers) == len(lacking)
    return _ask(
        render_all(request),
        _describe(request, context, lacking),
        _choices(context, Choice.SESSION if grantable else Choice.ONCE),
        offers if grantable else (),
        context,
    )


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


def decide_question(
    command: str,
    description: str,
    choices: tuple[Choice, ...],
    offers: tuple[Permission, ...],
    context: ExecutionContext,
) -> Decision:
    """Decide about a tool that runs no command: it runs unasked only if all offers are permitted."""
    if offers and all(offer in permissions(context) for offer in offers):
        return MayRun(Ground.GRANTED)
    return _ask(command, description, choices, offers, context)


def ask_for_host(host: str, command: str, context: ExecutionContext) -> Decision:
    """Decide if a running `command` may connect to `host`, which was not granted at its start."""
    wanted = HostRule(name=host)
    description = (
        f"Sandbox: {context.level.name}\nFor: {escape(command)}\nTo permit: {describe(wanted)}"
    )
    choices = _choices(context, Choice.SESSION)
    return decide_question(f"connect to {escape(host)}", description, choices, (wanted,), context)


def _ask(
    command: str,
    description: str,
    choices: tuple[Choice, ...],
    offers: tuple[Permission, ...],
    context: ExecutionContext,
) -> MustAsk | Deny:
    if not context.door.answerable:
        return Deny(f"{CANNOT_BE_GIVEN} ({context.door.name}).")
    if context.open_prompts >= OPEN_PROMPTS:
        return Deny(TOO_MANY_PROMPTS)
    expires_at = context.now + min(context.door.expiry_s, EXPIRY_S)
    return MustAsk(choices, offers, command, description, expires_at)


def permissions(context: ExecutionContext) -> tuple[Permission, ...]:
    """Return the permissions in force. A grant that expires later than possible is ignored."""
    return context.standing + tuple(
        grant.permission
        for grant in context.grants
        if grant.session == context.session
        and grant.user == context.principal.owner
        and context.now < grant.expires_at <= context.now + GRANT_S
    )


def _ground(request: ExecutionRequest, context: ExecutionContext) -> Ground | None:
    """Return why the commands themselves may run unasked; None if they may not."""
    held = permissions(context)
    if isinstance(request.what, Parsed):
        harmless = () if context.cautious else HARMLESS
        allowed = harmless + tuple(p for p in held if isinstance(p, Rule))
        if _all_allowed(request, request.what, harmless, context):
            return Ground.HARMLESS
        line = _permission(request, context)
        if rules.is_held(line, held) or _all_allowed(request, request.what, allowed, context):
            return Ground.GRANTED
    confined = not context.cautious and _is_confined(request, context)
    return Ground.CONFINED if confined else None


def _all_allowed(
    request: ExecutionRequest, what: Parsed, allowed: tuple[Rule, ...], context: ExecutionContext
) -> bool:
    place = CommandPlace(context.workspace, request.cwd, request.paths, request.linux)
    return (
        request.environment.keys() <= _HARMLESS_VARIABLES
        and rules.is_system(request.bash, "bash", place)
        and all(
            any(rules.allows(rule, argv, request.programs.get(argv[0]), place) for rule in allowed)
            for argv in what.commands
        )
    )


def _is_confined(request: ExecutionRequest, context: ExecutionContext) -> bool:
    """Tell if the sandbox alone is enough. It is not for a text with hidden characters."""
    if isinstance(request.what, Opaque):
        seen = request.what.text.replace("\n", "").replace("\t", "")
        if any(map(is_hidden, seen)):
            return False
    return (
        context.mode is ApprovalMode.SANDBOXED
        and context.level >= Level.L2
        and OPERATOR == context.principal.owner == context.session.owner
    )


def _lacking(
    request: ExecutionRequest, context: ExecutionContext, ground: Ground | None
) -> Lacking:
    """Return the missing permissions."""
    lacking: list[Permission | Single] = []
    if context.level == Level.L0 and not request.wants.unsandboxed:
        lacking.append(Single(NO_SANDBOX))
    if ground is None:
        lacking.append(_permission(request, context))
    if request.wants.open_input and ground is not Ground.HARMLESS and ground is not Ground.CONFINED:
        lacking.append(Single(OPEN_INPUT))
    hosts = {p.name for p in permissions(context) if isinstance(p, HostRule)}
    lacking += [HostRule(name=host) for host in request.wants.hosts if host not in hosts]
    lacking += [Single(f"it writes to {quote(escape(p))}") for p in request.wants.writable]
    if request.wants.unsandboxed:
        lacking.append(Single(OUTSIDE_SANDBOX))
    if request.wants.detach:
        lacking.append(Single(DETACHED))
    return tuple(lacking)


def _permission(request: ExecutionRequest, context: ExecutionContext) -> Permission | Single:
    """Return the permission for the commands: the line, if nothing but the line matters."""
    if isinstance(request.what, Opaque):
        return Single(request.what.reason)
    if request.stdin or not request.environment.keys() <= _HARMLESS_VARIABLES:
        return Single("it has its own input or environment")
    return LineRule(
        what=request.what,
        cwd=request.cwd,
        programs=dict(request.programs),
        files=dict(request.files),
        background=request.wants.background,
        terminal=request.wants.terminal,
        workspace=context.workspace,
    )


def _choices(context: ExecutionContext, widest: Choice) -> tuple[Choice, ...]:
    if widest is Choice.ONCE:
        return (Choice.ONCE, Choice.DENY)
    always = (Choice.ALWAYS,) if Role.ADMIN in context.principal.roles else ()
    return (Choice.ONCE, Choice.SESSION, *always, Choice.DENY)


def _describe(request: ExecutionRequest, context: ExecutionContext, lacking: Lacking) -> str:
    unsandboxed = context.level == Level.L0 or request.wants.unsandboxed
    lines = [
        UNSANDBOXED if unsandboxed else f"Sandbox: {context.level.name}",
        f"Directory: {escape(request.cwd)}",
        *["In the background: it keeps running after the call has ended"]
        * request.wants.background,
        *(
            ONLY_ONCE.format(lack.why)
            if isinstance(lack, Single)
            else f"To permit: {describe(lack)}"
            for lack in lacking
        ),
        *describe_checks(request),
    ]
    if any(isinstance(lack, LineRule) for lack in lacking):
        lines.append("For longer than once: files that are not named here are not checked")
    if request.purpose:
        purpose = re.sub(" +", " ", request.purpose)  # blanks could look like the end of a line
        more = "…" * (len(purpose) > PURPOSE)
        lines.append(f"The model says, unverified: {escape(purpose[:PURPOSE])}{more}")
    return "\n".join(lines)
