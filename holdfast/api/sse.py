"""Stream server-sent events. A slow reader is disconnected; a run never waits for readers."""

from asyncio import get_running_loop
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
from aiohttp import web

from holdfast.api import frames
from holdfast.core.events import TERMINAL
from holdfast.gateway import Batches

STALL_S = 30.0  # how long one write may take
_SURE = 32 * 1024  # a write that leaves less than this buffered cannot block

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}


class _EventStream(web.StreamResponse):
    """A response whose headers travel with its first records, if those are there at once."""

    _send_headers_immediately = False


def _send_headers(request: web.Request) -> None:
    with suppress(ConnectionError):  # the handler finds out by itself
        request.writer.send_headers()


async def stream_events(
    request: web.Request, batches: Batches, *, ends: bool
) -> web.StreamResponse:
    """Write records as they come until the reader is gone; if it `ends`, up to the run's last."""
    response = _EventStream(headers=_HEADERS)
    await response.prepare(request)
    get_running_loop().call_soon(_send_headers, request)  # unless they went with records
    data = frames.RETRY
    async for batch in batches:
        for record in batch:
            data += frames.frame(record) if ends else frames.session_frame(record)
            if len(data) > _SURE:  # so that little is buffered here for a slow reader
                if not await _write(request, response.write, data):
                    return response
                data = b""
        if not batch:
            data += frames.KEEP_ALIVE
        elif ends and isinstance(batch[-1].fact, TERMINAL):
            await _write(request, response.write_eof, data + frames.STREAM_CLOSED)
            break
        if data and not await _write(request, response.write, data):
            break
        data = b""
    return response


async def _write(
    request: web.Request, write: Callable[[bytes], Awaitable[None]], data: bytes
) -> bool:
    """Write, and tell whether that worked; disconnect a reader that takes too long."""
    transport = request.transport
    if transport is None:
        return False
    try:
        if transport.get_write_buffer_size() + len(data) < _SURE:
            await write(data)
            return True
        with anyio.move_on_after(STALL_S) as limit:
            await write(data)
    except ConnectionError:
        return False
    if limit.cancelled_caught:
        transport.abort()
    return not limit.cancelled_caught
