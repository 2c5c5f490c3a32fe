"""The probe: sets up targets for the canary, and checks which of them it really reached.

Every target is real: a secret file in the user's home and in Holdfast's, listening sockets of this
process, another process of ours with a secret in its environment. Afterwards they are checked from
the outside. The canary's own output counts only for the secrets it read, and for the fact that it
could open a kernel setting for writing. If a target outside of our home cannot be set up, there
is no attempt: it counts neither as blocked nor as open. If our own home is not writable, nothing
can be tested, and an `OSError` is raised.
"""

import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, Process

from holdfast.core.types import Value
from holdfast.tools.sandbox import canary, mounts

_VICTIM = "import sys; sys.stdin.read()"
_JOIN = """
import ctypes, os, sys
for fd in map(int, sys.argv[1].split(",")):
    if ctypes.CDLL(None).setns(fd, 0):
        sys.exit("a namespace cannot be joined")
    os.close(fd)
os.execv(sys.argv[2], sys.argv[2:])
"""
_LOOPBACK = ("127.0.0.1", 0)
_SECRET = ".holdfast-canary-"
ROOM = 4096  # bytes that must be free for the canary in its workspace


class Attempt(StrEnum):
    READ_USER = "read your home"
    READ_HOME = "read Holdfast's home"
    READ_GATEWAY = "read the gateway's environment"
    WRITE = "write outside the workspace"
    REPOSITORY = "change what git runs"
    CHMOD = "change modes outside the workspace"
    KERNEL = "change kernel settings"
    TCP = "connect by TCP"
    UDP = "send by UDP"
    UNIX = "connect to unix sockets"
    ABSTRACT = "connect to abstract sockets"
    SIGNAL = "signal the gateway"


def _clear(user_home: Path) -> None:
    """Remove what a killed probe has left in the user's home."""
    with suppress(OSError):
        for path in user_home.glob(f"{_SECRET}*"):
            pid = path.name.removeprefix(_SECRET).partition("-")[0]
            if pid.isdigit() and not _is_alive(int(pid)):
                path.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class Cage:
    """The targets of one probe. `open_cage` creates and removes them."""

    def __init__(self, home: Path, user_home: Path, clean: ExitStack) -> None:
        folder = home / "canary"
        clean.callback(shutil.rmtree, folder, ignore_errors=True)
        self.workspace = folder / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)
        self._settings = self.workspace / ".git" / "config"
        self._settings.parent.mkdir(exist_ok=True)
        self._settings.write_text("[core]\n")
        self._outside = folder / "outside"
        self._files = {
            Attempt.READ_HOME: folder / "secret",
            Attempt.READ_USER: user_home / f"{_SECRET}{os.getpid()}-{secrets.token_hex(8)}",
        }
        _clear(user_home)
        self._tokens = {Attempt.READ_GATEWAY: secrets.token_hex(16)}
        for attempt, path in self._files.items():
            clean.callback(_remove, path)
            try:
                path.write_text(secrets.token_hex(16))
                path.chmod(0o600)
                self._tokens[attempt] = path.read_text()
            except OSError:
                if attempt is Attempt.READ_HOME:
                    raise
                # The user's home need not be writable for us.
        self._abstract = f"holdfast-{secrets.token_hex(8)}"
        self._sockets = dict(self._listen(clean))

    def check(self) -> None:
        """Raise `OSError` if no process can write to the workspace now, confined or not."""
        path = self.workspace / "room"
        try:
            path.write_bytes(bytes(ROOM))
        finally:
            _remove(path)

    @property
    def victims_environment(self) -> dict[str, str]:
        """The environment of the victim process, with a secret."""
        return {"HOLDFAST_CANARY": self._tokens[Attempt.READ_GATEWAY]}

    def argv(self, victim: int) -> tuple[str, ...]:
        """Return the canary's command line, with all targets."""
        ports = (self._sockets[a].getsockname()[1] for a in (Attempt.TCP, Attempt.UDP))
        return (
            mounts.interpreter(),
            *("-I", "-S", "-c", Path(canary.__file__).read_text()),
            str(self.workspace),
            str(self._files[Attempt.READ_USER]),
            str(self._files[Attempt.READ_HOME]),
            str(self._outside),
            str(victim),
            *map(str, ports),
            self._abstract,
        )

    def ran(self) -> bool:
        """Return whether the canary ran and could write to its workspace."""
        return (self.workspace / "written").exists()

    def reached(self, output: str) -> dict[Attempt, bool]:
        """Return for every target except the process whether it was reached."""
        files = {a: self._files[a] for a in self._tokens if a in self._files}
        changed = any(path.read_text() != self._tokens[a] for a, path in files.items())
        modes = [path.stat().st_mode & 0o777 for path in files.values()]
        return {
            **{attempt: token in output for attempt, token in self._tokens.items()},
            Attempt.WRITE: changed or self._outside.exists(),
            Attempt.REPOSITORY: self._settings.read_text() != "[core]\n",
            Attempt.CHMOD: any(mode != 0o600 for mode in modes),
            Attempt.KERNEL: f"{self._abstract} kernel" in output,
            **{attempt: _was_reached(sock) for attempt, sock in self._sockets.items()},
        }

    def _listen(self, clean: ExitStack) -> list[tuple[Attempt, socket.socket]]:
        tcp = clean.enter_context(socket.socket())
        tcp.bind(_LOOPBACK)
        udp = clean.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        udp.bind(_LOOPBACK)
        found = [(Attempt.TCP, tcp), (Attempt.UDP, udp)]
        fd = os.open(self.workspace, os.O_RDONLY)
        clean.callback(os.close, fd)
        for attempt, address in (
            (Attempt.UNIX, f"/proc/self/fd/{fd}/socket"),  # the path itself may be too long
            (Attempt.ABSTRACT, "\0" + self._abstract),
        ):
            with suppress(OSError):
                unix = clean.enter_context(socket.socket(socket.AF_UNIX))
                unix.bind(address)
                found.append((attempt, unix))
        for attempt, sock in found:
            sock.settimeout(0)
            if attempt is not Attempt.UDP:
                sock.listen()
        return found


@asynccontextmanager
async def open_cage(home: Path, user_home: Path) -> AsyncIterator[tuple[Cage, Process]]:
    """Create the targets and a process that represents the gateway; remove both at the end."""
    with ExitStack() as clean:
        cage = Cage(home, user_home, clean)
        argv = [sys.executable, "-I", "-S", "-c", _VICTIM]
        victim = await anyio.open_process(argv, env=cage.victims_environment, stdout=None)
        try:
            yield cage, victim
        finally:
            with anyio.CancelScope(shield=True):
                await alive(victim)
                await victim.aclose()


class Sent(Value):
    """The result of the canary's process."""

    returncode: int
    stdout: bytes
    stderr: bytes


async def send(
    argv: Sequence[str],
    env: Mapping[str, str],
    pass_fds: Sequence[int],
    namespaces: Sequence[int] = (),
) -> Sent:
    """Run the canary. No process of it remains, even if the caller is cancelled.

    It joins `namespaces` first, as the shim does for commands.

    The sandbox program is killed together with its process group: bubblewrap's child first waits
    for a message of its parent, and only then asks the kernel to die with it. Otherwise it would
    wait for ever.
    """
    # Shielded, because a cancellation here would kill only the parent.
    if namespaces:
        fds = ",".join(map(str, namespaces))
        argv = (sys.executable, "-I", "-S", "-c", _JOIN, fds, *argv)
    with ExitStack() as clean, anyio.CancelScope(shield=True):
        nothing = os.open(os.devnull, os.O_RDONLY)
        clean.callback(os.close, nothing)
        process = await anyio.open_process(
            argv, stdin=nothing, env=env, pass_fds=(*pass_fds, *namespaces), start_new_session=True
        )
    output: dict[str, bytes] = {}

    async def read(name: str, stream: ByteReceiveStream | None) -> None:
        if stream is not None:
            output[name] = b"".join([chunk async for chunk in stream])

    try:
        async with anyio.create_task_group() as reading:
            reading.start_soon(read, "stdout", process.stdout)
            reading.start_soon(read, "stderr", process.stderr)
        return Sent(await process.wait(), **output)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def alive(victim: Process) -> bool:
    """End the process; return whether it had lived until now."""
    if victim.stdin is not None:
        await victim.stdin.aclose()
    return await victim.wait() == 0


def _was_reached(sock: socket.socket) -> bool:
    try:
        if sock.type == socket.SOCK_DGRAM:
            return bool(sock.recv(16))
        sock.accept()[0].close()
    except BlockingIOError:
        return False
    return True
