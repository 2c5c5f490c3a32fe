"""One kept-alive HTTP/1.1 connection that reads JSON answers and SSE streams.

The driver shares two cores with what it measures, so this is a protocol of callbacks that
looks at bytes once: it keeps times and counts, never frames. It understands what the
servers under test send (Content-Length or chunked, LF frames) and nothing more.
"""

import asyncio
import re
import time
from collections.abc import Callable

from typing_extensions import override

TERMINAL = re.compile(rb'"event": ?"run\.(completed|failed|cancelled)"')
DELTA = re.compile(rb'"delta": ?"([^"]*)"')
VOID = b'"message.void"'  # what was streamed of this turn does not count: the model is asked again


class Dropped(Exception):
    """The server closed the connection before its answer was whole."""


class Connection(asyncio.Protocol):
    """Ask one thing at a time with `ask`; the outcome is in the attributes below it."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""  # of an answer that is no stream
        self.first_at = 0  # monotonic ns of the first frame …
        self.done_at = 0  # … and of the end of the answer
        self.terminal = b""  # completed, failed or cancelled
        self.lags: list[int] = []  # ns, one per token that is a time
        self.voids = 0  # turns that were cut and asked again
        self.on_delta: Callable[[], None] = lambda: None
        self._asked: asyncio.Future[None] | None = None
        self._wire: asyncio.Transport | None = None
        self._rest = b""
        self._frame = b""  # an SSE frame that is not whole yet
        self._token = b""  # a token that is not whole yet: two frames may share one
        self._before = 0  # how many lags there were before this turn
        self._missing = -1  # bytes of the body still to come; -1 in the head, -2 when chunked

    @property
    def closed(self) -> bool:
        return self._wire is None

    def close(self) -> None:
        """Hang up."""
        if self._wire is not None:
            self._wire.abort()

    async def ask(self, request: bytes) -> None:
        """Send a request and return when its answer is whole."""
        if self._wire is None:
            raise Dropped
        self.status = self.first_at = self.done_at = 0
        self.body = self.terminal = self._frame = self._token = b""
        self._before = len(self.lags)
        self._missing = -1
        self._asked = asyncio.get_running_loop().create_future()
        self._wire.write(request)
        await self._asked

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._wire = None
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(Dropped())

    @override
    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        data = self._rest + data if self._rest else data
        if self._missing == -1:
            end = data.find(b"\r\n\r\n") + 4
            if end == 3:
                self._rest = data
                return
            self._read_head(data[:end].lower())
            data = data[end:]
        if self._missing == -2:
            self._read_chunks(data, now)
            return
        self._rest = b""
        self.body += data
        self._missing -= len(data)
        if self._missing == 0:
            self._finish(now)

    def _read_head(self, head: bytes) -> None:
        self.status = int(head[9:12])
        if b"transfer-encoding: chunked" in head:
            self._missing = -2
        else:
            start = head.find(b"content-length:")
            length = head[start + 15 : head.find(b"\r\n", start)]
            self._missing = int(length) if start >= 0 else 0

    def _read_chunks(self, data: bytes, now: int) -> None:
        at = 0
        parts = []
        ended = False
        while (line := data.find(b"\r\n", at)) >= 0:
            end = line + 2 + int(data[at:line], 16)
            if end + 2 > len(data):
                break
            parts.append(data[line + 2 : end])
            at = end + 2
            if end == line + 2:
                ended = True
                break
        self._rest = data[at:]
        if parts:
            self._read_frames(b"".join(parts), now)
        if ended:
            self._finish(now)

    def _read_frames(self, data: bytes, now: int) -> None:
        text, gap, self._frame = (self._frame + data).rpartition(b"\n\n")
        if not gap:
            return
        if not self.first_at and b"data:" in text:
            self.first_at = now
        if VOID in text:
            text = self._start_turn_again(text)
        if deltas := DELTA.findall(text):
            self.on_delta()
            tokens, _, self._token = b"".join((self._token, *deltas)).rpartition(b" ")
            self.lags += [now - int(token) for token in tokens.split() if token.isdigit()]
        if found := TERMINAL.search(text):
            self.terminal = found[1]

    def _start_turn_again(self, text: bytes) -> bytes:
        """Forget the tokens of a turn that was cut; return the frames behind it."""
        self.voids += text.count(VOID)
        self._token = b""
        del self.lags[self._before :]
        return text.rpartition(VOID)[2]

    def _finish(self, now: int) -> None:
        self.done_at = now
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(None)
