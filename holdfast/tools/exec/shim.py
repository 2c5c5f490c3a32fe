"""The shim: a small process between the gateway and each command. It watches over the command.

Promises: a call is claimed durably before its command starts, so the command starts at most once,
whatever is killed and when. No process of the command outlives the command, its time limit, or
the gateway (unless it is detached). The end of the command is recorded in a file, put in place by
a rename, which any later gateway can read. The beginning and the end of the output are kept up to
a limit, and a slow reader never makes the command wait.

Theory: a process belongs to the command if it descends from the shim, which is the subreaper of
the tree. This is true as long as the shim lives. So the shim is small, single-threaded and in its
own session, and when it ends, the command is over. To kill a tree, the shim stops (SIGSTOP) every
process it finds, looks again until it finds no new one, and then kills them all: a stopped process
cannot fork. Reading /proc can still miss a process (a fork in progress, a parent that ended
between two reads), so an empty result proves nothing. The command is over when the kernel reports
that the shim has no child. After any error in the shim, it kills the tree first. It watches the
gateway by pidfd, and the gateway sends it signals: SIGTERM means stop.

It runs as `python -I -S shim.py` with the job marshalled on fd 0. Fds 1 and 2 go to the gateway
until the command has started. Every import makes every command start later. The gateway imports
this module too, to kill left-over processes at startup and for the layout of the files.
"""

import _signal  # type: ignore[import-not-found]  # `signal` doubles the import time with its enums
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
RING = 5 * 2**20  # bytes of output kept from the end
CHUNK = 2**16  # bytes read at a time; a reader of the ring keeps this distance to its end
KEPT = HEAD + RING - CHUNK  # output up to this size can be read completely
HEADER = 8  # the spool begins with the number of bytes stored

GRACE_S = 2.0  # between SIGTERM and SIGKILL
HEIRS_S = 0.15  # for the other processes, once the command itself has ended after SIGTERM
LAST_S = 0.7  # for killed processes to disappear; those that do not are reported
FORKERS_S = 2.0  # the same while new processes still appear
LOOK_S = 0.1  # between checks of a tree that has a memory limit or was told to end

MARK = "HOLDFAST_CALL"  # environment variable that identifies a process if its shim is gone

Identity = tuple[int, int]  # pid and start time; a pid alone may be reused

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_WALL = 0x40000000  # __WALL: wait for every child, whatever its exit signal
_SCRATCH = ("/tmp", "/var/tmp", "/run", "/dev/shm")  # in a sandbox: file systems in memory
_DRAINS = 256  # reads after the end; a pipe holds one chunk, so more means a process still writes


def processes() -> dict[int, Identity]:
    """Return (parent's pid, start time) of every living process, by pid."""
    found = {}
    for name in filter(str.isdigit, _names("/proc")):
        fields = _stat(int(name))
        # The state is that of the first thread, which can end while others continue.
        if fields and (fields[0] not in (b"Z", b"X") or int(fields[17]) > 1):
            found[int(name)] = (int(fields[1]), int(fields[19]))
    return found


def identity(pid: int) -> Identity | None:
    """Return the identity of the process that has `pid` now; None if there is none."""
    fields = _stat(pid)
    return (pid, int(fields[19])) if fields else None


def _stat(pid: int) -> list[bytes]:
    fields = _proc(pid, "stat").rpartition(b")")[2].split()
    return fields if len(fields) > 19 else []


# A process that is gone, or that we may not inspect, reads as empty: it must not fail the others.


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
    """Return the living `roots`, processes with `mark`, and all descendants; never this process."""
    table = processes()
    found = {pid for pid, start in roots if pid in table and table[pid][1] == start}
    if mark:
        variable = f"{MARK}={mark}".encode()
        found |= {pid for pid in table if variable in _environ(pid)}
    while more := {p for p, (parent, _) in table.items() if parent in found and p not in found}:
        found |= more
    return found - {os.getpid()}


def _environ(pid: int) -> list[bytes]:
    """Return the environment its program started with; from any thread if the first has ended."""
    tasks = (f"task/{task}/environ" for task in _names(f"/proc/{pid}/task"))
    text = _proc(pid, "environ") or next(filter(None, (_proc(pid, name) for name in tasks)), b"")
    return text.split(b"\0")


def strike(look: "Callable[[], Iterable[int]]") -> set[int]:
    """Stop processes until `look` finds no new one, then kill them all; return their pids."""
    frozen: set[int] = set()
    while new := set(look()) - frozen:
        send(new, _signal.SIGSTOP)
        frozen |= new
    send(frozen, _signal.SIGKILL)
    return frozen


def send(pids: "Iterable[int]", number: int) -> None:
    """Send a signal to each process, in this order; skip those that are gone or not permitted."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def put(path: str, data: bytes) -> None:
    """Write a file durably and atomically."""
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
    """Return the position of an output byte in the spool, and how many bytes follow there."""
    if offset < HEAD:
        return HEADER + offset, HEAD - offset
    turn = (offset - HEAD) % RING
    return HEADER + HEAD + turn, RING - turn


class Job:
    """The command to run. Filled from a dict, because validation would cost milliseconds."""

    claim: bytes  # the first line of the claim: the call it belongs to
    folder: str
    gateway: Identity
    argv: list[bytes]
    cwd: bytes
    env: dict[bytes, bytes]
    timeout_s: float
    stdin: int  # an fd, or -1
    terminal: tuple[int, int] | None  # master, slave
    pass_fds: list[int]  # further fds that the command inherits
    namespaces: list[int]  # fds of those that the command joins, in this order
    memory: int  # bytes; 0: no limit
    detach: bool
    umask: int

    def __init__(self, fields: dict[str, object]) -> None:
        self.__dict__.update(fields)


class Spool:
    """Stores the beginning and the end of the output, and counts the bytes in between."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        self._full = False
        self.total = 0

    def add(self, data: bytes) -> None:
        """Store `data`; the oldest bytes after the head may be dropped."""
        if not self._full:
            try:
                self._store(data)
            except OSError:  # no space: from now on only count
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
        """Return whether some of the output was dropped."""
        return self._full or self.total > KEPT

    def sync(self) -> None:
        """Make the stored output durable."""
        if self.total:
            os.fdatasync(self._fd)


class Shim:
    """Runs one command, from its start to the record of its end."""

    def __init__(
        self, job: Job, gateway: int, wake: int, now: "Callable[[], float]" = time.monotonic
    ) -> None:
        self._job = job
        self._gateway = gateway
        self._wake = wake
        self._now = now
        self._me = identity(os.getpid()) or (os.getpid(), 0)
        self._oom_kills = _oom_kills()
        self._spool = Spool(job.folder + "/output")
        self._pid, self._output = 0, -1
        self._began = self._look_at = now()
        self._kill_at: float | None = None  # set when the tree was told to end
        self._terminated: set[int] = set()  # processes that got SIGTERM
        self._cause = "exited"
        self._status: int | None = None  # of the command itself, when it has ended
        self._usage: resource.struct_rusage | None = None
        self._over = False

    def run(self, claim: int) -> None:
        """Start the command, watch it until its end, and record the end."""
        try:
            self._pid, self._output = _start(self._job)
            self._began = self._look_at = self._now()
            _write(claim, b"%d %d\n" % (identity(self._pid) or (self._pid, 0)))
            _report(b"started %d\n" % self._pid)
            self._watch()
            self._record()
        finally:
            if not self._over:
                self._kill()

    def _watch(self) -> None:
        poller = select.poll()
        # The gateway first: a SIGTERM from the next gateway must not hide that ours has ended.
        for fd in (*([] if self._job.detach else [self._gateway]), self._wake, self._output):
            poller.register(fd, select.POLLIN)
        while self._reap():
            self._check()
            if self._over:
                break
            for fd, _ in poller.poll(self._pause_s() * 1000):
                if fd == self._wake:
                    self._on_signal()
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

    def _on_signal(self) -> None:
        if self._signals() - {_signal.SIGCHLD}:
            self._stop("killed")

    def _signals(self) -> set[int]:
        try:
            return set(os.read(self._wake, 512))
        except BlockingIOError:  # already read since the poll
            return set()

    def _take(self) -> bytes | None:
        try:
            data = os.read(self._output, CHUNK)
        except BlockingIOError:
            return None
        except OSError:  # a terminal that no process has open any more
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
            self._kill_when_due(self._kill_at, now)
        elif self._status is not None:  # the command has ended: kill what it left running
            self._kill()
        elif now >= self._began + self._job.timeout_s:
            self._stop("timeout")
        elif self._job.memory and now >= self._look_at:
            self._look_at = now + LOOK_S
            if self._is_over_memory() and self._is_over_memory():
                self._end("memory")

    def _is_over_memory(self) -> bool:
        """Measure once. Processes that end meanwhile can make one sum too large, so ask twice."""
        return _memory(self._tree(), self._job.memory) > self._job.memory

    def _kill_when_due(self, kill_at: float, now: float) -> None:
        if self._status is not None:
            kill_at = self._kill_at = min(kill_at, now + HEIRS_S)
        if now >= kill_at:
            self._kill()
        elif now >= self._look_at:
            self._terminate()

    def _end(self, cause: str) -> None:
        self._reap()
        if self._status is None and self._kill_at is None:
            self._cause = cause
        self._kill()

    def _stop(self, cause: str) -> None:
        self._reap()
        if self._status is None and self._kill_at is None:
            self._cause, self._kill_at = cause, self._now() + GRACE_S
            self._terminate()

    def _terminate(self) -> None:
        """Send SIGTERM to every process not told yet; to parents before they see a child end."""
        tree = self._tree()
        # If the outer process of a sandbox ends, the inner ones die before they can clean up.
        mine = _depth(self._me[0])
        inner = [pid for pid in tree if _depth(pid) > mine]
        new = [pid for pid in inner or tree if pid not in self._terminated]
        send(new, _signal.SIGTERM)
        if self._job.terminal:
            send(new, _signal.SIGHUP)
        send(new, _signal.SIGCONT)
        self._terminated.update(new)
        self._look_at = self._now() + LOOK_S

    def _tree(self) -> list[int]:
        return _descendants(self._me[0]) or sorted(find([self._me]))

    def _kill(self) -> None:
        """Kill until no process is left, or only such as do not disappear although killed."""
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
        if self._cause == "exited" and code in (-9, 137) and _oom_kills() > self._oom_kills:
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


def _catch_signals() -> int:
    """Turn signals into bytes in a pipe from now on; return its reading end."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    _signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGINT):
        _signal.signal(number, lambda number, frame: None)
    return reading


def _start(job: Job) -> tuple[int, int]:
    """Start the command; return its pid and the fd of its output."""
    output, theirs = job.terminal or os.pipe()
    os.set_blocking(output, False)
    ours = [fd for fd in (output, theirs, job.stdin) if fd >= 0]
    for fd in ours:
        os.set_inheritable(fd, False)  # noqa: FBT003 — the name of the flag is the name of the call
    # A signal that arrives before `execve` must wait for the command, not run our handlers.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        try:
            _exec(job, theirs)
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            why = error.strerror if isinstance(error, OSError) else str(error)
            os.write(2, b"%s: %s\n" % (job.argv[0], str(why).encode()))
        finally:
            os._exit(127)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    for fd in (*ours[1:], *job.pass_fds, *job.namespaces):
        os.close(fd)
    return pid, output


def _exec(job: Job, output: int) -> None:
    """In the child: become the command."""
    if job.terminal:
        os.login_tty(output)
    else:
        os.setsid()  # otherwise `kill 0` in the command would signal the shim too
        os.dup2(job.stdin if job.stdin >= 0 else os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
    _signal.set_wakeup_fd(-1)
    for number in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}:
        _signal.signal(number, _signal.SIG_DFL)  # ignored signals stay ignored across exec
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    _limit(resource.RLIMIT_CORE, 0)
    if job.memory:
        # The memory limit is enforced by `_check`; this stops growth faster than its interval.
        _limit(resource.RLIMIT_DATA, 4 * job.memory)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # out of memory, the kernel kills this process, not the gateway
    except OSError:  # a read-only /proc
        pass
    os.umask(job.umask)
    os.chdir(job.cwd)
    _join(job.namespaces)
    os.execve(job.argv[0], job.argv, job.env)


def _join(namespaces: list[int]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for fd in namespaces:
        if libc.setns(fd, 0):
            raise OSError(ctypes.get_errno(), "cannot join the network of the session")
        os.close(fd)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _depth(pid: int) -> int:
    """Return in how many pid namespaces the process has a pid."""
    for line in _proc(pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return len(line.split()) - 1
    return 0


def _descendants(pid: int) -> list[int]:
    """Return all descendants, parents first, from the kernel's lists of children; [] without them.

    This is faster than reading every process in /proc.
    """
    found, seen = [pid], {pid}
    for one in found:
        for task in _names(f"/proc/{one}/task"):
            children = map(int, _proc(one, f"task/{task}/children").split())
            new = [child for child in children if child not in seen]
            found += new
            seen.update(new)
    return found[1:]


def _memory(pids: list[int], limit: int) -> int:
    """Return the memory of a tree including files in memory; 0 if it is surely within `limit`.

    Near the limit, shared memory is counted once. Not counted: System V segments that no process
    has attached, and a memory file in transit between processes, which none has open or mapped.
    """
    files = _files_in_memory(pids)
    if sum(sum(_resident(pid)) for pid in pids) + files <= limit:
        return 0
    exact = [_share(pid) for pid in pids]
    # Most mapped memory files are also open or have a name, so take the greater of the two.
    return sum(anon for anon, _ in exact) + max(files, sum(shmem for _, shmem in exact))


def _share(pid: int) -> tuple[int, int]:
    """Return a process's share of its memory: all of it if we may not see what it shares."""
    share = _amounts(_proc(pid, "smaps_rollup"), (b"Pss_Anon:", b"Pss_Shmem:"))
    return share if any(share) else _resident(pid)  # nothing, if it has just ended


def _resident(pid: int) -> tuple[int, int]:
    return _amounts(_proc(pid, "status"), (b"RssAnon:", b"RssShmem:"))


def _amounts(text: bytes, names: tuple[bytes, bytes]) -> tuple[int, int]:
    found = dict.fromkeys(names, 0)
    for line in text.splitlines():
        name, *rest = line.split(None, 2)
        if name in found:
            found[name] = int(rest[0]) * 1024
    return found[names[0]], found[names[1]]


def _files_in_memory(pids: list[int]) -> int:
    """Return the bytes in the tree's own in-memory file systems and in its memfd files."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        for place in _SCRATCH:
            _count_file_system(f"/proc/{pid}/root{place}", place, sizes)
        for name in _names(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            try:
                if os.readlink(path).startswith("/memfd:"):
                    state = os.stat(path)
                    sizes[state.st_dev, state.st_ino] = state.st_blocks * 512
            except OSError:  # closed since it was listed
                continue
    return sum(sizes.values())


def _count_file_system(inside: str, outside: str, sizes: dict[tuple[int, int], int]) -> None:
    """Add the used bytes of a file system, if it belongs to the command's sandbox."""
    try:
        device = os.stat(inside).st_dev
        if (device, 0) in sizes or device == os.stat(outside).st_dev:
            return
        room = os.statvfs(inside)
        sizes[device, 0] = (room.f_blocks - room.f_bfree) * room.f_frsize
    except OSError:  # the process or the directory is gone
        return


def _oom_kills() -> int:
    """Return how many processes the kernel has killed since boot because memory ran out."""
    with open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


def _claim(job: Job) -> int | None:
    """Claim the call durably; None if it was claimed before."""
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
    """Report to the gateway, then close the connection to it."""
    try:
        os.write(1, line)
    except BrokenPipeError:  # the gateway has ended; its pidfd will report that
        pass
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def main() -> None:
    """Run the job from fd 0, unless the call was claimed before or the gateway has ended."""
    with open(0, "rb", closefd=False) as file:
        job = Job(marshal.load(file))
    if ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError("this system has no child subreapers")
    wake = _catch_signals()
    gateway = os.pidfd_open(job.gateway[0])  # raises if the gateway is gone
    gone, _, _ = select.select([gateway], [], [], 0)  # it may be a zombie
    if gone or identity(job.gateway[0]) != job.gateway:
        return
    claim = _claim(job)
    if claim is None:
        _report(b"claimed\n")
    else:
        Shim(job, gateway, wake).run(claim)
    os._exit(0)  # there is nothing to flush, and the gateway waits for our end


if __name__ == "__main__":
    main()
