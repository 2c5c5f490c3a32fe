"""A world without accidents: an event loop whose time and order come from a seed.

`SimLoop` runs what is ready in a random order drawn from its seed; when nothing is ready its
clock jumps to the next timer, so that no wait takes any time. Nothing from outside reaches
it: no files, no sockets, no threads. `simulate` runs one main function on it, with every
other source of chance that the engine has (ids, jitter) drawn from the same seed.

`SimClock` is the engine's clock on that loop. Its sleepers are patient: while nothing else
happens they may be woken up to `late_s` too late. A week of one-second ticks is then some
hundred wakes.
"""

# ruff: noqa: SLF001  a loop and its handles are one thing

import asyncio
import gc
import secrets
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from heapq import heappop, heappush
from itertools import count
from random import Random, getstate, seed, setstate
from typing import Any, NoReturn, TypeVar

import anyio
import pytest
from anyio._backends import _asyncio
from typing_extensions import override

T = TypeVar("T")

STANDSTILL = 100_000  # turns within which some time must pass
EPOCH = 1_700_000_000.0  # what the clock shows when a simulation begins


class SimLoop(asyncio.SelectorEventLoop):
    """Virtual time, seeded order."""

    _ready: deque[Any]
    _scheduled: list[Any]

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.random = chance
        self.turns = 0  # how often it ran what was ready
        self.errors: list[str] = []  # what was raised where nobody could catch it
        self.late_s = 0.0
        self._now = 0.0
        self._jumped = 0
        self._patient: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = count()
        self._alarms: dict[int, Callable[[], object]] = {}
        self._alone: ContextVar[object] | None = None
        self._then = ""
        self._held: list[Any] = []
        self.set_exception_handler(lambda _, context: self.errors.append(repr(context)))

    @override
    def time(self) -> float:
        return self._now

    @override
    def run_in_executor(self, *anything: object) -> NoReturn:
        raise RuntimeError("there are no threads in a simulation")

    def after_turns(self, turns: int, callback: Callable[[], object]) -> None:
        """Call it in the midst of what is ready when the loop has turned that often."""
        self._alarms[self.turns + max(1, turns)] = callback

    def freeze(self, but: ContextVar[object], then: str) -> None:
        """Nothing happens but in contexts in which `but` is set, until nothing is left of those.

        In which order the tasks of a group are cancelled, their addresses decide. Nobody else is
        to notice that: they go first and alone, and afterwards chance begins anew with `then`.
        """
        self._alone, self._then = but, then

    def _thaw(self) -> None:
        self._alone = None
        self._ready.extend(self._held)
        self._held.clear()
        self.random.seed(self._then)
        seed(self._then)

    def patiently(self, seconds: float) -> asyncio.Future[None]:
        """Done after that time, or up to `late_s` later if nothing else happens."""
        woken = self.create_future()
        heappush(self._patient, (self._now + seconds, next(self._count), woken))
        return woken

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        self.turns += 1
        if self.turns in self._alarms:
            self.call_soon(self._alarms.pop(self.turns))
        if self.turns - self._jumped > STANDSTILL:
            raise RuntimeError("time stands still: somebody is always busy")
        if not ready and self._alone is not None:
            self._thaw()
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            self._jump()
        while scheduled and (scheduled[0]._when <= self._now or scheduled[0]._cancelled):
            timer = heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        order = list(ready)
        ready.clear()
        if len(order) > 1:
            self.random.shuffle(order)
        for handle in order:
            if self._alone is not None and self._alone not in handle._context:
                self._held.append(handle)
            elif not handle._cancelled:
                handle._run()

    def _jump(self) -> None:
        """Nothing is ready: let time pass until something is."""
        timers, patient = self._scheduled, self._patient
        while timers and timers[0]._cancelled:
            heappop(timers)._scheduled = False
        while patient and patient[0][2].done():
            heappop(patient)
        if not timers and not patient:
            raise RuntimeError("everybody waits, and nobody for a timer")
        moments = [patient[0][0] + self.late_s] if patient else []
        self._jumped = self.turns
        self._now = max(self._now, min([t._when for t in timers[:1]] + moments))
        while patient and patient[0][0] <= self._now:
            woken = heappop(patient)[2]
            if not woken.done():
                woken.set_result(None)


class _InOrder(dict[T, None]):
    """A set that is gone through in the order it was filled."""

    def add(self, one: T) -> None:
        self[one] = None

    def remove(self, one: T) -> None:
        del self[one]

    def discard(self, one: T) -> None:
        self.pop(one, None)


class SimClock:
    """The engine's clock, on the loop's time."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        """Seconds since the epoch."""
        return EPOCH + self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`, or a little later."""
        await self._loop.patiently(seconds)


def simulate(number: int | str, main: Callable[[SimLoop], Awaitable[T]]) -> T:
    """Run `main` in a world drawn from `number`: the same number is the same world."""
    chance = Random(number)
    loops: list[SimLoop] = []

    def make() -> SimLoop:
        loops.append(SimLoop(chance))
        return loops[0]

    async def body() -> T:
        return await main(loops[0])

    with _no_accidents(chance):
        result = anyio.run(body, backend="asyncio", backend_options={"loop_factory": make})
    assert not loops[0].errors, loops[0].errors
    return result


def _no_thread(thread: threading.Thread) -> NoReturn:
    raise RuntimeError(f"there are no threads in a simulation: {thread.name}")


@contextmanager
def _no_accidents(chance: Random) -> Iterator[None]:
    before = getstate()
    seed(chance.random())
    gc.disable()  # when it collects, and with that when a dropped generator closes, is chance
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "_sysrand", chance)  # where tokens come from
        patch.setattr(_asyncio, "set", _InOrder, raising=False)  # of tasks that are cancelled
        patch.setattr(threading.Thread, "start", _no_thread)
        try:
            yield
        finally:
            gc.enable()
            setstate(before)
