"""What only the operator's own door has: the word to the process itself."""

from collections.abc import Awaitable, Callable
from os import getpid
from typing import Protocol

from aiohttp import web

from holdfast.channels.http.door import json_response
from holdfast.core.intents import Principal
from holdfast.core.lifecycle import Reason, Recorded
from holdfast.errors import Refused

GATEWAY = "/v1/gateway"


class Control(Protocol):
    """The process, as far as it takes orders."""

    async def recorded(self, by: Principal) -> Recorded: ...
    async def announce(self, by: Principal, reason: Reason) -> None: ...
    async def stop(self, by: Principal) -> None: ...
    async def restart(self, by: Principal) -> None: ...


def add_routes(app: web.Application, control: Control, by: Principal) -> None:
    """GET what is wanted and said; POST stop or restart; POST announce/… before a signal."""

    def ordered(order: Callable[[], Awaitable[None]]) -> Callable[..., Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            await order()
            return json_response({"pid": getpid()}, 202)

        return handle

    async def show(request: web.Request) -> web.Response:
        known = await control.recorded(by)
        found = {"pid": getpid(), "wanted": known.wanted, "state": known.state}
        return json_response({**found, "booted_at": known.booted_at})

    async def announce(request: web.Request) -> web.Response:
        try:
            reason = _ANNOUNCED[request.match_info["what"]]
        except KeyError:
            raise Refused("not_found", "Only stop, restart and nothing are announced.") from None
        await control.announce(by, reason)
        return json_response({"pid": getpid()})

    app.router.add_get(GATEWAY, show)
    app.router.add_post(f"{GATEWAY}/stop", ordered(lambda: control.stop(by)))
    app.router.add_post(f"{GATEWAY}/restart", ordered(lambda: control.restart(by)))
    app.router.add_post(f"{GATEWAY}/announce/{{what}}", announce)


_ANNOUNCED = {"stop": Reason.STOP, "restart": Reason.RESTART, "nothing": Reason.SIGNAL}
