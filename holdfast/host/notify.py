"""Notifications to the supervisor: ready, stopping, watchdog.

The protocol is sd_notify: one datagram per message, to the socket in NOTIFY_SOCKET. Nothing
depends on their arrival; without a socket, nothing is sent.

The watchdog message is sent from the event loop, and only after the journal's writer has answered
since the last one. So it stops when the loop is blocked and when the disk hangs: the supervisor
then ends the process, and the next start recovers.
"""

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

SEND_S = 1.0  # a supervisor that does not read must not block us for longer


class Notifier:
    """The socket of the supervisor; does nothing if there is none."""

    def __init__(self, address: str) -> None:
        self._address: str = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address.startswith(("/", "@")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # not inheritable
            self._socket.settimeout(SEND_S)

    def tell(self, *lines: str) -> None:
        """Send these lines in one message."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()


def status(text: str) -> str:
    """Return the line with the status text that the supervisor shows."""
    return f"STATUS={' '.join(text.split())}"


async def feed(
    notifier: Notifier, every_s: float, answered: Callable[[], Awaitable[object]]
) -> None:
    """Send watchdog messages for ever, each after a new answer of `answered`."""
    while True:
        await answered()
        notifier.tell("WATCHDOG=1")
        await anyio.sleep(every_s)
