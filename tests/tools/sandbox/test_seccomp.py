"""The seccomp filters, run by our own interpreter, also for other architectures."""

import errno
import os
import re
import socket
import struct
from pathlib import Path

import pytest

from holdfast.tools.sandbox import seccomp

ALLOW = 0x7FFF0000
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def run(program: bytes, data: bytes) -> int:
    """What the kernel's interpreter would return for this `struct seccomp_data`."""
    ops = list(struct.iter_unpack("=HBBI", program))
    at, value = 0, 0
    while True:
        code, true, false, operand = ops[at]
        at += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x54:
                value &= operand
            case 0x15:
                at += true if value == operand else false
            case 0x35:
                at += true if value >= operand else false
            case 0x06:
                return int(operand)
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


def ask(rules: seccomp.Rules, machine: str, call: str | int, *arguments: int) -> int:
    """0 if the call is allowed, else the errno it gets."""
    arch, column = seccomp.MACHINES[machine]
    number = call if isinstance(call, int) else seccomp.NUMBERS[call][column]
    assert number is not None
    padded = (*arguments, *[0] * (6 - len(arguments)))
    verdict = run(seccomp.program(rules, machine), struct.pack("=IIQ6Q", number, arch, 0, *padded))
    return 0 if verdict == ALLOW else verdict & 0xFFFF


@pytest.mark.parametrize("machine", seccomp.MACHINES)
@pytest.mark.parametrize("rules", [seccomp.NAMESPACED, seccomp.BARE], ids=["namespaced", "bare"])
def test_system_calls_that_get_around_the_sandbox_are_refused(
    rules: seccomp.Rules, machine: str
) -> None:
    for call in ("ptrace", "unshare", "setns", "mount", "keyctl", "bpf", "pidfd_getfd"):
        assert ask(rules, machine, call) == errno.EPERM
    assert ask(rules, machine, "io_uring_setup") == errno.ENOSYS
    assert ask(rules, machine, "clone3") == errno.ENOSYS
    assert ask(rules, machine, "clone", 0x10000000 | 17) == errno.EPERM
    assert ask(rules, machine, "clone", 0x3D0F00) == 0
    assert ask(rules, machine, "ioctl", 0, 0x5412) == errno.EPERM
    assert ask(rules, machine, "ioctl", 0, 0x1_0000_5412) == errno.EPERM
    assert ask(rules, machine, "ioctl", 0, 0x5401) == 0
    assert ask(rules, machine, "prlimit64", 0) == 0
    assert ask(rules, machine, "prlimit64", 4711) == errno.EPERM
    assert ask(rules, machine, "socket", socket.AF_UNIX, socket.SOCK_STREAM) == errno.EPERM
    assert ask(rules, machine, "socket", 40, socket.SOCK_STREAM) == errno.EPERM  # AF_VSOCK


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_only_stream_and_seqpacket_socket_pairs_are_allowed(machine: str) -> None:
    for flags in (0, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK):
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            assert ask(seccomp.BARE, machine, "socketpair", socket.AF_UNIX, kind | flags) == 0
        for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
            asked = ask(seccomp.BARE, machine, "socketpair", socket.AF_UNIX, kind | flags)
            assert asked == errno.EPERM


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_a_socket_pair_of_another_family_is_refused(machine: str) -> None:
    for rules in (seccomp.BARE, seccomp.NAMESPACED):
        for family in (30, 40, 44):  # TIPC, which has socket pairs; VSOCK, XDP
            asked = ask(rules, machine, "socketpair", family, socket.SOCK_STREAM)
            assert asked == errno.EPERM


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_only_a_namespace_of_its_own_gives_internet_sockets(machine: str) -> None:
    for family in (socket.AF_INET, socket.AF_INET6):
        assert ask(seccomp.NAMESPACED, machine, "socket", family, socket.SOCK_STREAM) == 0
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            assert ask(seccomp.BARE, machine, "socket", family, kind) == errno.EPERM
    assert ask(seccomp.NAMESPACED, machine, "socket", 16, socket.SOCK_RAW, 0) == 0
    assert ask(seccomp.NAMESPACED, machine, "socket", 16, socket.SOCK_RAW, 9) == errno.EPERM


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_no_call_sets_the_user_id_bit(machine: str) -> None:
    for rules in (seccomp.BARE, seccomp.NAMESPACED):
        assert ask(rules, machine, "fchmod", 3, 0o4755) == errno.EPERM
        assert ask(rules, machine, "fchmod", 3, 0o2755) == 0
        assert ask(rules, machine, "fchmodat", 3, 0, 0o6755) == errno.EPERM
        for flag in (os.O_CREAT, os.O_TMPFILE):
            assert ask(rules, machine, "openat", 3, 0, flag | os.O_RDWR, 0o4755) == errno.EPERM
        assert ask(rules, machine, "openat", 3, 0, os.O_CREAT | os.O_RDWR, 0o755) == 0
        assert ask(rules, machine, "openat", 3, 0, os.O_RDWR, 0o4755) == 0  # a mode without use


def test_calls_of_another_abi_are_refused_whole() -> None:
    arm, _ = seccomp.MACHINES["aarch64"]
    program = seccomp.program(seccomp.BARE, "x86_64")
    assert run(program, struct.pack("=II56x", 0, arm)) & 0xFFFF == errno.ENOSYS
    assert ask(seccomp.BARE, "x86_64", 0x40000000 | 101) == errno.ENOSYS  # x32


def test_an_unknown_architecture_gets_no_filter() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program(seccomp.BARE, "riscv64")


@pytest.mark.parametrize("machine", [m for m, path in HEADERS.items() if path.exists()])
def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    text = HEADERS[machine].read_text()
    known = {n: int(v) for n, v in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    column = seccomp.MACHINES[machine][1]
    for name, numbers in seccomp.NUMBERS.items():
        if name in known:  # the headers may be older than we are
            assert numbers[column] == known[name], name
