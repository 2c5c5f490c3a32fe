"""The seccomp filters, run by an interpreter of our own: also for the machine we are not on."""

import errno
import re
import socket
import struct
from pathlib import Path

import pytest

from holdfast.tools import seccomp

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
def test_what_goes_around_the_walls_is_refused(rules: seccomp.Rules, machine: str) -> None:
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
def test_a_socket_pair_may_be_anything_that_has_no_name_to_send_to(machine: str) -> None:
    for flags in (0, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK):
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            assert ask(seccomp.BARE, machine, "socketpair", socket.AF_UNIX, kind | flags) == 0
        for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
            asked = ask(seccomp.BARE, machine, "socketpair", socket.AF_UNIX, kind | flags)
            assert asked == errno.EPERM


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_only_a_namespace_of_its_own_gives_internet_sockets(machine: str) -> None:
    for family in (socket.AF_INET, socket.AF_INET6):
        assert ask(seccomp.NAMESPACED, machine, "socket", family, socket.SOCK_STREAM) == 0
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            assert ask(seccomp.BARE, machine, "socket", family, kind) == errno.EPERM
    assert ask(seccomp.NAMESPACED, machine, "socket", 16, socket.SOCK_RAW, 0) == 0
    assert ask(seccomp.NAMESPACED, machine, "socket", 16, socket.SOCK_RAW, 9) == errno.EPERM


def test_calls_of_another_abi_are_refused_whole() -> None:
    arm, _ = seccomp.MACHINES["aarch64"]
    program = seccomp.program(seccomp.BARE, "x86_64")
    assert run(program, struct.pack("=II56x", 0, arm)) & 0xFFFF == errno.ENOSYS
    assert ask(seccomp.BARE, "x86_64", 0x40000000 | 101) == errno.ENOSYS  # x32


def test_a_machine_without_numbers_gets_no_filter_rather_than_a_wrong_one() -> None:
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
