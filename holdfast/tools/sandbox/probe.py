"""The cage: what the canary goes for, and what of it was really reached.

Every target is real and of the kind it stands for: a secret file in the user's home and in
ours, listening sockets of this process, a process beside us with a secret in its environment.
All of it is looked at from the outside afterwards; nothing is taken from the canary's word
but the secrets it read, and that it could open a kernel setting for writing. A target outside
of our home that cannot be set up is no attempt: it counts neither as blocked nor as open. Where
our own home cannot be written to there is no cage, and nothing can be learned: an `OSError`.
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
from holdfast.tools import canary, view

_VICTIM = "import sys; sys.stdin.read()"
_LOOPBACK = ("127.0.0.1", 0)
_SECRET = ".holdfast-canary-"
ROOM = 4096  # bytes that the canary must be able to write where it may


class Attempt(StrEnum):
    READ_USER = "read your home"
    READ_HOME = "read Holdfast's home"
    READ_GATEWAY = "read the gateway's environment"
    WRITE = "write outside the workspace"
    CHMOD = "change modes outside the workspace"
    KERNEL = "change kernel settings"
    TCP = "connect by TCP"
    UDP = "send by UDP"
    UNIX = "connect to unix sockets"
    ABSTRACT = "connect to abstract sockets"
    SIGNAL = "signal the gateway"


def _clear(user_home: Path) -> None:
    """Remove what a killed try has left in the user's home."""
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
    """The targets of one try; `open_cage` makes one and clears it away."""

    def __init__(self, home: Path, user_home: Path, clean: ExitStack) -> None:
        folder = home / "canary"
        clean.callback(shutil.rmtree, folder, ignore_errors=True)
        self.workspace = folder / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)
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
                # else the user's home, which we need not be able to write to
        self._abstract = f"holdfast-{secrets.token_hex(8)}"
        self._sockets = dict(self._listen(clean))

    def check(self) -> None:
        """Raise `OSError` if nobody could work in the workspace now, confined or not."""
        path = self.workspace / "room"
        try:
            path.write_bytes(bytes(ROOM))
        finally:
            _remove(path)

    @property
    def victims_environment(self) -> dict[str, str]:
        """What the process beside us keeps to itself."""
        return {"HOLDFAST_CANARY": self._tokens[Attempt.READ_GATEWAY]}

    def argv(self, victim: int) -> tuple[str, ...]:
        """The canary, told where everything is."""
        ports = (self._sockets[a].getsockname()[1] for a in (Attempt.TCP, Attempt.UDP))
        return (
            view.interpreter(),
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
        """Whether the canary lived and could work where it may."""
        return (self.workspace / "written").exists()

    def reached(self, output: str) -> dict[Attempt, bool]:
        """For every target but the process: was it reached?"""
        files = {a: self._files[a] for a in self._tokens if a in self._files}
        changed = any(path.read_text() != self._tokens[a] for a, path in files.items())
        modes = [path.stat().st_mode & 0o777 for path in files.values()]
        return {
            **{attempt: token in output for attempt, token in self._tokens.items()},
            Attempt.WRITE: changed or self._outside.exists(),
            Attempt.CHMOD: any(mode != 0o600 for mode in modes),
            Attempt.KERNEL: f"{self._abstract} kernel" in output,
            **{attempt: _heard(sock) for attempt, sock in self._sockets.items()},
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
    """Targets, and the process that stands for the gateway; both gone at the end."""
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
    """How the canary came back."""

    returncode: int
    stdout: bytes
    stderr: bytes


async def send(argv: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int]) -> Sent:
    """Run the canary. Nothing of it is left, even if nobody waits for it any more.

    What confines it is killed with all its group: bubblewrap's child waits for its parent's word
    before it is told to die with it, and would wait for ever.
    """
    with ExitStack() as clean, anyio.CancelScope(shield=True):  # else only the parent is killed
        nothing = os.open(os.devnull, os.O_RDONLY)
        clean.callback(os.close, nothing)
        process = await anyio.open_process(
            argv, stdin=nothing, env=env, pass_fds=pass_fds, start_new_session=True
        )
    said: dict[str, bytes] = {}

    async def hear(name: str, stream: ByteReceiveStream | None) -> None:
        if stream is not None:
            said[name] = b"".join([chunk async for chunk in stream])

    try:
        async with anyio.create_task_group() as hearing:
            hearing.start_soon(hear, "stdout", process.stdout)
            hearing.start_soon(hear, "stderr", process.stderr)
        return Sent(await process.wait(), **said)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def alive(victim: Process) -> bool:
    """End it, and say whether it had lived until now."""
    if victim.stdin is not None:
        await victim.stdin.aclose()
    return await victim.wait() == 0


def _heard(sock: socket.socket) -> bool:
    try:
        if sock.type == socket.SOCK_DGRAM:
            return bool(sock.recv(16))
        sock.accept()[0].close()
    except BlockingIOError:
        return False
    return True
