"""A command that does not want to die: `nasty.py TOKEN FIFO`.

Five processes: itself, deaf to TERM and hang-ups; a child in a session of its own; a daemon
(forked twice); a job of its own group; and a shell's nohup. Each has TOKEN among its arguments.
When all are up it writes a line to FIFO. Imported, it tells who of them lives.
"""

import os
import signal
import sys
from pathlib import Path


def carriers(token: str) -> set[int]:
    """The living processes that have `token` among their arguments."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if token.encode() in words:
            found.add(int(name))
    return found


def deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def stay(up: int) -> None:
    os.write(up, b".")
    while True:
        signal.pause()


def main(token: str, fifo: str) -> None:
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
    got = b""
    while len(got) < 4:
        got += os.read(ready, 4)
    with open(fifo, "w") as told:
        told.write("ready\n")
    stay(up)


if __name__ == "__main__":
    main(*sys.argv[1:])
