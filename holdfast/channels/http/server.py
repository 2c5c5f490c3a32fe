"""The HTTP channel listens: on the network behind the key, and on the operator's socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from aiohttp import web

from holdfast.channels.http.door import Door, guard, headers_of
from holdfast.channels.http.routes import Routes
from holdfast.gateway import Gateway

BACKLOG = 2048
CLEANUP_S = 2.0


def application(gateway: Gateway, door: Door, body_limit: int) -> web.Application:
    """The API behind one door."""
    app = web.Application(middlewares=[guard(door)], client_max_size=body_limit)
    app.on_response_prepare.append(headers_of(door))
    for method, path, handler in Routes(gateway, door.principal, body_limit).table():
        app.router.add_route(method, path, handler)
    return app


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[web.AppRunner]:
    """Handle requests meanwhile. Ends within a bound, whatever clients do."""
    runner = web.AppRunner(
        app,
        handle_signals=False,
        access_log=None,
        shutdown_timeout=1,
        handler_cancellation=True,
    )
    await runner.setup()
    try:
        yield runner
    finally:
        with anyio.move_on_after(CLEANUP_S, shield=True):
            await runner.cleanup()


async def listen_tcp(runner: web.AppRunner, host: str, port: int) -> int:
    """Take requests from the network; the port, which may have been chosen."""
    site = web.TCPSite(runner, host, port, backlog=BACKLOG, reuse_address=True)
    await site.start()
    bound: int = runner.addresses[0][1]
    return bound


async def listen_unix(runner: web.AppRunner, path: Path) -> None:
    """Take requests from the operator. A socket that a dead owner left behind is replaced."""
    path.unlink(missing_ok=True)  # noqa: ASYNC240  once, at start
    await web.UnixSite(runner, str(path), backlog=BACKLOG).start()
