"""The keeper of a session's network namespace: a small process that creates it, and lives in it.

    python -I -S -c SOURCE CONTROL

It creates a network with nothing but loopback in a user namespace of its own, in which the user
has the same id as outside. It sends both namespaces over the inherited socket `CONTROL`. For every
byte it receives there (an address family) it sends a new TCP socket of the namespace, which the
gateway connects to a published port. It ends when the gateway closes the other end or dies. It runs nothing else, and
no command sees it: commands have their own process namespaces.
"""

import _socket  # `socket` doubles the import time with its enums
import array
import ctypes
import fcntl
import os
import struct
import sys

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET
_SET_FLAGS, _UP = 0x8914, 1  # SIOCSIFFLAGS, IFF_UP


def create() -> None:
    """Move this process to new namespaces and bring up loopback there."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_USER | _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    any_socket = _socket.socket()
    fcntl.ioctl(any_socket.fileno(), _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))
    any_socket.close()


def send(gateway: _socket.socket, fds: list[int]) -> None:
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", fds))
    gateway.sendmsg([b"."], [rights])


def main(control: str) -> None:
    gateway = _socket.socket(fileno=int(control))
    try:
        create()
    except OSError as error:
        gateway.send(f"no network namespace: {error}".encode())
        return
    names = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("user", "net")]
    send(gateway, names)
    for fd in names:
        os.close(fd)
    while family := gateway.recv(1):
        new = _socket.socket(family[0])
        send(gateway, [new.fileno()])
        new.close()


if __name__ == "__main__":
    main(sys.argv[1])
