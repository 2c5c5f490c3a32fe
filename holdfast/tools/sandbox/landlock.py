"""The launcher of level L1: confines itself with Landlock and seccomp, then runs the command.

    python -I -S landlock.py [--read PATH | --write PATH | --device PATH]… --seccomp HEX -- ARGV…

It stands alone (no site, no package). It imports everything first and calls `execve` with an
absolute path, because after `restrict_self` the interpreter's own library may be unreachable.
Landlock is an allow list: the named paths may be read (and executed) or written, everything else
is denied. TCP, signals and abstract sockets to the outside are denied too, if the kernel supports
that. If any step fails, nothing is run: it exits with 126 and one line that names the step.

Landlock does not restrict: modes, owners, times and other metadata of files, UDP (seccomp does
that), signals before ABI 6, truncation before ABI 3. The canary test shows what that means on this
machine.
"""

import _signal  # type: ignore[import-not-found]  # `signal` doubles the import time with its enums
import ctypes
import os
import resource
import stat
import struct
import sys

Rules = list[tuple[str, int]]

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_BOUND_DROP, _AMBIENT, _AMBIENT_CLEAR = 24, 47, 4

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_MAKE_NODES = 1 << 6 | 1 << 11
_FIRST = (1 << 13) - 1  # every right that ABI 1 knows
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_TCP = 3  # bind, connect
_SCOPES = 3  # abstract unix sockets, signals

READ = _EXECUTE | _READ_FILE | _READ_DIR
WRITE = (_FIRST | _REFER | _TRUNCATE) & ~_MAKE_NODES
DEVICE = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL
_RIGHTS = {"--read": READ, "--write": WRITE, "--device": DEVICE}

_LIMITS = (
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_NOFILE, 1 << 16),
    (resource.RLIMIT_NPROC, 1 << 12),
    (resource.RLIMIT_FSIZE, 1 << 34),
)

_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """Return the version of the kernel's Landlock; 0 if it has none."""
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)))


def main(arguments: list[str]) -> int:
    """Confine this process and run the command in its place. Returns only after an error."""
    step = "arguments"
    try:
        rules, program, argv = _parse(arguments)
        target = _find(argv[0])
        step = "limits"
        _limit()
        step = "privileges"
        _drop()
        step = "Landlock"
        _restrict(rules)
        step = "seccomp"
        _filter(program)
        step = argv[0]
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # ignored by Python; not by commands
            _signal.signal(number, _signal.SIG_DFL)
        os.execve(target, argv, os.environ)  # noqa: TID251 — the command's, handed through
    except (OSError, ValueError, IndexError) as error:
        sys.stderr.write(f"holdfast: command not run: {step}: {error}\n")
    return 126


def _parse(arguments: list[str]) -> tuple[Rules, bytes, list[str]]:
    rules: Rules = []
    program = b""
    left = iter(arguments)
    for option in left:
        if option == "--":
            return rules, program, list(left)
        value = next(left, "")
        if option == "--seccomp":
            program = bytes.fromhex(value)
        elif option in _RIGHTS:
            rules.append((value, _RIGHTS[option]))
        else:
            raise ValueError(f"unknown option {option}")
    raise ValueError("no command")


def _find(name: str) -> str:
    if "/" in name:
        return os.path.abspath(name)
    for folder in os.get_exec_path():
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    raise FileNotFoundError(2, "No such command")


def _limit() -> None:
    for kind, wanted in _LIMITS:
        _, hard = resource.getrlimit(kind)
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (most, most))


def _drop() -> None:
    _prctl(_NO_NEW_PRIVS, 1)
    _prctl(_AMBIENT, _AMBIENT_CLEAR)
    if os.geteuid() == 0:  # at `execve`, root regains the capabilities of its bounding set
        for capability in range(64):
            if _libc.prctl(_BOUND_DROP, ctypes.c_ulong(capability), *_zeros(3)) and capability == 0:
                raise _failure()
    header = struct.pack("=Ii", 0x20080522, 0)
    _check(_libc.capset(header, bytes(24)))


def _restrict(rules: Rules) -> None:
    version = abi()
    if version < 1:
        raise OSError(38, "the kernel does not support it, or it is switched off")
    handled = _FIRST | (_REFER if version >= 2 else 0)
    handled |= (_TRUNCATE if version >= 3 else 0) | (_IOCTL if version >= 5 else 0)
    attributes = struct.pack("=QQQ", handled, _TCP, _SCOPES)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _check(_libc.syscall(_CREATE, attributes, ctypes.c_size_t(size), 0))
    for path, rights in rules:
        _allow(ruleset, path, rights & handled)
    _check(_libc.syscall(_RESTRICT, ruleset, 0))
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # deleted since it was listed, or not accessible anyway
    mode = os.fstat(fd).st_mode
    if not stat.S_ISLNK(mode):
        rights &= -1 if stat.S_ISDIR(mode) else _OF_FILES
        _check(_libc.syscall(_ADD, ruleset, 1, struct.pack("=Qi", rights, fd), 0))
    os.close(fd)


def _filter(program: bytes) -> None:
    held = ctypes.create_string_buffer(program, len(program))
    pointer = struct.pack("@HP", len(program) // 8, ctypes.addressof(held))
    _check(_libc.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER), pointer, *_zeros(2)))


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), *_zeros(3)))


def _zeros(count: int) -> list[ctypes.c_ulong]:
    return [ctypes.c_ulong(0)] * count


def _check(result: int) -> int:
    if result < 0:
        raise _failure()
    return result


def _failure() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
