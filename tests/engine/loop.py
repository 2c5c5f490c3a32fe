"""Event loops for tests: time that does not pass, and any order that may occur.

`VirtualLoop` jumps to the next timer when there is nothing else to do: a wait of seconds
takes none, and one that nothing can end runs into its limit at once. Only for code that
waits for no thread. `ShuffledLoop` runs what is ready in a random order, drawn from a
seed: what holds under it depends on no accident of scheduling.
"""

import asyncio
import selectors
from collections import deque
from random import Random
from typing import Any

from typing_extensions import override


class _Impatient(selectors.DefaultSelector):
    """Selects at once: its loop lets the time pass instead."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits, and nobody for a timer"
        self.passed += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time passes only when everybody waits for it."""

    def __init__(self) -> None:
        self._selected = _Impatient()
        super().__init__(self._selected)

    @override
    def time(self) -> float:
        return self._selected.passed


class ShuffledLoop(asyncio.SelectorEventLoop):
    """Runs what is ready in an order drawn from `random`."""

    _ready: deque[Any]

    def __init__(self) -> None:
        super().__init__()
        self.random = Random(0)

    def _run_once(self) -> None:
        order = [self._ready.popleft() for _ in range(len(self._ready))]
        self.random.shuffle(order)
        self._ready.extendleft(order)
        super()._run_once()  # type: ignore[misc]  # what asyncio's own test loops override
