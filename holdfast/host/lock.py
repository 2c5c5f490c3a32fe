"""The lock on the home: the process that holds it owns the home until it ends.

The kernel releases the lock when the process ends, however it ends, and no child inherits it, not
even one that is stopped between fork and exec. So a dead owner never blocks the next one. This
kind of lock has one trap: the process loses it when it closes *any* descriptor of the file.
Therefore only this module opens the file, and the description of the owner (pid, kind, address)
is in a separate file. That text is for people; no decision depends on it.

If the lock file is removed, a second process can take the lock, but it gets no further: only one
process can open the journal for writing (`journal/sqlite/writer.py`).

A gateway waits for the lock. A terminal that holds it embeds the engine only until a gateway
starts: it is asked to hand the home over, and continues as a client.
"""

import fcntl
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.core.types import Value
from holdfast.errors import Misconfigured
from holdfast.gateway import HANDOVER

FILE = "run/lock"
OWNER = "run/owner"
SOCKET = "run/front.sock"  # the owner's socket for the operator
_OTHERS = 0o077
_WRITABLE = 0o022
_ASK_S = 2.0


class Owner(Value):
    """The description of an owner."""

    pid: str
    kind: str  # "gateway", "terminal", or empty while it starts
    address: str  # of a gateway


class Lock:
    """The lock, held until it is released or the process ends."""

    def __init__(self, home: Path, descriptor: int) -> None:
        self._home = home
        self._descriptor = descriptor
        _HELD.add(home)

    def describe(self, kind: str, address: str) -> None:
        """Write the description of the owner, for people."""
        with open(self._home / OWNER, "w", encoding="utf-8", opener=_private) as file:
            file.write(f"{os.getpid()}\n{kind}\n{address}\n")

    def release(self) -> None:
        """Let another process own the home."""
        _HELD.discard(self._home)
        os.close(self._descriptor)


_HELD: set[Path] = set()  # homes of this process, as its own locks do not exclude itself


def take_lock(home: Path) -> Lock | None:
    """Take the lock; None if another process has it."""
    home = home.resolve()
    if home in _HELD:
        return None
    descriptor = _open(home)
    if not _claim(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
        os.close(descriptor)
        return None
    return _still_named(home, descriptor) or take_lock(home)


def wait_for_lock(home: Path, say: Callable[[str], None]) -> Lock:
    """Wait until the owner ends or hands over, then take the lock. Tell the user if it waits."""
    if (lock := take_lock(home)) is not None:
        return lock
    home = home.resolve()
    owner = read_owner(home)
    what = "a terminal" if owner.kind == "terminal" else "another Holdfast"
    say(f"The home {home} is in use by {what} (pid {owner.pid}); waiting for it.")
    _ask_for(home)
    while True:
        descriptor = _open(home)
        _claim(descriptor, fcntl.LOCK_EX)
        if (lock := _still_named(home, descriptor)) is not None:
            return lock


def is_locked(home: Path) -> bool:
    """Tell if a process owns the home, by trying a shared lock, which this call releases."""
    if home.resolve() in _HELD:
        return True
    try:
        with open(home / FILE, "rb") as file:
            return not _claim(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False


def read_owner(home: Path) -> Owner:
    """Return the description of the last owner, which may have ended since."""
    try:
        lines = (home / OWNER).read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    pid, kind, address, *_ = (*lines, "", "", "")
    return Owner(pid or "unknown", kind, address)


def _claim(descriptor: int, operation: int) -> bool:
    """Lock the file; False: another process has it, and `operation` does not wait.

    Holdfast 0.1 used `flock`, so during an upgrade that lock is checked too.
    """
    try:
        fcntl.lockf(descriptor, operation)
        fcntl.flock(descriptor, operation)
    except (BlockingIOError, PermissionError):  # depending on the system
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _still_named(home: Path, descriptor: int) -> Lock | None:
    """Return the lock, unless its file was removed or replaced before it was locked."""
    try:
        if os.path.samestat(os.stat(home / FILE), os.fstat(descriptor)):
            return Lock(home, descriptor)
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _ask_for(home: Path) -> None:
    """Ask the owner to hand the home over. A gateway does not do so, and may not answer."""
    request = f"POST {HANDOVER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    with suppress(OSError), socket.socket(socket.AF_UNIX) as front:
        front.settimeout(_ASK_S)
        front.connect(str(home / SOCKET))
        front.sendall(request.encode())
        front.recv(1024)


def not_private(home: Path) -> Misconfigured | None:
    """Return why a home cannot be trusted: another user owns it, or can write to it."""
    found = home.stat()
    if found.st_uid != os.geteuid():
        return Misconfigured(
            f"the home {home} belongs to another user (uid {found.st_uid})",
            "run Holdfast as that user, or set HOLDFAST_HOME to a directory that you own",
        )
    if found.st_mode & _WRITABLE:
        return Misconfigured(
            f"other users may write in the home {home} (mode {stat.S_IMODE(found.st_mode):04o})",
            "check that its files are yours, then run: holdfast doctor --fix",
        )
    return None


def _keep_private(home: Path) -> None:
    """Refuse a home that other users can write to; make one private that they can only read."""
    if (refused := not_private(home)) is not None:
        raise refused
    if home.stat().st_mode & _OTHERS:
        home.chmod(0o700)


def _open(home: Path) -> int:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _keep_private(home)
        (home / "run").mkdir(mode=0o700, exist_ok=True)
        os.chmod(home / "run", 0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(home / FILE, flags, 0o600)
    except OSError as error:
        raise Misconfigured(
            f"the home {home} cannot be used: {error.strerror}: {error.filename}",
            "set HOLDFAST_HOME to a directory that you own",
        ) from None
