"""The wires of a command's input: a pipe, a terminal, or none."""

import fcntl
import os
import struct
import termios
from contextlib import ExitStack

import anyio

from holdfast.core.types import Value
from holdfast.errors import ToolFailed

ROWS, COLUMNS = 24, 80
END_OF_FILE = b"\x04"  # what a terminal's reader takes for the end of its input


class Input:
    """The way into a command's input: a pipe, a terminal, or none at all (-1)."""

    def __init__(self, fd: int, *, terminal: bool) -> None:
        self._fd = fd
        self._terminal = terminal
        self._writing = anyio.Lock()

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        async with self._writing:
            try:
                while view:
                    try:
                        view = view[os.write(self._fd, view) :]
                    except BlockingIOError:
                        await anyio.wait_writable(self._fd)
            except (OSError, anyio.ClosedResourceError) as error:
                raise ToolFailed("the process takes no input (any more)") from error

    async def end(self) -> None:
        await self.write(END_OF_FILE) if self._terminal else self.close()

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            anyio.notify_closing(fd)
            os.close(fd)


class Wires(Value):
    """The fds of a command's input: ours, and what the shim is given."""

    ours: int = -1
    stdin: int = -1
    terminal: tuple[int, int] | None = None

    @property
    def passed(self) -> tuple[int, ...]:
        return self.terminal or ((self.stdin,) if self.stdin >= 0 else ())


def wire(*, pty: bool, stdin: bool, theirs: ExitStack, ours: ExitStack) -> Wires:
    """The wires of one command; what is to be closed, by us or once it has been started, is noted."""
    if pty:
        master, slave = os.openpty()
        theirs.callback(os.close, master)
        theirs.callback(os.close, slave)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        wires = Wires(os.dup(master), terminal=(master, slave))
    elif stdin:
        reading, writing = os.pipe()
        theirs.callback(os.close, reading)
        wires = Wires(writing, stdin=reading)
    else:
        return Wires()
    ours.callback(os.close, wires.ours)
    os.set_blocking(wires.ours, False)
    return wires
