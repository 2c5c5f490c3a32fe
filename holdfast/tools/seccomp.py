"""Seccomp filters: which system calls a confined command may make, as BPF programs.

A filter is a table: a call that is not in it is allowed, one that is in it is refused with
its errno, or allowed for certain arguments only. The tables below are deny lists on top of
a sandbox that already holds by namespaces or Landlock; what they take away is what goes
around those walls (unix sockets, io_uring, new user namespaces, other processes' memory
and limits) and what only widens the kernel's surface (bpf, keys, mounts, modules).

A filter sees argument values, never what a pointer points at, so `clone3`, whose flags lie
behind one, answers "no such call"; every libc then uses `clone`. Arguments are compared in
their lower 32 bits, as the kernel reads those that we look at. A call of another ABI (32
bit, x32) has other numbers and is refused whole. Made here rather than by libseccomp: it
is one table and forty lines, for the two machines we know.
"""

import errno
import platform
import socket
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from holdfast.core.types import Value

Test = tuple[int, int, int]
"""(argument, mask, value): holds if `argument & mask == value`."""

Clause = tuple[Test, ...]
"""Holds if all of its tests do."""


class Rule(Value):
    """Refused with `errno`, unless a clause of `only` holds; or if one of `never` does."""

    errno: int = errno.EPERM
    only: tuple[Clause, ...] = ()
    never: tuple[Clause, ...] = ()


Rules = Mapping[str, Rule]

_WHOLE = 0xFFFFFFFF
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*: user, mount, pid, net, ipc, uts, cgroup
_NAMELESS_TYPES = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type into the terminal we came from


def _argument(position: int, *values: int) -> tuple[Clause, ...]:
    return tuple(((position, _WHOLE, value),) for value in values)


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

_COMMON: Rules = MappingProxyType(
    {
        **dict.fromkeys(_REFUSED, Rule()),
        "io_uring_setup": Rule(errno.ENOSYS),
        "io_uring_enter": Rule(errno.ENOSYS),
        "io_uring_register": Rule(errno.ENOSYS),
        "clone3": Rule(errno.ENOSYS),
        "clone": Rule(only=(((0, _NEW_NAMESPACES, 0),),)),
        "ioctl": Rule(never=_argument(1, *_TERMINAL_INPUT)),
        # A datagram pair could still send to any unix socket by its name.
        "socketpair": Rule(only=tuple(((1, 0xF, kind),) for kind in _NAMELESS_TYPES)),
        "prlimit64": Rule(only=_argument(0, 0)),  # one's own limits, not the gateway's
    }
)

# In a network namespace of its own: the internet families, and asking for its interfaces.
NAMESPACED: Rules = MappingProxyType(
    {
        **_COMMON,
        "socket": Rule(
            only=(
                *_argument(0, socket.AF_INET, socket.AF_INET6),
                ((0, _WHOLE, 16), (2, _WHOLE, 0)),  # AF_NETLINK, NETLINK_ROUTE
            )
        ),
    }
)

# Without namespaces: no socket at all, and nothing that reaches the other processes.
BARE: Rules = MappingProxyType(
    {
        **_COMMON,
        "socket": Rule(),
        **dict.fromkeys(("shmget", "msgget", "semget", "mq_open"), Rule()),
        **dict.fromkeys(("setpriority", "ioprio_set"), Rule(only=_argument(1, 0))),
        **dict.fromkeys(
            ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
            Rule(only=_argument(0, 0)),
        ),
    }
)

MACHINES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
)
"""Audit architecture, and the column of `NUMBERS`."""

_X32 = 0x40000000

NUMBERS: Mapping[str, tuple[int | None, int | None]] = MappingProxyType(
    {
        "_sysctl": (156, None),
        "acct": (163, 89),
        "add_key": (248, 217),
        "adjtimex": (159, 171),
        "bpf": (321, 280),
        "chroot": (161, 51),
        "clock_adjtime": (305, 266),
        "clock_settime": (227, 112),
        "clone": (56, 220),
        "clone3": (435, 435),
        "delete_module": (176, 106),
        "fanotify_init": (300, 262),
        "finit_module": (313, 273),
        "fsconfig": (431, 431),
        "fsmount": (432, 432),
        "fsopen": (430, 430),
        "fspick": (433, 433),
        "init_module": (175, 105),
        "io_uring_enter": (426, 426),
        "io_uring_register": (427, 427),
        "io_uring_setup": (425, 425),
        "ioctl": (16, 29),
        "ioperm": (173, None),
        "iopl": (172, None),
        "ioprio_set": (251, 30),
        "kcmp": (312, 272),
        "kexec_file_load": (320, 294),
        "kexec_load": (246, 104),
        "keyctl": (250, 219),
        "lookup_dcookie": (212, 18),
        "migrate_pages": (256, 238),
        "modify_ldt": (154, None),
        "mount": (165, 40),
        "mount_setattr": (442, 442),
        "move_mount": (429, 429),
        "move_pages": (279, 239),
        "mq_open": (240, 180),
        "msgget": (68, 186),
        "nfsservctl": (180, 42),
        "open_by_handle_at": (304, 265),
        "open_tree": (428, 428),
        "open_tree_attr": (467, 467),
        "perf_event_open": (298, 241),
        "pidfd_getfd": (438, 438),
        "pivot_root": (155, 41),
        "prlimit64": (302, 261),
        "process_madvise": (440, 440),
        "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271),
        "ptrace": (101, 117),
        "quotactl": (179, 60),
        "quotactl_fd": (443, 443),
        "reboot": (169, 142),
        "request_key": (249, 218),
        "sched_setaffinity": (203, 122),
        "sched_setattr": (314, 274),
        "sched_setparam": (142, 118),
        "sched_setscheduler": (144, 119),
        "semget": (64, 190),
        "setdomainname": (171, 162),
        "sethostname": (170, 161),
        "setns": (308, 268),
        "setpriority": (141, 140),
        "settimeofday": (164, 170),
        "shmget": (29, 194),
        "socket": (41, 198),
        "socketpair": (53, 199),
        "swapoff": (168, 225),
        "swapon": (167, 224),
        "sysfs": (139, None),
        "syslog": (103, 116),
        "truncate": (76, 45),
        "umount2": (166, 39),
        "unshare": (272, 97),
        "uselib": (134, None),
        "userfaultfd": (323, 282),
        "ustat": (136, None),
        "vhangup": (153, 58),
    }
)

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _AT_LEAST = 0x15, 0x35
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_NR_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16  # in struct seccomp_data

_Op = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def program(rules: Rules, machine: str = "") -> bytes:
    """The filter for `machine` (this one) as the kernel takes it; `ValueError` if unknown."""
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


def _body(rule: Rule) -> Iterator[_Op]:
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
