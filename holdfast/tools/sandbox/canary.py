"""The canary: a command that tries to get out. Its source is run inside the sandbox.

    python -I -S -c SOURCE WORKSPACE USER_SECRET HOME_SECRET OUTSIDE VICTIM TCP UDP ABSTRACT

It stands alone, prints what it could read, and says nothing about the rest: whether a
message arrived, a file changed or a process died is seen from the outside (cage.py).
"""

import os
import signal
import socket
import sys
from collections.abc import Callable


def _show(path: str) -> None:
    with open(path, "rb") as file:
        sys.stdout.buffer.write(file.read() + b"\n")


def _create(path: str) -> None:
    with open(path, "w") as file:
        file.write("created")


def _append(path: str) -> None:
    with open(path, "a") as file:
        file.write("appended")


def _open_setting(path: str, word: str) -> None:
    os.close(os.open(path, os.O_WRONLY))  # to open it is proof enough, and changes nothing
    sys.stdout.write(f"{word} kernel\n")
    sys.stdout.flush()


def _send(family: int, kind: int, address: tuple[str, int] | str) -> None:
    with socket.socket(family, kind) as out:
        out.settimeout(2)
        out.connect(address)
        out.send(b"reached")


def _try(attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except OSError:
        return  # blocked, or not: the cage knows


def main(arguments: list[str]) -> None:
    workspace, user_secret, home_secret, outside, victim, tcp, udp, abstract = arguments
    os.chdir(workspace)
    _create("written")
    _try(lambda: _show(user_secret))
    _try(lambda: _show(home_secret))
    _try(lambda: _show(f"/proc/{victim}/environ"))
    _try(lambda: _create(outside))
    _try(lambda: _append(user_secret))
    _try(lambda: _append(home_secret))
    _try(lambda: os.truncate(home_secret, 1))
    _try(lambda: os.chmod(home_secret, 0o644))
    _try(lambda: _open_setting("/proc/sys/kernel/core_pattern", abstract))
    _try(lambda: _send(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", int(tcp))))
    _try(lambda: _send(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", int(udp))))
    _try(lambda: _send(socket.AF_UNIX, socket.SOCK_STREAM, "socket"))
    _try(lambda: _send(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + abstract))
    _try(lambda: os.kill(int(victim), signal.SIGKILL))


if __name__ == "__main__":
    main(sys.argv[1:])
