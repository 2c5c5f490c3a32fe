"""The `process` tool: list, read, feed and kill the session's background processes.

It reaches only the session's own processes. Only `publish` needs an approval: a process was
approved when it was started, including later input to it, and reading or killing it needs no more.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Literal

import anyio
import msgspec
from msgspec import Meta

from holdfast.core.approval.approval import Choice
from holdfast.core.run.call import OnCrash
from holdfast.core.run.process import BackgroundProcess, ProcessEnded, describe_end, may_publish
from holdfast.core.session.answers import CHANGED_TEXT
from holdfast.core.text.escape import escape
from holdfast.core.types import ProcessId, Value
from holdfast.errors import ToolFailed
from holdfast.tools.exec.commands import Commands
from holdfast.tools.exec.live_process import CommandClock, LiveProcess
from holdfast.tools.terminal_result import explain
from holdfast.tools.tool import (
    SURROGATE,
    Context,
    Done,
    Effect,
    Forbidden,
    Outcome,
    Permission,
    PortChange,
    Question,
    Tool,
    ToolAllowed,
    ToolDenied,
    Unknown,
)

MAX_OUTPUT = 32 * 1024  # bytes sent to the model
WRITE_S = 30.0  # time limit for a process to read its input
_SHOWN = 200  # characters of a command in a list
TAIL_ONLY = "Only the end of its output is still stored."
_NOT_REPEATED = (
    "The gateway was interrupted while it wrote input to {id}. The input may or may not have "
    "arrived, and was not sent again. Poll the process before you repeat it."
)


class ProcessArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    action: Annotated[
        Literal["list", "poll", "log", "wait", "kill", "write", "close", "publish", "unpublish"],
        Meta(
            description="list: all processes; poll: status and new output; log: output from "
            "offset; wait: for its end; kill: with all its children; write: text to its stdin; "
            "close: its stdin; publish: let the user open a port that it listens on in a browser "
            "(asks the user; the result has the URL), while it runs; unpublish: end that"
        ),
    ]
    process_id: Annotated[str, Meta(description="For every action except list")] = ""
    text: Annotated[str, Meta(description="For write")] = ""
    enter: Annotated[bool, Meta(description="For write: add a newline after text")] = True
    offset: Annotated[int, Meta(description="For log: first byte; negative: from the end")] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_OUTPUT, description="For log: bytes")] = MAX_OUTPUT
    timeout: Annotated[float, Meta(ge=0, le=600, description="For wait: seconds")] = 60.0
    port: Annotated[int, Meta(description="For publish and unpublish")] = 0


class _Known(Value):
    """A process of the session, known from the journal, from this gateway, or from both."""

    id: ProcessId
    command: str
    started_at: float
    live: LiveProcess | None
    ended: ProcessEnded | None  # according to the journal

    @property
    def over(self) -> bool:
        return self.live.ended is not None if self.live else self.ended is not None


def _known(commands: Commands, context: Context) -> dict[ProcessId, _Known]:
    """Return the session's processes. One that this run just started may not be in the journal."""
    live = {found.id: found for found in commands.mine(context.session)}
    known = {p.id: _journaled(p, live.get(p.id)) for p in context.processes.values()}
    for found in live.values():
        known.setdefault(
            found.id, _Known(found.id, found.command, found.started_at, found, ended=None)
        )
    return known


def _journaled(process: BackgroundProcess, live: LiveProcess | None) -> _Known:
    command = process.started.command
    return _Known(process.id, command, process.started_at, live, process.ended)


def _find(commands: Commands, context: Context, process_id: str) -> _Known:
    known = _known(commands, context)
    found = known.get(ProcessId(process_id))
    if found is None:
        there = "; ".join(f"{k.id} ({k.command[:_SHOWN]})" for k in known.values())
        raise ToolFailed(
            f"This session has no process {process_id[:100]!r}. It has: {there or 'none'}."
        )
    return found


async def within(
    clock: CommandClock, seconds: float, work: Callable[[], Awaitable[object]]
) -> bool:
    """Do `work` and return True, or cancel it after `seconds` and return False."""
    done, failed = False, None

    async def alarm(scope: anyio.CancelScope) -> None:
        await clock.sleep(seconds)
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(alarm, group.cancel_scope)
        try:
            await work()
            done = True
        except ToolFailed as error:  # raise it alone, not in an exception group
            failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return done


class _Control:
    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def run(self, context: Context, asked: ProcessArguments) -> Outcome:
        """Execute the action."""
        if asked.action == "list":
            return _done({"processes": await self._list(context)})
        found = _find(self._commands, context, asked.process_id)
        match asked.action:
            case "poll":
                return _done(await self._poll(found))
            case "log":
                return _done(self._log(found, asked))
            case "wait":
                return _done(await self._wait(found, asked.timeout))
            case "kill":
                if not found.over:
                    await self._commands.kill(found.id)
                return _done(await self._ended(found))
            case "write":
                return await self._write(found, asked)
            case "close":
                await self._commands.close(found.id)
                return _done({"process_id": found.id, "closed": True})
            case "publish":
                return await self._publish(context, found, asked)
            case "unpublish":
                self._commands.close_port(found.id, asked.port)
                result: dict[str, object] = {"process_id": found.id, "closed": asked.port}
                return _done(result, PortChange(found.id, asked.port, 0))

    async def adopt(self, context: Context, asked: ProcessArguments) -> Outcome:
        """After a restart: repeat the action, unless it must not happen twice."""
        if asked.action in ("write", "close"):  # a port was closed when the gateway ended
            return Unknown(_NOT_REPEATED.format(id=asked.process_id[:100]))
        return await self.run(context, asked)

    async def permit(self, context: Context, asked: ProcessArguments) -> Permission:
        """Ask before a port is published. Later input was approved when the process was started."""
        if asked.action == "publish":
            found = _find(self._commands, context, asked.process_id)
            return _question(context, found, asked.port)
        audited = asked.action in ("write", "kill", "unpublish")
        return ToolAllowed(note=preview(asked) if audited else "")

    async def _publish(self, context: Context, found: _Known, asked: ProcessArguments) -> Outcome:
        if _execution(found, asked.port) != context.execution:
            return ToolDenied(CHANGED_TEXT)
        at = await self._commands.publish(found.id, asked.port, 0)
        result: dict[str, object] = {
            "process_id": found.id,
            "url": f"http://127.0.0.1:{at}",
            "note": "The user can open this URL. Your own commands use the port itself.",
        }
        return _done(result, PortChange(found.id, asked.port, at))

    async def _list(self, context: Context) -> list[dict[str, object]]:
        return [
            {"process_id": k.id, "command": k.command[:_SHOWN], **await self._status(k)}
            for k in _known(self._commands, context).values()
        ]

    async def _status(self, found: _Known) -> dict[str, object]:
        if not found.over:
            runtime_s = max(0.0, self._commands.clock.now() - found.started_at)
            return {"status": "running", "runtime_s": round(runtime_s, 1)}
        ended = await self._end(found)
        result: dict[str, object] = {"status": "ended", "exit_code": ended.exit_code}
        if ended.signal is not None:
            result["signal"] = ended.signal
        return {**result, "how": describe_end(ended), "runtime_s": round(ended.duration_s, 1)}

    async def _end(self, found: _Known) -> ProcessEnded:
        """Return how it ended. The journal has priority."""
        return found.ended or await self._commands.ended(found.id)

    async def _ended(self, found: _Known) -> dict[str, object]:
        ended = await self._end(found)
        live = found.live
        found = _Known(found.id, found.command, found.started_at, None, ended)
        result = {"process_id": found.id, **await self._status(found), "output": ended.tail}
        if live is not None and live.workspace:  # it is confined, and was started here
            level = (await self._commands.posture()).level
            explain(result, level, live.workspace, live.refused)
        return result

    async def _poll(self, found: _Known) -> dict[str, object]:
        text, skipped = self._commands.unread(found.id, MAX_OUTPUT, over=found.over)
        result = {"process_id": found.id, **await self._status(found), "output": text}
        if skipped:
            result["not_shown_bytes"] = skipped
        if found.ended is not None and not self._commands.output(found.id).size:
            result["output"] = found.ended.tail  # the rest is deleted
        return result

    def _log(self, found: _Known, asked: ProcessArguments) -> dict[str, object]:
        output = self._commands.output(found.id)
        size = output.size
        if found.ended is not None and not size and found.ended.output_bytes:
            text = found.ended.tail
            return {"process_id": found.id, "output": text, "note": TAIL_ONLY}
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
        ends = partial(self._commands.ended, found.id)
        if found.over or await within(self._commands.clock, timeout_s, ends):
            return await self._ended(found)
        return {"process_id": found.id, **await self._status(found), "timed_out": True}

    async def _write(self, found: _Known, asked: ProcessArguments) -> Outcome:
        try:
            end = "\n" if asked.enter and not asked.text.endswith("\n") else ""
            data = (asked.text + end).encode()
        except UnicodeEncodeError:
            raise ToolFailed(SURROGATE) from None
        if await within(
            self._commands.clock, WRITE_S, partial(self._commands.write, found.id, data)
        ):
            return _done({"process_id": found.id, "written_bytes": len(data)})
        return Unknown(
            f"{found.id} did not read all of its input within {WRITE_S:g} s; a part of the input "
            "may have arrived."
        )


def _question(context: Context, found: _Known, port: int) -> Permission:
    journaled = context.processes.get(found.id)
    why = "it has ended" if journaled is None or found.over else may_publish(journaled, port, 0)
    if why:
        return Forbidden(f"Not published: {why}.")
    return Question(
        command=f"publish port {port} of {found.id}: {escape(found.command[:_SHOWN])}",
        description=(
            f"Programs on this machine, such as your browser, can then connect to port {port} of "
            "this process, at 127.0.0.1 only. It ends with the process. Can only be allowed once."
        ),
        execution=_execution(found, port),
        choices=(Choice.ONCE, Choice.DENY),
    )


def _execution(found: _Known, port: int) -> str:
    """Return the hash that the approval is bound to."""
    return sha256(f"publish {found.id} {port}".encode()).hexdigest()


def _done(result: dict[str, object], port: PortChange | None = None) -> Done:
    return Done(msgspec.json.encode(result).decode(), port=port)


def preview(asked: ProcessArguments) -> str:
    """Describe the action and its process."""
    text = f" {asked.text!r}" if asked.action == "write" else ""
    text = f" port {asked.port}" if "publish" in asked.action else text
    return f"{asked.action} {asked.process_id[:100]}".strip() + text


def tools(commands: Commands) -> tuple[Tool[Any], ...]:
    """Create the tool for these commands."""
    control = _Control(commands)
    return (
        Tool(
            name="process",
            description=(
                "Manage background processes of this session (terminal with background=true)."
                " Returns JSON. poll gives the status and the output since the last poll."
            ),
            arguments=ProcessArguments,
            effect=Effect.ACT,
            on_crash=OnCrash.ADOPT,
            timeout_s=700.0,
            run=control.run,
            preview=preview,
            permit=control.permit,
            adopt=control.adopt,
        ),
    )
