"""Seccomp filters: the system calls that a confined command may make, as BPF programs.

A filter is a table. A call that is not in the table is allowed. A call in the table is refused
with its errno, or allowed only for certain arguments. The tables below are deny lists on top of a
sandbox that already confines by namespaces or Landlock. They remove calls that get around that
sandbox (unix sockets, io_uring, new user namespaces, memory and limits of other processes), and
calls that only enlarge the attack surface of the kernel (bpf, keys, mounts, modules).

A filter sees the values of arguments, but not the memory that a pointer points to. The flags of
`clone3` are behind a pointer, so `clone3` returns "no such call", and every libc then uses
`clone`. Only the lower 32 bits of arguments are compared, because the kernel uses only those of
the arguments that we check. Calls of another ABI (32 bit, x32) have other numbers and are all
refused. We do not use libseccomp, because this needs only one table and forty lines for the two
architectures that we support.
"""

import errno
import platform
import socket
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from holdfast.core.types import Value

Test = tuple[int, int, int]
"""(argument, mask, value): true if `argument & mask == value`."""

Clause = tuple[Test, ...]
"""True if all of its tests are true."""


class SyscallRule(Value):
    """Refuse a call with `errno`, unless a clause of `only` is true.

    With `never`: refuse it only if a clause of `never` is true.
    """

    errno: int = errno.EPERM
    only: tuple[Clause, ...] = ()
    never: tuple[Clause, ...] = ()


Rules = Mapping[str, SyscallRule]

_WHOLE = 0xFFFFFFFF
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*: user, mount, pid, net, ipc, uts, cgroup
_NAMELESS_TYPES = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: fake input in the controlling terminal


def _argument(position: int, *values: int) -> tuple[Clause, ...]:
    return tuple(((position, _WHOLE, value),) for value in values)


_SET_USER_ID = 0o4000
_CREATING = (0o100, 0o20000000)  # O_CREAT, O_TMPFILE: without them, `open` ignores the mode


def _set_user_id(position: int) -> tuple[Clause, ...]:
    return (((position, _SET_USER_ID, _SET_USER_ID),),)


def _creates_set_user_id(flags: int) -> tuple[Clause, ...]:
    mode = (flags + 1, _SET_USER_ID, _SET_USER_ID)
    return tuple(((flags, creating, creating), mode) for creating in _CREATING)


# A program with this bit, owned by the gateway's user, would give that user's rights to every other
# user of the machine, outside of the sandbox. Directories need only the bit for groups.
_OF_MODES: Rules = MappingProxyType(
    {
        "chmod": SyscallRule(never=_set_user_id(1)),
        "fchmod": SyscallRule(never=_set_user_id(1)),
        "fchmodat": SyscallRule(never=_set_user_id(2)),
        "fchmodat2": SyscallRule(never=_set_user_id(2)),
        "creat": SyscallRule(never=_set_user_id(1)),
        "mknod": SyscallRule(never=_set_user_id(1)),
        "mknodat": SyscallRule(never=_set_user_id(2)),
        "open": SyscallRule(never=_creates_set_user_id(1)),
        "openat": SyscallRule(never=_creates_set_user_id(2)),
        "openat2": SyscallRule(errno.ENOSYS),  # its mode is behind a pointer; programs do without
    }
)

_REFUSED = """
    ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd move_pages
    migrate_pages perf_event_open userfaultfd bpf keyctl add_key request_key fanotify_init
    mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount
    fspick mount_setattr unshare setns open_by_handle_at
    kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct
    quotactl quotactl_fd syslog settimeofday clock_settime clock_adjtime adjtimex sethostname
    setdomainname iopl ioperm modify_ldt vhangup nfsservctl lookup_dcookie uselib ustat sysfs
    _sysctl
""".split()

# Shared by all processes of a user if there is no IPC namespace. All calls are listed, because an
# id can be used without calling `*get` first.
_SHARED = """
    shmget shmat shmctl shmdt msgget msgsnd msgrcv msgctl semget semop semtimedop semctl
    mq_open mq_unlink
""".split()

_COMMON: Rules = MappingProxyType(
    {
        **dict.fromkeys(_REFUSED, SyscallRule()),
        "io_uring_setup": SyscallRule(errno.ENOSYS),
        "io_uring_enter": SyscallRule(errno.ENOSYS),
        "io_uring_register": SyscallRule(errno.ENOSYS),
        "clone3": SyscallRule(errno.ENOSYS),
        "clone": SyscallRule(only=(((0, _NEW_NAMESPACES, 0),),)),
        "ioctl": SyscallRule(never=_argument(1, *_TERMINAL_INPUT)),
        # A datagram socket pair could still send to any unix socket by its path.
        # Other families have pairs too (TIPC), and the kernel would load a module for them.
        "socketpair": SyscallRule(
            only=tuple(((0, _WHOLE, socket.AF_UNIX), (1, 0xF, kind)) for kind in _NAMELESS_TYPES)
        ),
        "prlimit64": SyscallRule(only=_argument(0, 0)),  # its own limits, not the gateway's
        **_OF_MODES,
    }
)

# With its own network namespace: allow the internet families, and listing the interfaces.
NAMESPACED: Rules = MappingProxyType(
    {
        **_COMMON,
        "socket": SyscallRule(
            only=(
                *_argument(0, socket.AF_INET, socket.AF_INET6),
                ((0, _WHOLE, 16), (2, _WHOLE, 0)),  # AF_NETLINK, NETLINK_ROUTE
            )
        ),
    }
)

# Without namespaces: no sockets, and no calls that affect other processes.
BARE: Rules = MappingProxyType(
    {
        **_COMMON,
        "socket": SyscallRule(),
        **dict.fromkeys(_SHARED, SyscallRule()),
        # Only for the process itself. With other kinds, 0 means all processes of the user
        # (PRIO_USER) or of the process group.
        "setpriority": SyscallRule(only=(((0, _WHOLE, 0), (1, _WHOLE, 0)),)),
        "ioprio_set": SyscallRule(only=(((0, _WHOLE, 1), (1, _WHOLE, 0)),)),
        **dict.fromkeys(
            ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
            SyscallRule(only=_argument(0, 0)),
        ),
    }
)

MACHINES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
)
"""The kernel's audit architecture number, and the column in `NUMBERS`."""

_X32 = 0x40000000

_TABLE = """
    _sysctl            156   -    acct               163  89    add_key            248 217
    adjtimex           159 171    bpf                321 280    chmod               90   -
    chroot             161  51    clock_adjtime      305 266    clock_settime      227 112
    clone               56 220    clone3             435 435    creat               85   -
    delete_module      176 106    fanotify_init      300 262    fchmod              91  52
    fchmodat           268  53    fchmodat2          452 452    finit_module       313 273
    fsconfig           431 431    fsmount            432 432    fsopen             430 430
    fspick             433 433    init_module        175 105    io_uring_enter     426 426
    io_uring_register  427 427    io_uring_setup     425 425    ioctl               16  29
    ioperm             173   -    iopl               172   -    ioprio_set         251  30
    kcmp               312 272    kexec_file_load    320 294    kexec_load         246 104
    keyctl             250 219    lookup_dcookie     212  18    migrate_pages      256 238
    mknod              133   -    mknodat            259  33    modify_ldt         154   -
    mount              165  40    mount_setattr      442 442    move_mount         429 429
    move_pages         279 239    mq_open            240 180    mq_unlink          241 181
    msgctl              71 187    msgget              68 186    msgrcv              70 188
    msgsnd              69 189    nfsservctl         180  42    open                 2   -
    open_by_handle_at  304 265    open_tree          428 428    open_tree_attr     467 467
    openat             257  56    openat2            437 437    perf_event_open    298 241
    pidfd_getfd        438 438    pivot_root         155  41    prlimit64          302 261
    process_madvise    440 440    process_vm_readv   310 270    process_vm_writev  311 271
    ptrace             101 117    quotactl           179  60    quotactl_fd        443 443
    reboot             169 142    request_key        249 218    sched_setaffinity  203 122
    sched_setattr      314 274    sched_setparam     142 118    sched_setscheduler 144 119
    semctl              66 191    semget              64 190    semop               65 193
    semtimedop         220 192    setdomainname      171 162    sethostname        170 161
    setns              308 268    setpriority        141 140    settimeofday       164 170
    shmat               30 196    shmctl              31 195    shmdt               67 197
    shmget              29 194    socket              41 198    socketpair          53 199
    swapoff            168 225    swapon             167 224    sysfs              139   -
    syslog             103 116    truncate            76  45    umount2            166  39
    unshare            272  97    uselib             134   -    userfaultfd        323 282
    ustat              136   -    vhangup            153  58
""".split()
NUMBERS: Mapping[str, tuple[int | None, int | None]] = MappingProxyType(
    {
        name: (None if first == "-" else int(first), None if second == "-" else int(second))
        for name, first, second in zip(_TABLE[::3], _TABLE[1::3], _TABLE[2::3], strict=True)
    }
)
"""The number of each call on x86_64 and on aarch64; None: the machine does not have it."""

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _AT_LEAST = 0x15, 0x35
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_NR_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16  # in struct seccomp_data

_Op = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def program(rules: Rules, machine: str = "") -> bytes:
    """Return the filter for `machine` (default: this one) as BPF; `ValueError` if unknown."""
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise ValueError(f"no system call numbers for {machine}")
    arch, column = MACHINES[machine]
    ops = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, arch),
        _refuse(errno.ENOSYS),
        (_LOAD, 0, 0, _NR_AT),
        (_AT_LEAST, 0, 1, _X32),
        _refuse(errno.ENOSYS),
    ]
    for name, rule in rules.items():
        number = NUMBERS[name][column]
        if number is not None:
            body = list(_body(rule))
            ops += [(_EQUAL, 0, len(body), number), *body]
    ops.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *op) for op in ops)


def _body(rule: SyscallRule) -> Iterator[_Op]:
    allow, refuse = (_RETURN, 0, 0, _ALLOW), _refuse(rule.errno)
    for clause in rule.never or rule.only:
        yield from _clause(clause, refuse if rule.never else allow)
    yield allow if rule.never else refuse


def _clause(clause: Clause, verdict: _Op) -> Iterator[_Op]:
    left = 3 * len(clause)
    for argument, mask, value in clause:
        left -= 3
        yield (_LOAD, 0, 0, _ARGS_AT + 8 * argument)
        yield (_AND, 0, 0, mask)
        yield (_EQUAL, 0, left + 1, value)
    yield verdict


def _refuse(number: int) -> _Op:
    return (_RETURN, 0, 0, _ERRNO | number)
