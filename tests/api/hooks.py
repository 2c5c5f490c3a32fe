"""A server for the hooks of one channel, as the gateway's own serves those of all."""

import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from aiohttp import web

from holdfast.channels.channel import Hears, Hook


class Hooks:
    """Where a platform reaches the channel that was opened last."""

    def __init__(self) -> None:
        self.url = ""
        self.channel: Hears | None = None
        self.faults: deque[int] = deque()  # a status for each next request; 0: no answer
        self._open: set[anyio.CancelScope] = set()

    def crash(self) -> None:
        """Whoever waits for an answer gets none."""
        for scope in self._open:
            scope.cancel()

    async def handle(self, request: web.Request) -> web.Response:
        """One request, or what is to happen instead."""
        if self.faults:
            status = self.faults.popleft()
            return web.Response(status=status) if status else _reset(request)
        if self.channel is None or request.match_info["path"] != self.channel.path:
            return web.Response(status=404)
        headers = {name.lower(): value for name, value in request.headers.items()}
        hook = Hook(headers, await request.read())
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                answer = await self.channel.hear(hook)
            finally:
                self._open.discard(scope)
            return web.Response(
                status=answer.status, body=answer.body, content_type=answer.content_type
            )
        return _reset(request)


def _reset(request: web.Request) -> web.Response:
    assert request.transport is not None
    sock = request.transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.transport.close()
    return web.Response()


@asynccontextmanager
async def serve_hooks() -> AsyncIterator[Hooks]:
    """A server on loopback for the length of a block."""
    hooks = Hooks()
    app = web.Application()
    app.router.add_post("/hooks/{path}", hooks.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        hooks.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hooks"
        yield hooks
    finally:
        await runner.cleanup()
