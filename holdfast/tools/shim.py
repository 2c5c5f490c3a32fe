"""The shim: one small process between the gateway and each command it runs.

Promises: a call is claimed, durably, before its command starts, so it starts once at most,
whatever is killed when. No process of the command outlives its end, its time limit, or the
gateway (unless it was granted to): the shim is the subreaper of the tree and holds a pidfd of
the gateway. How it ended is a file put in place by rename, for whoever is there to read it.
Output is kept from both ends up to a cap, and never makes the command wait.

Theory: everybody is found by being a descendant, which only holds while the shim lives; so it
is single-threaded, small, in a session of its own, and its end is the signal that all is over.
To kill is to freeze, look again until nobody new is found, and only then to kill: what is
frozen cannot fork. The gateway speaks to it in signals: TERM means stop.

Runs as `python -I -S shim.py`, the job marshalled on fd 0; fd 1 and 2 go to the gateway until
the command has started. Imports little (`signal` alone would double the time to start); the
gateway imports it too, for the same hands at boot.
"""

import ctypes
import marshal
import os
import resource
import select
import time

import _signal  # type: ignore[import-not-found]  # `signal` without its enums

HEAD = 5 * 2**20  # bytes of output kept from the beginning
RING = 5 * 2**20  # and from the end
CHUNK = 2**16  # read at once; a reader of the ring stays clear of this much
KEPT = HEAD + RING - CHUNK  # output up to here is whole
HEADER = 8  # the spool begins with the number of bytes stored

GRACE_S = 2.0  # between TERM and KILL
LAST_S = 0.7  # for the killed to be gone; who is not is reported
LOOK_S = 0.1  # between looks at a limited tree's memory

MARK = "HOLDFAST_CALL"  # names, in the environment, whose process it is when its shim is gone

Identity = tuple[int, int]  # pid and start time: a pid alone may be somebody else by now

_PR_SET_CHILD_SUBREAPER = 36
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def processes() -> dict[int, Identity]:
    """Pid → (parent's pid, start time) of every living process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))) and fields[0] not in (b"Z", b"X"):
            found[int(name)] = (int(fields[1]), int(fields[19]))
    return found


def identity(pid: int) -> Identity | None:
    """Who `pid` is now; nobody if there is no such process."""
    fields = _stat(pid)
    return (pid, int(fields[19])) if fields else None


def _stat(pid: int) -> list[bytes]:
    return _proc(pid, "stat").rpartition(b")")[2].split()


def _proc(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.readall()
    except _GONE:
        return b""


def find(roots: list[Identity], mark: str = "") -> set[int]:
    """The living among `roots`, those that carry `mark`, and all their descendants; never me."""
    table = processes()
    found = {pid for pid, start in roots if pid in table and table[pid][1] == start}
    if mark:
        word = f"{MARK}={mark}".encode()
        found |= {pid for pid in table if word in _proc(pid, "environ").split(b"\0")}
    while more := {p for p, (parent, _) in table.items() if parent in found and p not in found}:
        found |= more
    return found - {os.getpid()}


def strike(roots: list[Identity], mark: str = "") -> None:
    """Freeze until nobody new is found, then kill them all."""
    frozen: set[int] = set()
    while new := find(roots, mark) - frozen:
        send(new, _signal.SIGSTOP)
        frozen |= new
    send(frozen, _signal.SIGKILL)


def send(pids: set[int], number: int) -> None:
    """Signal everybody who can be signalled."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def put(path: str, data: bytes) -> None:
    """Put a file in place, whole or not at all."""
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(path + ".new", path)


def place(offset: int) -> tuple[int, int]:
    """Where in the spool a byte of output is, and how many follow it in one piece."""
    if offset < HEAD:
        return HEADER + offset, HEAD - offset
    turn = (offset - HEAD) % RING
    return HEADER + HEAD + turn, RING - turn


class Job:
    """What is to be done. Filled from a dict: anything that checks costs milliseconds."""

    claim: bytes  # the first line of the claim: whose it is
    folder: str
    gateway: Identity
    argv: list[bytes]
    cwd: bytes
    env: dict[bytes, bytes]
    timeout_s: float
    stdin: int  # an fd, or -1
    terminal: tuple[int, int] | None  # master and slave
    memory: int  # bytes, 0 for no limit
    detach: bool

    def __init__(self, fields: dict[str, object]) -> None:
        self.__dict__.update(fields)


class Spool:
    """The first and the last of the output; what is between is counted."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        self._stored = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        """Take `data`, and drop what is too much."""
        if self._stored == self.total:
            try:
                self._store(data)
            except OSError:  # disk full: from here on it is only counted
                self.total = max(self.total, self._stored)
        self.total += len(data)

    def _store(self, data: bytes) -> None:
        offset, view = self._stored, memoryview(data)
        while view:
            position, run = place(offset)
            written = os.pwrite(self._fd, view[:run], position)
            offset, view = offset + written, view[written:]
        os.pwrite(self._fd, offset.to_bytes(HEADER, "little"), 0)
        self._stored = offset

    @property
    def truncated(self) -> bool:
        """Some of it cannot be read any more."""
        return self._stored < self.total or self.total > KEPT

    def sync(self) -> None:
        """Make it durable."""
        if self.total:
            os.fdatasync(self._fd)


class Shim:
    """One command, from its claim to the record of its end."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._me = identity(os.getpid()) or (os.getpid(), 0)
        self._wake, writing = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(writing, False)
        _signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGINT):
            _signal.signal(number, lambda number, frame: None)
        self._cause = "exited"
        self._status: int | None = None  # of the command itself
        self._kill_at: float | None = None  # set once it was told to end
        self._over = False
        self._survivors: set[int] = set()

    def run(self, now: object = time.monotonic) -> bool:
        """Claim, start, see to its end, and record it. False if it was claimed before."""
        assert callable(now)
        self._now = now
        gateway = os.pidfd_open(self._job.gateway[0])  # raises if it is gone
        if identity(self._job.gateway[0]) != self._job.gateway:
            raise ProcessLookupError("the gateway is gone")
        claim = self._claim()
        if claim is None:
            return False
        try:
            self._start(claim)
            self._see_to(gateway)
            self._record()
        finally:
            self._kill()
        return True

    def _claim(self) -> int | None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            claim = os.open(self._job.folder + "/claim", flags, 0o600)
        except FileExistsError:
            return None
        os.write(claim, self._job.claim + b"\n%d %d\n" % self._me)
        os.fsync(claim)
        for name in (self._job.folder, os.path.dirname(self._job.folder)):
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            os.fsync(folder)
            os.close(folder)
        return claim
