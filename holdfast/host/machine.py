"""What this process has to do with the system: what it asks for, its last words, its end."""

import ctypes
import gc
import logging
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from select import select

import anyio

from holdfast import observe

MB = 1024 * 1024

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_PR_SET_DUMPABLE = 4  # sys/prctl.h


_users_umask: list[int] = []


def keep_private() -> None:
    """What we make is for our user only."""
    _users_umask.append(os.umask(0o077))


def users_umask() -> int:
    """What the user had before: for what commands make in the user's own directories."""
    return _users_umask[0] if _users_umask else 0o022


class SystemClock:
    """The real clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()  # noqa: TID251  this is the clock

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await anyio.sleep(seconds)


def harden() -> None:
    """Keep our memory to ourselves: no core file, no look into it by others of the same user.

    Nor into the environment we were started with: /proc/self/environ keeps showing it, whatever
    was removed since, but of an undumpable process only to root. A child that calls exec is
    dumpable again.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # Linux only
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def raise_fd_limit() -> None:
    """As many descriptors as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tune_allocator() -> None:
    """Keep freed memory at hand.

    asyncio reads with a buffer of 256 KiB, which glibc maps and unmaps anew for each read:
    18 µs, measured, against 2 µs when it comes from the heap.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have other habits
        mallopt(_M_MMAP_THRESHOLD, MB)
        mallopt(_M_TRIM_THRESHOLD, 16 * MB)


def tune_collector() -> None:
    """What is loaded now stays; what a run makes is freed by counting, not by searching."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def boot_id() -> str:
    """Another one after each boot of the machine; empty where that cannot be told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def say(line: str) -> None:
    """A line for the operator. Whoever reads us may have left, or read no more: then not."""
    with suppress(OSError, ValueError):
        if select([], [sys.stderr], [], 0)[1]:
            print(observe.clean(line), file=sys.stderr, flush=True)  # noqa: T201  the operator's terminal


def exit_now(code: int) -> None:
    """Now: a busy worker thread must not hold the exit."""
    with suppress(OSError):  # nobody may be there to read it
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
