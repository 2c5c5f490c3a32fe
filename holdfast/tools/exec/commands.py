"""The hands: every command at work, by its process id, and what may be read of it.

Promises: a call's process has one id, the same after a restart. What a command wrote is
clean before it is cut, whichever part of it is asked for. Its way into the network lives
exactly as long as it does. How it ended is told to everybody who waits, also where nobody can
look for a while. Of processes in the background only so many are at work at once.

Theory: one task per process waits for its end; all others wait for that task.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from holdfast.core.process import Cause, ProcessEnded, name
from holdfast.core.redaction import Redactor
from holdfast.core.types import Owner, ProcessId, SessionId, SessionKey, Value
from holdfast.errors import HoldfastError, ToolFailed
from holdfast.tools import proxy, spawn
from holdfast.tools.output import Output
from holdfast.tools.sandbox import Posture, Profile, Sandbox
from holdfast.tools.spawn import Ended, Execution, Process, Spawner
from holdfast.tools.tool import Context

log = logging.getLogger(__name__)

IN_SESSION, IN_ALL = 16, 128  # processes at work in the background
TAIL = 4 * 1024  # of an ended process, for whoever is told of its end
LOOK_S = 0.5  # between looks for lines
AGAIN_S = 2.0  # until a look that failed is tried again
LINES, LINE = 20, 500  # that are told at once, and characters of each


class Clock(Protocol):
    """The wall clock and the way to wait on it."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class Command(Value):
    """What is to be started, and how."""

    shown: str  # for lists
    argv: tuple[str, ...]
    cwd: str
    profile: Profile
    timeout_s: float
    memory_mb: int
    background: bool
    pty: bool
    stdin: bytes | None  # given whole, then closed; None: it stays open, where there is one
    detach: bool = False
    pass_fds: tuple[int, ...] = ()


class Live:
    """A process of this gateway, at work or over."""

    def __init__(
        self, session: SessionKey, command: str, process: Process, output: Output, started_at: float
    ) -> None:
        self.id = ProcessId(process.call_id)
        self.session = session
        self.command = command
        self.process = process
        self.output = output
        self.started_at = started_at
        self.ended: Ended | None = None
        self.refused: list[str] = []  # hosts that it was not let through to
        self._over = anyio.Event()

    def end(self, ended: Ended) -> None:
        """It is over; told once, by whoever watched it."""
        self.ended = ended
        self._over.set()

    async def wait(self) -> Ended:
        """How it ended, once it has."""
        while self.ended is None:
            await self._over.wait()
        return self.ended


class Hands:
    """Starts commands and knows them by id. `tasks` must outlive every one of them."""

    def __init__(
        self,
        spawner: Spawner,
        sandbox: Sandbox,
        redactor: Redactor,
        tasks: TaskGroup,
        clock: Clock,
    ) -> None:
        self._spawner = spawner
        self._sandbox = sandbox
        self._redactor = redactor
        self._tasks = tasks
        self._clock = clock
        self._live: dict[ProcessId, Live] = {}
        self._background: set[ProcessId] = set()
        self._starting: list[SessionKey] = []  # whose background processes are about to be at work
        self._read: dict[ProcessId, int] = {}
        self._probing = anyio.Lock()
        self._posture: Posture | None = None

    @property
    def clock(self) -> Clock:
        """The time that everything here goes by."""
        return self._clock

    async def posture(self) -> Posture:
        """How well commands are confined. Tried once, for everybody who asks.

        Raises `Unprobed` where that cannot be tried now; the next who asks tries again.
        """
        async with self._probing:
            if self._posture is None:
                self._posture = await self._sandbox.probe()
            return self._posture

    def path(self, profile: Profile, cwd: str) -> str:
        """Where a command there looks for programs; `ToolFailed` if none can run there."""
        confined = self._sandbox.confine(profile, ("true",), cwd)
        confined.close()
        return confined.env["PATH"]

    def clean(self, text: str, limit: int) -> str:
        """The first of `text`, without anything that must not be seen."""
        return self._redactor.clean(text)[:limit]

    async def start(self, context: Context, command: Command) -> Live:
        """Start it, for this call. Raises what `Spawner.start` and `Sandbox.confine` do.

        `ToolFailed` too where as much is at work in the background as may be.
        """
        with self._room(context.session) if command.background else nullcontext():
            return await self._start(context, command)

    async def _start(self, context: Context, command: Command) -> Live:
        over = anyio.Event()
        refused: list[str] = []
        process_id = name(context.run_id, context.turn, context.call_id)
        try:
            process = await self._launch(process_id, context, command, over, refused)
        except BaseException:
            over.set()
            raise
        if command.background:
            self._background.add(process_id)
        live = self._hold(context.session, command.shown, process, self._clock.now(), over)
        live.refused = refused
        if command.stdin is not None:
            self._tasks.start_soon(_feed, process, command.stdin)
        return live

    @contextmanager
    def _room(self, session: SessionKey) -> Iterator[None]:
        """Take a place among those at work, until it is held by the process itself."""
        taken = [*self._starting, *(one.session for one in self._live.values() if self._works(one))]
        if taken.count(session) >= IN_SESSION:
            raise ToolFailed(
                f"Not started: this session has {IN_SESSION} background processes at work, as "
                "many as it may have. End one with the process tool (list, then kill), and try "
                "again."
            )
        if len(taken) >= IN_ALL:
            raise ToolFailed(
                f"Not started: {IN_ALL} background processes are at work, as many as there may "
                "be. End one of this session's with the process tool (list, then kill) if it has "
                "any; if not, try again later."
            )
        self._starting.append(session)
        try:
            yield
        finally:
            self._starting.remove(session)

    def _works(self, live: Live) -> bool:
        return live.ended is None and live.id in self._background

    async def _launch(
        self,
        process_id: ProcessId,
        context: Context,
        command: Command,
        over: anyio.Event,
        refused: list[str],
    ) -> Process:
        profile, door = command.profile, None
        if self._sandbox.filters_hosts and not profile.unsandboxed:
            profile = msgspec.structs.replace(profile, hosts=context.hosts)
            ask = _asking(context.may_reach, refused)
            door = await self._tasks.start(_door, context.hosts, ask, over)
        confined = self._sandbox.confine(profile, command.argv, command.cwd, door=door)
        try:
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
            )
            label = msgspec.json.encode(context.session).decode()
            return await self._spawner.start(process_id, execution, label=label)
        finally:
            confined.close()

    def adopt(
        self, process_id: ProcessId, command: str = "", *, background: bool = True
    ) -> Live | Ended | None:
        """What an earlier gateway started: itself if it runs, or how it ended, or nothing."""
        if live := self._live.get(process_id):
            return live
        found = self._spawner.adopt(process_id)
        if not isinstance(found, Process):
            return found
        if background:
            self._background.add(process_id)
        trace = next(trace for trace in self._spawner.known() if trace.call_id == process_id)
        session, over = _session(trace.label), anyio.Event()
        return self._hold(session, command, found, trace.started_at, over)

    def goes_on(self, process_id: ProcessId) -> None:
        """Its call ends before it, or before its end is told: its traces stay until `forget`."""
        self._background.add(process_id)

    def settled(self, process_id: ProcessId) -> None:
        """The outcome of its call is written down."""
        if process_id not in self._background:
            self.forget(process_id)

    def mine(self, session: SessionKey) -> list[Live]:
        """The session's background processes that this gateway knows, oldest first."""
        return [
            live
            for live in self._live.values()
            if live.session == session and live.id in self._background
        ]

    def output(self, process_id: ProcessId) -> Output:
        """What it wrote, as far as that is still there."""
        return Output(self._spawner.spool(process_id), self._redactor)

    def unread(self, process_id: ProcessId, limit: int, *, over: bool) -> tuple[str, int]:
        """What it wrote since the last time somebody asked this; how many bytes were left out."""
        after = self._read.get(process_id, 0)
        if not self._spawner.spool(process_id).is_readable():
            return "", 0  # it stays unread
        text, skipped, self._read[process_id] = self.output(process_id).news(
            after, limit, over=over
        )
        return text, skipped

    async def kill(self, process_id: ProcessId) -> ProcessEnded:
        """End its whole tree, if it runs."""
        found = self.adopt(process_id)
        if isinstance(found, Live) and found.ended is None:
            with suppress(OSError):  # nobody could see its end: it is killed all the same
                await found.process.kill()
        return await self.ended(process_id)

    async def write(self, process_id: ProcessId, data: bytes) -> None:
        """Give it input."""
        await self._at_work(process_id).write(data)

    async def close(self, process_id: ProcessId) -> None:
        """There will be no more input for it."""
        await self._at_work(process_id).close_stdin()

    def known(self) -> list[tuple[SessionKey, ProcessId]]:
        """Every process an earlier gateway, or this one, has left traces of."""
        return [
            (_session(found.label), ProcessId(found.call_id))
            for found in self._spawner.known()
            if found.label
        ]

    def has_traces(self, process_id: ProcessId) -> bool:
        """Whether it was ever started, or was about to be."""
        return any(found.call_id == process_id for found in self._spawner.known())

    async def sweep(self) -> None:
        """At the start: end what an earlier gateway left behind, but for the detached."""
        await self._spawner.sweep()

    async def ended(self, process_id: ProcessId) -> ProcessEnded:
        """How it ended, once it has; `Cause.LOST` if nobody knows of it."""
        found = self.adopt(process_id)
        if found is None:
            return ProcessEnded(process_id=process_id, cause=Cause.LOST)
        if isinstance(found, Live):
            ended, cut = await found.wait(), False
        else:
            ended, cut = found, True  # an earlier gateway's, which killed it in leaving
        await self._readable(process_id)
        return ProcessEnded(
            process_id=process_id,
            cause=_cause(ended.cause, cut=cut),
            exit_code=ended.exit_code,
            signal=ended.signal,
            duration_s=ended.duration_s,
            output_bytes=ended.output_bytes,
            tail=self.output(process_id).news(0, TAIL, over=True)[0],
        )

    async def lines(
        self, process_id: ProcessId, after: int, patterns: tuple[str, ...]
    ) -> tuple[str, int]:
        """Wait for lines with one of `patterns` in them, from `after` on; they, and where they end.

        Never returns if there are none: the caller stops waiting when the process has ended.
        """
        output = self.output(process_id)
        while True:
            live = self._live.get(process_id)
            over = live is None or live.ended is not None
            text, after = output.lines(after, over=over)
            found = [line for line in text.split("\n") if any(p in line for p in patterns)]
            if found:
                return "\n".join(line[:LINE].rstrip("\r") for line in found[:LINES]), after
            if not text:
                await self._clock.sleep(LOOK_S)

    async def kill_all(self) -> None:
        """End everything that was started here and may not outlive us."""
        await self._spawner.kill_all()

    def forget(self, process_id: ProcessId) -> None:
        """Remove its traces."""
        self._live.pop(process_id, None)
        self._read.pop(process_id, None)
        self._background.discard(process_id)
        self._spawner.forget(process_id)

    def _hold(
        self,
        session: SessionKey,
        command: str,
        process: Process,
        started_at: float,
        over: anyio.Event,
    ) -> Live:
        output = self.output(ProcessId(process.call_id))
        live = Live(session, command, process, output, started_at)
        self._live[live.id] = live
        self._tasks.start_soon(self._watch, live, over)
        return live

    async def _watch(self, live: Live, over: anyio.Event) -> None:
        """Tell how it ended, once it has and that can be read: nobody is told before."""
        ended: Ended | None = None
        while ended is None:
            try:
                ended = await live.process.wait()
            except anyio.ClosedResourceError:
                return  # it was let go, and lives on
            except Exception:
                log.exception("the end of a process is read again", extra={"process_id": live.id})
            finally:
                over.set()
            if ended is None:
                await self._clock.sleep(AGAIN_S)
        await self._readable(live.id)
        live.end(ended)
        if live.id not in self._background:
            self._live.pop(live.id, None)

    async def _readable(self, process_id: ProcessId) -> None:
        """Return when what it wrote can be read."""
        spool = self._spawner.spool(process_id)
        while not spool.is_readable():
            await self._clock.sleep(LOOK_S)

    def _at_work(self, process_id: ProcessId) -> Process:
        live = self._live.get(process_id)
        if live is None or live.ended is not None:
            raise ToolFailed(f"{process_id} has ended and takes no input.")
        return live.process


def _cause(cause: spawn.Cause, *, cut: bool) -> Cause:
    """`cut`: whatever did not end by itself ended because its gateway did."""
    match cause:
        case spawn.Cause.ORPHANED:
            return Cause.RESTART
        case spawn.Cause.KILLED | spawn.Cause.LOST if cut:
            return Cause.RESTART
        case _:
            return Cause(cause)


def _session(label: str) -> SessionKey:
    owner, session_id = msgspec.json.decode(label, type=tuple[str, str])
    return SessionKey(Owner(owner), SessionId(session_id))


def _asking(may_reach: Callable[[str], Awaitable[bool]], refused: list[str]) -> proxy.Ask:
    async def ask(host: str, port: int) -> bool:
        wanted = proxy.grant(host, port)
        try:
            allowed = await may_reach(wanted)
        except HoldfastError:  # nobody can be asked any more
            allowed = False
        if not allowed:
            refused.append(wanted)
        return allowed

    return ask


async def _door(
    hosts: tuple[str, ...], ask: proxy.Ask, over: anyio.Event, *, task_status: TaskStatus[int]
) -> None:
    """The way into the network, until the command is over."""
    try:
        async with proxy.serve(hosts, ask) as door:
            task_status.started(door)
            await over.wait()
    except* OSError:
        pass  # no more sockets: this command loses its way, and nobody else anything


async def _feed(process: Process, data: bytes) -> None:
    with suppress(ToolFailed):  # it has ended, or wants no more
        await process.write(data)
        await process.close_stdin()
