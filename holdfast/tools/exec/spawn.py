"""Start and kill the processes of commands. No other module does.

Promises: the command of a call starts at most once, even across crashes: a second start with the
same call id is refused. Every waiter learns how the command ended. After a restart, a result that
was recorded meanwhile is adopted. After `kill`, and after the sweep at startup, no process of the
command lives; those that could not be killed are named. The command inherits none of our files.

Theory: each command has a shim (shim.py), which does everything that must continue when the
gateway is gone. This module only starts shims, reads their records (record.py) and sends them
signals. A process is identified by pid, start time and boot, never by its pid alone. A running
shim is held by its pidfd. Shims are started from the event loop's thread, without `preexec_fn`.
"""

import hashlib
import logging
import marshal
import os
import py_compile
import secrets
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
from holdfast.tools.exec import record, shim
from holdfast.tools.exec.spawned import RunningShim, SpawnedProcess
from holdfast.tools.exec.stdin import CommandInput, Wires, wire
from holdfast.tools.sandbox.autorun import Before

log = logging.getLogger(__name__)


class Execution(Value):
    """Exactly what to run."""

    argv: tuple[str, ...]  # argv[0] is a path; there is no shell and no search on PATH
    cwd: str
    env: Mapping[str, str]
    timeout_s: float
    stdin: bool = False  # keep a pipe open for `write`; otherwise stdin is empty
    pty: bool = False
    memory_mb: int = 0  # limit for the whole tree; 0: no limit
    detach: bool = False  # may outlive the gateway
    pass_fds: tuple[int, ...] = ()  # inherited with the same numbers; the caller closes its own
    namespaces: tuple[int, ...] = ()  # fds of namespaces to join first, in this order; the same


class AlreadyClaimed(Refused):
    """The call was started before and does not start again."""

    def __init__(self, call_id: str) -> None:
        super().__init__("already_claimed", f"call {call_id!r} was started before")


class NotStarted(ToolFailed):
    """The command did not start."""


class Spawner:
    """Starts commands, and manages every command that has a record below `directory`."""

    def __init__(
        self, directory: Path, gateway_pid: int, clock: Callable[[], float], umask: int = 0o022
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._gateway = shim.identity(gateway_pid) or (gateway_pid, 0)
        self._starting: set[RunningShim] = set()  # without detached ones
        self._processes: set[SpawnedProcess] = set()
        self._program = ""
        self._umask = umask  # for files that commands create; our own umask is stricter

    @property
    def _command(self) -> tuple[str, ...]:
        """The command line of the shim, compiled once: that takes half the time of a start."""
        if not self._program:
            try:
                compiled = py_compile.compile(shim.__file__, f"{self._directory}.pyc", doraise=True)
            except OSError:  # no space: use the source
                compiled = None
            self._program = str(compiled or shim.__file__)
        return (sys.executable, "-I", "-S", "-X", "utf8", self._program)

    async def start(self, call_id: str, execution: Execution, *, label: str = "") -> SpawnedProcess:
        """Start a command.

        Raises `AlreadyClaimed` if the call was started before, `NotStarted` if the start failed.
        """
        folder = self._folder(call_id)
        if folder.is_claimed():
            raise AlreadyClaimed(call_id)
        if execution.detach:
            self._check_detach()
        mark = secrets.token_hex(8)
        try:
            claim = record.Claim(
                call_id, record.boot_id(), mark, self._clock(), execution.detach, label=label
            )
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            launched, report = self._launch(claim, execution, folder)
        except OSError as error:
            raise NotStarted(f"cannot start a process: {error.strerror}") from error
        keyword, rest = await self._await(launched, report, claim)
        if keyword == b"started":
            return self._track(SpawnedProcess(claim, int(rest), folder, launched, self._clock))
        await launched.gone.wait()
        if keyword == b"claimed" or ((found := folder.claim()) and found.mark != mark):
            raise AlreadyClaimed(call_id)
        if not folder.is_claimed():
            raise NotStarted(f"the process did not start: {rest.decode(errors='replace')[-500:]}")
        # It was claimed, so it may have run: `wait` will return `LOST`.
        return self._track(SpawnedProcess(claim, 0, folder, launched, self._clock))

    async def _await(
        self, launched: RunningShim, report: int, claim: record.Claim
    ) -> tuple[bytes, bytes]:
        """Wait for the shim's report. If we are cancelled meanwhile, stop the shim."""
        if not claim.detach:
            self._starting.add(launched)
        try:
            return await _read_report(report)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await launched.stop()
            raise
        finally:
            self._starting.discard(launched)
            os.close(report)

    def keep(self, call_id: str, before: Before) -> None:
        """Record the state of the workspace, before `start`. Blocks; raises the same errors."""
        folder = self._folder(call_id)
        if folder.is_claimed():
            raise AlreadyClaimed(call_id)
        try:
            folder.keep(before)
        except OSError as error:
            raise NotStarted(f"cannot start a process: {error.strerror}") from error

    def leave(self, call_id: str) -> tuple[str, ...]:
        """Check what an ended command left in the workspace; return the notes. Blocks."""
        return self._folder(call_id).leave()

    def notes(self, call_id: str) -> tuple[str, ...]:
        """Return the notes of `leave`, if it was called."""
        return self._folder(call_id).notes()

    def adopt(self, call_id: str) -> record.Ended | SpawnedProcess | None:
        """After a restart: return its result, or the process if it still runs; None if unknown."""
        folder = self._folder(call_id)
        if ended := folder.result():
            return ended
        for process in self._unsettled():
            if process.call_id == call_id:
                return process
        claim = folder.claim()
        return self._running(claim, folder) if claim else None

    def known(self) -> list[record.Known]:
        """List every call with a record, oldest first.

        Calls that were killed while they were claimed are missing: their id is unknown, and they
        ran nothing.
        """
        found = (record.Folder(path).known() for path in self._directory.glob("*/"))
        return sorted(filter(None, found), key=lambda known: known.started_at)

    async def kill_all(self) -> dict[str, record.Ended]:
        """Kill everything that runs or is starting, except detached; return how each call ended."""
        ends: dict[str, record.Ended] = {}

        async def kill(process: SpawnedProcess) -> None:
            # An error with one process must not stop the killing of the others.
            with suppress(OSError, anyio.ClosedResourceError):
                ends[process.call_id] = await process.kill()

        async with anyio.create_task_group() as group:
            for launched in self._starting:
                group.start_soon(launched.stop)  # the caller of `start` gets the result
            for process in self._unsettled():
                if not process.detach:
                    group.start_soon(kill, process)
        return ends

    async def aclose(self) -> None:
        """Let go of everything that still runs, and let it run."""
        for process in self._unsettled():
            process.release()
        self._processes.clear()

    async def sweep(self) -> list[str]:
        """At startup: kill what an earlier gateway left, except detached; return the call ids."""
        swept: list[str] = []
        async with anyio.create_task_group() as group:
            for path in sorted(self._directory.glob("*/")):
                folder = record.Folder(path)
                if not folder.is_claimed():
                    folder.remove()
                elif folder.result() is None:
                    group.start_soon(self._sweep, folder, swept)
        return swept

    def spool(self, call_id: str) -> record.SpoolReader:
        """Return the reader of its output, also for an adopted command."""
        return self._folder(call_id).spool

    def forget(self, call_id: str) -> None:
        """Remove its record, after its result was stored elsewhere."""
        self._folder(call_id).remove()

    async def _sweep(self, folder: record.Folder, swept: list[str]) -> None:
        claim = folder.claim()
        if claim is None:  # killed while it was claimed: nothing was started
            await record.settle(folder, self._clock, record.ExitCause.LOST)
        elif not (claim.detach and record.lives(claim)):
            running = self._running(claim, folder)
            if running:
                ended = await running.kill(record.ExitCause.ORPHANED)
            else:
                ended = await record.settle(folder, self._clock, record.ExitCause.LOST)
            swept.append(claim.call_id)
            if late := (*ended.ended_late, *ended.survivors):
                log.warning(
                    "killed processes that an earlier gateway had left running",
                    extra={"call_id": claim.call_id, "pids": late, "left": ended.survivors},
                )

    def _running(self, claim: record.Claim, folder: record.Folder) -> SpawnedProcess | None:
        try:
            pidfd = os.pidfd_open(claim.processes[0][0])
        except (IndexError, ProcessLookupError):
            return None
        if not record.lives(claim):  # the pid was reused by another process
            os.close(pidfd)
            return None
        pid = claim.processes[1][0] if len(claim.processes) > 1 else 0
        launched = RunningShim(pidfd, lambda: None, CommandInput(-1, terminal=False))
        return self._track(SpawnedProcess(claim, pid, folder, launched, self._clock))

    def _track(self, process: SpawnedProcess) -> SpawnedProcess:
        self._processes.add(process)
        return process

    def _unsettled(self) -> set[SpawnedProcess]:
        self._processes = {one for one in self._processes if not one.is_settled()}
        return self._processes

    def _folder(self, call_id: str) -> record.Folder:
        # An id comes from a model's server, so it must not become a path.
        return record.Folder(self._directory / hashlib.sha256(call_id.encode()).hexdigest()[:32])

    def _check_detach(self) -> None:
        unit = Path("/proc/self/cgroup").read_text().strip().rpartition("/")[2]
        if unit.endswith(".service"):
            raise Refused(
                "detach_unavailable",
                f"systemd ends every process of {unit} with the gateway, so none can outlive it",
            )

    def _job(self, execution: Execution, claim: record.Claim, folder: Path, wires: Wires) -> bytes:
        """Serialise the fields of the shim's `Job`."""
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
            "namespaces": list(execution.namespaces),
            "memory": execution.memory_mb * 2**20,
            "detach": execution.detach,
            "umask": self._umask,
        }
        return marshal.dumps(fields)

    def _launch(
        self, claim: record.Claim, execution: Execution, folder: record.Folder
    ) -> tuple[RunningShim, int]:
        """Start a shim; return it and the fd of its report."""
        with ExitStack() as theirs, ExitStack() as ours:
            wires = wire(pty=execution.pty, stdin=execution.stdin, theirs=theirs, ours=ours)
            job = os.memfd_create("job")
            theirs.callback(os.close, job)
            os.write(job, self._job(execution, claim, folder.path, wires))
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
                pass_fds=(*wires.passed, *execution.pass_fds, *execution.namespaces),
                start_new_session=True,
            )
            ours.callback(child.wait)
            ours.callback(child.kill)
            pidfd = os.pidfd_open(child.pid)
            ours.pop_all()
        stdin = CommandInput(wires.ours, terminal=execution.pty)
        return RunningShim(pidfd, child.wait, stdin), report


async def _read_report(fd: int) -> tuple[bytes, bytes]:
    """Return the shim's keyword and the rest of that line.

    If the shim ends without one: an empty keyword and all of its output.
    """
    output = b""
    while True:
        *lines, _ = output.split(b"\n")
        for keyword, _, rest in (line.partition(b" ") for line in lines):
            if keyword in (b"started", b"claimed"):
                return keyword, rest
        await anyio.wait_readable(fd)
        more = os.read(fd, 4096)
        if not more:
            return b"", output
        output += more
