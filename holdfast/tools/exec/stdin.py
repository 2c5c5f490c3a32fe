"""The stdin of a command: a pipe, a pseudo-terminal, or nothing."""

import fcntl
import os
import struct
import termios
from contextlib import ExitStack

import anyio

from holdfast.core.types import Value
from holdfast.errors import ToolFailed

ROWS, COLUMNS = 24, 80
END_OF_FILE = b"\x04"  # a terminal reports the end of input to its reader for this character


class CommandInput:
    """Writes to a command's stdin: a pipe, a pseudo-terminal, or nothing (fd -1)."""

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
                raise ToolFailed("the input of the process is closed") from error

    async def end(self) -> None:
        await self.write(END_OF_FILE) if self._terminal else self.close()

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            anyio.notify_closing(fd)
            os.close(fd)


class Wires(Value):
    """The fds of a command's stdin: our end, and the ends that the shim gets."""

    ours: int = -1
    stdin: int = -1
    terminal: tuple[int, int] | None = None

    @property
    def passed(self) -> tuple[int, ...]:
        return self.terminal or ((self.stdin,) if self.stdin >= 0 else ())


def wire(*, pty: bool, stdin: bool, theirs: ExitStack, ours: ExitStack) -> Wires:
    """Create the stdin of one command.

    `theirs` closes the fds that are ours only until the shim has started, `ours` closes our end.
    """
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
