"""Start `holdfast` processes quickly: fork them from a process that has imported it already.

A start costs half a second of CPU, nearly all of it imports, and the suite starts thousands.
`start` and `run` stand in for `anyio.open_process` and `anyio.run_process`: what they start is a
process of its own, with its own pid, environment, descriptors and exit. Set HOLDFAST_TEST_EXEC=1
to execute each one instead, as CI does for the crash tests. What changes the interpreter itself
(a wrapper, LD_PRELOAD, PYTHONPROFILEIMPORTTIME) is always executed.

`tests.conftest` starts one forking process per pytest process, run by `python -m tests.fakes.forks`.
It imports nothing before the first request, and ends when its socket closes.
"""

import fcntl
import gc
import importlib
import json
import os
import pkgutil
import random
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, TextIO, cast

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from typing_extensions import override

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "holdfast")
EXECUTE = bool(os.environ.get("HOLDFAST_TEST_EXEC"))
PIPE = subprocess.PIPE
DEVNULL = subprocess.DEVNULL
TRACED_S = 20.0
_REQUEST_BYTES = 200_000
_FOR_THE_INTERPRETER = ("PYTHON", "LD_", "LC_", "LANG")
# A shell that leads a session without a terminal: the first one that it opens becomes its own.
_ON_TERMINAL = 'exec <"$0" >"$0" 2>&1; exec "$@"'
_HARMLESS = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


class _Forker:
    """This process's end of the socket to the forking process."""

    requests: socket.socket | None = None


@contextmanager
def forking() -> Iterator[None]:
    """Have a forking process for as long as the block lasts."""
    if EXECUTE:
        yield
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _REQUEST_BYTES)
    command = [sys.executable, "-m", "tests.fakes.forks", str(theirs.fileno())]
    environment = {"PATH": os.environ["PATH"], **_HARMLESS}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], stdin=DEVNULL
    ):
        theirs.close()
        _Forker.requests = ours
        try:
            yield
        finally:
            _Forker.requests = None
            ours.close()


async def start(
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdin: int | None = PIPE,
    stdout: int | None = PIPE,
    stderr: int | None = PIPE,
    terminal: bool = False,
    wrapper: Sequence[str] = (),
) -> Process:
    """Start `holdfast ARGS`; streams as for `anyio.open_process`.

    With `terminal` it leads a session of its own, and stdin is its controlling terminal.
    `wrapper` is what starts it instead, or a strace that watches it from its first line on.
    """
    forker = _Forker.requests
    traced = wrapper[:1] == ("strace",)
    if forker is None or _changes_the_interpreter(env) or (wrapper and not traced):
        command = [*wrapper, *COMMAND, *args]
        if terminal:
            assert stdin is not None
            command = ["sh", "-c", _ON_TERMINAL, os.ttyname(stdin), *command]
        return await anyio.open_process(
            command,
            env=env,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=terminal,
        )
    given, kept = _streams((stdin, stdout, stderr))
    status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    status.setblocking(False)
    umask = os.umask(0o022)
    os.umask(umask)
    asked = {"args": list(args), "env": dict(env), "cwd": str(cwd), "umask": umask}
    request = json.dumps({**asked, "terminal": terminal, "tracer": list(wrapper)}).encode()
    try:
        socket.send_fds(forker, [request], [*given, theirs.fileno()])
    finally:
        theirs.close()
        for fd, wanted in zip(given, (stdin, stdout, stderr), strict=True):
            if fd != wanted:
                os.close(fd)
    await anyio.wait_readable(status)
    data, fds, _, _ = socket.recv_fds(status, 64, 1)
    return Forked(int(data), fds[0], status, kept)


async def run(
    args: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run `holdfast ARGS` to its end."""
    said = {"out": b"", "err": b""}

    async def read(name: str, stream: ByteReceiveStream | None) -> None:
        assert stream is not None
        said[name] = b"".join([chunk async for chunk in stream])

    async with await start(args, env=env, cwd=cwd) as process, anyio.create_task_group() as tasks:
        tasks.start_soon(read, "out", process.stdout)
        tasks.start_soon(read, "err", process.stderr)
        assert process.stdin is not None
        with suppress(anyio.BrokenResourceError):
            await process.stdin.send(stdin)
        await process.stdin.aclose()
        code = await process.wait()
    return subprocess.CompletedProcess([*COMMAND, *args], code, said["out"], said["err"])


def _changes_the_interpreter(env: Mapping[str, str]) -> bool:
    names = [n for n in env if n.startswith(_FOR_THE_INTERPRETER) and n != "PYTHON"]
    return any(_HARMLESS.get(name) != env[name] for name in names)


def ended(process: Process) -> bool:
    """Tell whether a process has ended at this moment, also if its exit was not collected."""
    if isinstance(process, Forked):
        return process.is_over
    try:
        over = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return over is not None


class Forked(Process):
    """A process that the forking process has made."""

    def __init__(
        self, pid: int, pidfd: int, status: socket.socket, streams: Sequence["_Pipe | None"]
    ) -> None:
        self._pid = pid
        self._pidfd = FileIO(pidfd)  # it closes by itself if no test waits for the process
        self._status = status
        self._streams = streams
        self._code: int | None = None

    @property
    def is_over(self) -> bool:
        """Tell whether it has ended."""
        return self._code is not None or bool(select.select([self._pidfd], [], [], 0)[0])

    @override
    async def wait(self) -> int:
        while self._code is None:
            await anyio.wait_readable(self._status)
            if self._code is None:  # no other task has collected it meanwhile
                self._collect()
        return self._code

    def _collect(self) -> None:
        with suppress(BlockingIOError):
            self._code = os.waitstatus_to_exitcode(int(self._status.recv(64)))
            self._pidfd.close()
            self._status.close()

    @override
    def send_signal(self, signal: int) -> None:
        os.kill(self._pid, signal)

    @override
    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    @override
    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    @override
    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            for stream in self._streams:
                if stream is not None:
                    await stream.aclose()
            if self._code is None:
                with suppress(ProcessLookupError):
                    self.kill()
                await self.wait()

    @property
    @override
    def pid(self) -> int:
        return self._pid

    @property
    @override
    def returncode(self) -> int | None:
        if self._code is None:
            self._collect()
        return self._code

    @property
    @override
    def stdin(self) -> ByteSendStream | None:
        return self._streams[0]

    @property
    @override
    def stdout(self) -> ByteReceiveStream | None:
        return self._streams[1]

    @property
    @override
    def stderr(self) -> ByteReceiveStream | None:
        return self._streams[2]


class _Pipe(ByteReceiveStream, ByteSendStream):
    """One end of a pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at_end = False
        os.set_blocking(fd, False)

    @override
    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._at_end:
            if self._fd < 0:
                raise anyio.ClosedResourceError
            try:
                data = os.read(self._fd, max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._fd)
                continue
            if data:
                return data
            self._at_end = True
            await self.aclose()
        raise anyio.EndOfStream

    @override
    async def send(self, item: bytes) -> None:
        while item:
            if self._fd < 0:
                raise anyio.ClosedResourceError
            try:
                item = item[os.write(self._fd, item) :]
            except BlockingIOError:
                await anyio.wait_writable(self._fd)
            except BrokenPipeError as error:
                raise anyio.BrokenResourceError from error

    @override
    async def aclose(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            anyio.notify_closing(fd)
            os.close(fd)


def _streams(wanted: tuple[int | None, ...]) -> tuple[list[int], list[_Pipe | None]]:
    """The descriptors to give to the process, and our ends of the pipes."""
    given: list[int] = []
    kept: list[_Pipe | None] = []
    for number, what in enumerate(wanted):
        if what == PIPE:
            reading, writing = os.pipe()
            theirs, ours = (reading, writing) if number == 0 else (writing, reading)
            given.append(theirs)
            kept.append(_Pipe(ours))
            continue
        kept.append(None)
        if what == DEVNULL:
            given.append(os.open(os.devnull, os.O_RDWR))
        else:
            given.append(os.dup(number) if what is None else what)
    return given, kept


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _serve(requests: socket.socket) -> list[str]:
    """Fork a process for each request. Returns in each of them: the arguments of the command."""
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready, _, _ = select.select([requests.fileno(), *children], [], [])
        for pidfd in children.keys() & ready:
            pid, status = children.pop(pidfd)
            with suppress(OSError):  # the test does not wait for it
                status.send(b"%d" % os.waitpid(pid, 0)[1])
            status.close()
            os.close(pidfd)
        if requests.fileno() not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
        if not data:
            os._exit(0)  # the tests are over
        if "holdfast.app.gateway" not in sys.modules:
            _import_all()
        asked = json.loads(data)
        pid = os.fork()
        if pid == 0:
            requests.close()
            _become(asked, fds)
            return list(asked["args"])
        status = socket.socket(fileno=fds.pop())
        pidfd = os.pidfd_open(pid)
        children[pidfd] = pid, status
        for fd in fds:
            os.close(fd)
        with suppress(OSError):
            socket.send_fds(status, [b"%d" % pid], [pidfd])


def _import_all() -> None:
    """Import the product, and what the tests' processes load as plugins."""
    package = importlib.import_module("holdfast")
    for module in pkgutil.walk_packages(package.__path__, "holdfast."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("tests.fakes.tools")
    gc.freeze()


def _become(asked: dict[str, Any], fds: list[int]) -> None:
    """Make this process what `python -m holdfast` would be."""
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    if asked["terminal"]:
        os.setsid()
        _take_terminal()
    os.chdir(asked["cwd"])
    os.umask(asked["umask"])
    os.environ.clear()
    os.environ.update(asked["env"])
    time.tzset()
    random.seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    main = importlib.import_module("holdfast.__main__").__file__
    sys.argv = [str(main), *asked["args"]]
    sys.path[0] = asked["cwd"]
    sys.stdin = _text(0, "r", "surrogateescape")
    sys.stdout = _text(1, "w", "surrogateescape")
    sys.stderr = _text(2, "w", "backslashreplace")
    if asked["tracer"]:
        _be_traced([word for word in asked["tracer"] if word != "-D"])


def _be_traced(tracer: list[str]) -> None:
    """Start the tracer as a process of nobody's, and go on when it has this one."""
    importlib.import_module("tests.fakes.tools").look_at_nothing()
    me = os.getpid()
    if (helper := os.fork()) == 0:
        if os.fork() == 0:
            os.execvp(tracer[0], [*tracer, "-p", str(me)])
        os._exit(0)
    os.waitpid(helper, 0)
    give_up = time.monotonic() + TRACED_S
    while "TracerPid:\t0\n" in Path("/proc/self/status").read_text():
        if time.monotonic() > give_up:
            sys.exit("strace may not attach to a process here")
        time.sleep(0.001)  # sleep: no event tells a process that it is traced


def _text(fd: int, mode: str, errors: str) -> TextIO:
    """Open a standard stream as the interpreter does."""
    buffering = 1 if fd == 2 or os.isatty(fd) else -1
    return cast(TextIO, open(fd, mode, buffering, "utf-8", errors, closefd=False))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # they may have been started with nohup
    with socket.socket(fileno=int(sys.argv[1])) as door:
        _serve(door)
    from holdfast.__main__ import main

    sys.exit(main())
