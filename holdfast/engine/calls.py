"""Tool calls: check, start, run, settle.

A call is recorded as started before its effect and settled after it. Calls of one
answer go in the order the model gave them; neighbours that only read run side by side.
Whatever a tool does or raises, its call ends as a result the model can read.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from secrets import token_hex
from time import perf_counter
from typing import Any, Protocol

import anyio
import msgspec

from holdfast.core import answers
from holdfast.core import call as machine
from holdfast.core.approval import ApprovalRequested
from holdfast.core.call import (
    Call,
    CallAsked,
    CallParked,
    CallSettled,
    CallStarted,
    OnCrash,
    Outcome,
)
from holdfast.core.redaction import Redactor
from holdfast.core.types import Fact, RequestId, RunId
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import Held
from holdfast.errors import ToolFailed
from holdfast.journal.journal import Pending
from holdfast.tools.tool import (
    Allowed,
    BlobStore,
    Context,
    Done,
    Effect,
    Failed,
    Forbidden,
    Park,
    Permission,
    Question,
    Tool,
)

log = logging.getLogger(__name__)

PREVIEW = 200  # characters of a call that people are shown
RESULT = 64 * 1024  # characters of a result the model is shown, whatever the tool gave

OPEN_QUESTIONS = 10  # a session may have at once: more would train people to click yes


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
        approval_s: float,
        redactor: Redactor,
        own: Path,
    ) -> None:
        self._tools: Mapping[str, Tool[Any]] = {t.name: t for t in tools}
        self._blobs = blobs
        self._clock = clock
        self._approval_s = approval_s
        self._redactor = redactor
        self._own = own  # where workspaces are ours to make

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
            case machine.Settle(outcome=outcome, text=text):
                say(_settled(run_id, call, outcome, text))
            case machine.Leave():
                pass

    async def _begin(self, held: Held, run_id: RunId, call: Call, say: Say) -> None:
        proposal = call.proposal
        tool = self._tools.get(proposal.tool)
        if tool is None:
            names = ", ".join(sorted(self._tools))
            text = f"There is no tool called {proposal.tool!r}. There are: {names}."
            say(self._settled(run_id, call, Outcome.FAILED, text))
            return
        try:
            arguments = msgspec.json.decode(proposal.arguments or "{}", type=tool.arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            text = (
                f"The arguments do not fit {proposal.tool}: {error}. Call it again with them right."
            )
            say(self._settled(run_id, call, Outcome.FAILED, text))
            return
        context = self._context(held, run_id, call)
        permission = await _permission(tool, context, arguments)
        if not self._permitted(held, call, permission, say, run_id):
            return
        preview = _preview(tool, arguments, self._redactor)
        started = say(
            CallStarted(run_id=run_id, call_id=proposal.call_id, tool=tool.name, preview=preview)
        )
        if tool.effect is not Effect.READ:
            await started.wait()  # recorded before its effect
        await self._run(held, context, call, tool, arguments, say)

    def _context(self, held: Held, run_id: RunId, call: Call) -> Context:
        workspace = Path(held.session.workspace)
        return Context(held.key, run_id, call.proposal.call_id, workspace, self._blobs)

    def _permitted(
        self, held: Held, call: Call, permission: Permission, say: Say, run_id: RunId
    ) -> bool:
        """Whether the call may start now; if not, it has been asked about or denied."""
        match permission:
            case Allowed():
                return True
            case Forbidden(text=text):
                say(self._settled(run_id, call, Outcome.DENIED, text))
            case Question() if call.status is machine.Status.CLEARED:
                if answers.granted(held.session, call.proposal.call_id, permission.execution):
                    return True
                text = "Not run: what would run is no longer what was approved."
                say(_settled(run_id, call, Outcome.DENIED, text))
            case Question() if call.status is not machine.Status.PROPOSED:
                say(_settled(run_id, call, Outcome.UNKNOWN, machine.UNKNOWN_TEXT))
            case Question() if len(held.session.approvals) >= OPEN_QUESTIONS:
                text = "Not run: too many questions are open already. Wait for their answers."
                say(_settled(run_id, call, Outcome.DENIED, text))
            case Question():
                say(*self._ask(run_id, call, permission))
        return False

    def _ask(self, run_id: RunId, call: Call, question: Question) -> tuple[Fact, Fact]:
        request_id = RequestId(f"apr_{token_hex(12)}")
        call_id = call.proposal.call_id
        requested = ApprovalRequested(
            run_id=run_id,
            call_id=call_id,
            request_id=request_id,
            command=question.command,
            description=question.description,
            execution=question.execution,
            choices=question.choices,
            expires_at=self._clock.now() + self._approval_s,
        )
        return requested, CallAsked(run_id=run_id, call_id=call_id, request_id=request_id)

    async def _run(
        self,
        held: Held,
        context: Context,
        call: Call,
        tool: Tool[Any],
        arguments: msgspec.Struct,
        say: Say,
    ) -> None:
        run_id, call_id = context.run_id, context.call_id
        begun = perf_counter()
        outcome: Done | Failed | Park | None = None
        with anyio.move_on_after(tool.timeout_s):
            outcome = await self._guarded(tool, context, arguments)
        duration = perf_counter() - begun
        match outcome:
            case Done(text=text, kept=kept):
                fact = self._settled(run_id, call, Outcome.OK, text, duration)
                say(msgspec.structs.replace(fact, kept=kept, cwd=held.session.workspace))
            case Failed(text=text):
                say(self._settled(run_id, call, Outcome.FAILED, text, duration))
            case Park(reason=reason):
                say(CallParked(run_id=run_id, call_id=call_id, reason=plain(reason)))
            case None:
                say(_timed_out(run_id, call, tool, duration))

    def _settled(
        self, run_id: RunId, call: Call, outcome: Outcome, text: str, duration_s: float = 0.0
    ) -> CallSettled:
        """The result, as far as it fits. Clean before it is cut: nobody would find half a secret."""
        if (more := len(text) - RESULT) > 0:
            text = f"{self._redactor.cut(text, RESULT)}\n[cut: {more} more characters]"
        return _settled(run_id, call, outcome, text, duration_s)

    async def _guarded(
        self, tool: Tool[Any], context: Context, arguments: msgspec.Struct
    ) -> Done | Failed | Park:
        try:
            self._enter(context.workspace)
            return await tool.run(context, arguments)
        except ToolFailed as failed:
            return Failed(str(failed))
        except Exception as error:
            log.exception("tool raised", extra={"tool": tool.name, "call_id": context.call_id})
            return Failed(f"The tool broke: {type(error).__name__}: {error}")

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
        return plain(redactor.cut(tool.preview(arguments), PREVIEW))
    except Exception:
        log.exception("preview raised", extra={"tool": tool.name})
        return ""


def plain(text: str) -> str:
    """Text that can be written down: names of files need not be Unicode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _settled(
    run_id: RunId, call: Call, outcome: Outcome, text: str, duration_s: float = 0.0
) -> CallSettled:
    return CallSettled(
        run_id=run_id,
        call_id=call.proposal.call_id,
        tool=call.proposal.tool,
        outcome=outcome,
        text=plain(text),
        duration_s=round(duration_s, 6),
    )


def _timed_out(run_id: RunId, call: Call, tool: Tool[Any], duration: float) -> CallSettled:
    text = f"Timed out after {tool.timeout_s:g} s."
    if tool.on_crash is OnCrash.REPEAT:
        return _settled(run_id, call, Outcome.FAILED, text, duration)
    text += " It may have taken effect in part; check before you repeat it."
    return _settled(run_id, call, Outcome.UNKNOWN, text, duration)


def abort(run_id: RunId, call: Call, on_crash: OnCrash) -> CallSettled:
    """How `call` is settled when its run is stopped."""
    step = machine.abort(call, on_crash)
    return _settled(run_id, call, step.outcome, step.text)
