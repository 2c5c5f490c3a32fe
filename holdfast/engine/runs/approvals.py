"""Approval of calls: asks the one decision function, with all that it depends on.

Every decision about an execution is in the audit before it is acted upon.
A command at work that wants to reach one more host waits here for an answer.
"""

from collections.abc import Awaitable, Callable, Sequence
from secrets import token_hex

import anyio
from msgspec.structs import replace

from holdfast.core.approval import approval, tree
from holdfast.core.approval.approval import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalMode,
    ApprovalRequested,
    ApprovalWithdrawn,
    Decision,
    Deny,
    ExecutionContext,
    Ground,
    Level,
    MustAsk,
    Role,
    RunDoor,
    RunPrincipal,
)
from holdfast.core.approval.decision import ask_for_host, decide_execution, decide_question
from holdfast.core.approval.execution import execution_hash, render_all
from holdfast.core.approval.rules import HostRule, Permission, is_under
from holdfast.core.approval.tree import Tree
from holdfast.core.events import Record
from holdfast.core.run.call import Call, CallStatus
from holdfast.core.session import answers, doubts
from holdfast.core.session.placement import works_for
from holdfast.core.types import OPERATOR, CallId, RequestId, RunId, SessionKey, Value
from holdfast.engine.clock import Clock
from holdfast.engine.commits import Commits
from holdfast.engine.sessions import LoadedSession
from holdfast.journal.audit import AuditEntry
from holdfast.tools import tool

QUESTION_S = 3.0  # to read all files before a person is asked
START_S = 20.0  # for another, without which what was approved is denied

MOST_RESTLESS = 1_000  # sessions whose restless files are remembered; questions; workspaces

Audit = Callable[[AuditEntry], Awaitable[None]]

_USER = frozenset({Role.READ, Role.RUN, Role.APPROVE})
_ANSWERS = (ApprovalGranted, ApprovalDenied, ApprovalExpired, ApprovalWithdrawn)


class ApprovalPolicy(Value):
    """The operator's settings for approvals."""

    mode: ApprovalMode
    expiry_s: float  # how long a question waits for its answer


class Judged(Value):
    """A decision, and the hash of what it is about."""

    decision: Decision
    execution: str
    level: Level | None  # None: it is about no command
    what: str = ""  # in words
    trees: tuple[Tree, ...] = ()  # as they were when it was judged, if it was or will be asked


class Permits:
    """Decides for all sessions.

    Remembers only which command waits for which answer, and which files changed by themselves
    while a question was open: if that is forgotten, a person is asked once more.
    """

    def __init__(
        self,
        clock: Clock,
        policy: ApprovalPolicy,
        standing: Callable[[], Sequence[Permission]],
        audit: Audit,
        cautious: Callable[[str], bool],
        trusted_since: Callable[[], float] = float,
    ) -> None:
        self._cautious = cautious  # with calls of the model of that name
        self._trusted_since = trusted_since  # older grants do not count
        self._clock = clock
        self._policy = policy
        self._standing = standing
        self._audit = audit
        self._waiting: dict[RequestId, anyio.Event] = {}
        self._granted: set[RequestId] = set()
        self._restless: dict[SessionKey, tree.LeftOut] = {}
        self._written: dict[str, int] = {}  # a workspace → how often a tool has written there
        self._asked: dict[tuple[SessionKey, CallId], int] = {}  # a question → the same, before it

    async def judge(
        self, loaded: LoadedSession, run_id: RunId, call: Call, permission: tool.Permission
    ) -> Judged:
        """May it run? What is decided is in the audit when this returns."""
        match permission:
            case tool.ToolAllowed(note=note):
                allowed = Judged(approval.MayRun(Ground.HARMLESS), "", None, note)
                if note:
                    await self._audit(_entry(loaded, run_id, call.proposal.call_id, allowed))
                return allowed
            case tool.Forbidden(text=text):
                judged = Judged(Deny(text), "", None)
            case tool.Question():
                context = self._context(loaded, run_id, Level.L0)
                decision = decide_question(
                    permission.command,
                    permission.description,
                    permission.choices,
                    permission.offers,
                    context,
                )
                judged = Judged(decision, permission.execution, None, permission.command)
            case _:  # Judge
                judged = await self._weigh(loaded, run_id, call, permission)
        call_id = call.proposal.call_id
        if isinstance(judged.decision, MustAsk) and call.status is CallStatus.CLEARED:
            worth = answers.redeem(loaded.session, call_id, judged.execution, judged.trees)
            judged = replace(judged, decision=worth)
            if isinstance(worth, Deny):
                self._learn(loaded, call_id, judged)
        await self._audit(_entry(loaded, run_id, call_id, judged))
        return judged

    async def _weigh(
        self, loaded: LoadedSession, run_id: RunId, call: Call, judge: tool.Judge
    ) -> Judged:
        """The decision about an execution. Only what is asked about is looked at more closely."""
        request, level = judge.request, judge.level
        context = self._context(loaded, run_id, level)
        decision = decide_execution(request, context)
        if isinstance(decision, MustAsk):
            request = replace(request, trees=await self._look(loaded, call, judge))
            context = self._context(loaded, run_id, level)
            decision = decide_execution(request, context)
        execution, what = execution_hash(request), render_all(request)
        return Judged(decision, execution, level, what, request.trees)

    async def _look(self, loaded: LoadedSession, call: Call, judge: tool.Judge) -> tuple[Tree, ...]:
        """The trees: as they were bound, if they were, or without what changes by itself."""
        if call.status is CallStatus.CLEARED:
            bound = answers.trees_asked_with(loaded.session, call.proposal.call_id)
            return await judge.look(START_S, tree.left_out(bound))
        self._asked[loaded.key, call.proposal.call_id] = self._writes(loaded)
        if len(self._asked) > MOST_RESTLESS:
            del self._asked[next(iter(self._asked))]
        known = self._restless.get(loaded.key, {})
        return tree.drop_restless(await judge.look(QUESTION_S, known))

    def wrote(self, workspace: str) -> None:
        """A tool begins or ends to change files there, for any session."""
        self._written[workspace] = self._written.pop(workspace, 0) + 1
        if len(self._written) > MOST_RESTLESS:
            del self._written[next(iter(self._written))]

    def _writes(self, loaded: LoadedSession) -> int:
        """Count the writes of tools where the session works, or around it."""
        here = loaded.session.workspace
        around = (
            n
            for place, n in self._written.items()
            if is_under(place, here) or is_under(here, place)
        )
        return sum(around)

    def _learn(self, loaded: LoadedSession, call_id: CallId, judged: Judged) -> None:
        """Files that change by themselves would have everything denied: leave them out next.

        Not if a tool has written there since the question: a task in the background could have
        just the file left out that it changes next.
        """
        if self._asked.pop((loaded.key, call_id), None) != self._writes(loaded):
            return
        bound = answers.trees_asked_with(loaded.session, call_id)
        known = self._restless.pop(loaded.key, {})
        if learned := tree.learn(known, bound, judged.trees):
            self._restless[loaded.key] = learned
        if len(self._restless) > MOST_RESTLESS:
            del self._restless[next(iter(self._restless))]

    async def note(self, kind: str, loaded: LoadedSession, run_id: RunId, **fields: str) -> None:
        """Write something else down that concerns a decision."""
        origin = loaded.session.runs[run_id].origin if run_id in loaded.session.runs else None
        platform = origin.platform if origin else loaded.session.platform
        await self._audit(
            AuditEntry(kind=kind, who=loaded.key.owner, platform=platform, run_id=run_id, **fields)
        )

    def confirms_writes(self, loaded: LoadedSession, run_id: RunId) -> bool:
        """Tell if a person at a terminal confirms each write of the run."""
        found = loaded.session.runs[run_id]
        at_terminal = found.origin.platform == "cli" and found.origin.answerable
        return at_terminal and self._cautious(found.model)

    def hosts(self, loaded: LoadedSession, run_id: RunId) -> tuple[str, ...]:
        """The hosts that commands of the run may speak to unasked."""
        context = self._context(loaded, run_id, Level.L0)
        return tuple(p.name for p in approval.permissions(context) if isinstance(p, HostRule))

    async def may_reach(
        self,
        host: str,
        command: str,
        loaded: LoadedSession,
        run_id: RunId,
        call_id: CallId,
        ask: Callable[[ApprovalRequested], object],
    ) -> bool:
        """Decide whether a command at work may reach `host`: ask, and wait for the answer."""
        now = loaded.session.runs.get(run_id)
        if now is None or now.stop_reason:
            return False  # its run is over: a question could not be shown
        context = self._context(loaded, run_id, Level.L2)
        decision = ask_for_host(host, command, context)
        judged = Judged(decision, "", Level.L2, f"connect to {host}")
        if not isinstance(decision, MustAsk):
            await self._audit(_entry(loaded, run_id, call_id, judged))
            return isinstance(decision, approval.MayRun)
        request_id = new_request_id()
        answered = self._waiting[request_id] = anyio.Event()
        try:
            ask(requested(run_id, call_id, request_id, judged))
            await self._audit(_entry(loaded, run_id, call_id, judged))
            await answered.wait()
            return request_id in self._granted
        finally:
            self._granted.discard(request_id)
            del self._waiting[request_id]

    def subscribe(self, commits: Commits) -> None:
        """Get answers from the journal."""
        commits.subscribe(_ANSWERS, self._answered)

    def _answered(self, record: Record) -> None:
        """Wake the command that waits for this answer."""
        fact = record.fact
        assert isinstance(fact, _ANSWERS)
        if (waiting := self._waiting.get(fact.request_id)) is not None:
            if isinstance(fact, ApprovalGranted):
                self._granted.add(fact.request_id)
            waiting.set()

    def _context(self, loaded: LoadedSession, run_id: RunId, level: Level) -> ExecutionContext:
        session = loaded.session
        found = session.runs[run_id]
        origin = found.origin
        admin = {Role.ADMIN} if loaded.key.owner == OPERATOR else set()
        return ExecutionContext(
            principal=RunPrincipal(works_for(session, found), _USER | admin),
            session=loaded.key,
            door=RunDoor(origin.platform, origin.answerable, self._policy.expiry_s),
            mode=self._policy.mode,
            cautious=self._cautious(found.model),
            level=level,
            workspace=session.workspace,
            grants=doubts.granted_since(session.grants, self._trusted_since()),
            standing=tuple(self._standing()) if loaded.key.owner == OPERATOR else (),
            open_prompts=sum(not a.status.final for a in session.approvals.values()),
            now=self._clock.now(),
        )


def new_request_id() -> RequestId:
    """A name for a request that cannot be guessed."""
    return RequestId(f"apr_{token_hex(12)}")


def requested(
    run_id: RunId, call_id: CallId, request_id: RequestId, judged: Judged
) -> ApprovalRequested:
    """The fact that a person is asked."""
    ask = judged.decision
    assert isinstance(ask, MustAsk)
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
        trees=tree.for_journal(judged.trees),
    )


def _entry(loaded: LoadedSession, run_id: RunId, call_id: CallId, judged: Judged) -> AuditEntry:
    match judged.decision:
        case approval.MayRun(ground=ground):
            kind, why = "call.allowed", str(ground)
        case MustAsk():
            kind, why = "call.asked", ""
        case _:
            kind, why = "call.denied", judged.decision.reason
    return AuditEntry(
        kind=kind,
        who=loaded.key.owner,
        platform=loaded.session.runs[run_id].origin.platform,
        run_id=run_id,
        call_id=call_id,
        execution=judged.execution,
        what=judged.what,
        posture="" if judged.level is None else judged.level.name,
        result=why,
    )
