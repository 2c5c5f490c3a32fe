"""Tool calls: check, start, run, settle.

A call is recorded as started before its effect and as settled after it. The calls of one answer
run in the order that the model gave; calls in a row that only read run in parallel. If a tool
raises, its call is settled too, with a result that the model can read.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
import msgspec

from holdfast.core.approval.approval import Deny, Ground, MayRun, MustAsk
from holdfast.core.redaction import Redactor
from holdfast.core.run import call as machine
from holdfast.core.run import child
from holdfast.core.run.call import Call, CallAsked, CallSettled, CallStarted, OnCrash, Outcome
from holdfast.core.run.files import FileChange, FileChanged, FileChanging
from holdfast.core.session import answers
from holdfast.core.types import CallId, Fact, ProcessId, RunId
from holdfast.engine.clock import Clock
from holdfast.engine.runs import outcomes
from holdfast.engine.runs.approvals import Judged, Permits, new_request_id, requested
from holdfast.engine.runs.driven import Cut, DrivenRun
from holdfast.engine.runs.progress import CallProgress
from holdfast.engine.runs.toolbox import Toolbox
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import JournalUnavailable, ToolFailed
from holdfast.journal.journal import Pending
from holdfast.tools.tool import (
    BlobStore,
    Context,
    Done,
    Effect,
    Forbidden,
    Park,
    Permission,
    Tool,
    ToolDenied,
    ToolFailure,
    Unknown,
)
from holdfast.tools.tool import Outcome as ToolOutcome

log = logging.getLogger(__name__)

PREVIEW = 200  # characters of a call that people see
ABORT_S = 2.5  # for the cleanup of a stopped call
INTERRUPTED = "Nothing was written: the run was interrupted before the file was changed."
RESULT = 64 * 1024  # characters of a result that the model sees


@dataclass(frozen=True, slots=True)
class CallAtWork:
    """One call of a run that is driven."""

    run: DrivenRun
    call: Call

    @property
    def loaded(self) -> LoadedSession:
        return self.run.loaded

    @property
    def run_id(self) -> RunId:
        return self.run.id

    @property
    def call_id(self) -> CallId:
        return self.call.proposal.call_id

    def record(self, *facts: Fact) -> Pending:
        """Append facts for its run."""
        return self.run.record(*facts)


class Calls:
    """Settles the calls of an answer."""

    def __init__(
        self,
        toolbox: Toolbox,
        blobs: BlobStore,
        clock: Clock,
        sessions: Sessions,
        permits: Permits,
        redactor: Redactor,
        own: Path,
        begun: Callable[[LoadedSession, ProcessId], None],
    ) -> None:
        self._toolbox = toolbox
        self._blobs = blobs
        self._clock = clock
        self._sessions = sessions
        self._permits = permits
        self._redactor = redactor
        self._own = own  # workspaces below it are created by us
        self._begun = begun  # called when a process continues in the background

    def on_crash(self, call: Call) -> OnCrash:
        """Return what the call's tool declares for a crash; unknown for a tool that is gone."""
        tool = self._toolbox.find(call.proposal.tool)
        return OnCrash.UNKNOWN if tool is None else tool.on_crash

    async def settle(self, run: DrivenRun, calls: Sequence[Call]) -> None:
        """Settle the first call, or let it wait; if it only reads, with those behind it that do too.

        The caller asks `next_step` for the others again, because the first one may hold them.
        """
        reads = list(takewhile(self._only_reads, calls))
        if not reads:
            await self._settle(CallAtWork(run, calls[0]))
            return
        try:
            async with anyio.create_task_group() as side_by_side:
                for call in reads:
                    side_by_side.start_soon(self._settle, CallAtWork(run, call))
        except ExceptionGroup as several:
            raise several.exceptions[0] from None  # all failed to record; one is enough

    def _only_reads(self, call: Call) -> bool:
        tool = self._toolbox.find(call.proposal.tool)
        return tool is not None and tool.effect is Effect.READ

    async def _settle(self, at: CallAtWork) -> None:
        match machine.next_step(at.call, self.on_crash(at.call)):
            case machine.Begin():
                await self._begin(at)
            case machine.Adopt():
                await self._adopt(at)
            case machine.Settle(outcome=outcome, text=text):
                at.record(outcomes.settled(at.run_id, at.call, outcome, text))
            case machine.LeaveCall():
                pass

    async def _begin(self, at: CallAtWork) -> None:
        found = self._find(at.call)
        if isinstance(found, str):
            at.record(self._settled(at, Outcome.FAILED, found))
            return
        tool, arguments = found
        with self._progress(at) as progress:
            preview = _preview(tool, arguments, self._redactor)
            context = self._context(at, progress, preview)
            permission = await _permission(tool, context, arguments)
            judged = await self._permitted(at, tool, permission)
            if judged is None:
                return
            unasked = judged.decision == MayRun(Ground.HARMLESS)
            context = msgspec.structs.replace(
                context, execution=judged.execution, trees=judged.trees, unasked=unasked
            )
            started = at.record(
                CallStarted(
                    run_id=at.run_id,
                    call_id=at.call_id,
                    tool=tool.name,
                    preview=preview,
                    quiet=tool.name == "ask",  # its question is shown anyway
                )
            )
            if tool.effect is not Effect.READ:
                await started.wait()  # recorded before its effect
            begun = perf_counter()
            outcome: ToolOutcome | None = None
            with self._writing(tool, at.loaded), anyio.move_on_after(tool.timeout_s):
                outcome = await self._guarded(tool.run, tool, context, arguments)
        await self._record(at, context, tool, outcome, perf_counter() - begun)

    @contextmanager
    def _writing(self, tool: Tool[Any], loaded: LoadedSession) -> Iterator[None]:
        """Note that a tool, and not another program, changes files meanwhile."""
        if tool.effect is not Effect.WRITE:
            yield
            return
        self._permits.wrote(loaded.session.workspace)
        try:
            yield
        finally:
            self._permits.wrote(loaded.session.workspace)

    def _progress(self, at: CallAtWork) -> CallProgress:
        return CallProgress(self._sessions, at.loaded, at.run_id, at.call, self._clock)

    def _find(self, call: Call) -> tuple[Tool[Any], msgspec.Struct] | str:
        """Return the call's tool and its arguments, or what is wrong with it."""
        proposal = call.proposal
        tool = self._toolbox.find(proposal.tool)
        if tool is None:
            names = ", ".join(self._toolbox.names)
            return f"There is no tool called {proposal.tool!r}. There are: {names}."
        try:
            return tool, msgspec.json.decode(proposal.arguments or "{}", type=tool.arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return (
                f"The arguments do not fit {proposal.tool}: {error}. Call it again with them right."
            )

    def _context(self, at: CallAtWork, progress: CallProgress, preview: str) -> Context:
        session, run_id = at.loaded.session, at.run_id
        run = session.runs[run_id]

        async def may_reach(host: str) -> bool:
            return await self._permits.may_reach(
                host, preview, at.loaded, run_id, at.call_id, at.record
            )

        async def announce(change: FileChange) -> None:
            if self._redactor.hides(change.path):
                return  # a path is recorded as it is, or not at all
            changing = FileChanging(run_id=run_id, call_id=at.call_id, change=change)
            try:
                await at.record(changing).wait()
            except Cut:
                raise ToolFailed(INTERRUPTED) from None

        def announced() -> tuple[FileChange, ...]:
            now = at.run.now
            call = now.calls.get(at.call_id) if now is not None else None
            return call.changing if call is not None else ()

        return Context(
            session=at.loaded.key,
            run_id=run_id,
            turn=run.turn,
            call_id=at.call_id,
            workspace=Path(session.workspace),
            blobs=self._blobs,
            cwd=session.cwd or session.workspace,
            origin=run.origin,
            processes=session.processes,
            hosts=self._permits.hosts(at.loaded, run_id),
            execution="",
            trees=(),
            progress=progress.add,
            may_reach=may_reach,
            announce=announce,
            announced=announced,
            depth=run.parent.depth if run.parent else 0,
            children=len(child.children_of(session.children, run_id)),
            result_of=lambda call_id: self._result_of(at.loaded, call_id),
            confirm_writes=self._permits.confirms_writes(at.loaded, run_id),
        )

    async def _result_of(self, loaded: LoadedSession, call_id: CallId) -> str | None:
        if (found := loaded.transcript.result_of(call_id)) is not None:
            return found
        return (await self._sessions.whole(loaded)).result_of(call_id)

    async def _permitted(
        self, at: CallAtWork, tool: Tool[Any], permission: Permission
    ) -> Judged | None:
        """Return the decision if the call may start now; None if it is denied or must be asked."""
        judged = await self._permits.judge(at.loaded, at.run_id, at.call, permission)
        match judged.decision:
            case MayRun():
                return judged
            case Deny(reason=reason):
                at.record(self._settled(at, Outcome.DENIED, reason))
            case MustAsk() if at.call.status is not machine.CallStatus.PROPOSED:
                at.record(_unknown(at))
            case MustAsk():
                request_id = new_request_id()
                asked = CallAsked(
                    run_id=at.run_id,
                    call_id=at.call_id,
                    request_id=request_id,
                    holds=bool(judged.trees) and tool.effect is not Effect.READ,
                )
                at.record(requested(at.run_id, at.call_id, request_id, judged), asked)
        return None

    async def _adopt(self, at: CallAtWork) -> None:
        """Settle an interrupted call by the evidence that it left."""
        found = self._find(at.call)
        adopt = None if isinstance(found, str) else found[0].adopt
        if isinstance(found, str) or adopt is None:
            at.record(_unknown(at))
            return
        tool, arguments = found
        with self._progress(at) as progress:
            preview = _preview(tool, arguments, self._redactor)
            context = self._context(at, progress, preview)
            outcome = await self._guarded(adopt, tool, context, arguments)
        await self._record(at, context, tool, outcome, 0.0)

    async def abort(
        self, run: DrivenRun, calls: Sequence[Call]
    ) -> dict[CallId, tuple[FileChanged, ...]]:
        """End what is left of calls whose run is stopped; return the files they had changed.

        Never raises: the run ends anyway.
        """
        changed: dict[CallId, tuple[FileChanged, ...]] = {}
        begun = (machine.CallStatus.STARTED, machine.CallStatus.DOUBTFUL)
        for call in calls:
            tool = self._toolbox.find(call.proposal.tool)
            if tool is None or tool.abort is None or call.status not in begun:
                continue
            at = CallAtWork(run, call)
            with self._progress(at) as progress:
                context = self._context(at, progress, "")
            try:
                with anyio.move_on_after(ABORT_S):
                    made = await tool.abort(context)
                    changed[at.call_id] = await self._changed(at, context, made)
            except Exception:
                log.exception("abort raised", extra={"tool": tool.name, "call_id": context.call_id})
        return changed

    async def _record(
        self,
        at: CallAtWork,
        context: Context,
        tool: Tool[Any],
        outcome: ToolOutcome | None,
        duration: float,
    ) -> None:
        """Record how it ended, or that it waits; then remove its evidence."""
        if open_questions := answers.withdraw_call(at.loaded.session, at.run_id, at.call_id):
            at.record(*open_questions)
        changes: tuple[FileChanged, ...] = ()
        if isinstance(outcome, Done | ToolFailure | Unknown):
            changes = await self._changed(at, context, outcome.changes)
        match outcome:
            case Done():
                settled = self._settled(at, Outcome.OK, outcome.text, duration)
                cwd = outcome.cwd or context.cwd
                if self._redactor.hides(cwd):  # a directory is recorded as it is, or not at all
                    cwd = ""
                settled = msgspec.structs.replace(
                    settled, cwd=cwd, summary=outcomes.plain(outcome.summary)
                )
                begun = outcomes.child(context, outcome.delegated, background=True)
                left = outcomes.background(context, outcome.background)
                port = outcomes.port(context, outcome.port, at.loaded.session.processes)
                pending = at.record(*left, *port, *begun, *changes, settled)
                if outcome.background is not None:
                    self._begun(at.loaded, outcome.background.process_id)
            case ToolFailure(text=text):
                pending = at.record(*changes, self._settled(at, Outcome.FAILED, text, duration))
            case ToolDenied(text=text):
                await self._permits.note(
                    "call.denied", at.loaded, at.run_id, call_id=at.call_id, result=text
                )
                pending = at.record(self._settled(at, Outcome.DENIED, text, duration))
            case Unknown(text=text):
                pending = at.record(*changes, self._settled(at, Outcome.UNKNOWN, text, duration))
            case Park():
                begun = outcomes.child(context, outcome.delegated, background=False)
                pending = at.record(*begun, outcomes.parked(context, outcome))
            case _:  # it was cut by its time limit
                pending = at.record(outcomes.timed_out(at.run_id, at.call, tool, duration))
        if tool.settled is not None:
            await pending.wait()
            tool.settled(context)

    async def _changed(
        self, at: CallAtWork, context: Context, made: Sequence[FileChange]
    ) -> tuple[FileChanged, ...]:
        """Return the changed files as facts. They are in the audit, if that can be written."""
        changes = outcomes.changes(context, made, self._redactor)
        if not changes:
            return ()
        with anyio.CancelScope(shield=True):  # it has happened, and will be recorded
            try:
                await self._permits.note(
                    "files.changed", at.loaded, at.run_id, **outcomes.audited(changes)
                )
            except JournalUnavailable as error:
                log.warning("changed files are not in the audit", extra={"why": str(error)})
        return changes

    def _settled(
        self, at: CallAtWork, outcome: Outcome, text: str, duration_s: float = 0.0
    ) -> CallSettled:
        """Return the result, cut to its limit after redaction: half a secret would not be found."""
        if (more := len(text) - RESULT) > 0:
            text = f"{self._redactor.cut(text, RESULT)}\n[cut: {more} more characters]"
        return outcomes.settled(at.run_id, at.call, outcome, text, duration_s)

    async def _guarded(
        self,
        work: Callable[[Context, Any], Awaitable[ToolOutcome]],
        tool: Tool[Any],
        context: Context,
        arguments: msgspec.Struct,
    ) -> ToolOutcome:
        try:
            self._enter(context.workspace)
            return await work(context, arguments)
        except ToolFailed as failed:
            return ToolFailure(str(failed))
        except Exception as error:
            log.exception("tool raised", extra={"tool": tool.name, "call_id": context.call_id})
            return await self._after_a_break(work, tool, context, arguments, _sole(error))

    async def _after_a_break(
        self,
        work: Callable[[Context, Any], Awaitable[ToolOutcome]],
        tool: Tool[Any],
        context: Context,
        arguments: msgspec.Struct,
        error: BaseException,
    ) -> ToolOutcome:
        """Decide the outcome of a call whose tool raised: it may have had its effect."""
        text = f"The tool broke: {type(error).__name__}: {error}"
        if tool.on_crash is OnCrash.REPEAT:
            return ToolFailure(text)
        if tool.adopt is None or work == tool.adopt:
            return Unknown(f"{text}. It may have taken effect; check before you repeat it.")
        return await self._guarded(tool.adopt, tool, context, arguments)

    def _enter(self, workspace: Path) -> None:
        """Make a workspace of our own at first need; one that the user named must exist."""
        if workspace.is_relative_to(self._own):
            workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not workspace.is_dir():
            raise ToolFailed(
                f"The workspace is gone: {workspace}. Tell the user; do not recreate it."
            )


def _unknown(at: CallAtWork) -> CallSettled:
    return outcomes.settled(at.run_id, at.call, Outcome.UNKNOWN, machine.UNKNOWN_TEXT)


async def _permission(tool: Tool[Any], context: Context, arguments: msgspec.Struct) -> Permission:
    try:
        return await tool.permit(context, arguments)
    except ToolFailed as failed:
        return Forbidden(str(failed))
    except Exception as error:
        log.exception("permit raised", extra={"tool": tool.name, "call_id": context.call_id})
        return Forbidden(f"The tool broke: {type(error).__name__}: {error}")


def _preview(tool: Tool[Any], arguments: msgspec.Struct, redactor: Redactor) -> str:
    try:
        return outcomes.plain(redactor.cut(tool.preview(arguments), PREVIEW))
    except Exception:
        log.exception("preview raised", extra={"tool": tool.name})
        return ""


def _sole(error: BaseException) -> BaseException:
    """Unwrap an error from the groups that tasks wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
