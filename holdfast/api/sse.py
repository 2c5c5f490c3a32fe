"""Server-sent events: one frame, one write; a slow reader is cut, a run never waits."""

from collections.abc import Awaitable, Callable

import anyio
from aiohttp import web

from holdfast.channels.http import wire
from holdfast.core.events import TERMINAL
from holdfast.gateway import Batches

STALL_S = 30.0  # how long one write may take
_SURE = 32 * 1024  # a write that leaves less than this buffered cannot block

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}


async def stream_events(
    request: web.Request, batches: Batches, *, ends: bool
) -> web.StreamResponse:
    """Write records as they come, until the reader is cut; if it `ends`, to the run's last."""
    response = web.StreamResponse(headers=_HEADERS)
    await response.prepare(request)
    data = wire.RETRY
    async for batch in batches:
        for record in batch:
            data += wire.frame(record) if ends else wire.session_frame(record)
            if len(data) > _SURE:  # so that little is buffered here for a slow reader
                if not await _write(request, response.write, data):
                    return response
                data = b""
        if not batch:
            data += wire.KEEP_ALIVE
        elif ends and isinstance(batch[-1].fact, TERMINAL):
            await _write(request, response.write_eof, data + wire.STREAM_CLOSED)
            break
        if data and not await _write(request, response.write, data):
            break
        data = b""
    return response


async def _write(
    request: web.Request, write: Callable[[bytes], Awaitable[None]], data: bytes
) -> bool:
    """Whether it could be written; a reader that takes too long is cut."""
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
