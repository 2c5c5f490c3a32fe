"""Hooks: HTTP requests of chat platforms, passed to their channels.

The channel authenticates a request: no key of ours is needed here. Host, Origin, the size of the
body and the time for it are checked as on every route.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable

import anyio
from aiohttp import web

from holdfast.api.auth import HOOKS, error_response
from holdfast.channels.channel import Channel, Hears, Hook
from holdfast.errors import Refused

log = logging.getLogger(__name__)

LIMIT = 1024 * 1024  # bytes of a body
RETRY_S = 5.0


def add_routes(app: web.Application, channels: Iterable[Channel], body_wait_s: float) -> None:
    """Add POST /hooks/… for each channel that its platform calls."""
    for channel in channels:
        if isinstance(channel, Hears) and channel.path:
            app.router.add_post(HOOKS + channel.path, _handler(channel, body_wait_s))


def _handler(
    channel: Hears, body_wait_s: float
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.Response:
        body = await _read(request, body_wait_s)
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            answer = await channel.hear(Hook(headers, body))
        except Exception:
            log.exception("a hook broke", extra={"channel": channel.name})
            text = "It could not be taken. Send it again later."
            return error_response(503, "hook_failed", text, retry_after_s=RETRY_S)
        return web.Response(
            status=answer.status, body=answer.body, content_type=answer.content_type
        )

    return handle


async def _read(request: web.Request, wait_s: float) -> bytes:
    """Read the body. Refuse it early if it is too large or does not arrive in time."""
    if request.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refused("unsupported_media_type", "Send the body as it is, without Content-Encoding.")
    body = bytearray()
    if (request.content_length or 0) <= LIMIT:
        try:
            with anyio.fail_after(wait_s):
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > LIMIT:
                        break
                else:
                    return bytes(body)
        except TimeoutError:
            raise Refused(
                "request_timeout", f"The body did not come within {wait_s:g} s."
            ) from None
    raise Refused("body_too_large", f"The body is over {LIMIT} bytes.")
