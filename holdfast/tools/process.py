"""The process tool: what the session has at work in the background, and a hand on each of it.

Only the session's own processes can be named. Nothing here is asked about: a process was
approved at its start, input for it included, and to look at it or to end it needs no more.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal

import anyio
import msgspec
from msgspec import Meta

from holdfast.core.call import OnCrash
from holdfast.core.process import Process, ProcessEnded, how
from holdfast.core.types import ProcessId, Value
from holdfast.errors import ToolFailed
from holdfast.tools.hands import Clock, Hands, Live
from holdfast.tools.tool import (
    Allowed,
    Context,
    Done,
    Effect,
    Outcome,
    Permission,
    Tool,
    Unknown,
)

MAX_OUTPUT = 32 * 1024  # bytes to the model
WRITE_S = 30.0  # for a process to take its input
_SHOWN = 200  # characters of a command in a list
_UNREPEATED = (
    "The gateway was interrupted while input was given to {id}. It may or may not have arrived, "
    "and was not given again. Poll the process before you repeat it."
)


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    action: Annotated[
        Literal["list", "poll", "log", "wait", "kill", "write", "close"],
        Meta(
            description="list all; poll: status and new output; log: output from offset; wait for "
            "its end; kill its tree; write text to its input; close its input"
        ),
    ]
    process_id: Annotated[str, Meta(description="For all but list")] = ""
    text: Annotated[str, Meta(description="For write")] = ""
    enter: Annotated[bool, Meta(description="For write: a newline after text")] = True
    offset: Annotated[int, Meta(description="For log: first byte; negative: from the end")] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_OUTPUT, description="For log: bytes")] = MAX_OUTPUT
    timeout: Annotated[float, Meta(ge=0, le=600, description="For wait: seconds")] = 60.0


class _Known(Value):
    """A process of the session, by the journal, by the hands, or by both."""

    id: ProcessId
    command: str
    started_at: float
    live: Live | None
    ended: ProcessEnded | None  # as the journal has it

    @property
    def over(self) -> bool:
        return self.live.ended is not None if self.live else self.ended is not None


def _known(hands: Hands, context: Context) -> dict[ProcessId, _Known]:
    """The session's processes. One that this very run started may not be in the journal yet."""
    live = {found.id: found for found in hands.mine(context.session)}
    known = {p.id: _journaled(p, live.get(p.id)) for p in context.processes.values()}
    for found in live.values():
        known.setdefault(
            found.id, _Known(found.id, found.command, found.started_at, found, ended=None)
        )
    return known


def _journaled(process: Process, live: Live | None) -> _Known:
    command = process.started.command
    return _Known(process.id, command, process.started_at, live, process.ended)


def _find(hands: Hands, context: Context, process_id: str) -> _Known:
    known = _known(hands, context)
    found = known.get(ProcessId(process_id))
    if found is None:
        there = "; ".join(f"{k.id} ({k.command[:_SHOWN]})" for k in known.values())
        raise ToolFailed(
            f"This session has no process {process_id[:100]!r}. It has: {there or 'none'}."
        )
    return found


async def within(clock: Clock, seconds: float, work: Callable[[], Awaitable[object]]) -> bool:
    """Whether `work` was done within `seconds`; if not, it was cancelled."""
    done, failed = False, None

    async def alarm(scope: anyio.CancelScope) -> None:
        await clock.sleep(seconds)
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(alarm, group.cancel_scope)
        try:
            await work()
            done = True
        except ToolFailed as error:  # on its own, not in a group
            failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return done


class _Control:
    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    async def run(self, context: Context, asked: Control) -> Outcome:
        """Do what is asked."""
        if asked.action == "list":
            return _done({"processes": await self._list(context)})
        found = _find(self._hands, context, asked.process_id)
        match asked.action:
            case "poll":
                return _done(await self._poll(found))
            case "log":
                return _done(self._log(found, asked))
            case "wait":
                return _done(await self._wait(found, asked.timeout))
            case "kill":
                if not found.over:
                    await self._hands.kill(found.id)
                return _done(await self._ended(found))
            case "write":
                return await self._write(found, asked)
            case "close":
                await self._hands.close(found.id)
                return _done({"process_id": found.id, "closed": True})

    async def adopt(self, context: Context, asked: Control) -> Outcome:
        """After a restart: again, but for what must not be done twice."""
        if asked.action in ("write", "close"):
            return Unknown(_UNREPEATED.format(id=asked.process_id[:100]))
        return await self.run(context, asked)

    async def _list(self, context: Context) -> list[dict[str, object]]:
        return [
            {"process_id": k.id, "command": k.command[:_SHOWN], **await self._status(k)}
            for k in _known(self._hands, context).values()
        ]

    async def _status(self, found: _Known) -> dict[str, object]:
        if not found.over:
            runtime_s = max(0.0, self._hands.clock.now() - found.started_at)
            return {"status": "running", "runtime_s": round(runtime_s, 1)}
        ended = await self._end(found)
        result: dict[str, object] = {"status": "ended", "exit_code": ended.exit_code}
        if ended.signal is not None:
            result["signal"] = ended.signal
        return {**result, "how": how(ended), "runtime_s": round(ended.duration_s, 1)}

    async def _end(self, found: _Known) -> ProcessEnded:
        """How it ended: what is written down counts."""
        return found.ended or await self._hands.ended(found.id)

    async def _ended(self, found: _Known) -> dict[str, object]:
        ended = await self._end(found)
        found = _Known(found.id, found.command, found.started_at, None, ended)
        return {"process_id": found.id, **await self._status(found), "output": ended.tail}

    async def _poll(self, found: _Known) -> dict[str, object]:
        text, skipped = self._hands.unread(found.id, MAX_OUTPUT, over=found.over)
        result = {"process_id": found.id, **await self._status(found), "output": text}
        if skipped:
            result["not_shown_bytes"] = skipped
        if found.ended is not None and not self._hands.output(found.id).size:
            result["output"] = found.ended.tail  # all that is left of it
        return result

    def _log(self, found: _Known, asked: Control) -> dict[str, object]:
        output = self._hands.output(found.id)
        size = output.size
        if found.ended is not None and not size and found.ended.output_bytes:
            text = found.ended.tail
            return {"process_id": found.id, "output": text, "note": "Only its end is still kept."}
        at = asked.offset if asked.offset >= 0 else max(0, size + asked.offset)
        text, begin, end = output.page(min(at, size), asked.limit, over=found.over)
        return {
            "process_id": found.id,
            "status": "ended" if found.over else "running",
            "output": text,
            "offset": begin,
            "next_offset": end,
            "output_bytes": size,
        }

    async def _wait(self, found: _Known, timeout_s: float) -> dict[str, object]:
        ends = partial(self._hands.ended, found.id)
        if found.over or await within(self._hands.clock, timeout_s, ends):
            return await self._ended(found)
        return {"process_id": found.id, **await self._status(found), "timed_out": True}

    async def _write(self, found: _Known, asked: Control) -> Outcome:
        try:
            end = "\n" if asked.enter and not asked.text.endswith("\n") else ""
            data = (asked.text + end).encode()
        except UnicodeEncodeError:
            raise ToolFailed("The text holds half a surrogate pair; leave that out.") from None
        if await within(self._hands.clock, WRITE_S, partial(self._hands.write, found.id, data)):
            return _done({"process_id": found.id, "written_bytes": len(data)})
        return Unknown(
            f"{found.id} did not take all of its input within {WRITE_S:g} s; a part of it may "
            "have arrived."
        )


async def _permit(context: Context, asked: Control) -> Permission:
    """Free: that more may be written to a process was asked for at its start. It is noted."""
    if asked.action in ("write", "kill"):
        return Allowed(note=preview(asked))
    return Allowed()


def _done(result: dict[str, object]) -> Done:
    return Done(msgspec.json.encode(result).decode())


def preview(asked: Control) -> str:
    """What is done to which process."""
    text = f" {asked.text!r}" if asked.action == "write" else ""
    return f"{asked.action} {asked.process_id[:100]}".strip() + text


def tools(hands: Hands) -> tuple[Tool[Any], ...]:
    """The tool, with these hands."""
    control = _Control(hands)
    return (
        Tool(
            name="process",
            description=(
                "Look after background processes of this session (terminal with background=true)."
                " Returns JSON. poll gives the status and what was written since the last poll."
            ),
            arguments=Control,
            effect=Effect.ACT,
            on_crash=OnCrash.ADOPT,
            timeout_s=700.0,
            run=control.run,
            preview=preview,
            permit=_permit,
            adopt=control.adopt,
        ),
    )
