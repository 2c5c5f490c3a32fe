"""The decision: does this execution run, is a person asked, or is it denied?

`decide_execution` is the only place that decides if the user has to be asked: it lists the
permissions that an execution lacks. If it lacks none, it runs. Otherwise the user is asked or,
if that is not possible, the execution is denied. There is no other way to run. `session` is
offered only if each missing permission can be written down: this family of commands, this exact
line in this directory, that host. Without a sandbox every execution lacks a permission, whatever
was granted.
"""

import re

from holdfast.core.approval import rules
from holdfast.core.approval.approval import (
    EXPIRY_S,
    UNSANDBOXED,
    ApprovalMode,
    Choice,
    Decision,
    Deny,
    ExecutionContext,
    Ground,
    Level,
    MayRun,
    MustAsk,
    Role,
    permissions,
)
from holdfast.core.approval.execution import (
    NOT_ORDINARY,
    OUTSIDE,
    Assignments,
    ExecutionRequest,
    Opaque,
    Parsed,
    describe_checks,
    quote,
    render_all,
    shown_name,
)
from holdfast.core.approval.families import family
from holdfast.core.approval.harmless import HARMLESS
from holdfast.core.approval.rules import (
    CommandPlace,
    CommandRule,
    HostRule,
    LineRule,
    OutputRule,
    Permission,
    Rule,
    describe,
)
from holdfast.core.text.escape import escape, is_hidden
from holdfast.core.types import OPERATOR, Value

OPEN_PROMPTS = 10
PURPOSE = 500  # characters of the model's stated purpose that are shown
ONLY_ONCE = "Can only be allowed once: {}."
NO_SANDBOX = "it runs without a sandbox, because none is available"
OUTSIDE_SANDBOX = "it runs outside the sandbox"
OPEN_INPUT = "it takes more input later, without another question"
DETACHED = "it keeps running after the gateway stops"
CANNOT_BE_GIVEN = "It needs an approval, which cannot be given here"
TOO_MANY_PROMPTS = f"{OPEN_PROMPTS} requests of this session wait for an answer, the maximum."
_HARMLESS_VARIABLES = frozenset("LANG LC_ALL LC_CTYPE TERM TZ COLUMNS LINES NO_COLOR".split())


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


def _ground(request: ExecutionRequest, context: ExecutionContext) -> Ground | None:
    """Return why the commands themselves may run unasked; None if they may not."""
    held = permissions(context)
    if isinstance(request.what, Parsed) and _is_plain(request, request.what, context):
        if not _missing(request, request.what, (), context):
            return Ground.HARMLESS
        if not _missing(request, request.what, held, context):
            return Ground.GRANTED
    if rules.is_held(_exact_line(request, context), held):
        return Ground.GRANTED
    confined = not context.cautious and _is_confined(request, context)
    return Ground.CONFINED if confined else None


def _place(request: ExecutionRequest, context: ExecutionContext) -> CommandPlace:
    return CommandPlace(context.workspace, request.cwd, request.paths, request.linux)


def _is_plain(request: ExecutionRequest, what: Parsed, context: ExecutionContext) -> bool:
    """Tell if nothing but the words decides: its bash, its variables, what is redirected."""
    place = _place(request, context)
    return (
        request.environment.keys() <= _HARMLESS_VARIABLES
        and rules.is_system(request.bash, "bash", place)
        and all(
            rules.reads_inside(redirect.target, place)
            if redirect.reads
            else not redirect.writes or request.targets.get(redirect.target) == ""
            for redirect in what.redirections
        )
    )


def _missing(
    request: ExecutionRequest,
    what: Parsed,
    held: tuple[Permission, ...],
    context: ExecutionContext,
) -> list[CommandRule | OutputRule | None]:
    """Return what the line needs besides the table and `held`. None: no rule could allow a part."""
    place = _place(request, context)
    words = (() if context.cautious else HARMLESS) + tuple(p for p in held if isinstance(p, Rule))
    wide = _is_for_wide_rules(request, context)
    families = [p for p in held if isinstance(p, CommandRule) and wide]
    missing: list[CommandRule | OutputRule | None] = []
    for at, argv in enumerate(what.commands):
        variables, program = what.variables_of(at), request.programs.get(argv[0])
        if not _is_allowed(argv, variables, program, words, place) and not any(
            rules.covers(rule, argv, variables, program, place) for rule in families
        ):
            missing.append(family(argv, variables, program, place) if wide else None)
    output = OutputRule(workspace=context.workspace)
    if what.writes and not (wide and output in held):
        missing.append(output if wide else None)
    return missing


def _is_allowed(
    argv: tuple[str, ...],
    variables: Assignments,
    program: str | None,
    words: tuple[Rule, ...],
    place: CommandPlace,
) -> bool:
    return not variables and any(rules.allows(rule, argv, program, place) for rule in words)


def _is_for_wide_rules(request: ExecutionRequest, context: ExecutionContext) -> bool:
    """Tell if rules for families and output apply: a sandbox that holds, foreground, no input."""
    wants = request.wants
    return (
        context.level >= Level.L2
        and not request.stdin
        and not (wants.background or wants.terminal or wants.open_input)
        and not (wants.unsandboxed or wants.detach)
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
        lacking += _permissions(request, context)
    lacking += _protected(request, ground)
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


def _protected(request: ExecutionRequest, ground: Ground | None) -> list[Single]:
    """Return the files that a redirection writes although a person must be asked for each.

    If the sandbox alone is enough, it also decides what a path outside or a link can reach.
    """
    confined = (OUTSIDE, NOT_ORDINARY) if ground is Ground.CONFINED else ()
    return [
        Single(f"it writes to {shown_name(path)}: {why}")
        for path, why in sorted(request.targets.items())
        if why and why not in confined
    ]


def _permissions(request: ExecutionRequest, context: ExecutionContext) -> Lacking:
    """Return the permissions for the commands: their families, or else the line."""
    line = _exact_line(request, context)
    if isinstance(line, Single) or isinstance(request.what, Opaque):
        return (line,)
    return _families(request, request.what, context) or (line,)


def _families(
    request: ExecutionRequest, what: Parsed, context: ExecutionContext
) -> tuple[CommandRule | OutputRule, ...]:
    """Return the rules that would allow the line and what is like it; none if there are not."""
    if not _is_plain(request, what, context):
        return ()
    missing = _missing(request, what, permissions(context), context)
    offered = tuple(dict.fromkeys(rule for rule in missing if rule))
    return offered if None not in missing else ()


def _exact_line(request: ExecutionRequest, context: ExecutionContext) -> LineRule | Single:
    """Return the permission for this line, if nothing but the line matters."""
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
