"""Guard the terminal: what we print cannot steer it, whatever the text contains.

Where stdout or stderr is a terminal, characters that steer it and are never ours are written as
`\\u202e`. In JSON that is the same value, so a program may read it there too. Where the stream is
not a terminal nothing changes: a program gets the answer, the export or the JSON byte for byte.
"""

import io
import sys
from typing import TextIO

from holdfast.core.text.escape import STEERING


def _escaped(code: int) -> str:
    """Write a character as JSON does."""
    units = chr(code).encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


_GUARDED = {code: _escaped(code) for code in STEERING}


class _Guarded(io.TextIOWrapper):
    """A terminal that only our own escape sequences steer."""

    def write(self, text: str, /) -> int:  # type: ignore[explicit-override]
        super().write(text if text.isascii() and "\x7f" not in text else text.translate(_GUARDED))
        return len(text)


def guard() -> None:
    """Make stdout and stderr print any text without being steered and without an error."""
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


def _guarded(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, _Guarded):
        return stream
    stream.reconfigure(errors="replace")  # a character that cannot be encoded must not end a run
    if not stream.isatty():
        return stream
    encoding, buffered = stream.encoding, stream.line_buffering
    return _Guarded(stream.detach(), encoding, "replace", line_buffering=buffered)
