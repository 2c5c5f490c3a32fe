"""The signals that end a gateway.

Before the engine has started, a signal ends the process at once with exit code 0, because nothing
was accepted yet. SIGHUP is handled like SIGTERM, unless the process was started with it ignored
(nohup).
"""

import os
import signal
from types import FrameType

_ALL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def ending() -> tuple[signal.Signals, ...]:
    """Return the signals that end this process."""
    return tuple(s for s in _ALL if signal.getsignal(s) is not signal.SIG_IGN)


def end_at_once() -> None:
    """Let each of these signals end the process with 0, until other handlers are installed."""
    for number in ending():
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"Stopped before it was ready.\n")
    os._exit(0)
