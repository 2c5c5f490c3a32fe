"""Tool calls: check, start, run, settle.

A call is recorded as started before its effect and settled after it. Calls of one
answer go in the order the model gave them; neighbours that only read run side by side.
Whatever a tool does or raises, its call ends as a result the model can read.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import anyio
import msgspec

from holdfast.core import answers, child
from holdfast.core import call as machine
from holdfast.core.approval import Ask, Deny, Run
from holdfast.core.call import (
    Call,
    CallAsked,
    CallSettled,
    CallStarted,
    OnCrash,
    Outcome,
)
from holdfast.core.redaction import Redactor
from holdfast.core.types import Fact, ProcessId, RunId
from holdfast.engine import outcomes
from holdfast.engine.clock import Clock
from holdfast.engine.permits import Permits, new_request_id, requested
from holdfast.engine.progress import Progress
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import ToolFailed
from holdfast.journal.journal import Pending
from holdfast.tools.tool import (
    BlobStore,
    Context,
    Denied,
    Done,
    Effect,
    Failed,
    Forbidden,
    Park,
    Permission,
    Tool,
    Unknown,
)
from holdfast.tools.tool import Outcome as ToolOutcome

log = logging.getLogger(__name__)

PREVIEW = 200  # characters of a call that people are shown
ABORT_S = 2.5  # for what a stopped call left behind
RESULT = 64 * 1024  # characters of a result the model is shown, whatever the tool gave


class Say(Protocol):
    """Append facts for the run whose calls these are."""

    def __call__(self, *facts: Fact) -> Pending: ...


class Calls:
    """Settles the calls of one answer after the other."""

    def __init__(
        self,
        tools: Iterable[Tool[Any]],
        blobs: BlobStore,
        clock: Clock,
        sessions: Sessions,
        permits: Permits,
        redactor: Redactor,
        own: Path,
        begun: Callable[[Held, ProcessId], None],
    ) -> None:
        self._tools: Mapping[str, Tool[Any]] = {t.name: t for t in tools}
        self._blobs = blobs
        self._clock = clock
        self._sessions = sessions
        self._permits = permits
        self._redactor = redactor
        self._own = own  # where workspaces are ours to make
        self._begun = begun  # a process goes on in the background

    def on_crash(self, call: Call) -> OnCrash:
        """What the call's tool says about being cut; a tool that is gone says the worst."""
        tool = self._tools.get(call.proposal.tool)
        return OnCrash.UNKNOWN if tool is None else tool.on_crash

    async def settle(self, held: Held, run_id: RunId, calls: Sequence[Call], say: Say) -> None:
        """Bring every call to its end, or to where it waits for somebody."""
        for reads, group in groupby(calls, self._only_reads):
            if not reads:
                for call in group:
                    await self._settle(held, run_id, call, say)
                continue
            try:
                async with anyio.create_task_group() as side_by_side:
                    for call in group:
                        side_by_side.start_soon(self._settle, held, run_id, call, say)
            except ExceptionGroup as several:
                raise several.exceptions[0] from None  # they all failed to record: one says it

    def _only_reads(self, call: Call) -> bool:
        tool = self._tools.get(call.proposal.tool)
        return tool is not None and tool.effect is Effect.READ

    async def _settle(self, held: Held, run_id: RunId, call: Call, say: Say) -> None:
        match machine.next_step(call, self.on_crash(call)):
            case machine.Begin():
                await self._begin(held, run_id, call, say)
            case machine.Adopt():
                await self._adopt(held, run_id, call, say)
            case machine.Settle(outcome=outcome, text=text):
                say(outcomes.settled(run_id, call, outcome, text))
            case machine.Leave():
                pass

    async def _begin(self, held: Held, run_id: RunId, call: Call, say: Say) -> None:
        found = self._find(call)
        if isinstance(found, str):
            say(self._settled(run_id, call, Outcome.FAILED, found))
            return
        tool, arguments = found
        with Progress(self._sessions, held, run_id, call, self._clock) as progress:
            preview = _preview(tool, arguments, self._redactor)
            context = self._context(held, run_id, call, say, progress, preview)
            permission = await _permission(tool, context, arguments)
            execution = await self._permitted(held, call, permission, say, run_id)
            if execution is None:
                return
            context = msgspec.structs.replace(context, execution=execution)
            call_id = call.proposal.call_id
            quiet = tool.name == "ask"  # its question is shown anyway
            started = say(
                CallStarted(
                    run_id=run_id, call_id=call_id, tool=tool.name, preview=preview, quiet=quiet
                )
            )
            if tool.effect is not Effect.READ:
                await started.wait()  # recorded before its effect
            begun = perf_counter()
            outcome: ToolOutcome | None = None
            with anyio.move_on_after(tool.timeout_s):
                outcome = await self._guarded(tool.run, tool, context, arguments)
        await self._record(held, context, call, tool, outcome, perf_counter() - begun, say)

    def _find(self, call: Call) -> tuple[Tool[Any], msgspec.Struct] | str:
        """The call's tool and its arguments, or what is wrong with it."""
        proposal = call.proposal
        tool = self._tools.get(proposal.tool)
        if tool is None:
            names = ", ".join(sorted(self._tools))
            return f"There is no tool called {proposal.tool!r}. There are: {names}."
        try:
            return tool, msgspec.json.decode(proposal.arguments or "{}", type=tool.arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return (
                f"The arguments do not fit {proposal.tool}: {error}. Call it again with them right."
            )

    def _context(
        self,
        held: Held,
        run_id: RunId,
        call: Call,
        say: Say,
        progress: Progress,
        preview: str,
    ) -> Context:
        session, call_id = held.session, call.proposal.call_id
        parent = session.runs[run_id].parent

        async def may_reach(host: str) -> bool:
            return await self._permits.may_reach(host, preview, held, run_id, call_id, say)

        return Context(
            session=held.key,
            run_id=run_id,
            turn=session.runs[run_id].turn,
            call_id=call_id,
            workspace=Path(session.workspace),
            blobs=self._blobs,
            cwd=session.cwd or session.workspace,
            origin=session.runs[run_id].origin,
            processes=session.processes,
            hosts=self._permits.hosts(held, run_id),
            execution="",
            progress=progress.add,
            may_reach=may_reach,
            depth=parent.depth if parent else 0,
            children=len(child.left_by(session.children, run_id)),
        )

    async def _permitted(
        self, held: Held, call: Call, permission: Permission, say: Say, run_id: RunId
    ) -> str | None:
        """The hash of what may start now; None: it may not, and was asked about or denied."""
        judged = await self._permits.judge(held, run_id, call, permission)
        match judged.decision:
            case Run():
                return judged.execution
            case Deny(reason=reason):
                say(self._settled(run_id, call, Outcome.DENIED, reason))
            case Ask() if call.status is not machine.Status.PROPOSED:
                say(outcomes.settled(run_id, call, Outcome.UNKNOWN, machine.UNKNOWN_TEXT))
            case Ask():
                call_id, request_id = call.proposal.call_id, new_request_id()
                asked = CallAsked(run_id=run_id, call_id=call_id, request_id=request_id)
                say(requested(run_id, call_id, request_id, judged), asked)
        return None

    async def _adopt(self, held: Held, run_id: RunId, call: Call, say: Say) -> None:
        """See what the evidence says of a call that was cut."""
        found = self._find(call)
        adopt = None if isinstance(found, str) else found[0].adopt
        if isinstance(found, str) or adopt is None:
            say(outcomes.settled(run_id, call, Outcome.UNKNOWN, machine.UNKNOWN_TEXT))
            return
        tool, arguments = found
        with Progress(self._sessions, held, run_id, call, self._clock) as progress:
            preview = _preview(tool, arguments, self._redactor)
            context = self._context(held, run_id, call, say, progress, preview)
            outcome = await self._guarded(adopt, tool, context, arguments)
        await self._record(held, context, call, tool, outcome, 0.0, say)

    async def abort(self, held: Held, run_id: RunId, calls: Sequence[Call], say: Say) -> None:
        """End what is left of calls whose run is stopped. Never raises: the run ends anyway."""
        begun = (machine.Status.STARTED, machine.Status.DOUBTFUL)
        for call in calls:
            tool = self._tools.get(call.proposal.tool)
            if tool is None or tool.abort is None or call.status not in begun:
                continue
            with Progress(self._sessions, held, run_id, call, self._clock) as progress:
                context = self._context(held, run_id, call, say, progress, "")
            try:
                with anyio.move_on_after(ABORT_S):
                    await tool.abort(context)
            except Exception:
                log.exception("abort raised", extra={"tool": tool.name, "call_id": context.call_id})

    async def _record(
        self,
        held: Held,
        context: Context,
        call: Call,
        tool: Tool[Any],
        outcome: ToolOutcome | None,
        duration: float,
        say: Say,
    ) -> None:
        """Write down how it ended, or that it waits; then let its evidence go."""
        run_id, call_id = context.run_id, context.call_id
        if open_questions := answers.withdraw_call(held.session, run_id, call_id):
            say(*open_questions)
        match outcome:
            case Done():
                settled = self._settled(run_id, call, Outcome.OK, outcome.text, duration)
                cwd = outcome.cwd or context.cwd
                settled = msgspec.structs.replace(
                    settled, kept=outcome.kept, cwd=cwd, summary=outcomes.plain(outcome.summary)
                )
                begun = outcomes.child(context, outcome.delegated, background=True)
                pending = say(*outcomes.background(context, outcome.background), *begun, settled)
                if outcome.background is not None:
                    self._begun(held, outcome.background.process_id)
            case Failed(text=text):
                pending = say(self._settled(run_id, call, Outcome.FAILED, text, duration))
            case Denied(text=text):
                await self._permits.note("call.denied", held, run_id, call_id=call_id, result=text)
                pending = say(self._settled(run_id, call, Outcome.DENIED, text, duration))
            case Unknown(text=text):
                pending = say(self._settled(run_id, call, Outcome.UNKNOWN, text, duration))
            case Park():
                begun = outcomes.child(context, outcome.delegated, background=False)
                pending = say(*begun, outcomes.parked(context, outcome))
            case _:  # it was cut by its time limit
                pending = say(outcomes.timed_out(run_id, call, tool, duration))
        if tool.settled is not None:
            await pending.wait()
            tool.settled(context)

    def _settled(
        self, run_id: RunId, call: Call, outcome: Outcome, text: str, duration_s: float = 0.0
    ) -> CallSettled:
        """The result, as far as it fits. Clean before it is cut: nobody would find half a secret."""
        if (more := len(text) - RESULT) > 0:
            text = f"{self._redactor.cut(text, RESULT)}\n[cut: {more} more characters]"
        return outcomes.settled(run_id, call, outcome, text, duration_s)

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
            return Failed(str(failed))
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
        """What is known of a call whose tool broke: not that nothing happened."""
        text = f"The tool broke: {type(error).__name__}: {error}"
        if tool.on_crash is OnCrash.REPEAT:
            return Failed(text)
        if tool.adopt is None or work == tool.adopt:
            return Unknown(f"{text}. It may have taken effect; check before you repeat it.")
        return await self._guarded(tool.adopt, tool, context, arguments)

    def _enter(self, workspace: Path) -> None:
        """A workspace of our own is made at first need; one that somebody named must be there."""
        if workspace.is_relative_to(self._own):
            workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not workspace.is_dir():
            raise ToolFailed(
                f"The workspace is gone: {workspace}. Tell the user; do not recreate it."
            )


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
    """What went wrong, out of the groups that tasks wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
