"""What only the operator's own door has: the word to the process itself, and on any session."""

from collections.abc import Awaitable, Callable, Sequence
from os import getpid
from typing import Protocol

from aiohttp import web

from holdfast.channels.http import bodies
from holdfast.channels.http.door import json_response
from holdfast.core.intents import Principal
from holdfast.core.lifecycle import Reason, Recorded
from holdfast.core.types import SessionId
from holdfast.errors import Refused
from holdfast.gateway import SessionView

GATEWAY = "/v1/gateway"
SESSIONS = "/v1/operator/sessions"
RELEASE = "/v1/operator/release"


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


class Keeper(Protocol):
    """The sessions, as far as the operator may do with them what nobody else may."""

    async def sessions(self, by: Principal) -> Sequence[SessionView]: ...
    async def mark(self, by: Principal, session_id: SessionId) -> None: ...
    async def clear_mark(self, by: Principal, session_id: SessionId) -> None: ...
    async def release(self, by: Principal) -> int: ...


def add_session_routes(app: web.Application, keeper: Keeper, by: Principal) -> None:
    """GET the sessions and their marks; POST …/ID/mark or unmark; POST release."""

    async def show(request: web.Request) -> web.Response:
        return json_response({"object": "list", "data": await keeper.sessions(by)})

    async def mark(request: web.Request) -> web.Response:
        session_id = bodies.session_id(request.match_info["session_id"])
        await keeper.mark(by, session_id)
        return json_response({"session_id": session_id, "marked": True})

    async def unmark(request: web.Request) -> web.Response:
        session_id = bodies.session_id(request.match_info["session_id"])
        await keeper.clear_mark(by, session_id)
        return json_response({"session_id": session_id, "marked": False})

    async def release(request: web.Request) -> web.Response:
        return json_response({"released": await keeper.release(by)})

    app.router.add_get(SESSIONS, show)
    app.router.add_post(f"{SESSIONS}/{{session_id}}/mark", mark)
    app.router.add_post(f"{SESSIONS}/{{session_id}}/unmark", unmark)
    app.router.add_post(RELEASE, release)


_ANNOUNCED = {"stop": Reason.STOP, "restart": Reason.RESTART, "nothing": Reason.SIGNAL}
