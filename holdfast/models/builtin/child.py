"""The process of the built-in model, as its parent sees it: started at first use, ended when idle.

It is restarted if it died. It has a clean environment, a random key, and ends with its parent, also
if that is killed (see server.py). Its own output goes to a log file.
"""

import asyncio
import os
import secrets
import signal
import sys
from asyncio import TimerHandle
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from holdfast.core.types import Value
from holdfast.errors import HoldfastError, Rejected, Transient
from holdfast.models.builtin import memory, server

PROGRAM = (sys.executable, "-I", server.__file__)
LOAD_S = 120.0  # time limit for loading
MOST_THREADS = 8  # more are no faster: memory is the limit
_DEATH_S = 0.2
_LINE = 64 << 10
STAT = Path("/proc/stat")


class Loading(Value):
    """What the process needs to know. `key` is made for each start."""

    model: str
    libraries: tuple[str, ...]
    window: int
    threads: int = 0  # 0: as many as there are free processors
    cache_mb: int = 128
    key: str = ""


class ProcessLimits(Value):
    """What the machine must have, and how long an unused process is kept."""

    memory_mb: int
    idle_s: float = 600.0
    root: Path = memory.ROOT  # of the file system that tells the free memory


class ServerAddress(Value):
    """Where a process serves, and its key."""

    url: str
    key: str


class _Told(msgspec.Struct):
    address: str = ""
    error: str = ""


class ModelProcess:
    """The process of one model: at most one at a time, shared by all requests."""

    def __init__(
        self, loading: Loading, limits: ProcessLimits, log: Path, program: Sequence[str] = PROGRAM
    ) -> None:
        self._loading = loading
        self.limits = limits
        self._log = log
        self._program = program
        self._starting = anyio.Lock()
        self._process: anyio.abc.Process | None = None
        self._retired: list[anyio.abc.Process] = []
        self._address = ServerAddress("", "")
        self._users = 0
        self._since = processor_time()
        self._idle: TimerHandle | None = None

    @property
    def pid(self) -> int:
        """The process; 0: none runs."""
        return self._process.pid if self._process is not None and self._runs else 0

    @asynccontextmanager
    async def use(self) -> AsyncIterator[ServerAddress]:
        """Give the address of the running process; start it if none runs."""
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            async with self._starting:
                if not self._runs:
                    await self._start()
            yield self._address
        except Transient:
            await self._notice_death()
            raise
        finally:
            self._users -= 1
            if not self._users and self._runs:
                loop = asyncio.get_running_loop()
                self._idle = loop.call_later(self.limits.idle_s, self._retire)

    async def _notice_death(self) -> None:
        """Give the end of a process a moment to be noticed, so that the next request starts one."""
        if self._process is not None:
            with anyio.move_on_after(_DEATH_S):
                await self._process.wait()

    async def aclose(self) -> None:
        """End the process."""
        if self._idle is not None:
            self._idle.cancel()
        await self._discard()

    @property
    def _runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def _retire(self) -> None:
        """End the process; from here on it is not used any more. It keeps nothing to lose."""
        if self._process is not None:
            if self._runs:
                self._process.kill()
            self._retired.append(self._process)
            self._process = None

    async def _discard(self) -> None:
        """End the process, and wait for the end of all that were ended."""
        self._retire()
        with anyio.CancelScope(shield=True):
            while self._retired:
                await self._retired.pop().aclose()

    async def _start(self) -> None:
        await self._discard()
        check_memory(self.limits)
        key = secrets.token_hex(24)
        threads = self._loading.threads or free_processors(self._since)
        self._since = processor_time()
        loading = msgspec.structs.replace(self._loading, key=key, threads=threads)
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._process = await anyio.open_process(
                self._program,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env={},
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(log)
        try:
            with anyio.fail_after(LOAD_S):
                told = await self._greet(self._process, msgspec.json.encode(loading) + b"\n")
        except TimeoutError:
            await self._discard()
            raise self._failed(f"did not load in {LOAD_S:g} s") from None
        except BaseException:
            await self._discard()
            raise
        if told.error:
            await self._discard()
            raise Rejected(f"the built-in model cannot be loaded: {told.error}; see {self._log}")
        self._address = ServerAddress(told.address, key)

    async def _greet(self, process: anyio.abc.Process, settings: bytes) -> _Told:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("it was started with pipes")
        try:
            await process.stdin.send(settings)
            stdout = BufferedByteReceiveStream(process.stdout)
            line = await stdout.receive_until(b"\n", _LINE)
            return msgspec.json.decode(line, type=_Told)
        except (anyio.BrokenResourceError, anyio.IncompleteRead, msgspec.DecodeError):
            code = await process.wait()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended ({code})"
            raise self._failed(f"{how} while loading") from None

    def _failed(self, why: str) -> HoldfastError:
        needs = gigabytes(self.limits.memory_mb << 20)
        return Transient(
            f"the built-in model's process {why}; it needs {needs} of memory; see {self._log}"
        )


def check_memory(limits: ProcessLimits) -> None:
    """Raise `Rejected` if there is too little free memory, as far as the system says."""
    free = memory.free_memory(limits.root)
    if free is not None and free < limits.memory_mb << 20:
        raise Rejected(
            f"the built-in model needs {gigabytes(limits.memory_mb << 20)} of free memory, and "
            f"there are {gigabytes(free)}; end other programs, or use another model "
            "(holdfast setup finds those on this machine)"
        )


class ProcessorTime(Value):
    """Processor time since the system started, of all processors together, in ticks."""

    free: float  # idle, or used by this process
    total: float


def processor_time() -> ProcessorTime:
    """Read the processor time; all 0 if the system does not say."""
    try:
        first = STAT.read_text("ascii").partition("\n")[0]
    except OSError:
        return ProcessorTime(0, 0)
    ticks = [int(word) for word in first.split()[1:9]]  # the rest is counted in these already
    own = os.times()
    used = (own.user + own.system) * os.sysconf("SC_CLK_TCK")
    return ProcessorTime(sum(ticks[3:5]) + used, sum(ticks))


def free_processors(since: ProcessorTime) -> int:
    """Return how many processors were free since then; at least half of them, and at most 8.

    The threads wait for each other at every step: one that has to share its processor holds up all.
    """
    now, there = processor_time(), os.cpu_count() or 1
    total = now.total - since.total
    free = round(there * (now.free - since.free) / total) if total > 0 else there
    return min(MOST_THREADS, there, max(1, there // 2, free))


def gigabytes(size: int) -> str:
    """Write a size for people."""
    return f"{size / 1e9:.1f} GB"
