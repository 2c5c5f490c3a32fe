"""The terminal: one command line in the session's workspace, waited for or left at work.

Promises: what was judged is what runs: of a line that is literal words those words, of any
other its text, to the letter. It runs confined, once, and ends whole: with its time, its
memory, its run. What it wrote is clean before anybody sees it, and bounded. The directory a
line ends in is where the session's next one starts, as long as that is in the workspace.

How it ended, if nobody was there to see it, is in the evidence that its shim left (`adopt`).
"""

import math
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import anyio
import msgspec
from anyio import to_thread
from msgspec import Meta

from holdfast.core.answers import CHANGED_TEXT
from holdfast.core.approval import Level
from holdfast.core.call import OnCrash
from holdfast.core.execution import ExecutionRequest, Wants, execution_hash
from holdfast.core.process import name, notice
from holdfast.errors import Refused, ToolFailed
from holdfast.tools import plan
from holdfast.tools.hands import Command, Hands, Live
from holdfast.tools.output import Output
from holdfast.tools.plan import Plan
from holdfast.tools.sandbox import Profile
from holdfast.tools.spawn import PATIENCE_S, AlreadyClaimed, Cause, Ended
from holdfast.tools.tool import (
    Background,
    Context,
    Denied,
    Done,
    Effect,
    Failed,
    Judge,
    Outcome,
    Permission,
    Tool,
    Unknown,
)
from holdfast.tools.view import below

TIMEOUT_S = 180.0
MAX_OUTPUT = 32 * 1024  # bytes to the model
MAX_COMMAND = 100_000  # bytes; the kernel takes no argument longer than 128 KiB
EVERY_S = 0.25  # between looks at what it says on its way
_GLIMPSE = 16 * 1024  # bytes of that at once
_SHOWN = 2_000  # characters of a command in lists
_PATHS = 4_096  # bytes that a shell may say about where it ended
_ALREADY = (
    "Not run: a command was started under this call's id before. What became of it is not known "
    "here; check the state before you repeat it."
)
_CUT = (
    "The gateway ended while this command ran, and it was killed with it. It may have had "
    "effects. Output so far:\n"
)
_NOT_STARTED = (
    "Not started: the gateway was interrupted before the command began. Nothing ran; you may "
    "try again."
)
_MOVED = "The former working directory is gone; this ran in the workspace."
_CUT_SHORT = (Cause.LOST, Cause.ORPHANED)

Timeout = Annotated[
    float,
    Meta(ge=1, le=3600, description="Seconds; default 180, in the background none"),
]
Pattern = Annotated[str, Meta(min_length=1, max_length=200)]


class Terminal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: Annotated[str, Meta(description="For bash")]
    timeout: Timeout | None = None
    background: Annotated[
        bool, Meta(description="Return at once; the process tool has its output and its end")
    ] = False
    notify_on_complete: Annotated[
        bool, Meta(description="Background: be told when it ends, without polling")
    ] = False
    watch_patterns: Annotated[
        list[Pattern], Meta(max_length=10, description="Background: be told of lines with these")
    ] = []
    pty: Annotated[bool, Meta(description="Give it a terminal")] = False
    stdin: Annotated[
        str,
        Meta(description="Its whole input"),
    ] = ""
    stdin_open: Annotated[
        bool,
        Meta(description="Background: keep its input open for the process tool's write"),
    ] = False
    workdir: Annotated[
        str, Meta(description="For this command; relative to the current directory")
    ] = ""
    detach: Annotated[
        bool, Meta(description="Background: may outlive the gateway; needs an approval")
    ] = False
    unsandboxed: Annotated[
        bool, Meta(description="Outside of the sandbox, with all of the network; needs an approval")
    ] = False
    purpose: Annotated[str, Meta(description="One line for whoever is asked")] = ""


def _check(asked: Terminal) -> None:
    if not asked.command.strip():
        raise ToolFailed("There is no command.")
    try:
        size, *_ = (len(text.encode()) for text in (asked.command, asked.stdin, asked.workdir))
    except UnicodeEncodeError:
        raise ToolFailed("The text holds half a surrogate pair; leave that out.") from None
    if "\0" in asked.command + asked.workdir:
        raise ToolFailed("No command can have a NUL in it; leave that out.")
    if size > MAX_COMMAND:
        raise ToolFailed("The command is too long; write it to a file and run that.")
    if not asked.background:
        for wanted in ("notify_on_complete", "watch_patterns", "detach", "stdin_open"):
            if getattr(asked, wanted):
                raise ToolFailed(f"{wanted} is only for background commands; set background too.")


def _plan(hands: Hands, context: Context, asked: Terminal) -> Plan:
    """Looks at files; call it from a worker thread."""
    _check(asked)
    cwd, moved = plan.place(context, asked.workdir)
    profile = Profile(os.path.realpath(context.workspace), unsandboxed=asked.unsandboxed)
    return plan.make(asked.command, cwd, profile, hands.path(profile, cwd), moved=moved)


def _result(ended: Ended, output: Output, timeout_s: float) -> dict[str, object]:
    text, cut = output.summary(MAX_OUTPUT)
    result: dict[str, object] = {"exit_code": ended.exit_code, "output": text}
    if ended.signal is not None:
        result["signal"] = ended.signal
    match ended.cause:
        case Cause.TIMEOUT:
            result["error"] = f"timed out after {timeout_s:g} s"
        case Cause.MEMORY:
            result["error"] = "killed: memory"
        case Cause.KILLED:
            result["error"] = "killed"
        case _:
            pass
    if cut or ended.truncated:
        result |= {"truncated": True, "output_bytes": ended.output_bytes}
    if ended.survivors:
        pids = ", ".join(map(str, ended.survivors))
        result["note"] = f"These processes could not be killed: {pids}."
    return result


def _json(result: Mapping[str, object]) -> str:
    return msgspec.json.encode(result).decode()


def _note(result: dict[str, object], text: str) -> None:
    result["note"] = f"{result['note']} {text}" if "note" in result else text


def _shown(hands: Hands, asked: Terminal) -> str:
    return hands.clean(preview(asked), _SHOWN)


def preview(asked: Terminal) -> str:
    """The command in one line."""
    return " ↵ ".join(asked.command.strip().splitlines())


class _Terminal:
    def __init__(self, hands: Hands, memory_mb: int) -> None:
        self._hands = hands
        self._memory_mb = memory_mb

    async def permit(self, context: Context, asked: Terminal) -> Permission:
        """Exactly what would run, for whoever decides.

        git is never safe here: a workspace's `.git` can be written by commands and file tools,
        and a filter it names runs whatever our own settings say.
        """
        request, level, _ = await self._request(context, asked)
        return Judge(request, level, git_is_safe=False)

    async def _request(
        self, context: Context, asked: Terminal
    ) -> tuple[ExecutionRequest, Level, Plan]:
        posture = await self._hands.posture()
        level = Level.L0 if asked.unsandboxed else posture.level
        planned = await to_thread.run_sync(_plan, self._hands, context, asked)
        request = ExecutionRequest(
            what=planned.what,
            cwd=planned.cwd,
            programs=planned.programs,
            files=await to_thread.run_sync(plan.files, planned),
            environment={},
            stdin=asked.stdin,
            profile=(level.name, planned.profile.workspace),
            wants=Wants(
                unsandboxed=asked.unsandboxed,
                detach=asked.detach,
                background=asked.background,
                terminal=asked.pty,
                open_input=asked.stdin_open or (asked.background and asked.pty),
            ),
            purpose=asked.purpose,
        )
        return request, level, planned

    async def run(self, context: Context, asked: Terminal) -> Outcome:
        """Run it, to its end or into the background; unless it is no longer what was judged."""
        request, _, planned = await self._request(context, asked)
        if execution_hash(request) != context.execution:
            return Denied(CHANGED_TEXT)
        if not asked.background:
            return await self._foreground(context, asked, planned)
        timeout_s = math.inf if asked.timeout is None else asked.timeout
        stdin = None if asked.stdin_open else asked.stdin.encode()
        command = self._command(asked, planned, planned.argv(), timeout_s, stdin)
        started = await self._start(context, command)
        if isinstance(started, Unknown):
            return started
        return self._begun(context, asked, moved=planned.moved)

    async def _foreground(self, context: Context, asked: Terminal, planned: Plan) -> Outcome:
        timeout_s = asked.timeout or TIMEOUT_S
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        try:
            # On the line itself, so that line numbers in errors stay right; and not to be traced.
            last = f"{{ builtin set +x; builtin pwd -P >&{writing}; }} 2>/dev/null"
            argv = planned.argv(f"trap '{last}' EXIT; ")
            command = self._command(
                asked, planned, argv, timeout_s, asked.stdin.encode(), pass_fds=(writing,)
            )
            try:
                live = await self._start(context, command)
            finally:
                os.close(writing)
            if isinstance(live, Unknown):
                return live
            ended = await self._see_to(live, context.progress)
            left = _left_in(reading)
        finally:
            os.close(reading)
        if ended.cause in _CUT_SHORT:
            return Unknown(
                "The command is gone, and nobody knows how it ended. It may have had effects. "
                f"Output so far:\n{live.output.summary(MAX_OUTPUT)[0]}"
            )
        result = _result(ended, live.output, timeout_s)
        if live.refused:
            _note(result, f"Not allowed to connect to: {', '.join(live.refused)}.")
        return _done(result, planned, left)

    def _command(
        self,
        asked: Terminal,
        planned: Plan,
        argv: tuple[str, ...],
        timeout_s: float,
        stdin: bytes | None,
        pass_fds: tuple[int, ...] = (),
    ) -> Command:
        return Command(
            shown=_shown(self._hands, asked),
            argv=argv,
            cwd=planned.cwd,
            profile=planned.profile,
            timeout_s=timeout_s,
            memory_mb=self._memory_mb,
            background=asked.background,
            pty=asked.pty,
            stdin=stdin,
            detach=asked.detach,
            pass_fds=pass_fds,
        )

    async def _start(self, context: Context, command: Command) -> Live | Unknown:
        try:
            return await self._hands.start(context, command)
        except AlreadyClaimed:
            return Unknown(_ALREADY)
        except Refused as refused:
            raise ToolFailed(str(refused)) from refused

    async def _see_to(self, live: Live, progress: Callable[[str], None]) -> Ended:
        """Wait for its end and tell what it says meanwhile; if we must go, it goes first."""
        try:
            return await self._follow(live, progress)
        except BaseException:
            with anyio.move_on_after(PATIENCE_S + 1, shield=True):
                await live.process.kill()
            raise

    async def _follow(self, live: Live, progress: Callable[[str], None]) -> Ended:
        at = 0

        def look(*, over: bool) -> None:
            nonlocal at
            text, skipped, at = live.output.news(at, _GLIMPSE, over=over)
            if text:
                progress(f"\n[… {skipped} bytes not shown …]\n{text}" if skipped else text)

        async def keep_looking() -> None:
            while True:
                await self._hands.clock.sleep(EVERY_S)
                look(over=False)

        async with anyio.create_task_group() as group:
            group.start_soon(keep_looking)
            ended = await live.wait()
            group.cancel_scope.cancel()
        look(over=True)
        return ended

    def _begun(self, context: Context, asked: Terminal, *, moved: bool = False) -> Done:
        process_id = name(context.run_id, context.turn, context.call_id)
        told = notice(
            context.origin, notify=asked.notify_on_complete, watch=tuple(asked.watch_patterns)
        )
        result: dict[str, object] = {
            "process_id": process_id,
            "status": "running",
            "notify_on_complete": told.notify,
        }
        if told.watch:
            result["watch_patterns"] = told.watch
        if told.unsupported:
            result["notify_unsupported"] = told.unsupported
        if moved:
            _note(result, _MOVED)
        return Done(
            _json(result),
            background=Background(
                process_id, _shown(self._hands, asked), told.notify, told.watch, asked.detach
            ),
        )

    async def adopt(self, context: Context, asked: Terminal) -> Outcome:
        """What became of it, by what its shim has written down."""
        process_id = name(context.run_id, context.turn, context.call_id)
        shown = _shown(self._hands, asked)
        found = self._hands.adopt(process_id, shown, background=asked.background)
        output = self._hands.output(process_id)
        if found is None and not self._hands.has_traces(process_id):
            return Failed(_NOT_STARTED)
        if isinstance(found, Live) and not asked.background:
            await found.process.kill()
            found = None
        if found is None or (isinstance(found, Ended) and found.cause in _CUT_SHORT):
            return Unknown(_CUT + output.summary(MAX_OUTPUT)[0])
        if isinstance(found, Live) or asked.background:
            self._hands.goes_on(process_id)
            return self._begun(context, asked)
        result = _result(found, output, asked.timeout or TIMEOUT_S)
        if found.cause is Cause.KILLED:
            _note(result, "It was killed because the run was interrupted.")
        return Done(_json(result), summary=_summary(result))

    async def abort(self, context: Context) -> None:
        """Its run is stopped before it was settled: it ends, whatever it was to be."""
        process_id = name(context.run_id, context.turn, context.call_id)
        await self._hands.kill(process_id)
        self._hands.forget(process_id)

    def settled(self, context: Context) -> None:
        """Its result is written down: nobody needs the evidence, unless it goes on."""
        self._hands.settled(name(context.run_id, context.turn, context.call_id))


def _left_in(reading: int) -> str:
    """Where the shell says it ended; nothing if it did not say."""
    try:
        said = os.read(reading, _PATHS)
    except BlockingIOError:  # somebody still holds the other end
        return ""
    try:
        return said.rstrip(b"\n").rpartition(b"\n")[2].decode()
    except UnicodeDecodeError:
        return ""


def _done(result: dict[str, object], planned: Plan, left: str) -> Done:
    """The result, with the directory that the next command starts in."""
    cwd = planned.cwd if planned.moved else ""
    if planned.moved:
        _note(result, _MOVED)
    if left and left != planned.cwd:
        real = os.path.realpath(left)
        if below(real, planned.profile.workspace) and os.path.isdir(real):
            cwd = result["cwd"] = real
        else:
            _note(
                result,
                f"It ended in {left}, which is not in the workspace; the next command starts "
                "where this one did.",
            )
    return Done(_json(result), cwd=cwd, summary=_summary(result))


def _summary(result: Mapping[str, object]) -> str:
    """How it ended, if it did not just succeed."""
    if error := result.get("error"):
        return str(error)
    if (number := result.get("signal")) is not None:
        return f"killed by signal {number}"
    return f"exit code {code}" if (code := result["exit_code"]) else ""


def tools(hands: Hands, memory_mb: int = 0) -> tuple[Tool[Any], ...]:
    """The tool, with these hands."""
    terminal = _Terminal(hands, memory_mb)
    return (
        Tool(
            name="terminal",
            description=(
                "Run a command line with bash in the workspace. The working directory is kept "
                "from call to call, variables are not. Returns JSON: exit_code, output (stdout "
                "and stderr, at most 32 KiB: the first and the last of it), error if it was "
                "killed. What it leaves running is killed when it ends: use background=true for "
                "servers and long work. There is no network but to allowed hosts; others are "
                "asked about while the command waits, in the background only during this run."
            ),
            arguments=Terminal,
            effect=Effect.ACT,
            on_crash=OnCrash.ADOPT,
            timeout_s=3700.0,
            run=terminal.run,
            preview=preview,
            permit=terminal.permit,
            adopt=terminal.adopt,
            settled=terminal.settled,
            abort=terminal.abort,
        ),
    )
