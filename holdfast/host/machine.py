"""The process and its system: clocks, limits, memory settings, messages on stderr, exit."""

import ctypes
import gc
import logging
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from select import select

import anyio

from holdfast.core.life import timeline
from holdfast.core.life.timeline import Reading, TimeAnchor
from holdfast.host import observe

log = logging.getLogger(__name__)

MB = 1024 * 1024
LOOK_AGAIN_S = 15.0  # sleeps check the clock so often, because timers stop during a suspend
STEP_EVERY_S = 1.0
CLOCK_SET = "the wall clock was set; no deadline moves"

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_PR_SET_DUMPABLE = 4  # sys/prctl.h


_users_umask: list[int] = []


def keep_private() -> None:
    """Make new files accessible to our user only."""
    _users_umask.append(os.umask(0o077))


def users_umask() -> int:
    """Return the user's original umask, for files that commands create for the user."""
    return _users_umask[0] if _users_umask else 0o022


def _wall() -> float:
    return time.time()  # noqa: TID251  this is the clock


class SystemClock:
    """The wall clock, for times that others see: of a signature, of a log line."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return _wall()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await anyio.sleep(seconds)


def read_clocks() -> Reading:
    """Read the machine's clocks."""
    return Reading(boot_id(), _since_boot(), _wall())


# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC counts the time of a suspend.
_since_boot = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class JournalClock:
    """Journal time (core/life/timeline.py), which all decisions use."""

    def __init__(
        self,
        anchor: TimeAnchor,
        since_boot: Callable[[], float] = _since_boot,
        wall: Callable[[], float] = _wall,
    ) -> None:
        self._anchor = anchor
        self._since_boot = since_boot
        self._wall = wall

    def now(self) -> float:
        """Return the journal time in seconds since the epoch."""
        return self._anchor.time(self._since_boot())

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`, in which the time of a suspend counts."""
        until = self.now() + seconds
        while (left := until - self.now()) > 0:  # noqa: ASYNC110  this is the clock
            await anyio.sleep(min(left, LOOK_AGAIN_S))

    async def watch(self, keep: Callable[[float], Awaitable[None]]) -> None:
        """Watch the wall clock for ever; each time it is set, log that and call `keep`."""
        while True:
            now = Reading(self._anchor.boot_id, self._since_boot(), self._wall())
            if (stepped := timeline.after_step(self._anchor, now)) is not None:
                by_s = stepped.offset - self._anchor.offset
                self._anchor = stepped
                log.warning(
                    CLOCK_SET, extra={"by_s": round(by_s), "ahead_s": round(stepped.offset)}
                )
                await keep(stepped.offset)
            await anyio.sleep(STEP_EVERY_S)


def harden() -> None:
    """Protect our memory: no core files, and no access for other processes of the same user.

    This also protects the environment at start: /proc/self/environ shows it even after variables
    were removed, but for an undumpable process only to root. A child that calls exec is dumpable
    again.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # Linux only
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def raise_fd_limit() -> None:
    """Raise the limit of file descriptors to the maximum that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tune_allocator() -> None:
    """Keep freed memory in the process.

    asyncio reads with a buffer of 256 KiB, which glibc maps and unmaps for each read: 18 µs,
    measured, compared with 2 µs from the heap.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc only
        mallopt(_M_MMAP_THRESHOLD, MB)
        mallopt(_M_TRIM_THRESHOLD, 16 * MB)


def tune_collector() -> None:
    """Exclude the objects of the start from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def boot_id() -> str:
    """Return the id of the machine's present boot; empty if it is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def say(line: str) -> None:
    """Print a line for the operator on stderr, unless it is closed or would block."""
    with suppress(OSError, ValueError):
        if select([], [sys.stderr], [], 0)[1]:
            print(observe.clean(line), file=sys.stderr, flush=True)  # noqa: T201  the operator's terminal


def exit_now(code: int) -> None:
    """Exit at once: a busy worker thread must not delay it."""
    with suppress(OSError):  # the output may be closed
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
