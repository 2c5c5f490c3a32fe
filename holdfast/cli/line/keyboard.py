"""The prompt, and the line that is being typed to it.

The terminal echoes and edits a line until Enter. To show something meanwhile, the prompt is erased
and written again below. The terminal does not repeat the typed text, so it is read from the
terminal then and printed by us: nothing typed is lost or hidden.
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
    """The keyboard of a terminal, line by line."""

    def __init__(self) -> None:
        self._kept = b""  # the part of the line that was read from the terminal
        self._clever = sys.stdout.isatty() and is_clever()

    async def line(self) -> str:
        """Return a line with its end, or nothing at the end of the input.

        It waits for readiness, not in a thread: a thread in read() cannot be cancelled.
        """
        self._take()
        print(PROMPT + self._kept.decode("utf-8", "replace"), end="", flush=True)
        with _flags(on=termios.NOFLSH):  # else an interrupt drops the typed text
            while b"\n" not in self._kept:
                await anyio.wait_readable(sys.stdin)
                typed = _read()
                if not typed:
                    return ""
                self._kept += typed
        line, end, self._kept = self._kept.partition(b"\n")
        return (line + end).decode("utf-8", "replace")

    def withdraw(self) -> None:
        """Erase the prompt, and keep the typed text."""
        self._take()
        print(ERASE if self._clever else "\n", end="", flush=True)

    def give_back(self, line: str) -> None:
        """Take a line that came too late for a question: it is the next one here."""
        self._kept += line.encode() + b"\n"

    def drop(self) -> bool:
        """Drop the typed text; True if there was any."""
        self._take()
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        kept, self._kept = self._kept, b""
        return bool(kept)

    def _take(self) -> None:
        """Read the unfinished line from the terminal. A complete one stays there."""
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
    """Change the terminal's local flags during the block."""
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
