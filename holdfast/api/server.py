"""The HTTP server: on the network behind the key, and on the operator's socket."""

import logging
from asyncio import CancelledError, get_running_loop
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from aiohttp import web
from aiohttp.http import HttpProcessingError

from holdfast.api.auth import Doorway, error_response, guard, headers_of, http_error, secure
from holdfast.api.connections import Connection, Strangers
from holdfast.api.endpoints import RouteContext
from holdfast.api.routes.public import ENDPOINTS
from holdfast.gateway import HANDOVER, Gateway

log = logging.getLogger(__name__)

BACKLOG = 2048
CLEANUP_S = 2.0

_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_OPTIONS: dict[str, Any] = {"access_log": None, "auto_decompress": False}
_THEIR_FAULT = (HttpProcessingError, web.RequestPayloadError)


class _Connection(Connection):
    """A connection whose errors have the form of every response.

    aiohttp answers itself when a request is not HTTP and when a handler fails. Its messages quote
    the request, keys included, so they are neither sent nor logged.

    When a client disconnects, the scope of its handler is cancelled. aiohttp would cancel the task:
    that ignores every shield, and a handler that waits for a thread would leave it running with
    resources that others believe to be free.
    """

    __slots__ = ("_handling",)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._handling: anyio.CancelScope | None = None

    async def handle(self, handler: _Handler, request: web.BaseRequest) -> web.StreamResponse:
        """Handle a request until its client disconnects."""
        with anyio.CancelScope() as self._handling:
            try:
                return await handler(request)
            except web.HTTPException as error:  # raised before the middleware is reached
                return http_error(request, error)
            except ConnectionError:
                if self.transport is not None and not self.transport.is_closing():
                    raise
            finally:
                self._handling = None
        raise CancelledError  # as aiohttp expects when the client is gone

    def connection_lost(self, exc: BaseException | None) -> None:  # type: ignore[explicit-override]
        """Extend aiohttp: cancel the handler first, so that it does not fail with an error instead."""
        handling, task = self._handling, self._task_handler
        if handling is not None:
            handling.cancel()
        super().connection_lost(exc)
        if handling is None and task is not None:
            task.cancel()

    def handle_error(  # type: ignore[explicit-override]  # typing.override is 3.12
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to a request that no handler could."""
        if status >= 500:
            log.error("handler broke", exc_info=exc, extra={"route": request.path})
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        if status >= 500:
            text = "Internal error. The log has the details."
            response = error_response(status, "internal_error", text)
        else:
            text = "This is not HTTP/1.1, or a line of it is too long."
            response = error_response(status, "bad_request", text)
        secure(response)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **more: Any) -> None:  # type: ignore[explicit-override]
        """Log only errors of ours, not of clients."""
        if not isinstance(more.get("exc_info"), _THEIR_FAULT):
            super().log_exception(*args, **more)


class _Server(web.Server):
    """Makes the connections. Compressed bodies are not unpacked."""

    def __init__(self, strangers: Strangers | None, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._strangers = strangers

    def __call__(self) -> web.RequestHandler:  # type: ignore[explicit-override]
        return _Connection(self._strangers, self, loop=get_running_loop(), **_OPTIONS)


def application(
    gateway: Gateway,
    door: Doorway,
    body_limit: int,
    body_wait_s: float,
    handover: Callable[[], None] | None,
) -> web.Application:
    """Make the API for one place. `handover` is called when another process wants the home."""
    app = web.Application(middlewares=[guard(door)], client_max_size=body_limit)
    app.on_response_prepare.append(headers_of(door))
    context = RouteContext(gateway, door.principal, body_limit, body_wait_s)
    for endpoint in ENDPOINTS:
        handler = partial(endpoint.handler, context)
        app.router.add_route(endpoint.method, endpoint.path, handler)
    if handover is not None:
        app.router.add_post(HANDOVER, partial(_hand_over, handover))
    return app


async def _hand_over(handover: Callable[[], None], request: web.Request) -> web.Response:
    handover()
    return web.Response(status=202)


@asynccontextmanager
async def serving(
    app: web.Application, headers_s: float | None = None
) -> AsyncIterator[web.BaseRunner]:
    """Handle requests during the block. It ends in bounded time, whatever clients do.

    `headers_s` is the time for the first request of a client that has not shown the key; None at
    the operator's socket.
    """
    inner = web.AppRunner(app, handle_signals=False)
    await inner.setup()
    assert inner.server is not None
    handler = inner.server.request_handler

    def handle(request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        connection = request.protocol
        assert isinstance(connection, _Connection)
        return connection.handle(handler, request)

    strangers = None if headers_s is None else Strangers(headers_s)
    server = _Server(strangers, handle, request_factory=inner.server.request_factory)
    runner = web.ServerRunner(server, shutdown_timeout=1)
    await runner.setup()
    try:
        yield runner
    finally:
        with anyio.move_on_after(CLEANUP_S, shield=True):
            await runner.cleanup()
            await inner.cleanup()


async def listen_tcp(runner: web.BaseRunner, host: str, port: int) -> int:
    """Listen on the network; returns the port, which the system may have chosen."""
    site = web.TCPSite(runner, host, port, backlog=BACKLOG, reuse_address=True)
    await site.start()
    bound: int = runner.addresses[0][1]
    return bound


async def listen_unix(runner: web.BaseRunner, path: Path) -> None:
    """Listen on the operator's socket. One that a dead owner left behind is replaced."""
    path.unlink(missing_ok=True)  # noqa: ASYNC240  once, at start
    await web.UnixSite(runner, str(path), backlog=BACKLOG).start()
