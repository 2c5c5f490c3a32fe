"""Tool calls: check, start, run, settle.

A call is recorded as started before its effect and settled after it. Calls of one
answer go in the order the model gave them; neighbours that only read run side by side.
Whatever a tool does or raises, its call ends as a result the model can read.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
import msgspec

from holdfast.core import call as machine
from holdfast.core.call import Call, CallParked, CallSettled, CallStarted, OnCrash, Outcome
from holdfast.core.types import Fact, RunId
from holdfast.engine.sessions import Held
from holdfast.errors import ToolFailed
from holdfast.journal.journal import Pending
from holdfast.tools.tool import BlobStore, Context, Done, Effect, Failed, Park, Tool

log = logging.getLogger(__name__)

PREVIEW = 200  # characters of a call that people are shown
RESULT = 64 * 1024  # characters of a result the model is shown, whatever the tool gave

Say = Callable[[Fact], Pending]


class Calls:
    """Settles the calls of one answer after the other."""

    def __init__(self, tools: Iterable[Tool[Any]], blobs: BlobStore, own: Path) -> None:
        self._tools: Mapping[str, Tool[Any]] = {t.name: t for t in tools}
        self._blobs = blobs
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
            say(_settled(run_id, call, Outcome.FAILED, text))
            return
        try:
            arguments = msgspec.json.decode(proposal.arguments or "{}", type=tool.arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            text = (
                f"The arguments do not fit {proposal.tool}: {error}. Call it again with them right."
            )
            say(_settled(run_id, call, Outcome.FAILED, text))
            return
        preview = _preview(tool, arguments)
        started = say(
            CallStarted(run_id=run_id, call_id=proposal.call_id, tool=tool.name, preview=preview)
        )
        if tool.effect is not Effect.READ:
            await started.wait()  # recorded before its effect
        await self._run(held, run_id, call, tool, arguments, say)

    async def _run(
        self,
        held: Held,
        run_id: RunId,
        call: Call,
        tool: Tool[Any],
        arguments: msgspec.Struct,
        say: Say,
    ) -> None:
        call_id = call.proposal.call_id
        workspace = Path(held.session.workspace)
        context = Context(held.key, run_id, call_id, workspace, self._blobs)
        begun = perf_counter()
        outcome: Done | Failed | Park | None = None
        with anyio.move_on_after(tool.timeout_s):
            outcome = await self._guarded(tool, context, arguments)
        duration = perf_counter() - begun
        match outcome:
            case Done(text=text, kept=kept):
                fact = _settled(run_id, call, Outcome.OK, text, duration)
                say(msgspec.structs.replace(fact, kept=kept, cwd=held.session.workspace))
            case Failed(text=text):
                say(_settled(run_id, call, Outcome.FAILED, text, duration))
            case Park(reason=reason):
                say(CallParked(run_id=run_id, call_id=call_id, reason=plain(reason)))
            case None:
                say(_timed_out(run_id, call, tool, duration))

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


def _preview(tool: Tool[Any], arguments: msgspec.Struct) -> str:
    try:
        return plain(tool.preview(arguments)[:PREVIEW])
    except Exception:
        log.exception("preview raised", extra={"tool": tool.name})
        return ""


def plain(text: str) -> str:
    """Text that can be written down: names of files need not be Unicode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _settled(
    run_id: RunId, call: Call, outcome: Outcome, text: str, duration_s: float = 0.0
) -> CallSettled:
    if len(text) > RESULT:
        text = f"{text[:RESULT]}\n[cut: {len(text) - RESULT} more characters]"
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
