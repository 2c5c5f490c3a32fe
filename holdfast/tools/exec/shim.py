"""The shim: one small process between the gateway and each command it runs.

Promises: a call is claimed, durably, before its command starts, so it starts once at most,
whatever is killed when. No process of the command outlives the command, its time limit, or
the gateway (unless granted to). How it ended is a file put in place by rename, for whoever
is there to read it. Output is kept from both ends up to a cap and never makes the command wait.

Theory: a process belongs to the command if it descends from the shim, the subreaper of the
tree. That holds while the shim lives; so it is small, single-threaded and in a session of its
own, and its end means that all is over. To kill is to freeze, to look again until nobody new
is found, and then to kill: the frozen cannot fork. A look at /proc may still miss somebody (a
fork that was under way, a parent that ended between two reads), so it proves nothing: all is
over when the kernel says that the shim has no child. Whatever goes wrong in here, the tree is
killed first. The gateway is watched by pidfd, and speaks in signals: TERM means stop.

Runs as `python -I -S shim.py` with the job marshalled on fd 0; fds 1 and 2 go to the gateway
until the command has started. Whatever it imports is paid for by every command. The gateway
imports it too, for the same hands at boot and for the layout of the files.
"""

import _signal  # type: ignore[import-not-found]  # `signal` builds enums for as long as all else
import ctypes
import errno
import marshal
import os
import resource
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HEAD = 5 * 2**20  # bytes of output kept from the beginning
RING = 5 * 2**20  # and from the end
CHUNK = 2**16  # read at once; a reader of the ring keeps clear of this much
KEPT = HEAD + RING - CHUNK  # output up to this size can be read whole
HEADER = 8  # the spool begins with the number of bytes stored

GRACE_S = 2.0  # between TERM and KILL
HEIRS_S = 0.15  # for what is left when the command itself has heeded TERM
LAST_S = 0.7  # for the killed to be gone; who is not is reported
FORKERS_S = 2.0  # and for those that still multiply
LOOK_S = 0.1  # between looks at a tree that has a memory limit, or was told to end

MARK = "HOLDFAST_CALL"  # in the environment: whose process it is, should its shim be gone

Identity = tuple[int, int]  # pid and start time: a pid alone may be somebody else by now

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_WALL = 0x40000000  # wait for every child, whatever signal it was cloned to end with
_DRAINS = 256  # a pipe holds one chunk, a terminal a few lines; more means somebody still writes


def processes() -> dict[int, Identity]:
    """Pid → (parent's pid, start time) of every living process."""
    found = {}
    for name in filter(str.isdigit, _names("/proc")):
        fields = _stat(int(name))
        # Where the first thread has ended and others go on, the state is that of the first.
        if fields and (fields[0] not in (b"Z", b"X") or int(fields[17]) > 1):
            found[int(name)] = (int(fields[1]), int(fields[19]))
    return found


def identity(pid: int) -> Identity | None:
    """Who `pid` is now; None if nobody."""
    fields = _stat(pid)
    return (pid, int(fields[19])) if fields else None


def _stat(pid: int) -> list[bytes]:
    fields = _proc(pid, "stat").rpartition(b")")[2].split()
    return fields if len(fields) > 19 else []


# Who is not there, or not ours to look at, has nothing to say; no look may fail because of one.


def _proc(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def find(roots: list[Identity], mark: str = "") -> set[int]:
    """The living among `roots`, those that carry `mark`, and all their descendants; never me."""
    table = processes()
    found = {pid for pid, start in roots if pid in table and table[pid][1] == start}
    if mark:
        word = f"{MARK}={mark}".encode()
        found |= {pid for pid in table if word in _environ(pid)}
    while more := {p for p, (parent, _) in table.items() if parent in found and p not in found}:
        found |= more
    return found - {os.getpid()}


def _environ(pid: int) -> list[bytes]:
    """As it was when its program began; of any thread, should the first have ended."""
    tasks = (f"task/{task}/environ" for task in _names(f"/proc/{pid}/task"))
    text = _proc(pid, "environ") or next(filter(None, (_proc(pid, name) for name in tasks)), b"")
    return text.split(b"\0")


def strike(look: "Callable[[], Iterable[int]]") -> set[int]:
    """Freeze until `look` finds nobody new, then kill them all; who that was."""
    frozen: set[int] = set()
    while new := set(look()) - frozen:
        send(new, _signal.SIGSTOP)
        frozen |= new
    send(frozen, _signal.SIGKILL)
    return frozen


def send(pids: "Iterable[int]", number: int) -> None:
    """Signal everybody who is there and whom we may, in that order."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def put(path: str, data: bytes) -> None:
    """Put a file in place, durably, whole or not at all."""
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(path + ".new", path)


def _write(fd: int, data: bytes) -> None:
    if os.write(fd, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def place(offset: int) -> tuple[int, int]:
    """Where in the spool a byte of output is, and how many follow it there in one piece."""
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
    terminal: tuple[int, int] | None  # master, slave
    pass_fds: list[int]  # what else the command inherits
    memory: int  # bytes, 0 for no limit
    detach: bool
    umask: int

    def __init__(self, fields: dict[str, object]) -> None:
        self.__dict__.update(fields)


class Spool:
    """The first and the last of the output; what is between is counted."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        self._full = False
        self.total = 0

    def add(self, data: bytes) -> None:
        """Take `data`, and drop what is too much."""
        if not self._full:
            try:
                self._store(data)
            except OSError:  # no space: from here on it is only counted
                self._full = True
        self.total += len(data)

    def _store(self, data: bytes) -> None:
        offset, view = self.total, memoryview(data)
        while view:
            position, run = place(offset)
            written = os.pwrite(self._fd, view[:run], position)
            offset, view = offset + written, view[written:]
        os.pwrite(self._fd, offset.to_bytes(HEADER, "little"), 0)

    @property
    def truncated(self) -> bool:
        """Some of it cannot be read any more."""
        return self._full or self.total > KEPT

    def sync(self) -> None:
        """Make it durable."""
        if self.total:
            os.fdatasync(self._fd)


class Shim:
    """One command, from its start to the record of its end."""

    def __init__(
        self, job: Job, gateway: int, wake: int, now: "Callable[[], float]" = time.monotonic
    ) -> None:
        self._job = job
        self._gateway = gateway
        self._wake = wake
        self._now = now
        self._me = identity(os.getpid()) or (os.getpid(), 0)
        self._ooms = _ooms()
        self._spool = Spool(job.folder + "/output")
        self._pid, self._output = 0, -1
        self._began = self._look_at = now()
        self._kill_at: float | None = None  # set once it was told to end
        self._told: set[int] = set()
        self._cause = "exited"
        self._status: int | None = None  # of the command itself, once it has ended
        self._usage: resource.struct_rusage | None = None
        self._over = False

    def run(self, claim: int) -> None:
        """Start it, see to its end, and record it."""
        try:
            self._pid, self._output = _start(self._job)
            self._began = self._look_at = self._now()
            _write(claim, b"%d %d\n" % (identity(self._pid) or (self._pid, 0)))
            _report(b"started %d\n" % self._pid)
            self._see_to()
            self._record()
        finally:
            if not self._over:
                self._kill()

    def _see_to(self) -> None:
        poller = select.poll()
        # The gateway first: a TERM from the next one must not hide that ours has gone.
        for fd in (*([] if self._job.detach else [self._gateway]), self._wake, self._output):
            poller.register(fd, select.POLLIN)
        while self._reap():
            self._check()
            if self._over:
                break
            for fd, _ in poller.poll(self._pause_s() * 1000):
                if fd == self._wake:
                    self._hear()
                elif fd == self._gateway:
                    self._end("orphaned")
                elif self._take() == b"":
                    poller.unregister(fd)
        for _ in range(_DRAINS):
            if not self._take():
                break

    def _pause_s(self) -> float:
        until = self._began + self._job.timeout_s if self._kill_at is None else self._kill_at
        if self._job.memory or self._kill_at is not None:
            until = min(until, self._look_at)
        return min(max(0.0, until - self._now()) + 0.001, 3600.0)

    def _hear(self) -> None:
        if self._signals() - {_signal.SIGCHLD}:
            self._stop("killed")

    def _signals(self) -> set[int]:
        try:
            return set(os.read(self._wake, 512))
        except BlockingIOError:  # they were taken since somebody saw them
            return set()

    def _take(self) -> bytes | None:
        try:
            data = os.read(self._output, CHUNK)
        except BlockingIOError:
            return None
        except OSError:  # a terminal that nobody has open any more
            return b""
        self._spool.add(data)
        return data

    def _reap(self) -> bool:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG | _WALL)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self._status, self._usage = status, usage

    def _check(self) -> None:
        now = self._now()
        if self._kill_at is not None:
            self._insist(self._kill_at, now)
        elif self._status is not None:  # it is done, and so is whatever it left behind
            self._kill()
        elif now >= self._began + self._job.timeout_s:
            self._stop("timeout")
        elif self._job.memory and now >= self._look_at:
            self._look_at = now + LOOK_S
            if _memory(self._tree(), self._job.memory) > self._job.memory:
                self._end("memory")

    def _insist(self, kill_at: float, now: float) -> None:
        if self._status is not None:
            kill_at = self._kill_at = min(kill_at, now + HEIRS_S)
        if now >= kill_at:
            self._kill()
        elif now >= self._look_at:
            self._tell()

    def _end(self, cause: str) -> None:
        self._reap()
        if self._status is None and self._kill_at is None:
            self._cause = cause
        self._kill()

    def _stop(self, cause: str) -> None:
        self._reap()
        if self._status is None and self._kill_at is None:
            self._cause, self._kill_at = cause, self._now() + GRACE_S
            self._tell()

    def _tell(self) -> None:
        """Ask everybody to end who was not asked before; a parent before it sees its child end."""
        tree = self._tree()
        # The outer process of a sandbox takes the inner ones with it, before they could tidy up.
        mine = _depth(self._me[0])
        inner = [pid for pid in tree if _depth(pid) > mine]
        new = [pid for pid in inner or tree if pid not in self._told]
        send(new, _signal.SIGTERM)
        if self._job.terminal:
            send(new, _signal.SIGHUP)
        send(new, _signal.SIGCONT)
        self._told.update(new)
        self._look_at = self._now() + LOOK_S

    def _tree(self) -> list[int]:
        return _offspring(self._me[0]) or sorted(find([self._me]))

    def _kill(self) -> None:
        """Until none is left, or only such as were struck and stay, as it seems, for ever."""
        began = self._now()
        ended = select.poll()
        ended.register(self._wake, select.POLLIN)
        struck: set[int] = set()
        while self._reap():
            new = strike(self._tree) - struck
            struck |= new
            if self._now() >= began + (FORKERS_S if new else LAST_S):
                break
            ended.poll(20)
            self._signals()
        self._over = True

    def _record(self) -> None:
        status, usage = self._status, self._usage
        code = None if status is None else os.waitstatus_to_exitcode(status)
        if self._cause == "exited" and code in (-9, 137) and _ooms() > self._ooms:
            self._cause = "memory"
        self._spool.sync()
        fields = {
            "exit_code": "null" if code is None or code < 0 else code,
            "signal": "null" if code is None or code >= 0 else -code,
            "cause": f'"{self._cause}"',
            "duration_s": round(self._now() - self._began, 4),
            "output_bytes": self._spool.total,
            "truncated": "true" if self._spool.truncated else "false",
            "survivors": sorted(find([self._me])) if self._reap() else [],
            "user_s": usage.ru_utime if usage else 0,
            "system_s": usage.ru_stime if usage else 0,
            "max_rss_kb": usage.ru_maxrss if usage else 0,
        }
        text = ", ".join(f'"{name}": {value}' for name, value in fields.items())
        put(self._job.folder + "/exit.json", b"{%s}\n" % text.encode())


def _listen() -> int:
    """Signals from here on are bytes in a pipe."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    _signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGINT):
        _signal.signal(number, lambda number, frame: None)
    return reading


def _start(job: Job) -> tuple[int, int]:
    """The command's pid and where its output can be read."""
    output, theirs = job.terminal or os.pipe()
    os.set_blocking(output, False)
    ours = [fd for fd in (output, theirs, job.stdin) if fd >= 0]
    for fd in ours:
        os.set_inheritable(fd, False)  # noqa: FBT003 — the name of the flag is the name of the call
    # A signal that comes before the command is itself must wait for it, not meet our handlers.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        try:
            _become(job, theirs)
        except (OSError, ValueError) as error:  # a value error: a nul in an argument
            why = error.strerror if isinstance(error, OSError) else str(error)
            os.write(2, b"%s: %s\n" % (job.argv[0], str(why).encode()))
        finally:
            os._exit(127)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    for fd in (*ours[1:], *job.pass_fds):
        os.close(fd)
    return pid, output


def _become(job: Job, output: int) -> None:
    """In the child: turn into the command."""
    if job.terminal:
        os.login_tty(output)
    else:
        os.setsid()  # or `kill 0` in the command would mean the shim too
        os.dup2(job.stdin if job.stdin >= 0 else os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
    _signal.set_wakeup_fd(-1)
    for number in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}:
        _signal.signal(number, _signal.SIG_DFL)  # what is ignored stays so across exec
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    _limit(resource.RLIMIT_CORE, 0)
    if job.memory:
        # The limit is kept by looking at the tree; this is for what grows faster than we look.
        _limit(resource.RLIMIT_DATA, 4 * job.memory)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # if somebody must go, then it, not the gateway
    except OSError:  # a read-only /proc
        pass
    os.umask(job.umask)
    os.chdir(job.cwd)
    os.execve(job.argv[0], job.argv, job.env)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _depth(pid: int) -> int:
    """In how many pid namespaces it has a pid."""
    for line in _proc(pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return len(line.split()) - 1
    return 0


def _offspring(pid: int) -> list[int]:
    """All descendants, parents first, without looking at everybody; where the kernel has a list."""
    found, seen = [pid], {pid}
    for one in found:
        for task in _names(f"/proc/{one}/task"):
            children = map(int, _proc(one, f"task/{task}/children").split())
            new = [child for child in children if child not in seen]
            found += new
            seen.update(new)
    return found[1:]


def _memory(pids: list[int], limit: int) -> int:
    """What a tree holds. Pages shared after a fork count once, if it comes to that."""
    page = os.sysconf("SC_PAGESIZE")
    own = {pid: int(f[1]) - int(f[2]) for pid in pids if (f := _proc(pid, "statm").split())}
    if sum(own.values()) * page <= limit:
        return 0
    return sum(_share(pid) or pages * page for pid, pages in own.items())


def _share(pid: int) -> int:
    for line in _proc(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Pss_Anon:"):
            return int(line.split()[1]) * 1024
    return 0


def _ooms() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    with open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


def _claim(job: Job) -> int | None:
    """Make this call ours, durably; None if it was somebody's before."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        claim = os.open(job.folder + "/claim", flags, 0o600)
    except FileExistsError:
        return None
    _write(claim, job.claim + b"\n%d %d\n" % (identity(os.getpid()) or (0, 0)))
    os.fsync(claim)
    for name in (job.folder, os.path.dirname(job.folder)):
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fsync(folder)
        os.close(folder)
    return claim


def _report(line: bytes) -> None:
    """Tell the gateway, and then hold nothing of it."""
    try:
        os.write(1, line)
    except BrokenPipeError:  # it has gone; its pidfd says so too
        pass
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def main() -> None:
    """Do the job on fd 0, unless it was done before or nobody wants it any more."""
    with open(0, "rb", closefd=False) as file:
        job = Job(marshal.load(file))
    if ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError("this system lets nobody answer for a whole tree")
    wake = _listen()
    gateway = os.pidfd_open(job.gateway[0])  # raises if it has gone
    gone, _, _ = select.select([gateway], [], [], 0)  # or has ended, and nobody has noticed
    if gone or identity(job.gateway[0]) != job.gateway:
        return
    claim = _claim(job)
    if claim is None:
        _report(b"claimed\n")
    else:
        Shim(job, gateway, wake).run(claim)
    os._exit(0)  # there is nothing to flush, and somebody waits


if __name__ == "__main__":
    main()
