"""Who owns the home: whoever holds this lock, for as long as it lives.

It is a `flock`: the kernel lets go of it when the process ends, however it ends, so no
leftover of a dead owner can block the next. What stands in the file (pid, kind, address)
is for people who wonder; nothing is decided by it.

A gateway waits for the lock. If a terminal has it, which only embeds the engine until
somebody better comes, it is asked to hand over, and goes on as a client.
"""

import fcntl
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.core.types import Value
from holdfast.errors import Misconfigured
from holdfast.gateway import HANDOVER

FILE = "run/lock"
SOCKET = "run/front.sock"  # where the owner serves the operator's door
_ASK_S = 2.0


class Owner(Value):
    """What an owner says of itself."""

    pid: str
    kind: str  # "gateway", "terminal", or empty while it starts
    address: str  # of a gateway


class Lock:
    """The lock, held until it is released or the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.describe("", "")

    def describe(self, kind: str, address: str) -> None:
        """Say who has it, for people."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n{kind}\n{address}\n".encode(), 0)

    def release(self) -> None:
        """Let somebody else own the home."""
        os.close(self._descriptor)


def take_lock(home: Path) -> Lock | None:
    """The lock, if nobody has it."""
    descriptor = _open(home)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return Lock(descriptor)


def wait_for_lock(home: Path, say: Callable[[str], None]) -> Lock:
    """The lock, as soon as whoever has it ends or hands over. Says so if that is not now."""
    if (lock := take_lock(home)) is not None:
        return lock
    descriptor = _open(home)
    owner = read_owner(home)
    what = "a terminal's" if owner.kind == "terminal" else "another Holdfast's"
    say(f"The home {home} is {what} (pid {owner.pid}); waiting for it.")
    _ask_for(home)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return Lock(descriptor)


def read_owner(home: Path) -> Owner:
    """What the last owner has said of itself. It may be gone: only the lock tells."""
    try:
        lines = (home / FILE).read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    pid, kind, address, *_ = (*lines, "", "", "")
    return Owner(pid or "unknown", kind, address)


def _ask_for(home: Path) -> None:
    """Ask whoever has the home to hand it over. A gateway does not, and need not answer."""
    request = f"POST {HANDOVER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    with suppress(OSError), socket.socket(socket.AF_UNIX) as front:
        front.settimeout(_ASK_S)
        front.connect(str(home / SOCKET))
        front.sendall(request.encode())
        front.recv(1024)


def _open(home: Path) -> int:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / "run").mkdir(mode=0o700, exist_ok=True)
        os.chmod(home / "run", 0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(home / FILE, flags, 0o600)
    except OSError as error:
        raise Misconfigured(
            f"the home {home} cannot be used: {error.strerror}: {error.filename}",
            "set HOLDFAST_HOME to a directory that you own",
        ) from None
