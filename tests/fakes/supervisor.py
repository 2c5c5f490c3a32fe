"""The listening end of sd_notify: what a service manager hears of a process."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import anyio


class Ear:
    """A socket for NOTIFY_SOCKET, and every line that came in so far."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.lines: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)

    async def message(self) -> list[str]:
        """The lines of the next message."""
        await anyio.wait_readable(self._socket)
        lines = self._socket.recv(65536).decode().split("\n")
        self.lines += lines
        return lines

    async def hears(self, line: str) -> None:
        """Return at the next message with `line` in it."""
        with anyio.fail_after(30):
            while line not in await self.message():
                pass

    async def silence(self, seconds: float) -> None:
        """Return once nothing has been heard for so long."""
        heard = True
        while heard:
            with anyio.move_on_after(seconds) as scope:
                await self.message()
            heard = not scope.cancelled_caught

    def close(self) -> None:
        self._socket.close()


@contextmanager
def ear(directory: Path | None = None) -> Iterator[Ear]:
    """One in `directory`, else one without a file (Linux only)."""
    address = f"@holdfast-{token_hex(8)}" if directory is None else str(directory / "notify")
    listening = Ear(address)
    try:
        yield listening
    finally:
        listening.close()
