"""The terminal of `tests.fakes.screen` without tmux: a pty, and pyte to draw what is written to it.

It does what the tests need but one thing, which `tests.fakes.tmux` does: it does not fold again
what stands there when its width changes.
"""

import asyncio
import fcntl
import os
import pty
import struct
import termios
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pyte
from anyio.abc import Process
from pyte.screens import Char
from typing_extensions import override

from tests.fakes import forks
from tests.fakes.screen import LOOK_S, Screen, opened

FAINT = "faint"
_DIM = 2
_HISTORY = 20_000
_BRACKETED = 2004 << 5  # as pyte numbers what a program switches on
_KEYS = {
    "Enter": "\r",
    "Escape": "\x1b",
    "Tab": "\t",
    "BTab": "\x1b[Z",
    "BSpace": "\x7f",
    "Up": "\x1b[A",
    "Down": "\x1b[B",
    "Right": "\x1b[C",
    "Left": "\x1b[D",
}


def _bytes_of(key: str) -> str:
    """What a keyboard sends for a key."""
    if key.startswith("C-"):
        return chr(ord(key[2]) & 0x1F)
    return _KEYS[key]


class _Drawn(pyte.HistoryScreen):
    """What pyte draws. A program that asks the terminal (where is the cursor?) is answered."""

    def __init__(self, columns: int, rows: int, answer: Callable[[str], None]) -> None:
        self._answer = answer
        self.answers: list[str] = []
        self.paints = set[int]()
        super().__init__(columns, rows, history=_HISTORY)

    @override
    def write_process_input(self, data: str) -> None:
        self.answers.append(data)
        self._answer(data)

    @override
    def select_graphic_rendition(self, *attrs: int, **kwargs: Any) -> None:
        self.paints.update(attrs)
        super().select_graphic_rendition(*attrs, **kwargs)
        if _DIM in attrs:  # pyte has no such style: a colour stands for it
            self.cursor.attrs = self.cursor.attrs._replace(fg=FAINT)


class Emulator(Screen):
    """A command on a pty; `Screen` says what its methods do."""

    _process: Process
    _drawn: _Drawn
    _stream: pyte.ByteStream

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**environment, "TERM": "xterm-256color"}
        self._loop = asyncio.get_running_loop()
        self._change = anyio.Event()
        self._to_send = b""
        self.written = b""  # everything, as the command has sent it
        # Both ends are held: what the command has written last can be read after its end.
        self._ours, self._theirs = pty.openpty()
        os.set_blocking(self._ours, False)

    @override
    async def start(self, directory: Path, size: tuple[int, int], words: tuple[str, ...]) -> None:
        columns, rows = size
        self._drawn = _Drawn(columns, rows, self._send)
        self._stream = pyte.ByteStream(self._drawn)
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = await forks.start(
            words,
            cwd=directory,
            env=self._environment,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            terminal=True,
        )
        self.pid = self._process.pid
        self._loop.add_reader(self._ours, self._draw)

    @property
    def title(self) -> str:
        """The title of the window."""
        return self._drawn.title

    def _draw(self) -> None:
        """Draw all that has been written; Linux hands over what is on its way before it says no."""
        with suppress(BlockingIOError):
            while True:
                self.written += (data := os.read(self._ours, 65536))
                self._stream.feed(data)
                self._change.set()
                self._change = anyio.Event()

    def _send(self, text: str) -> None:
        """Put bytes behind those that wait: a pty takes a few thousand until they are read."""
        self._to_send += text.encode()
        self._write()

    def _write(self) -> None:
        with suppress(BlockingIOError):
            while self._to_send:
                self._to_send = self._to_send[os.write(self._ours, self._to_send) :]
        if self._to_send:
            self._loop.add_writer(self._ours, self._write)
        else:
            self._loop.remove_writer(self._ours)

    @override
    async def type(self, text: str) -> None:
        self._send(text)
        await self.changed()

    @override
    async def key(self, *names: str) -> None:
        for name in names:
            await self.type(_bytes_of(name))

    @override
    async def paste(self, text: str) -> None:
        lines = text.replace("\n", "\r")
        bracketed = _BRACKETED in self._drawn.mode
        await self.type(f"\x1b[200~{lines}\x1b[201~" if bracketed else lines)

    @override
    async def text(self) -> str:
        return "".join(f"{line.rstrip()}\n" for line in self._drawn.display)

    @override
    async def said(self) -> str:
        """All of it, from the beginning, as it was folded."""
        columns = range(self._drawn.columns)
        past = ("".join(line[x].data for x in columns) for line in self._drawn.history.top)
        return "".join(f"{line.rstrip()}\n" for line in past) + await self.text()

    def rows(self) -> list[list[Char]]:
        """Return the cells of the screen, row by row, with their colours."""
        columns, rows = range(self._drawn.columns), range(self._drawn.lines)
        return [[self._drawn.buffer[y][x] for x in columns] for y in rows]

    def answers(self) -> list[str]:
        """What the terminal has answered to the command's questions."""
        return self._drawn.answers

    def paints(self) -> set[int]:
        """The codes of all colours and styles (`ESC [ … m`) that the command has ever used."""
        return self._drawn.paints

    @override
    async def changed(self) -> None:
        with anyio.move_on_after(LOOK_S):
            await self._change.wait()

    @property
    @override
    def is_over(self) -> bool:
        return self._process.returncode is not None

    @override
    async def ended(self, within_s: float = 20.0) -> int:
        with anyio.fail_after(within_s):
            code = await self._process.wait()
        self._draw()
        return code if code >= 0 else 128 - code

    @override
    async def close(self) -> None:
        try:
            if not self.is_over:
                await self.kill()
            await self._process.aclose()
        finally:
            self._loop.remove_reader(self._ours)
            self._loop.remove_writer(self._ours)
            os.close(self._ours)
            os.close(self._theirs)


@asynccontextmanager
async def screen(
    environment: Mapping[str, str],
    directory: Path,
    *words: str,
    columns: int = 100,
    rows: int = 30,
) -> AsyncIterator[Emulator]:
    """A terminal with `holdfast WORDS` in it; both are gone after the block."""
    async with opened(Emulator(environment), directory, (columns, rows), words) as it:
        yield it
