"""Whether a call may start: asks the one decision function, with all that it depends on.

Every decision about an execution is written down in the audit before it is acted upon.
A command at work that wants to reach one more host waits here for somebody's answer.
"""

from collections.abc import Awaitable, Callable, Sequence
from secrets import token_hex

import anyio

from holdfast.core import answers, approval
from holdfast.core.approval import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    ApprovalWithdrawn,
    Ask,
    Decision,
    Deny,
    Door,
    ExecutionContext,
    Ground,
    Level,
    Mode,
    Principal,
    Role,
)
from holdfast.core.call import Call, Status
from holdfast.core.events import Record
from holdfast.core.execution import execution_hash, render_all
from holdfast.core.rules import Host, Permission
from holdfast.core.types import OPERATOR, CallId, RequestId, RunId, Value
from holdfast.core.words import works_for
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import Held
from holdfast.journal.audit import Entry
from holdfast.tools import tool

Audit = Callable[[Entry], Awaitable[None]]

_USER = frozenset({Role.READ, Role.RUN, Role.APPROVE})
_ANSWERS = (ApprovalGranted, ApprovalDenied, ApprovalExpired, ApprovalWithdrawn)


class Policy(Value):
    """What the operator has set."""

    mode: Mode
    expiry_s: float  # how long a question waits for its answer


class Judged(Value):
    """A decision, and the hash of what it is about."""

    decision: Decision
    execution: str
    level: Level | None  # None: it is about no command
    what: str = ""  # in words


class Permits:
    """Decides for all sessions; remembers only who waits for which answer."""

    def __init__(
        self,
        clock: Clock,
        policy: Policy,
        standing: Callable[[], Sequence[Permission]],
        audit: Audit,
    ) -> None:
        self._clock = clock
        self._policy = policy
        self._standing = standing
        self._audit = audit
        self._waiting: dict[RequestId, anyio.Event] = {}
        self._granted: set[RequestId] = set()

    async def judge(
        self, held: Held, run_id: RunId, call: Call, permission: tool.Permission
    ) -> Judged:
        """May it run? What is decided is in the audit when this returns."""
        match permission:
            case tool.Allowed(note=note):
                allowed = Judged(approval.Run(Ground.HARMLESS), "", None, note)
                if note:
                    await self._audit(_entry(held, run_id, call.proposal.call_id, allowed))
                return allowed
            case tool.Forbidden(text=text):
                judged = Judged(Deny(text), "", None)
            case tool.Question():
                context = self._context(held, run_id, Level.L0, git_is_safe=False)
                decision = approval.decide_question(
                    permission.command,
                    permission.description,
                    permission.choices,
                    permission.offers,
                    context,
                )
                judged = Judged(decision, permission.execution, None, permission.command)
            case _:  # Judge
                request, level = permission.request, permission.level
                context = self._context(held, run_id, level, git_is_safe=permission.git_is_safe)
                decision = approval.decide_execution(request, context)
                what = render_all(request)
                judged = Judged(decision, execution_hash(request), level, what)
        call_id = call.proposal.call_id
        if isinstance(judged.decision, Ask) and call.status is Status.CLEARED:
            worth = answers.redeem(held.session, call_id, judged.execution)
            judged = Judged(worth, judged.execution, judged.level, judged.what)
        await self._audit(_entry(held, run_id, call_id, judged))
        return judged

    async def note(self, kind: str, held: Held, run_id: RunId, **fields: str) -> None:
        """Write something else down that concerns a decision."""
        origin = held.session.runs[run_id].origin if run_id in held.session.runs else None
        platform = origin.platform if origin else held.session.platform
        await self._audit(
            Entry(kind=kind, who=held.key.owner, platform=platform, run_id=run_id, **fields)
        )

    def hosts(self, held: Held, run_id: RunId) -> tuple[str, ...]:
        """The hosts that commands of the run may speak to unasked."""
        context = self._context(held, run_id, Level.L0, git_is_safe=False)
        return tuple(p.name for p in approval.permissions(context) if isinstance(p, Host))

    async def may_reach(
        self,
        host: str,
        command: str,
        held: Held,
        run_id: RunId,
        call_id: CallId,
        ask: Callable[[ApprovalRequested], object],
    ) -> bool:
        """Whether a command at work may speak to `host`: asks, and waits for the answer."""
        now = held.session.runs.get(run_id)
        if now is None or now.stop_reason:
            return False  # its run is over: nobody could be told what it is for
        context = self._context(held, run_id, Level.L2, git_is_safe=False)
        decision = approval.ask_for_host(host, command, context)
        judged = Judged(decision, "", Level.L2, f"connect to {host}")
        if not isinstance(decision, Ask):
            await self._audit(_entry(held, run_id, call_id, judged))
            return isinstance(decision, approval.Run)
        request_id = new_request_id()
        answered = self._waiting[request_id] = anyio.Event()
        try:
            ask(requested(run_id, call_id, request_id, judged))
            await self._audit(_entry(held, run_id, call_id, judged))
            await answered.wait()
            return request_id in self._granted
        finally:
            self._granted.discard(request_id)
            del self._waiting[request_id]

    def committed(self, records: Sequence[Record]) -> None:
        """On the loop, after every commit: tell who waits for an answer."""
        if not self._waiting:
            return
        for record in records:
            fact = record.fact
            if isinstance(fact, _ANSWERS) and fact.request_id in self._waiting:
                if isinstance(fact, ApprovalGranted):
                    self._granted.add(fact.request_id)
                self._waiting[fact.request_id].set()

    def _context(
        self, held: Held, run_id: RunId, level: Level, *, git_is_safe: bool
    ) -> ExecutionContext:
        session = held.session
        found = session.runs[run_id]
        origin = found.origin
        admin = {Role.ADMIN} if held.key.owner == OPERATOR else set()
        return ExecutionContext(
            principal=Principal(works_for(session, found), _USER | admin),
            session=held.key,
            door=Door(origin.platform, origin.answerable, self._policy.expiry_s),
            mode=self._policy.mode,
            level=level,
            workspace=session.workspace,
            git_is_safe=git_is_safe,
            grants=session.grants,
            standing=tuple(self._standing()) if held.key.owner == OPERATOR else (),
            open_prompts=sum(not a.status.final for a in session.approvals.values()),
            now=self._clock.now(),
        )


def new_request_id() -> RequestId:
    """A name for a question, that nobody can guess."""
    return RequestId(f"apr_{token_hex(12)}")


def requested(
    run_id: RunId, call_id: CallId, request_id: RequestId, judged: Judged
) -> ApprovalRequested:
    """The fact that somebody is asked."""
    ask = judged.decision
    assert isinstance(ask, Ask)
    return ApprovalRequested(
        run_id=run_id,
        call_id=call_id,
        request_id=request_id,
        command=ask.command,
        description=ask.description,
        execution=judged.execution,
        choices=ask.choices,
        expires_at=ask.expires_at,
        offers=ask.offers,
    )


def _entry(held: Held, run_id: RunId, call_id: CallId, judged: Judged) -> Entry:
    match judged.decision:
        case approval.Run(ground=ground):
            kind, why = "call.allowed", str(ground)
        case Ask():
            kind, why = "call.asked", ""
        case _:
            kind, why = "call.denied", judged.decision.reason
    return Entry(
        kind=kind,
        who=held.key.owner,
        platform=held.session.runs[run_id].origin.platform,
        run_id=run_id,
        call_id=call_id,
        execution=judged.execution,
        what=judged.what,
        posture="" if judged.level is None else judged.level.name,
        result=why,
    )
