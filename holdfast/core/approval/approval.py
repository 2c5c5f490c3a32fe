"""The approval: a question about one exact execution, and the one answer that counts.

A request is written down before it is shown. The first answer wins; a later one
finds nothing pending. It expires on its own, and it is withdrawn when its run ends.
`session` is a grant that outlives the call; `once` is used up by it.

Whether there is a question at all is `decide_execution`, the one place where that is
decided: it lists what an execution lacks. Nothing: it runs. Otherwise somebody is asked,
or, where nobody can be, it is denied. There is no other way to run. `session` is offered
only if all that is lacking can be written down in full as a permission: this line in this
directory, that host. Without a sandbox every execution lacks one, whatever was granted.
"""

from enum import IntEnum, StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.execution import (
    ExecutionRequest,
    Opaque,
    Parsed,
    escape,
    hidden,
    quote,
    render_all,
)
from holdfast.core.rules import Host, Line, Permission, Place, Rule, shown
from holdfast.core.types import OPERATOR, CallId, Fact, Owner, RequestId, RunId, SessionKey, Value
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
    offers: tuple[Permission, ...] = ()  # what `session` would permit


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


class Mode(StrEnum):
    ASK = "ask"
    SANDBOXED = "sandboxed"  # at L2 and above, what needs no grant runs unasked


class Level(IntEnum):
    """How strong the sandbox is that was found by trying."""

    L0 = 0
    L1 = 1
    L2 = 2
    L3 = 3


class Posture(Value):
    """How well commands are confined, as a canary found by trying. `note` is for people."""

    level: Level
    blocked: tuple[str, ...]
    open: tuple[str, ...]
    note: str


class PostureSeen(Fact, tag="sandbox.posture"):
    """How well commands were confined when work went on: found so, or accepted as it is."""

    level: Level


def is_weaker(before: Level | None, now: Level) -> bool:
    """Whether work must wait until the operator has accepted it."""
    return before is not None and now < before


class Role(StrEnum):
    READ = "read"
    RUN = "run"
    APPROVE = "approve"
    ADMIN = "admin"


class Principal(Value):
    """For whom it would run."""

    owner: Owner
    roles: frozenset[Role]


class Door(Value):
    """Where the run came in, and whether a question can be answered there."""

    name: str
    answerable: bool
    expiry_s: float


class Grant(Fact, tag="grant"):
    """What a `session` answer left behind."""

    permission: Permission
    session: SessionKey
    user: Owner
    expires_at: float


class Standing(Fact, tag="standing"):
    """What an `always` answer left behind: holds in all of its owner's sessions until revoked."""

    permission: Permission
    by: Owner
    revoked: bool = False


class ExecutionContext(Value):
    """All that a decision depends on, beside the execution itself. Nothing has a default."""

    principal: Principal
    session: SessionKey
    door: Door
    mode: Mode
    level: Level
    workspace: str
    git_is_safe: bool  # `rules.GIT_SAFETY` is set, and no tool can write a repository's config
    grants: tuple[Grant, ...]
    standing: tuple[Permission, ...]  # the operator's own: `always`, and rules from the config
    open_prompts: int
    now: float


GRANT_S = 8 * 3600.0
EXPIRY_S = 7 * 86_400.0
OPEN_PROMPTS = 10
PURPOSE = 500  # characters of what the model says
_QUIET = frozenset("LANG LC_ALL LC_CTYPE TERM TZ COLUMNS LINES NO_COLOR".split())


class Ground(StrEnum):
    """Why something may run unasked."""

    HARMLESS = "harmless"
    GRANTED = "granted"
    CONFINED = "confined"
    APPROVED = "approved"  # exactly this, once


class Run(Value):
    ground: Ground


class Ask(Value):
    choices: tuple[Choice, ...]
    offers: tuple[Permission, ...]
    command: str
    description: str
    expires_at: float


class Deny(Value):
    reason: str


Decision = Run | Ask | Deny


class Single(Value):
    """Something lacking that can be permitted for this one execution only."""

    what: str


def decide_execution(request: ExecutionRequest, context: ExecutionContext) -> Decision:
    """Run, ask or deny. Total; it runs only if nothing is lacking."""
    if not context.principal.roles & {Role.RUN, Role.ADMIN}:
        return Deny("You may not run commands here.")
    ground = _ground(request, context)
    lacking = _lacking(request, context, ground)
    if ground is not None and not lacking:
        return Run(ground)
    if (deny := _nobody_to_ask(context)) is not None:
        return deny
    offers = tuple(lack for lack in lacking if not isinstance(lack, Single))
    grantable = len(offers) == len(lacking)
    return Ask(
        choices=_choices(context, Choice.SESSION if grantable else Choice.ONCE),
        offers=offers if grantable else (),
        command=render_all(request),
        description=_describe(request, context, lacking),
        expires_at=context.now + min(context.door.expiry_s, EXPIRY_S),
    )


def grants(
    requested: ApprovalRequested, choice: Choice, session: SessionKey, user: Owner, now: float
) -> tuple[Grant, ...]:
    """What `choice` leaves behind in its session. `once` leaves nothing."""
    if choice not in (Choice.SESSION, Choice.ALWAYS):
        return ()
    return tuple(
        Grant(permission=offer, session=session, user=user, expires_at=now + GRANT_S)
        for offer in requested.offers
    )


def weigh(choice: Choice, roles: frozenset[Role]) -> Choice:
    """What is recorded of a choice: only an administrator's word outlives the session."""
    lesser = choice is Choice.ALWAYS and Role.ADMIN not in roles
    return Choice.SESSION if lesser else choice


def stands(requested: ApprovalRequested, choice: Choice, by: Owner) -> tuple[Standing, ...]:
    """What `choice` leaves behind for all sessions."""
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
    """What a tool asks about that runs no command. It runs only if all it offers was permitted."""
    if offers and all(offer in permissions(context) for offer in offers):
        return Run(Ground.GRANTED)
    if (deny := _nobody_to_ask(context)) is not None:
        return deny
    expires_at = context.now + min(context.door.expiry_s, EXPIRY_S)
    return Ask(choices, offers, command, description, expires_at)


def ask_for_host(host: str, command: str, context: ExecutionContext) -> Decision:
    """Whether `command`, at work, may speak to `host`, which its start did not grant it."""
    wanted = Host(name=host)
    if wanted in permissions(context):
        return Run(Ground.GRANTED)
    if (deny := _nobody_to_ask(context)) is not None:
        return deny
    return Ask(
        choices=_choices(context, Choice.SESSION),
        offers=(wanted,),
        command=f"connect to {escape(host)}",
        description=(
            f"Sandbox: {context.level.name}\nFor: {escape(command)}\nTo permit: {shown(wanted)}"
        ),
        expires_at=context.now + min(context.door.expiry_s, EXPIRY_S),
    )


def _nobody_to_ask(context: ExecutionContext) -> Deny | None:
    if not context.door.answerable:
        return Deny(f"It needs an approval, and nobody can give one here ({context.door.name}).")
    if context.open_prompts >= OPEN_PROMPTS:
        return Deny(f"{OPEN_PROMPTS} requests of this session already wait for an answer.")
    return None


def permissions(context: ExecutionContext) -> tuple[Permission, ...]:
    """What holds here and now. A grant further away than one can be given is none."""
    return context.standing + tuple(
        grant.permission
        for grant in context.grants
        if grant.session == context.session
        and grant.user == context.principal.owner
        and context.now < grant.expires_at <= context.now + GRANT_S
    )


def _ground(request: ExecutionRequest, context: ExecutionContext) -> Ground | None:
    """Why the commands themselves may run unasked, if they may."""
    held = permissions(context)
    if isinstance(request.what, Parsed):
        built_in = rules.HARMLESS + (rules.GIT if context.git_is_safe else ())
        granted = tuple(p for p in held if isinstance(p, Rule))
        if _all_allowed(request, request.what, built_in, context):
            return Ground.HARMLESS
        if _permission(request) in held:
            return Ground.GRANTED
        if _all_allowed(request, request.what, built_in + granted, context):
            return Ground.GRANTED
    return Ground.CONFINED if _is_confined(request, context) else None


def _all_allowed(
    request: ExecutionRequest, what: Parsed, allowed: tuple[Rule, ...], context: ExecutionContext
) -> bool:
    place = Place(context.workspace, request.cwd)
    return request.environment.keys() <= _QUIET and all(
        any(rules.allows(rule, argv, request.programs.get(argv[0]), place) for rule in allowed)
        for argv in what.commands
    )


def _is_confined(request: ExecutionRequest, context: ExecutionContext) -> bool:
    """Whether the operator lets the sandbox alone judge. Not over a text that hides something."""
    if isinstance(request.what, Opaque):
        seen = request.what.text.replace("\n", "").replace("\t", "")
        if any(map(hidden, seen)):
            return False
    return (
        context.mode is Mode.SANDBOXED
        and context.level >= Level.L2
        and OPERATOR == context.principal.owner == context.session.owner
    )


def _lacking(
    request: ExecutionRequest, context: ExecutionContext, ground: Ground | None
) -> tuple[Permission | Single, ...]:
    """All that nobody has permitted yet."""
    lacking: list[Permission | Single] = []
    if context.level == Level.L0 and not request.wants.unsandboxed:
        lacking.append(Single("run without a sandbox, as there is none"))
    if ground is None:
        lacking.append(_permission(request))
    if request.wants.open_input and ground is not Ground.HARMLESS and ground is not Ground.CONFINED:
        lacking.append(Single("take input later that nobody will be asked about"))
    hosts = {p.name for p in permissions(context) if isinstance(p, Host)}
    lacking += [Host(name=host) for host in request.wants.hosts if host not in hosts]
    lacking += [Single(f"write to {quote(escape(p))}") for p in request.wants.writable]
    if request.wants.unsandboxed:
        lacking.append(Single("run outside of the sandbox"))
    if request.wants.detach:
        lacking.append(Single("live on when the gateway stops"))
    return tuple(lacking)


def _permission(request: ExecutionRequest) -> Permission | Single:
    """What would permit the commands: the line, if it is one and nothing else is told to it."""
    if isinstance(request.what, Opaque):
        return Single(f"run a script ({request.what.reason})")
    if request.stdin or not request.environment.keys() <= _QUIET:
        return Single("run with an input or an environment of its own")
    return Line(
        what=request.what,
        cwd=request.cwd,
        programs=dict(request.programs),
        files=dict(request.files),
        background=request.wants.background,
        terminal=request.wants.terminal,
    )


def _choices(context: ExecutionContext, widest: Choice) -> tuple[Choice, ...]:
    if widest is Choice.ONCE:
        return (Choice.ONCE, Choice.DENY)
    always = (Choice.ALWAYS,) if Role.ADMIN in context.principal.roles else ()
    return (Choice.ONCE, Choice.SESSION, *always, Choice.DENY)


def _describe(
    request: ExecutionRequest,
    context: ExecutionContext,
    lacking: tuple[Permission | Single, ...],
) -> str:
    unsandboxed = context.level == Level.L0 or request.wants.unsandboxed
    lines = [
        "UNSANDBOXED" if unsandboxed else f"Sandbox: {context.level.name}",
        f"Directory: {escape(request.cwd)}",
        *["In the background: it goes on when the call has ended"] * request.wants.background,
        *(
            f"To permit: {lack.what if isinstance(lack, Single) else shown(lack)}"
            for lack in lacking
        ),
    ]
    if request.purpose:
        said = escape(request.purpose[:PURPOSE]) + "…" * (len(request.purpose) > PURPOSE)
        lines.append(f"The model says, unverified: {said}")
    return "\n".join(lines)
