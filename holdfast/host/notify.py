"""What whoever supervises us is told: that we serve, that we end, that we are alive.

The protocol is sd_notify: one datagram a message, to the socket that NOTIFY_SOCKET names.
Nothing depends on it being heard: where nobody listens, nothing is said.

The sign of life comes from the event loop, and only after the journal's writer has answered
since the last one. A loop that is blocked feeds nothing, and neither does one that turns
over a disk that hangs: the supervisor ends us, and the next start recovers.
"""

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

SEND_S = 1.0  # a supervisor that does not read must not stop us


class Notifier:
    """The supervisor's ear; deaf if there is none."""

    def __init__(self, address: str) -> None:
        self._address: str = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address.startswith(("/", "@")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # not inheritable
            self._socket.settimeout(SEND_S)

    def tell(self, *lines: str) -> None:
        """Say these lines in one message; `status` texts have no line ends."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)

    def close(self) -> None:
        """Say nothing more."""
        if self._socket is not None:
            self._socket.close()


def status(text: str) -> str:
    """The line that is shown to whoever asks the supervisor about us."""
    return f"STATUS={' '.join(text.split())}"


async def feed(
    notifier: Notifier, every_s: float, answered: Callable[[], Awaitable[object]]
) -> None:
    """For as long as the process lives: a sign of life, each after an answer of its own."""
    while True:
        await answered()
        notifier.tell("WATCHDOG=1")
        await anyio.sleep(every_s)
