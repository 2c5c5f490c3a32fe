"""The canary: a test program that tries to break out. Its source is run inside the sandbox.

    python -I -S -c SOURCE WORKSPACE USER_SECRET HOME_SECRET OUTSIDE VICTIM TCP UDP ABSTRACT

It imports nothing of Holdfast, and prints what it could read. It reports nothing else: probe.py
checks from the outside whether a message arrived, a file changed or a process died.
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
    os.close(os.open(path, os.O_WRONLY))  # opening it is enough proof, and changes nothing
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
        return  # probe.py checks from the outside whether the attempt succeeded


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
    _try(lambda: _append(".git/config"))
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
