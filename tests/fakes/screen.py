"""A real terminal with real keys, for a command that a person would use there.

`type`, `key` and `paste` are the keyboard, `until` waits for what the screen shows. The screen
outlives the command, so that its last words can be read. `tests.fakes.emulator` opens one that
needs no package; `tests.fakes.tmux` one that folds what stands there again when it is resized.
"""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import anyio

LOOK_S = 0.02
Seen = Callable[[str], bool]


class Screen(ABC):
    """One terminal. `pid` is of the command in it."""

    pid = 0

    @abstractmethod
    async def start(self, directory: Path, size: tuple[int, int], words: tuple[str, ...]) -> None:
        """Open the terminal, so many columns and rows, with `holdfast WORDS` in it."""

    @abstractmethod
    async def type(self, text: str) -> None:
        """Letter by letter, as a fast typist; a line end is not Enter."""

    @abstractmethod
    async def key(self, *names: str) -> None:
        """Keys by tmux's names: Enter, Escape, C-c, BTab, Up …"""

    @abstractmethod
    async def paste(self, text: str) -> None:
        """The clipboard, bracketed if the command asked for that."""

    @abstractmethod
    async def text(self) -> str:
        """What the screen shows."""

    @abstractmethod
    async def said(self) -> str:
        """All of it, from the beginning."""

    @abstractmethod
    async def changed(self) -> None:
        """Return when the screen may have changed."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the command has ended."""

    @abstractmethod
    async def ended(self, within_s: float = 20.0) -> int:
        """The command's exit code, as a shell has it, when it has ended."""

    @abstractmethod
    async def close(self) -> None:
        """Whatever it shows: nothing of it is left afterwards."""

    async def say(self, text: str) -> None:
        """Words and Enter."""
        await self.type(text)
        await self.key("Enter")

    async def until(self, wanted: str | Seen, within_s: float = 20.0) -> str:
        """The screen once it shows that, or is such that `wanted` holds of it."""
        shown = ""
        with anyio.move_on_after(within_s):
            while True:
                shown = await self.text()
                if wanted in shown if isinstance(wanted, str) else wanted(shown):
                    return shown
                await self.changed()
        raise AssertionError(f"the screen never showed {wanted!r}; it shows:\n{shown}")

    async def kill(self) -> None:
        """kill -9 of the command, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        await self.ended()


AnyScreen = TypeVar("AnyScreen", bound=Screen)


@asynccontextmanager
async def opened(
    it: AnyScreen, directory: Path, size: tuple[int, int], words: tuple[str, ...]
) -> AsyncIterator[AnyScreen]:
    """The terminal with `holdfast WORDS` in it; both are gone after the block."""
    await it.start(directory, size, words)
    try:
        yield it
    finally:
        with anyio.CancelScope(shield=True):
            await it.close()
