"""The terminal: one command line in the session's workspace, waited for or left at work.

Promises: what was judged is what runs: of a line that is literal words those words, of any
other its text, to the letter. It runs confined, once, and ends whole: with its time, its
memory, its run. What it wrote is clean before anybody sees it, and bounded. The directory a
line ends in is where the session's next one starts, as long as that is in the workspace.

How it ended, if nobody was there to see it, is in the evidence that its shim left (`adopt`).
"""

import hashlib
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import anyio
import msgspec
from anyio import to_thread
from msgspec import Meta

from holdfast.core.approval import Level
from holdfast.core.call import OnCrash
from holdfast.core.execution import BUILTINS, ExecutionRequest, Opaque, Parsed, Wants
from holdfast.core.process import name, notice
from holdfast.core.rules import SYSTEM
from holdfast.core.types import Value
from holdfast.errors import Refused, ToolFailed
from holdfast.tools.hands import Command, Hands, Live, Output
from holdfast.tools.sandbox import Profile
from holdfast.tools.shell import parse, serialise
from holdfast.tools.spawn import PATIENCE_S, AlreadyClaimed, Cause, Ended
from holdfast.tools.tool import (
    Background,
    Context,
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
_HASHED = 8 * 2**20  # bigger files are known by size and time
_WORDS = 200  # of a line that are looked at as names of files
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
_WORD = re.compile(r"(>\s*)?([^\s'\"`$;&|<>(){}*?=\\]+)")

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
        Meta(
            description="Its whole input. Background without it: open for the process tool's write"
        ),
    ] = ""
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


class _Plan(Value):
    """What a call comes to, before anything has happened."""

    what: Parsed | Opaque
    programs: Mapping[str, str]
    bash: str
    cwd: str
    profile: Profile
    moved: bool  # the session's own directory is gone

    @property
    def text(self) -> str:
        if isinstance(self.what, Opaque):
            return self.what.text
        return serialise(self.what, self.programs)

    def argv(self, before: str = "") -> tuple[str, ...]:
        return (self.bash, "--noprofile", "--norc", "-c", before + self.text)


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
        for wanted in ("notify_on_complete", "watch_patterns", "detach"):
            if getattr(asked, wanted):
                raise ToolFailed(f"{wanted} is only for background commands; set background too.")


def _place(context: Context, workdir: str) -> tuple[str, bool]:
    """Where it runs, and whether the session's own directory is gone."""
    workspace = os.path.realpath(context.workspace)
    cwd = os.path.realpath(context.cwd)
    moved = not (below(cwd, workspace) and os.path.isdir(cwd))
    cwd = workspace if moved else cwd
    if not workdir:
        return cwd, moved
    wanted = os.path.realpath(os.path.join(cwd, workdir))
    if not below(wanted, workspace):
        raise ToolFailed(f"workdir {workdir!r} is not in the workspace, {workspace}.")
    if not os.path.isdir(wanted):
        raise ToolFailed(f"workdir {workdir!r} is not a directory.")
    return wanted, moved


def _programs(what: Parsed | Opaque, path: str) -> dict[str, str]:
    """Where each program is. A name with a slash says so itself, and may mean another directory."""
    if isinstance(what, Opaque):
        return {}
    names = {argv[0] for argv in what.commands} - BUILTINS
    found = {n: n if "/" in n else shutil.which(n, path=path) for n in names}
    return {n: where for n, where in found.items() if where and os.path.isabs(where)}


def _plan(hands: Hands, context: Context, asked: Terminal) -> _Plan:
    """Looks at files; call it from a worker thread."""
    _check(asked)
    cwd, moved = _place(context, asked.workdir)
    profile = Profile(os.path.realpath(context.workspace), unsandboxed=asked.unsandboxed)
    path = hands.path(profile, cwd)
    bash = shutil.which("bash", path=path)
    if bash is None:
        raise ToolFailed("No command can run here: there is no bash.")
    what = parse(asked.command)
    return _Plan(what, _programs(what, path), bash, cwd, profile, moved)


def _files(plan: _Plan) -> dict[str, str]:
    """What it would run or read, by content: foreign programs, and words that name files here."""
    named = (os.path.realpath(path) for path in _named(plan.what, plan.cwd))
    files = {path for path in named if below(path, plan.profile.workspace)}
    files |= {p for p in plan.programs.values() if os.path.dirname(p) not in SYSTEM}
    prints = {path: _fingerprint(path) for path in sorted(files)}
    return {path: print_ for path, print_ in prints.items() if print_}


def _named(what: Parsed | Opaque, cwd: str) -> Iterator[str]:
    if isinstance(what, Opaque):  # as far as words can be told from the rest
        words = [word for into, word in _WORD.findall(what.text) if not into]
        yield from (os.path.join(cwd, word) for word in words[:_WORDS])
        return
    places = [cwd]
    for argv in what.commands:
        words = [part for word in argv[:_WORDS] for part in (word, word.partition("=")[2]) if part]
        yield from (os.path.join(place, word) for place in places for word in words)
        if argv[0] == "cd" and len(argv) == 2:
            places.append(os.path.join(places[-1], argv[1]))


def _fingerprint(path: str) -> str:
    """The sha256 of a regular file; of a big one its size and time; of anything else nothing."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                return ""
            if info.st_size > _HASHED:
                return f"size {info.st_size}, changed {info.st_mtime_ns}"
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # a value error: a nul in its name
        return ""


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # for the other end of a pipe, say


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
        posture = await self._hands.posture()
        level = Level.L0 if asked.unsandboxed else posture.level
        plan = await to_thread.run_sync(_plan, self._hands, context, asked)
        request = ExecutionRequest(
            what=plan.what,
            cwd=plan.cwd,
            programs=plan.programs,
            files=await to_thread.run_sync(_files, plan),
            environment={},
            stdin=hashlib.sha256(asked.stdin.encode()).hexdigest() if asked.stdin else "",
            profile=(
                level.name,
                plan.profile.workspace,
                *(flag for flag in ("pty", "background") if getattr(asked, flag)),
            ),
            wants=Wants(unsandboxed=asked.unsandboxed, detach=asked.detach),
            purpose=asked.purpose,
        )
        return Judge(request, level, git_is_safe=False)

    async def run(self, context: Context, asked: Terminal) -> Outcome:
        """Run it, to its end or into the background."""
        await self._hands.posture()
        plan = await to_thread.run_sync(_plan, self._hands, context, asked)
        if not asked.background:
            return await self._foreground(context, asked, plan)
        timeout_s = math.inf if asked.timeout is None else asked.timeout
        stdin = asked.stdin.encode() or None
        command = self._command(asked, plan, plan.argv(), timeout_s, stdin)
        started = await self._start(context, command)
        if isinstance(started, Unknown):
            return started
        return self._begun(context, asked, moved=plan.moved)

    async def _foreground(self, context: Context, asked: Terminal, plan: _Plan) -> Outcome:
        timeout_s = asked.timeout or TIMEOUT_S
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        try:
            # On the line itself, so that line numbers in errors stay right; and not to be traced.
            last = f"{{ builtin set +x; builtin pwd -P >&{writing}; }} 2>/dev/null"
            argv = plan.argv(f"trap '{last}' EXIT; ")
            command = self._command(
                asked, plan, argv, timeout_s, asked.stdin.encode(), pass_fds=(writing,)
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
        return _done(_result(ended, live.output, timeout_s), plan, left)

    def _command(
        self,
        asked: Terminal,
        plan: _Plan,
        argv: tuple[str, ...],
        timeout_s: float,
        stdin: bytes | None,
        pass_fds: tuple[int, ...] = (),
    ) -> Command:
        return Command(
            shown=_shown(self._hands, asked),
            argv=argv,
            cwd=plan.cwd,
            profile=plan.profile,
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
        process_id = name(context.run_id, context.call_id)
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
        process_id = name(context.run_id, context.call_id)
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
        return Done(_json(result))

    def settled(self, context: Context) -> None:
        """Its result is written down: nobody needs the evidence, unless it goes on."""
        self._hands.settled(name(context.run_id, context.call_id))


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


def _done(result: dict[str, object], plan: _Plan, left: str) -> Done:
    """The result, with the directory that the next command starts in."""
    cwd = plan.cwd if plan.moved else ""
    if plan.moved:
        _note(result, _MOVED)
    if left and left != plan.cwd:
        real = os.path.realpath(left)
        if below(real, plan.profile.workspace) and os.path.isdir(real):
            cwd = result["cwd"] = real
        else:
            _note(
                result,
                f"It ended in {left}, which is not in the workspace; the next command starts "
                "where this one did.",
            )
    return Done(_json(result), cwd=cwd)


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
                "asked about while the command waits."
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
        ),
    )
