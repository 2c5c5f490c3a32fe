"""A command that resists being killed: `nasty.py TOKEN FIFO`.

Seven processes: itself, deaf to TERM and hang-ups; a child in a session of its own; a daemon
(forked twice); a job of its own group; a shell's nohup, and what that waits for; and a daemon
whose first thread has ended. Each has TOKEN among its arguments or in its environment. When all are
up it writes a line to FIFO. Imported, it tells who of them lives.
"""

import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

_EXIT = 60 if os.uname().machine == "x86_64" else 93  # the system call that ends a thread


def carriers(token: str) -> set[int]:
    """The living processes that have `token` among their arguments or in their environment."""
    word = token.encode()
    return {int(name) for name in filter(str.isdigit, os.listdir("/proc")) if word in _text(name)}


def _text(pid: str) -> bytes:
    """The words of any of its threads: the first may have ended before the others."""
    found = b""
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for name in ("cmdline", "environ"):
                with suppress(OSError):
                    found += (task / name).read_bytes()
    return found


def deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def stay(up: int) -> None:
    os.write(up, b".")
    while True:
        signal.pause()


def stay_without_head(up: int) -> None:
    threading.Thread(target=lambda: (os.write(up, b"."), threading.Event().wait())).start()
    ctypes.CDLL(None).syscall(_EXIT, 0)


def main(token: str, fifo: str) -> None:
    os.environ["NASTY"] = token
    deaf()
    ready, up = os.pipe()
    if os.fork() == 0:
        os.setsid()
        stay(up)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            stay(up)
        os._exit(0)
    if os.fork() == 0:
        os.setpgid(0, 0)
        stay(up)
    if os.fork() == 0:
        os.dup2(up, 9)
        words = ("sh", "-c", "printf . >&9; while :; do sleep 1000; done", token)
        os.execv("/usr/bin/nohup", ("nohup", *words))
    if os.fork() == 0:
        if os.fork() == 0:
            stay_without_head(up)
        os._exit(0)
    got = b""
    while len(got) < 5:
        got += os.read(ready, 5)
    with open(fifo, "w") as told:
        told.write("ready\n")
    stay(up)


if __name__ == "__main__":
    main(*sys.argv[1:])
