"""Start commands, find them by process id, read their output, and wait for their end.

Promises: the process of a call has one id, which stays the same after a restart. The output of a
command is redacted before it is cut, whichever part is read. Its access to the network lasts
exactly as long as the command. Every waiter learns how it ended, even if the record cannot be
read for a while. The number of background processes is limited.

Theory: one task per process waits for its end; everything else waits for that task.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

import anyio
import anyio.lowlevel
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from holdfast.core.approval.approval import Posture
from holdfast.core.redaction import Redactor
from holdfast.core.run.process import ProcessEnd, ProcessEnded
from holdfast.core.session.answers import CHANGED_TEXT
from holdfast.core.types import Owner, ProcessId, SessionId, SessionKey
from holdfast.errors import HoldfastError, ToolFailed
from holdfast.tools.exec.live_process import Changed, CommandClock, CommandSpec, LiveProcess
from holdfast.tools.exec.output import Output
from holdfast.tools.exec.ports import Ports
from holdfast.tools.exec.record import SCARCE, Ended, ExitCause
from holdfast.tools.exec.spawn import Execution, Spawner
from holdfast.tools.exec.spawned import SpawnedProcess
from holdfast.tools.fs.tree import Lookout
from holdfast.tools.sandbox import proxy
from holdfast.tools.sandbox.autorun import Before
from holdfast.tools.sandbox.networks import Networks
from holdfast.tools.sandbox.sandbox import CommandProfile, Sandbox
from holdfast.tools.tool import Context

log = logging.getLogger(__name__)

NO_MORE_INPUT = "accepts no more input"
IN_SESSION, IN_ALL = 16, 128  # maximum background processes of a session, and of all
TAIL = 4 * 1024  # bytes of output that are reported with the end of a process
LOOK_S = 0.5  # between checks for new lines
AGAIN_S = 2.0  # before a failed read is repeated
LINES, LINE = 20, 500  # lines that are reported at once, and characters of each


class Commands:
    """Starts commands and finds them by id. `tasks` must live longer than each of them."""

    def __init__(
        self,
        spawner: Spawner,
        sandbox: Sandbox,
        redactor: Redactor,
        tasks: TaskGroup,
        clock: CommandClock,
    ) -> None:
        self._spawner = spawner
        self._sandbox = sandbox
        self._redactor = redactor
        self._tasks = tasks
        self._live: dict[ProcessId, LiveProcess] = {}
        self._background: set[ProcessId] = set()
        self._starting: list[SessionKey] = []  # sessions of background processes being started
        self._read: dict[ProcessId, int] = {}
        self._probing = anyio.Lock()
        self._networks = Networks(tasks, clock)
        self._ports = Ports(tasks)
        self._posture: Posture | None = None
        self.clock = clock
        self.own = sandbox.own
        self.lookout = Lookout(sandbox.own)

    async def posture(self) -> Posture:
        """Return how well commands are confined. The test runs once.

        Raises `Unprobed` if the test cannot run now; the next call repeats it.
        """
        async with self._probing:
            if self._posture is None:
                self._posture = await self._sandbox.probe()
            return self._posture

    def prepare(self, session: SessionKey) -> None:
        """A confined command of this session is about to start."""
        if self._sandbox.shares_networks:
            self._networks.prepare(session)

    def path(self, profile: CommandProfile) -> str:
        """Return the PATH of a command with this profile; `ToolFailed` if none can run."""
        return self._sandbox.search_path(profile)

    def home(self, profile: CommandProfile) -> str:
        """Return the home that confined commands of this workspace share; empty: none."""
        return self._sandbox.home_of(profile.workspace)

    def clean(self, text: str, limit: int) -> str:
        """Redact secrets in `text` and return its first `limit` characters."""
        return self._redactor.clean(text)[:limit]

    def hides(self, text: str) -> bool:
        """Return whether `text` contains a secret."""
        return self._redactor.hides(text)

    async def start(self, context: Context, command: CommandSpec) -> LiveProcess:
        """Start the command of a call.

        Raises the errors of `Spawner.start` and `Sandbox.confine`, and `ToolFailed` if too many
        background processes are running.
        """
        with self._room(context.session) if command.background else nullcontext():
            return await self._start(context, command)

    async def _start(self, context: Context, command: CommandSpec) -> LiveProcess:
        over = anyio.Event()
        refused: list[str] = []
        process_id = context.process_id
        try:
            process = await self._launch(process_id, context, command, over, refused)
        except BaseException:
            over.set()
            raise
        if command.background:
            self._background.add(process_id)
        live = self._hold(context.session, command.shown, process, self.clock.now(), over)
        live.refused = refused
        live.workspace = "" if command.profile.unsandboxed else command.profile.workspace
        live.open_input = command.open_input
        live.harmless = context.unasked
        if command.stdin is not None:
            self._tasks.start_soon(_feed, process, command.stdin)
        return live

    @contextmanager
    def _room(self, session: SessionKey) -> Iterator[None]:
        """Reserve one of the allowed background processes while it is being started."""
        taken = [*self._starting, *(one.session for one in self._live.values() if self._works(one))]
        if taken.count(session) >= IN_SESSION:
            raise ToolFailed(
                f"Not started: this session already has {IN_SESSION} background processes, the "
                "maximum. Kill one with the process tool (list, then kill), and try again."
            )
        if len(taken) >= IN_ALL:
            raise ToolFailed(
                f"Not started: {IN_ALL} background processes are running on this gateway, the "
                "maximum. If this session has one, kill it with the process tool (list, then "
                "kill); otherwise try again later."
            )
        self._starting.append(session)
        try:
            yield
        finally:
            self._starting.remove(session)

    def _works(self, live: LiveProcess) -> bool:
        return live.ended is None and live.id in self._background

    async def _launch(
        self,
        process_id: ProcessId,
        context: Context,
        command: CommandSpec,
        over: anyio.Event,
        refused: list[str],
    ) -> SpawnedProcess:
        profile, door, network = command.profile, None, None
        if self._sandbox.filters_hosts and not profile.unsandboxed:
            profile = msgspec.structs.replace(profile, hosts=context.hosts)
            ask = _asking(context.may_reach, refused)
            door = await self._tasks.start(_door, context.hosts, ask, over)
            if self._sandbox.shares_networks:
                network = await self._networks.join(context.session, over)
        confine = partial(
            self._sandbox.confine,
            profile,
            command.argv,
            command.cwd,
            door=door,
            network=network,
        )
        confined = await to_thread.run_sync(confine)  # it searches the workspace
        try:
            if confined.before is not None:
                brief = not command.background
                before = Before(profile.workspace, confined.before, confined.sealed, brief)
                await to_thread.run_sync(self._spawner.keep, process_id, before)
            execution = Execution(
                argv=confined.argv,
                cwd=confined.cwd,
                env=confined.env,
                timeout_s=command.timeout_s,
                stdin=command.stdin != b"",
                pty=command.pty,
                memory_mb=command.memory_mb,
                detach=command.detach,
                pass_fds=(*confined.pass_fds, *command.pass_fds),
                namespaces=confined.namespaces,
            )
            label = msgspec.json.encode(context.session).decode()
            if command.unchanged is not None and not await command.unchanged():
                raise Changed(CHANGED_TEXT)
            return await self._spawner.start(process_id, execution, label=label)
        finally:
            confined.close()

    def adopt(
        self, process_id: ProcessId, command: str = "", *, background: bool = True
    ) -> LiveProcess | Ended | None:
        """Find a command of an earlier gateway.

        Returns the process if it still runs, its end if that is recorded, or None.
        """
        if live := self._live.get(process_id):
            return live
        found = self._spawner.adopt(process_id)
        if not isinstance(found, SpawnedProcess):
            return found
        if background:
            self._background.add(process_id)
        trace = next(trace for trace in self._spawner.known() if trace.call_id == process_id)
        session, over = _session(trace.label), anyio.Event()
        return self._hold(session, command, found, trace.started_at, over)

    def goes_on(self, process_id: ProcessId) -> None:
        """Keep the record until `forget`: the call ends before the process or its report."""
        self._background.add(process_id)

    def settled(self, process_id: ProcessId) -> None:
        """The outcome of its call is in the journal: remove the record, unless it continues."""
        if process_id not in self._background:
            self.forget(process_id)

    def mine(self, session: SessionKey) -> list[LiveProcess]:
        """Return the session's background processes that this gateway knows, oldest first."""
        return [
            live
            for live in self._live.values()
            if live.session == session and live.id in self._background
        ]

    def beside(self, workspace: str) -> int:
        """Count the running processes that can write to this workspace or a part of it."""
        return sum(o.ended is None and o.can_write_to(workspace) for o in self._live.values())

    def notes(self, process_id: ProcessId) -> tuple[str, ...]:
        """Return notes about files it left that the user's programs would run."""
        return self._spawner.notes(process_id)

    def output(self, process_id: ProcessId) -> Output:
        """Return the reader of its output, as far as that is still stored."""
        return Output(self._spawner.spool(process_id), self._redactor)

    def last_output(self, process_id: ProcessId, limit: int) -> str:
        """Return the last `limit` bytes of its output, redacted; empty if none is stored."""
        live = self._live.get(process_id)
        over = live is None or live.ended is not None
        return self.output(process_id).news(0, limit, over=over)[0]

    def unread(self, process_id: ProcessId, limit: int, *, over: bool) -> tuple[str, int]:
        """Return its output since the last call of `unread`, and how many bytes were skipped."""
        after = self._read.get(process_id, 0)
        if not self._spawner.spool(process_id).is_readable():
            return "", 0  # it stays unread
        text, skipped, self._read[process_id] = self.output(process_id).news(
            after, limit, over=over
        )
        return text, skipped

    async def kill(self, process_id: ProcessId) -> ProcessEnded:
        """Kill its process tree, if it runs, and return how it ended."""
        found = self.adopt(process_id)
        if isinstance(found, LiveProcess) and found.ended is None:
            with suppress(OSError):  # it is killed, but its record cannot be read now
                await found.process.kill()
        return await self.ended(process_id)

    async def write(self, process_id: ProcessId, data: bytes) -> None:
        """Write to its stdin, if it was started with an open stdin."""
        await self._open(process_id).write(data)

    async def close(self, process_id: ProcessId) -> None:
        """Close its stdin. Input that it was started with is never cut short."""
        await self._open(process_id).close_stdin()

    def known(self) -> list[tuple[SessionKey, ProcessId]]:
        """List every process with a record, of this gateway or an earlier one."""
        return [
            (_session(found.label), ProcessId(found.call_id))
            for found in self._spawner.known()
            if found.label
        ]

    def has_traces(self, process_id: ProcessId) -> bool:
        """Return whether it has a record: it was started, or was about to be."""
        return any(found.call_id == process_id for found in self._spawner.known())

    async def sweep(self) -> None:
        """At startup: kill what an earlier gateway left running, except detached processes."""
        await self._spawner.sweep()
        for trace in self._spawner.known():
            if trace.ended is not None:  # its gateway may have been killed before this check
                await self._leave(ProcessId(trace.call_id))

    async def ended(self, process_id: ProcessId) -> ProcessEnded:
        """Wait for its end and return how it ended; `ProcessEnd.LOST` if it has no record."""
        found = self.adopt(process_id)
        if found is None:
            return ProcessEnded(process_id=process_id, cause=ProcessEnd.LOST)
        if isinstance(found, LiveProcess):
            ended, cut = await found.wait(), False
        else:
            ended, cut = found, True  # an earlier gateway killed it when it shut down
        await self._readable(process_id)
        return ProcessEnded(
            process_id=process_id,
            cause=_cause(ended, cut=cut),
            exit_code=ended.exit_code,
            signal=ended.signal,
            duration_s=ended.duration_s,
            output_bytes=ended.output_bytes,
            tail=self.output(process_id).news(0, TAIL, over=True)[0],
        )

    async def lines(
        self, process_id: ProcessId, after: int, patterns: tuple[str, ...]
    ) -> tuple[str, int]:
        """Wait for output lines after offset `after` that contain one of `patterns`.

        Returns the lines and the offset behind them. Never returns if there are none: the caller
        stops waiting when the process has ended.
        """
        output = self.output(process_id)
        while True:
            live = self._live.get(process_id)
            over = live is None or live.ended is not None
            text, after = output.lines(after, over=over)
            found = [line for line in text.split("\n") if any(p in line for p in patterns)]
            if found:
                return "\n".join(line[:LINE].rstrip("\r") for line in found[:LINES]), after
            if text:  # a process may write faster than we read
                await anyio.lowlevel.checkpoint()
            else:
                await self.clock.sleep(LOOK_S)

    async def publish(self, process_id: ProcessId, port: int, host_port: int) -> int:
        """Open a port of its network on this machine's loopback, and return its number there."""
        live = self._live.get(process_id)
        network = self._networks.find(live.session) if live and live.workspace else None
        if live is None or live.ended is not None or network is None:
            raise ToolFailed(f"{process_id} is not in a network of its session, or has ended.")
        return await self._ports.open(process_id, network, port, host_port, live.over)

    def close_port(self, process_id: ProcessId, port: int) -> None:
        """Close a published port, if it is open."""
        self._ports.close(process_id, port)

    def rest(self, session: SessionKey) -> None:
        """A run of the session has ended: hold nothing for it that no process needs."""
        self._networks.rest(session)

    async def kill_all(self) -> None:
        """Kill every process that was started here, except detached ones."""
        await self._spawner.kill_all()

    def forget(self, process_id: ProcessId) -> None:
        """Remove its record."""
        self._live.pop(process_id, None)
        self._read.pop(process_id, None)
        self._background.discard(process_id)
        self._spawner.forget(process_id)

    def _hold(
        self,
        session: SessionKey,
        command: str,
        process: SpawnedProcess,
        started_at: float,
        over: anyio.Event,
    ) -> LiveProcess:
        process_id = ProcessId(process.call_id)
        output = self.output(process_id)
        live = LiveProcess(process_id, session, command, process, output, started_at)
        self._live[live.id] = live
        self._tasks.start_soon(self._watch, live, over)
        return live

    async def _watch(self, live: LiveProcess, over: anyio.Event) -> None:
        """Wait until it has ended and the record can be read; only then wake the waiters."""
        ended: Ended | None = None
        while ended is None:
            try:
                ended = await live.process.wait()
            except anyio.ClosedResourceError:
                return  # it was released and continues
            except Exception:
                log.exception(
                    "cannot read how a process ended; trying again", extra={"process_id": live.id}
                )
            finally:
                over.set()
            if ended is None:
                await self.clock.sleep(AGAIN_S)
        await self._readable(live.id)
        live.notes = await self._leave(live.id)
        live.end(ended)
        if live.id not in self._background:
            self._live.pop(live.id, None)

    async def _leave(self, process_id: ProcessId) -> tuple[str, ...]:
        """Check what it left in the workspace, and return the notes."""
        fields = {"process_id": process_id}
        while True:
            try:
                notes = await to_thread.run_sync(self._spawner.leave, process_id)
            except (OSError, ValueError) as error:
                log.exception("cannot check what a command left in the workspace", extra=fields)
                if getattr(error, "errno", None) not in SCARCE:
                    return ()
            else:
                for note in notes:
                    log.warning("a command left autorun files", extra={**fields, "note": note})
                return notes
            await self.clock.sleep(AGAIN_S)

    async def _readable(self, process_id: ProcessId) -> None:
        """Wait until its output can be read."""
        spool = self._spawner.spool(process_id)
        while not spool.is_readable():
            await self.clock.sleep(LOOK_S)

    def _open(self, process_id: ProcessId) -> SpawnedProcess:
        live = self._live.get(process_id)
        if live is None or live.ended is not None:
            raise ToolFailed(f"{process_id} has ended and accepts no input.")
        if not live.open_input:
            raise ToolFailed(
                f"{process_id} {NO_MORE_INPUT}. Start a process in the background with "
                "stdin_open or pty to write to it later."
            )
        return live.process


def _cause(ended: Ended, *, cut: bool) -> ProcessEnd:
    """Convert the cause. `cut`: its gateway ended, and the restart killed what still ran."""
    match ended.cause:
        case ExitCause.ORPHANED:
            return ProcessEnd.RESTART
        case ExitCause.KILLED if cut:
            return ProcessEnd.RESTART
        case ExitCause.LOST if cut and (ended.ended_late or ended.survivors):
            return ProcessEnd.RESTART
        case _:
            return ProcessEnd(ended.cause)


def _session(label: str) -> SessionKey:
    owner, session_id = msgspec.json.decode(label, type=tuple[str, str])
    return SessionKey(Owner(owner), SessionId(session_id))


def _asking(may_reach: Callable[[str], Awaitable[bool]], refused: list[str]) -> proxy.Ask:
    async def ask(host: str, port: int) -> bool:
        wanted = proxy.grant(host, port)
        try:
            allowed = await may_reach(wanted)
        except HoldfastError:  # the run has ended, so the user cannot be asked
            allowed = False
        if not allowed:
            refused.append(wanted)
        return allowed

    return ask


async def _door(
    hosts: tuple[str, ...], ask: proxy.Ask, over: anyio.Event, *, task_status: TaskStatus[int]
) -> None:
    """Serve the network proxy of one command until it has ended."""
    try:
        async with proxy.serve(hosts, ask) as door:
            task_status.started(door)
            await over.wait()
    except* OSError:
        pass  # out of sockets: only this command loses its network access


async def _feed(process: SpawnedProcess, data: bytes) -> None:
    with suppress(ToolFailed):  # it has ended or closed its stdin
        await process.write(data)
        await process.close_stdin()
