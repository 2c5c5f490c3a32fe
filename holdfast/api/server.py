"""The HTTP channel listens: on the network behind the key, and on the operator's socket."""

import logging
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from aiohttp import web
from aiohttp.http import HttpProcessingError

from holdfast.channels.http.door import Door, error_response, guard, headers_of, http_error, secure
from holdfast.channels.http.routes import Routes
from holdfast.gateway import HANDOVER, Gateway

log = logging.getLogger(__name__)

BACKLOG = 2048
CLEANUP_S = 2.0

_OPTIONS: dict[str, Any] = {"access_log": None, "auto_decompress": False}
_THEIR_FAULT = (HttpProcessingError, web.RequestPayloadError)


class _Connection(web.RequestHandler):
    """What aiohttp says by itself, in the form that every answer has.

    It speaks when a request is not HTTP, and when a handler breaks. Its own words quote
    the request, keys included: they are neither sent nor logged.
    """

    __slots__ = ()

    def handle_error(  # type: ignore[explicit-override]  # typing.override is 3.12
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what no handler could answer."""
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
        """Only what is our fault."""
        if not isinstance(more.get("exc_info"), _THEIR_FAULT):
            super().log_exception(*args, **more)


class _Server(web.Server):
    """Makes the connections. Bodies are taken as they are: nothing is unpacked for anybody."""

    def __call__(self) -> web.RequestHandler:  # type: ignore[explicit-override]
        return _Connection(self, loop=get_running_loop(), **_OPTIONS)


def application(
    gateway: Gateway,
    door: Door,
    body_limit: int,
    body_wait_s: float,
    handover: Callable[[], None] | None,
) -> web.Application:
    """The API behind one door. `handover` is called when somebody wants to own the home."""
    app = web.Application(middlewares=[guard(door)], client_max_size=body_limit)
    app.on_response_prepare.append(headers_of(door))
    for method, path, handler in Routes(gateway, door.principal, body_limit, body_wait_s).table():
        app.router.add_route(method, path, handler)
    if handover is not None:
        app.router.add_post(HANDOVER, partial(_hand_over, handover))
    return app


async def _hand_over(handover: Callable[[], None], request: web.Request) -> web.Response:
    handover()
    return web.Response(status=202)


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[web.BaseRunner]:
    """Handle requests meanwhile. Ends within a bound, whatever clients do."""
    inner = web.AppRunner(app, handle_signals=False)
    await inner.setup()
    assert inner.server is not None
    handler = inner.server.request_handler

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:  # raised before the door is reached
            return http_error(request, error)

    server = _Server(
        handle, request_factory=inner.server.request_factory, handler_cancellation=True
    )
    runner = web.ServerRunner(server, shutdown_timeout=1)
    await runner.setup()
    try:
        yield runner
    finally:
        with anyio.move_on_after(CLEANUP_S, shield=True):
            await runner.cleanup()
            await inner.cleanup()


async def listen_tcp(runner: web.BaseRunner, host: str, port: int) -> int:
    """Take requests from the network; the port, which may have been chosen."""
    site = web.TCPSite(runner, host, port, backlog=BACKLOG, reuse_address=True)
    await site.start()
    bound: int = runner.addresses[0][1]
    return bound


async def listen_unix(runner: web.BaseRunner, path: Path) -> None:
    """Take requests from the operator. A socket that a dead owner left behind is replaced."""
    path.unlink(missing_ok=True)  # noqa: ASYNC240  once, at start
    await web.UnixSite(runner, str(path), backlog=BACKLOG).start()
