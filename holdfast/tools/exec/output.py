"""What a process wrote, as clean text, in parts of any size.

A part is read together with what stands before it (`MARGIN`), because a secret that begins
there is found only from its beginning; what might go on as one is left for the next part. So
no reader keeps more than an offset, and parts add up to the whole.
"""

import codecs
from collections.abc import Iterator

from holdfast.core.redaction import Redactor
from holdfast.tools import shim
from holdfast.tools.record import Spool

MARGIN = 16 * 1024  # bytes before a part that are read with it; no form of a secret is longer
# Of what is not text only what terminals are told by is kept: in JSON the rest is six times as long.
_NOISE = {code: "\ufffd" for code in range(32) if chr(code) not in "\b\t\n\r\x1b"}
_GLANCE = 64 * 1024  # bytes looked at for lines at once
_EDGE = 1024  # characters within which a cut looks for the end of a line


class Output:
    """What a process wrote, as clean text, in parts."""

    def __init__(self, spool: Spool, redactor: Redactor) -> None:
        self._spool = spool
        self._redactor = redactor

    @property
    def size(self) -> int:
        """Bytes so far, also of what has been dropped by now."""
        return self._spool.bounds()[0]

    def part(self, start: int, stop: int, *, ends: bool) -> str:
        """The text from `start` to `stop`; with `ends`, nothing comes after it."""
        stream = self._redactor.stream()
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for data in self._pieces(max(0, start - MARGIN), start):
            stream.feed(decode(data))
        shown = [stream.feed(decode(data)) for data in self._pieces(start, stop)]
        if ends:
            shown += [stream.feed(decode(b"", final=True)), stream.flush()]
        return "".join(shown).translate(_NOISE)

    def page(self, start: int, limit: int, *, over: bool) -> tuple[str, int, int]:
        """At most `limit` bytes from `start` on; where they begin, as some may be gone, and end."""
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
        """Lines from `start` on that have ended, or are too long to wait for; where they end."""
        text, start, stop = self.page(start, _GLANCE, over=over)
        if stop - start >= _GLANCE or (over and stop == self.size):
            return text, stop
        stop = start + b"".join(self._pieces(start, stop)).rfind(b"\n") + 1
        return self.part(start, stop, ends=False), stop

    def news(self, after: int, limit: int, *, over: bool) -> tuple[str, int, int]:
        """The last `limit` bytes since `after`; how many were left out, and where they end."""
        end = self.size
        start = max(after, end - limit)
        return self.part(start, end, ends=over), start - after, end

    def summary(self, limit: int) -> tuple[str, bool]:
        """All of it in `limit` bytes, or its first and its last; and whether that is not all."""
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
                return  # dropped while we looked
            yield data
            start = then


def _first(text: str, size: int) -> str:
    """The first of `text`, at most `size` bytes, up to the end of a line if one is near."""
    cut = text.encode()[:size].decode(errors="ignore")
    at = cut.rfind("\n", max(0, len(cut) - _EDGE))
    return cut[:at] if at > 0 else cut


def _last(text: str, size: int) -> str:
    """The last of `text`, at most `size` bytes, from the start of a line if one is near."""
    cut = text.encode()[-size:].decode(errors="ignore")
    at = cut.find("\n", 0, _EDGE)
    return cut[at + 1 :] if 0 <= at < len(cut) - 1 else cut
