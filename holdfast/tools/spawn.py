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
import fcntl
import hashlib
import marshal
import os
import py_compile
import secrets
import signal
import struct
import subprocess
import sys
import termios
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
from holdfast.tools.record import Claim, Folder, Spool, boot_id
from holdfast.tools.record import Ended as Ended
from holdfast.tools.shim import Identity

PATIENCE_S = shim.GRACE_S + shim.LAST_S + 0.2  # for a shim to end what it was told to end
ROWS, COLUMNS = 24, 80
_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)  # between looks at what should be dead
END_OF_FILE = b"\x04"  # what a terminal's reader takes for the end of its input


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


class _Input:
    """The way into a command's input: a pipe, a terminal, or none at all (-1)."""

    def __init__(self, fd: int, *, terminal: bool) -> None:
        self._fd = fd
        self._terminal = terminal
        self._writing = anyio.Lock()

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        async with self._writing:
            try:
                while view:
                    try:
                        view = view[os.write(self._fd, view) :]
                    except BlockingIOError:
                        await anyio.wait_writable(self._fd)
            except (OSError, anyio.ClosedResourceError) as error:
                raise ToolFailed("the process takes no input (any more)") from error

    async def end(self) -> None:
        await self.write(END_OF_FILE) if self._terminal else self.close()

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            anyio.notify_closing(fd)
            os.close(fd)


class _Shim:
    """A shim that runs, held by its pidfd."""

    def __init__(self, pidfd: int, child: subprocess.Popen[bytes] | None, stdin: _Input) -> None:
        self._pidfd = pidfd
        self._child = child
        self.stdin = stdin
        self.gone = anyio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._on_end)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if self._child is not None:
            self._child.wait()
        os.close(self._pidfd)
        self.stdin.close()
        self.gone.set()

    def send(self, number: int) -> None:
        """Signal it, if it is still there."""
        if not self.gone.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


class Process:
    """A command that was started, and may have ended by now."""

    def __init__(
        self, call_id: str, pid: int, folder: Folder, held: _Shim, clock: Callable[[], float]
    ) -> None:
        self.call_id = call_id
        self.pid = pid
        self._folder = folder
        self._shim = held
        self._clock = clock
        self._settling = anyio.Lock()

    async def wait(self) -> Ended:
        """How it ended, once it has."""
        await self._shim.gone.wait()
        async with self._settling:
            return self._folder.result() or await _lost(self._folder, self._clock)

    async def kill(self) -> Ended:
        """Ask it to end, then make it. Goes on by itself if whoever called is cancelled."""
        self._shim.send(signal.SIGTERM)
        with anyio.move_on_after(PATIENCE_S):
            await self._shim.gone.wait()
        self._shim.send(signal.SIGKILL)  # if it is still there, somebody has stopped it
        return await self.wait()

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

    def __init__(self, directory: Path, gateway_pid: int, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._clock = clock
        self._gateway = shim.identity(gateway_pid) or (gateway_pid, 0)
        # Compiled once, not at every start: that would be half of what a command costs.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        program = py_compile.compile(shim.__file__, f"{directory}.pyc", doraise=True)
        self._command = (sys.executable, "-I", "-S", "-X", "utf8", str(program))

    async def start(self, call_id: str, execution: Execution) -> Process:
        """Start it. Raises `AlreadyClaimed` if it ever was, `NotStarted` if it was not now."""
        folder = self._folder(call_id)
        if folder.is_claimed():
            raise AlreadyClaimed(call_id)
        if execution.detach:
            self._check_detach()
        try:
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            held, report = self._launch(call_id, execution, folder)
        except OSError as error:
            raise NotStarted(f"no process could be started: {error.strerror}") from error
        try:
            said = await _heard(report)
        except BaseException:
            held.send(signal.SIGTERM)
            with anyio.move_on_after(PATIENCE_S, shield=True):
                await held.gone.wait()
            raise
        finally:
            os.close(report)
        word, _, rest = said.partition(b" ")
        if word == b"started":
            return Process(call_id, int(rest), folder, held, self._clock)
        await held.gone.wait()
        if word == b"claimed\n":
            raise AlreadyClaimed(call_id)
        if not folder.is_claimed():
            raise NotStarted(f"no process was started: {said.decode(errors='replace')[-500:]}")
        return Process(call_id, 0, folder, held, self._clock)  # it may have run: it is lost

    def adopt(self, call_id: str) -> Ended | Process | None:
        """After a restart: its result, or itself if it still runs; None if nothing is known."""
        folder = self._folder(call_id)
        if ended := folder.result():
            return ended
        claim = folder.claim()
        return self._running(claim, folder) if claim else None

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
            await _lost(folder, self._clock)
        elif not (claim.detach and _lives(claim)):
            running = self._running(claim, folder)
            await (running.kill() if running else _lost(folder, self._clock))
            swept.append(claim.call_id)

    def _running(self, claim: Claim, folder: Folder) -> Process | None:
        try:
            pidfd = os.pidfd_open(claim.processes[0][0])
        except (IndexError, ProcessLookupError):
            return None
        if not _lives(claim):  # the pid is somebody else's by now
            os.close(pidfd)
            return None
        pid = claim.processes[1][0] if len(claim.processes) > 1 else 0
        held = _Shim(pidfd, None, _Input(-1, terminal=False))
        return Process(claim.call_id, pid, folder, held, self._clock)

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

    def _launch(self, call_id: str, execution: Execution, folder: Folder) -> tuple[_Shim, int]:
        """A shim that has been started, and where it reports."""
        mark = secrets.token_hex(8)
        claim = Claim(call_id, boot_id(), mark, self._clock(), execution.detach)
        with ExitStack() as theirs, ExitStack() as ours:
            wires = _wire(execution, theirs, ours)
            job = os.memfd_create("job")
            theirs.callback(os.close, job)
            os.write(job, _order(execution, claim, folder.path, self._gateway, wires))
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
                env={shim.MARK: mark},
                pass_fds=(*wires.passed, *execution.pass_fds),
                start_new_session=True,
            )
            ours.callback(child.wait)
            ours.callback(child.kill)
            pidfd = os.pidfd_open(child.pid)
            ours.pop_all()
        return _Shim(pidfd, child, _Input(wires.ours, terminal=execution.pty)), report


class _Wires(Value):
    """The fds of a command's input: ours, and what the shim is given."""

    ours: int = -1
    stdin: int = -1
    terminal: tuple[int, int] | None = None

    @property
    def passed(self) -> tuple[int, ...]:
        return self.terminal or ((self.stdin,) if self.stdin >= 0 else ())


def _wire(execution: Execution, theirs: ExitStack, ours: ExitStack) -> _Wires:
    if execution.pty:
        master, slave = os.openpty()
        theirs.callback(os.close, master)
        theirs.callback(os.close, slave)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        wires = _Wires(os.dup(master), terminal=(master, slave))
    elif execution.stdin:
        reading, writing = os.pipe()
        theirs.callback(os.close, reading)
        wires = _Wires(writing, stdin=reading)
    else:
        return _Wires()
    ours.callback(os.close, wires.ours)
    os.set_blocking(wires.ours, False)
    return wires


def _order(
    execution: Execution, claim: Claim, folder: Path, gateway: Identity, wires: _Wires
) -> bytes:
    """The fields of the shim's `Job`."""
    env = {**execution.env, shim.MARK: claim.mark}
    fields = {
        "claim": msgspec.json.encode(claim),
        "folder": str(folder),
        "gateway": gateway,
        "argv": [os.fsencode(word) for word in execution.argv],
        "cwd": os.fsencode(execution.cwd),
        "env": {os.fsencode(name): os.fsencode(value) for name, value in env.items()},
        "timeout_s": execution.timeout_s,
        "stdin": wires.stdin,
        "terminal": wires.terminal,
        "pass_fds": list(execution.pass_fds),
        "memory": execution.memory_mb * 2**20,
        "detach": execution.detach,
    }
    return marshal.dumps(fields)


def _lives(claim: Claim) -> bool:
    """Whether its shim is still there."""
    return bool(claim.processes) and shim.identity(claim.processes[0][0]) == claim.processes[0]


async def _heard(fd: int) -> bytes:
    """The shim's word, a line; or else all it said before its end."""
    said = b""
    while not (said.endswith(b"\n") and said.startswith((b"started", b"claimed"))):
        await anyio.wait_readable(fd)
        more = os.read(fd, 4096)
        if not more:
            break
        said += more
    return said


def _strike(claim: Claim | None) -> set[int]:
    """Strike at what is left of it; who that was."""
    if claim is None or not claim.processes:
        return set()
    return shim.strike(list(claim.processes), claim.mark)


async def _lost(folder: Folder, clock: Callable[[], float]) -> Ended:
    """Its shim is gone without a word: end what is left of it, and write that down."""
    claim = folder.claim()
    left: set[int] = set()
    for pause_s in _PAUSES_S:
        left = await anyio.to_thread.run_sync(_strike, claim)
        if not left:
            break
        await anyio.sleep(pause_s)
    end, _ = folder.spool.bounds()
    ended = Ended(
        None,
        None,
        Cause.LOST,
        max(0.0, clock() - claim.started_at) if claim else 0.0,
        end,
        end > shim.KEPT,
        tuple(sorted(left)),
    )
    with suppress(OSError):  # no space: the next sweep comes to the same result
        folder.record(ended)
    return ended
