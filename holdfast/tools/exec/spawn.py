"""Processes: the only place that starts and kills them.

Promises: a call's command starts once at most, also across crashes: the second start of a
call id is refused. Whoever waits learns how it ended, and after a restart the result that
was written meanwhile is adopted. After `kill`, and after the boot sweep, nothing of the
command lives; what could not be killed is named. Nothing of ours is open in the command.

Theory: each command has a shim (shim.py), which does all that must go on when the gateway is
gone: this side only starts shims, reads what they write down (record.py) and sends them
signals. A process is known by pid, start time and boot, never by pid alone; a running shim is
held by its pidfd. Shims are started from the event loop's own thread, without `preexec_fn`.
"""

import asyncio
import hashlib
import marshal
import os
import py_compile
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from holdfast.core.types import Value
from holdfast.errors import Refused, ToolFailed
from holdfast.tools import shim
from holdfast.tools.record import Cause as Cause
from holdfast.tools.record import Claim, Folder, Spool, boot_id, left, lives, settle
from holdfast.tools.record import Ended as Ended
from holdfast.tools.record import Known as Known
from holdfast.tools.wires import Input, Wires, wire

PATIENCE_S = shim.GRACE_S + shim.LAST_S + 0.2  # for a shim to end what it was told to end
WRITING_S = 2.0  # for one that has ended it all to write that down, on a busy disk


class Execution(Value):
    """Exactly what is run."""

    argv: tuple[str, ...]  # argv[0] is a path; no shell, no search
    cwd: str
    env: Mapping[str, str]
    timeout_s: float
    stdin: bool = False  # keep a pipe open for `write`; otherwise it reads nothing
    pty: bool = False
    memory_mb: int = 0  # of the whole tree, 0 for no limit
    detach: bool = False  # may outlive the gateway
    pass_fds: tuple[int, ...] = ()  # inherited under the same numbers; the caller closes its own


class AlreadyClaimed(Refused):
    """This call has been started before; it does not start again."""

    def __init__(self, call_id: str) -> None:
        super().__init__("already_claimed", f"call {call_id!r} was started before")


class NotStarted(ToolFailed):
    """No command ran: there was nobody to run it."""


class _Shim:
    """A shim that runs, held by its pidfd."""

    def __init__(self, pidfd: int, child: subprocess.Popen[bytes] | None, stdin: Input) -> None:
        self._pidfd = pidfd
        self._child = child
        self.stdin = stdin
        self.gone = anyio.Event()
        self.let_go = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._on_end)

    def _on_end(self) -> None:
        if self._child is not None:
            self._child.wait()
        self._close()

    def release(self) -> None:
        """Hold it no longer, and let it run. Whoever waits for it learns that at once."""
        if not self.gone.is_set():
            self.let_go = True
            self._close()

    def _close(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.stdin.close()
        self.gone.set()

    def send(self, number: int) -> None:
        """Signal it, if it is still there."""
        if not self.gone.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def stop(self) -> bool:
        """Have it end its command; whether it did so in time."""
        self.send(signal.SIGTERM)
        with anyio.move_on_after(PATIENCE_S):
            await self.gone.wait()
        return self.gone.is_set()


class Process:
    """A command that was started, and may have ended by now. `pid` is 0 if it is not known."""

    def __init__(
        self, claim: Claim, pid: int, folder: Folder, held: _Shim, clock: Callable[[], float]
    ) -> None:
        self.call_id = claim.call_id
        self.detach = claim.detach
        self.pid = pid
        self._folder = folder
        self._shim = held
        self._clock = clock
        self._settling = anyio.Lock()
        self._cause = Cause.LOST  # what is written down if its shim does not

    @property
    def running(self) -> bool:
        """Whether its shim was still there when the loop last looked."""
        return self.end is None if self._shim.let_go else not self._shim.gone.is_set()

    @property
    def end(self) -> Ended | None:
        """How it ended, if that is written down."""
        return self._folder.result()

    def is_settled(self) -> bool:
        """Whether there is nothing left to do about it; also if it was forgotten."""
        try:
            return not self.running and (self.end is not None or not self._folder.is_claimed())
        except OSError:  # nobody can tell now
            return False

    async def wait(self) -> Ended:
        """How it ended, once it has. Raises `ClosedResourceError` if the spawner closes first.

        Raises `OSError` if it has, and how cannot be read now: ask again.
        """
        await self._shim.gone.wait()
        async with self._settling:
            if ended := self._folder.result():
                return ended
            if self._shim.let_go:
                raise anyio.ClosedResourceError
            return await settle(self._folder, self._clock, self._cause)

    async def kill(self, cause: Cause = Cause.KILLED) -> Ended:
        """Ask it to end, then make it. Goes on by itself if whoever called is cancelled.

        `cause` is what is written down if its shim cannot.
        """
        if not await self._shim.stop():
            await self._make_it(cause)
        return await self.wait()

    async def _make_it(self, cause: Cause) -> None:
        """Somebody has stopped its shim, or it still writes down that all is over."""
        with suppress(OSError):  # nobody can look: then at once
            if not await anyio.to_thread.run_sync(left, self._folder.claim()):
                with anyio.move_on_after(WRITING_S):
                    await self._shim.gone.wait()
        if not self._shim.gone.is_set():
            self._cause = cause
            self._shim.send(signal.SIGKILL)

    def release(self) -> None:
        """Let it run, and hold nothing of it."""
        self._shim.release()

    def output(self, after: int, limit: int) -> tuple[bytes, int]:
        """See `Spool.output`."""
        return self._folder.spool.output(after, limit)

    def tail(self, limit: int) -> bytes:
        """See `Spool.tail`."""
        return self._folder.spool.tail(limit)

    async def write(self, data: bytes) -> None:
        """Give it input; `ToolFailed` if it takes none."""
        await self._shim.stdin.write(data)

    async def close_stdin(self) -> None:
        """There will be no more input."""
        await self._shim.stdin.end()


class Spawner:
    """Starts commands, and answers for every one that was ever started below `directory`."""

    def __init__(
        self, directory: Path, gateway_pid: int, clock: Callable[[], float], umask: int = 0o022
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._gateway = shim.identity(gateway_pid) or (gateway_pid, 0)
        self._starting: set[_Shim] = set()  # of those that end with us
        self._held: set[Process] = set()
        self._program = ""
        self._umask = umask  # for what commands make; ours is nobody else's business

    @property
    def _command(self) -> tuple[str, ...]:
        """The shim, compiled once: at every start that would be half of what a command costs."""
        if not self._program:
            try:
                compiled = py_compile.compile(shim.__file__, f"{self._directory}.pyc", doraise=True)
            except OSError:  # no space: then as it is
                compiled = None
            self._program = str(compiled or shim.__file__)
        return (sys.executable, "-I", "-S", "-X", "utf8", self._program)

    async def start(self, call_id: str, execution: Execution, *, label: str = "") -> Process:
        """Start it. Raises `AlreadyClaimed` if it ever was, `NotStarted` if it was not now."""
        folder = self._folder(call_id)
        if folder.is_claimed():
            raise AlreadyClaimed(call_id)
        if execution.detach:
            self._check_detach()
        mark = secrets.token_hex(8)
        try:
            claim = Claim(call_id, boot_id(), mark, self._clock(), execution.detach, label=label)
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            held, report = self._launch(claim, execution, folder)
        except OSError as error:
            raise NotStarted(f"no process could be started: {error.strerror}") from error
        word, rest = await self._await(held, report, claim)
        if word == b"started":
            return self._hold(Process(claim, int(rest), folder, held, self._clock))
        await held.gone.wait()
        if word == b"claimed" or ((found := folder.claim()) and found.mark != mark):
            raise AlreadyClaimed(call_id)
        if not folder.is_claimed():
            raise NotStarted(f"no process was started: {rest.decode(errors='replace')[-500:]}")
        return self._hold(
            Process(claim, 0, folder, held, self._clock)
        )  # it may have run: it is lost

    async def _await(self, held: _Shim, report: int, claim: Claim) -> tuple[bytes, bytes]:
        """What the shim reports. It ends if we are cancelled meanwhile."""
        if not claim.detach:
            self._starting.add(held)
        try:
            return await _heard(report)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await held.stop()
            raise
        finally:
            self._starting.discard(held)
            os.close(report)

    def adopt(self, call_id: str) -> Ended | Process | None:
        """After a restart: its result, or itself if it still runs; None if nothing is known."""
        folder = self._folder(call_id)
        if ended := folder.result():
            return ended
        for process in self._holding():
            if process.call_id == call_id:
                return process
        claim = folder.claim()
        return self._running(claim, folder) if claim else None

    def known(self) -> list[Known]:
        """Every call that was claimed and is not forgotten, in the order they were started.

        Not those cut in the middle of claiming, which ran nothing: nobody can tell their names.
        """
        found = (Folder(path).known() for path in self._directory.glob("*/"))
        return sorted(filter(None, found), key=lambda known: known.started_at)

    async def kill_all(self) -> dict[str, Ended]:
        """Kill all that runs or is about to, but for the detached; how each call has ended."""
        ends: dict[str, Ended] = {}

        async def kill(process: Process) -> None:
            with suppress(OSError, anyio.ClosedResourceError):  # one must not save the others
                ends[process.call_id] = await process.kill()

        async with anyio.create_task_group() as group:
            for held in self._starting:
                group.start_soon(held.stop)  # and whoever starts it learns how that ended
            for process in self._holding():
                if not process.detach:
                    group.start_soon(kill, process)
        return ends

    async def aclose(self) -> None:
        """Let go of all that still runs, without harm to it."""
        for process in self._holding():
            process.release()
        self._held.clear()

    async def sweep(self) -> list[str]:
        """At boot: end what an earlier gateway left, but for the detached; the calls it was."""
        swept: list[str] = []
        async with anyio.create_task_group() as group:
            for path in sorted(self._directory.glob("*/")):
                folder = Folder(path)
                if not folder.is_claimed():
                    folder.remove()
                elif folder.result() is None:
                    group.start_soon(self._sweep, folder, swept)
        return swept

    def spool(self, call_id: str) -> Spool:
        """What it has written; also of one that was adopted."""
        return self._folder(call_id).spool

    def forget(self, call_id: str) -> None:
        """Remove what is kept about it, once its result is kept elsewhere."""
        self._folder(call_id).remove()

    async def _sweep(self, folder: Folder, swept: list[str]) -> None:
        claim = folder.claim()
        if claim is None:  # killed in the middle of claiming: nothing was started
            await settle(folder, self._clock, Cause.LOST)
        elif not (claim.detach and lives(claim)):
            running = self._running(claim, folder)
            if running:
                await running.kill(Cause.ORPHANED)
            else:
                await settle(folder, self._clock, Cause.LOST)
            swept.append(claim.call_id)

    def _running(self, claim: Claim, folder: Folder) -> Process | None:
        try:
            pidfd = os.pidfd_open(claim.processes[0][0])
        except (IndexError, ProcessLookupError):
            return None
        if not lives(claim):  # the pid is somebody else's by now
            os.close(pidfd)
            return None
        pid = claim.processes[1][0] if len(claim.processes) > 1 else 0
        held = _Shim(pidfd, None, Input(-1, terminal=False))
        return self._hold(Process(claim, pid, folder, held, self._clock))

    def _hold(self, process: Process) -> Process:
        self._held.add(process)
        return process

    def _holding(self) -> set[Process]:
        self._held = {one for one in self._held if not one.is_settled()}
        return self._held

    def _folder(self, call_id: str) -> Folder:
        # An id comes from a model's server: it never becomes a path.
        return Folder(self._directory / hashlib.sha256(call_id.encode()).hexdigest()[:32])

    def _check_detach(self) -> None:
        unit = Path("/proc/self/cgroup").read_text().strip().rpartition("/")[2]
        if unit.endswith(".service"):
            raise Refused(
                "detach_unavailable",
                f"whatever runs in {unit} ends with it, so no process can outlive the gateway here",
            )

    def _order(self, execution: Execution, claim: Claim, folder: Path, wires: Wires) -> bytes:
        """The fields of the shim's `Job`."""
        env = {**execution.env, shim.MARK: claim.mark}
        fields = {
            "claim": msgspec.json.encode(claim),
            "folder": str(folder),
            "gateway": self._gateway,
            "argv": [os.fsencode(word) for word in execution.argv],
            "cwd": os.fsencode(execution.cwd),
            "env": {os.fsencode(name): os.fsencode(value) for name, value in env.items()},
            "timeout_s": execution.timeout_s,
            "stdin": wires.stdin,
            "terminal": wires.terminal,
            "pass_fds": list(execution.pass_fds),
            "memory": execution.memory_mb * 2**20,
            "detach": execution.detach,
            "umask": self._umask,
        }
        return marshal.dumps(fields)

    def _launch(self, claim: Claim, execution: Execution, folder: Folder) -> tuple[_Shim, int]:
        """A shim that has been started, and where it reports."""
        with ExitStack() as theirs, ExitStack() as ours:
            wires = wire(pty=execution.pty, stdin=execution.stdin, theirs=theirs, ours=ours)
            job = os.memfd_create("job")
            theirs.callback(os.close, job)
            os.write(job, self._order(execution, claim, folder.path, wires))
            os.lseek(job, 0, os.SEEK_SET)
            report, reporting = os.pipe()
            ours.callback(os.close, report)
            theirs.callback(os.close, reporting)
            child = subprocess.Popen(
                self._command,
                stdin=job,
                stdout=reporting,
                stderr=reporting,
                cwd="/",
                env={shim.MARK: claim.mark},
                pass_fds=(*wires.passed, *execution.pass_fds),
                start_new_session=True,
            )
            ours.callback(child.wait)
            ours.callback(child.kill)
            pidfd = os.pidfd_open(child.pid)
            ours.pop_all()
        return _Shim(pidfd, child, Input(wires.ours, terminal=execution.pty)), report


async def _heard(fd: int) -> tuple[bytes, bytes]:
    """The shim's word and what follows it; or else nothing, and all it said before its end."""
    said = b""
    while True:
        *lines, _ = said.split(b"\n")
        for word, _, rest in (line.partition(b" ") for line in lines):
            if word in (b"started", b"claimed"):
                return word, rest
        await anyio.wait_readable(fd)
        more = os.read(fd, 4096)
        if not more:
            return b"", said
        said += more
