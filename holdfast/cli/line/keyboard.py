"""The prompt, and the line that is being typed to it.

Until its end is typed, a line is the terminal's alone, with its echo and its editing. What is
shown meanwhile takes the prompt back and writes it anew below. A terminal does not show
again what it holds, so what was typed so far is taken from it then, and shown by us: none of
it is lost, and none of it is hidden.
"""

import fcntl
import os
import select
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio

from holdfast.cli.output import ERASE, is_clever

PROMPT = "› "
_LOCAL_FLAGS = 3  # where termios keeps them


class LineKeyboard:
    """Whoever types at the terminal, line by line."""

    def __init__(self) -> None:
        self._kept = b""  # of the line, taken from the terminal
        self._clever = sys.stdout.isatty() and is_clever()

    async def line(self) -> str:
        """Ask for a line: it and its end, or nothing at the end of the input.

        By readiness, not in a thread: a thread in read() could be neither cancelled nor left.
        """
        self._take()
        print(PROMPT + self._kept.decode("utf-8", "replace"), end="", flush=True)
        with _flags(on=termios.NOFLSH):  # else an interrupt drops the line before we can look
            while b"\n" not in self._kept:
                await anyio.wait_readable(sys.stdin)
                typed = _read()
                if not typed:
                    return ""
                self._kept += typed
        line, end, self._kept = self._kept.partition(b"\n")
        return (line + end).decode("utf-8", "replace")

    def withdraw(self) -> None:
        """Take the prompt back, and keep what was typed to it."""
        self._take()
        print(ERASE if self._clever else "\n", end="", flush=True)

    def give_back(self, line: str) -> None:
        """A line that was typed to something else, too late for it: it is the next one here."""
        self._kept += line.encode() + b"\n"

    def drop(self) -> bool:
        """Drop the line that is being typed; whether there was one."""
        self._take()
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        kept, self._kept = self._kept, b""
        return bool(kept)

    def _take(self) -> None:
        """Take from the terminal what is typed of a line. A whole one stays: it will be read."""
        if select.select([sys.stdin], [], [], 0)[0]:
            return
        with suppress(termios.error, OSError), _flags(off=termios.ICANON):
            room = fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, struct.pack("i", 0))
            if (count := struct.unpack("i", room)[0]) > 0:
                self._kept += os.read(sys.stdin.fileno(), count)


def _read() -> bytes:
    try:
        return os.read(sys.stdin.fileno(), 1 << 16)
    except OSError:  # the terminal is gone
        return b""


@contextmanager
def _flags(*, on: int = 0, off: int = 0) -> Iterator[None]:
    """The terminal's local flags, changed for as long as the block lasts."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    changed = before.copy()
    changed[_LOCAL_FLAGS] = (changed[_LOCAL_FLAGS] | on) & ~off
    termios.tcsetattr(keyboard, termios.TCSANOW, changed)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(keyboard, termios.TCSANOW, before)
