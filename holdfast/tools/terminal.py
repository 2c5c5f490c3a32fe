"""The `terminal` tool: run one command line in the workspace, in the foreground or background.

Promises: exactly what was approved runs: the parsed words if the line is only literal words, or
else its text, unchanged. It runs confined and at most once. At its time limit, its memory limit or
the end of its run, all of its processes end. Its output is redacted before it is shown, and
limited. The directory in which a line ends is where the session's next line starts, if it is in
the workspace. What it changed in the workspace is in the outcome, unless it only reads.

If the gateway did not see the end of a command, `adopt` reads it from the record of its shim.
"""

import math
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
from anyio import to_thread
from msgspec.structs import replace

from holdfast.core.approval.approval import Level
from holdfast.core.approval.execution import ExecutionRequest, Wants, execution_hash
from holdfast.core.approval.tree import Tree, holds, left_out
from holdfast.core.run.call import OnCrash
from holdfast.core.run.files import FileChange
from holdfast.core.run.process import notice
from holdfast.core.session.answers import CHANGED_TEXT
from holdfast.errors import Refused, ToolFailed
from holdfast.tools.exec import paths, plan
from holdfast.tools.exec.commands import Commands
from holdfast.tools.exec.live_process import Changed, CommandSpec, LiveProcess
from holdfast.tools.exec.plan import CommandPlan
from holdfast.tools.exec.record import Ended, ExitCause
from holdfast.tools.exec.spawn import AlreadyClaimed
from holdfast.tools.exec.spawned import PATIENCE_S
from holdfast.tools.sandbox.sandbox import CommandProfile
from holdfast.tools.snapshot.snapshots import CommandSnapshot, Snapshots, gap_note, notes
from holdfast.tools.terminal_arguments import TerminalArguments, check, preview, takes_more
from holdfast.tools.terminal_result import (
    MAX_OUTPUT,
    MOVED,
    add_note,
    done_with,
    encode,
    explain,
    left_in,
    result_of,
    summary_of,
    what_is_known,
)
from holdfast.tools.tool import (
    Background,
    Context,
    Done,
    Effect,
    Judge,
    Outcome,
    Permission,
    Tool,
    ToolDenied,
    ToolFailure,
    Unknown,
)

TIMEOUT_S = 180.0
UNASKED_S = 3600.0  # in the background too, for what no person was asked about
UNASKED_MB = 2048  # the same, where no other limit is set
_UNASKED = "ulimit -f 0; "  # the same: the kernel lets it put nothing into any file
EVERY_S = 0.25  # between looks at what it says on its way
LAST_LOOK_S = 20.0  # at its files, right before it starts
_GLIMPSE = 16 * 1024  # bytes of that at once
_SHOWN = 2_000  # characters of a command in lists
_ALREADY = (
    "Not run: a command was already started with this call's id. Its result is not known here; "
    "check the state before you repeat it."
)
_NOT_STARTED = (
    "Not started: the gateway was interrupted before the command began. Nothing ran; you may "
    "try again."
)
_CUT_SHORT = (ExitCause.LOST, ExitCause.ORPHANED)


def _plan(hands: Commands, context: Context, asked: TerminalArguments) -> CommandPlan:
    """CommandPlan the command. Reads the disk; call it from a worker thread."""
    check(asked)
    cwd, moved = plan.place(context, asked.workdir)
    profile = CommandProfile(str(context.workspace), unsandboxed=asked.unsandboxed)
    path, home = hands.path(profile), hands.home(profile)
    return plan.make(asked.command, cwd, profile, path, home, moved=moved)


def _shown(hands: Commands, asked: TerminalArguments) -> str:
    return hands.clean(preview(asked), _SHOWN)


class _Terminal:
    def __init__(
        self,
        hands: Commands,
        memory_mb: int,
        unasked_s: float,
        unasked_mb: int,
        snapshots: Snapshots | None,
    ) -> None:
        self._hands = hands
        self._snapshots = snapshots
        self._memory_mb = memory_mb
        self._unasked_s = unasked_s
        self._unasked_mb = unasked_mb

    async def permit(self, context: Context, asked: TerminalArguments) -> Permission:
        """Describe exactly what would run, for the approval."""
        request, level, planned = await self._request(context, asked)
        look = partial(self._hands.lookout.look, planned.roots, contents=True)
        return Judge(request, level, look=look)

    async def _request(
        self, context: Context, asked: TerminalArguments
    ) -> tuple[ExecutionRequest, Level, CommandPlan]:
        posture = await self._hands.posture()
        level = Level.L0 if asked.unsandboxed else posture.level
        if level is not Level.L0:
            self._hands.prepare(context.session)
        planned = await to_thread.run_sync(_plan, self._hands, context, asked)
        workspace = planned.profile.workspace
        request = ExecutionRequest(
            what=planned.what,
            cwd=planned.cwd,
            programs=planned.programs,
            files=await to_thread.run_sync(plan.files, planned, self._hands.own),
            environment={},
            stdin=asked.stdin,
            profile=(level.name, workspace),
            wants=Wants(
                unsandboxed=asked.unsandboxed,
                detach=asked.detach,
                background=asked.background,
                terminal=asked.pty,
                open_input=takes_more(asked),
            ),
            purpose=asked.purpose,
            beside=self._hands.beside(planned.profile.workspace),
            paths=await to_thread.run_sync(paths.follow, planned.what, planned.cwd, workspace),
            targets=await to_thread.run_sync(paths.targets, planned.what, planned.cwd, workspace),
            bash=planned.bash,
            linux=plan.keeps_off_links(planned.programs, level),
        )
        return request, level, planned

    async def run(self, context: Context, asked: TerminalArguments) -> Outcome:
        """Run it, unless it no longer matches what was approved."""
        request, _, planned = await self._request(context, asked)
        if execution_hash(request) != context.execution:
            return ToolDenied(CHANGED_TEXT)
        if not asked.background:
            return await self._foreground(context, asked, planned)
        longest_s = self._unasked_s if context.unasked else math.inf
        timeout_s = longest_s if asked.timeout is None else asked.timeout
        stdin = None if asked.stdin_open else asked.stdin.encode()
        argv = planned.argv(_UNASKED * context.unasked)
        command = self._command(context, asked, planned, argv, timeout_s, stdin)
        started = await self._start(context, command)
        if not isinstance(started, LiveProcess):
            return started
        return self._begun(context, asked, moved=planned.moved)

    async def _foreground(
        self, context: Context, asked: TerminalArguments, planned: CommandPlan
    ) -> Outcome:
        timeout_s = asked.timeout or TIMEOUT_S
        snapshot = CommandSnapshot(None if context.unasked else self._snapshots, context)
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        try:
            # On the same line, so that line numbers in errors stay correct; never traced (set -x).
            last = f"{{ builtin set +x; builtin pwd -P >&{writing}; }} 2>/dev/null"
            argv = planned.argv(_UNASKED * context.unasked + f"trap '{last}' EXIT; ")
            stdin = asked.stdin.encode()
            command = self._command(context, asked, planned, argv, timeout_s, stdin, (writing,))
            command = replace(command, unchanged=partial(self._ready, snapshot, command.unchanged))
            try:
                live = await self._start(context, command)
            finally:
                os.close(writing)
            if not isinstance(live, LiveProcess):
                return live
            ended = await self._see_to(live, context.progress)
            left = left_in(reading)
        finally:
            os.close(reading)
        made = await snapshot.finish()
        if made.gap:
            context.progress(f"\n[{gap_note(made.gap)}]\n")  # people see this, the model the note
        if ended.cause in _CUT_SHORT:
            return Unknown(
                "The command has ended, but it is not known how. It may have had effects. "
                f"Output so far:\n{live.output.summary(MAX_OUTPUT)[0]}",
                made.changes,
            )
        result = result_of(ended, live.output, timeout_s)
        if not planned.profile.unsandboxed:
            level = (await self._hands.posture()).level
            explain(result, level, planned.profile.workspace, live.refused)
        for note in (*live.notes, *notes(made)):
            add_note(result, note)
        done = done_with(result, planned, left, hides=self._hands.hides)
        return replace(done, changes=made.changes)

    def _command(
        self,
        context: Context,
        asked: TerminalArguments,
        planned: CommandPlan,
        argv: tuple[str, ...],
        timeout_s: float,
        stdin: bytes | None,
        pass_fds: tuple[int, ...] = (),
    ) -> CommandSpec:
        return CommandSpec(
            shown=_shown(self._hands, asked),
            argv=argv,
            cwd=planned.cwd,
            profile=planned.profile,
            timeout_s=timeout_s,
            memory_mb=self._memory_mb or self._unasked_mb * context.unasked,
            background=asked.background,
            pty=asked.pty,
            stdin=stdin,
            open_input=takes_more(asked),
            detach=asked.detach,
            pass_fds=pass_fds,
            unchanged=partial(self._unchanged, context.trees) if context.trees else None,
        )

    async def _ready(
        self, snapshot: CommandSnapshot, unchanged: Callable[[], Awaitable[bool]] | None
    ) -> bool:
        """Look at the workspace right before the command starts; then the check that is last."""
        await snapshot.begin()
        return unchanged is None or await unchanged()

    async def _unchanged(self, trees: tuple[Tree, ...]) -> bool:
        roots = tuple(tree.path for tree in trees if not tree.gap)
        but = left_out(trees)
        return holds(trees, await self._hands.lookout.look(roots, LAST_LOOK_S, but, contents=False))

    async def _start(
        self, context: Context, command: CommandSpec
    ) -> LiveProcess | Unknown | ToolDenied:
        try:
            return await self._hands.start(context, command)
        except Changed as changed:
            return ToolDenied(str(changed))
        except AlreadyClaimed:
            return Unknown(_ALREADY)
        except Refused as refused:
            raise ToolFailed(str(refused)) from refused

    async def _see_to(self, live: LiveProcess, progress: Callable[[str], None]) -> Ended:
        """Wait for its end and report its output meanwhile; if we are cancelled, kill it."""
        try:
            return await self._follow(live, progress)
        except BaseException:
            with anyio.move_on_after(PATIENCE_S + 1, shield=True):
                await live.process.kill()
            raise

    async def _follow(self, live: LiveProcess, progress: Callable[[str], None]) -> Ended:
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

    def _begun(self, context: Context, asked: TerminalArguments, *, moved: bool = False) -> Done:
        told = notice(
            context.origin, notify=asked.notify_on_complete, watch=tuple(asked.watch_patterns)
        )
        result: dict[str, object] = {
            "process_id": context.process_id,
            "status": "running",
            "notify_on_complete": told.notify,
        }
        if told.watch:
            result["watch_patterns"] = told.watch
        if told.unsupported:
            result["notify_unsupported"] = told.unsupported
        if moved:
            add_note(result, MOVED)
        return Done(
            encode(result),
            background=Background(
                context.process_id,
                _shown(self._hands, asked),
                told.notify,
                told.watch,
                asked.detach,
            ),
        )

    async def adopt(self, context: Context, asked: TerminalArguments) -> Outcome:
        """Determine the outcome after a restart, from the record of its shim."""
        process_id = context.process_id
        shown = _shown(self._hands, asked)
        found = self._hands.adopt(process_id, shown, background=asked.background)
        output = self._hands.output(process_id)
        if found is None and not self._hands.has_traces(process_id):
            return ToolFailure(_NOT_STARTED)
        if isinstance(found, LiveProcess) and not asked.background:
            if found.process.end is not None:  # it has ended by itself and is about to be reported
                found = await found.wait()
            else:
                await found.process.kill()
                found = None
        cut = found is None or (isinstance(found, Ended) and found.cause in _CUT_SHORT)
        if isinstance(found, LiveProcess) or (asked.background and not cut):
            self._hands.goes_on(process_id)
            return self._begun(context, asked)
        made = await CommandSnapshot(self._snapshots, context).finish()
        said = (*self._hands.notes(process_id), *notes(made))
        if found is None or found.cause in _CUT_SHORT:
            left = "".join(f"{note}\n" for note in said)
            known = what_is_known(found) + output.summary(MAX_OUTPUT)[0]
            return Unknown(left + known, made.changes)
        result = result_of(found, output, asked.timeout or TIMEOUT_S)
        if found.cause is ExitCause.KILLED:
            add_note(result, "It was killed because the run was interrupted.")
        for note in said:
            add_note(result, note)
        return Done(encode(result), made.changes, summary=summary_of(result))

    async def abort(self, context: Context) -> tuple[FileChange, ...]:
        """Kill it and remove its record: its run was stopped before the outcome was stored."""
        await self._hands.kill(context.process_id)
        self._hands.forget(context.process_id)
        made = await CommandSnapshot(self._snapshots, context).finish()
        if self._snapshots is not None:
            self._snapshots.settled(context)
        return made.changes

    def settled(self, context: Context) -> None:
        """Remove its record, unless it continues: its result is in the journal."""
        self._hands.settled(context.process_id)
        if self._snapshots is not None:
            self._snapshots.settled(context)


def tools(
    hands: Commands,
    memory_mb: int = 0,
    unasked_s: float = UNASKED_S,
    unasked_mb: int = UNASKED_MB,
    snapshots: Snapshots | None = None,
) -> tuple[Tool[Any], ...]:
    """Create the tool for these commands.

    A command that runs without approval may take `unasked_s` in the background, and may use
    `unasked_mb` if `memory_mb` is 0. Without `snapshots`, the changes of commands are not known.
    """
    terminal = _Terminal(hands, memory_mb, unasked_s, unasked_mb, snapshots)
    return (
        Tool(
            name="terminal",
            description=(
                "Run a command line with bash in the workspace. The working directory is kept "
                "from call to call, variables are not. Returns JSON: exit_code, output (stdout "
                "and stderr, at most 32 KiB: the beginning and the end), error if it was killed. "
                "Processes that it leaves running are killed when it ends: use background=true "
                "for servers and long work; your next commands reach a server at 127.0.0.1. It can connect to allowed hosts only. For another "
                "host the user is asked while the command waits; in the background only during "
                "this run."
            ),
            arguments=TerminalArguments,
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
