"""The output of a process as redacted text, in parts of any size.

A secret is recognised only from its beginning, so a part is read together with the `MARGIN` bytes
before it. If the end of a part could be the beginning of a secret, it is left for the next part.
So a reader stores only an offset, and the parts together are the whole output.
"""

import codecs
from collections.abc import Iterator

from holdfast.core.redaction import Redactor
from holdfast.tools.exec import shim
from holdfast.tools.exec.record import SpoolReader

MARGIN = 16 * 1024  # bytes that are read before a part; no form of a secret is longer
# Control characters are replaced, because in JSON each takes six characters. The exceptions are
# those that control a terminal.
_NOISE = {code: "\ufffd" for code in range(32) if chr(code) not in "\b\t\n\r\x1b"}
_GLANCE = 64 * 1024  # bytes that are searched for lines at a time
_EDGE = 1024  # characters within which a cut looks for a line end


class Output:
    """Reads the output of a process as redacted text, in parts."""

    def __init__(self, spool: SpoolReader, redactor: Redactor) -> None:
        self._spool = spool
        self._redactor = redactor

    @property
    def size(self) -> int:
        """The number of bytes written so far, including those that were dropped."""
        return self._spool.bounds()[0]

    def part(self, start: int, stop: int, *, ends: bool) -> str:
        """Return the text from `start` to `stop`. `ends`: there is no output after `stop`."""
        stream = self._redactor.stream()
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for data in self._pieces(max(0, start - MARGIN), start):
            stream.feed(decode(data))
        shown = [stream.feed(decode(data)) for data in self._pieces(start, stop)]
        if ends:
            shown += [stream.feed(decode(b"", final=True)), stream.flush()]
        return "".join(shown).translate(_NOISE)

    def page(self, start: int, limit: int, *, over: bool) -> tuple[str, int, int]:
        """Return at most `limit` bytes from `start`, and the offsets where they begin and end.

        They begin later than `start` if the output there was dropped.
        """
        end, first = self._spool.bounds()
        gap = first > shim.HEAD
        if gap and shim.HEAD <= start < first + MARGIN:
            start = min(end, first + MARGIN)
        stop = min(end, start + limit)
        if gap and start < shim.HEAD:
            stop = min(stop, shim.HEAD)
        stop = max(start, stop)
        return self.part(start, stop, ends=over and stop == end), start, stop

    def lines(self, start: int, *, over: bool) -> tuple[str, int]:
        """Return the complete lines from `start`, and the offset behind them.

        A line that is too long to wait for counts as complete.
        """
        text, start, stop = self.page(start, _GLANCE, over=over)
        if stop - start >= _GLANCE or (over and stop == self.size):
            return text, stop
        stop = start + b"".join(self._pieces(start, stop)).rfind(b"\n") + 1
        return self.part(start, stop, ends=False), stop

    def news(self, after: int, limit: int, *, over: bool) -> tuple[str, int, int]:
        """Return the last `limit` bytes after `after`, how many were skipped, and their end."""
        end = self.size
        start = max(after, end - limit)
        return self.part(start, end, ends=over), start - after, end

    def summary(self, limit: int) -> tuple[str, bool]:
        """Return the output in at most `limit` bytes, and whether it was shortened.

        A longer output is shortened to its beginning and its end.
        """
        end = self.size
        half = limit // 2 - 64
        if end <= limit:
            head = tail = self.part(0, end, ends=True)
            if len(head.encode()) <= limit:
                return head, False
        else:
            head = self.part(0, half, ends=False)
            tail = self.part(end - half, end, ends=True)
        head, tail = _first(head, half), _last(tail, half)
        left = max(1, end - len(head.encode()) - len(tail.encode()))
        return f"{head}\n[… {left} bytes not shown …]\n{tail}", True

    def _pieces(self, start: int, stop: int) -> Iterator[bytes]:
        while start < stop:
            data, then = self._spool.output(start, stop - start)
            if not data or then - len(data) != start:
                return  # dropped while we were reading
            yield data
            start = then


def _first(text: str, size: int) -> str:
    """Return the start of `text`, at most `size` bytes, cut at a line end if one is near."""
    cut = text.encode()[:size].decode(errors="ignore")
    at = cut.rfind("\n", max(0, len(cut) - _EDGE))
    return cut[:at] if at > 0 else cut


def _last(text: str, size: int) -> str:
    """Return the end of `text`, at most `size` bytes, cut at a line start if one is near."""
    cut = text.encode()[-size:].decode(errors="ignore")
    at = cut.find("\n", 0, _EDGE)
    return cut[at + 1 :] if 0 <= at < len(cut) - 1 else cut
