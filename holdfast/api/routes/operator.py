"""Orders to the gateway's process, and interruption marks. At the operator's socket only."""

from collections.abc import Awaitable, Callable
from os import getpid

from aiohttp import web
from msgspec.structs import asdict

from holdfast.api import requests
from holdfast.api.auth import json_response
from holdfast.api.contracts import ControlsProcess, KeepsSessions
from holdfast.api.schema import operator as schema
from holdfast.core.intents import Principal
from holdfast.core.life.lifecycle import Reason
from holdfast.errors import Refused

GATEWAY = "/v1/gateway"
SESSIONS = "/v1/operator/sessions"
RELEASE = "/v1/operator/release"

_ANNOUNCED = {"stop": Reason.STOP, "restart": Reason.RESTART, "nothing": Reason.SIGNAL}


def add_routes(app: web.Application, control: ControlsProcess, by: Principal) -> None:
    """GET the recorded state; POST stop or restart; POST announce/… before a signal."""

    def ordered(order: Callable[[], Awaitable[None]]) -> Callable[..., Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            await order()
            return json_response(schema.OrderResponse(getpid()), 202)

        return handle

    async def show(request: web.Request) -> web.Response:
        known = await control.recorded(by)
        restored = None
        if known.restored is not None:
            lost = known.restored
            restored = schema.RestoredObject(known.restored_at, lost.runs, lost.messages)
        return json_response(
            schema.GatewayObject(getpid(), known.wanted, known.state, known.booted_at, restored)
        )

    async def announce(request: web.Request) -> web.Response:
        try:
            reason = _ANNOUNCED[request.match_info["what"]]
        except KeyError:
            raise Refused("not_found", "Only stop, restart and nothing are announced.") from None
        await control.announce(by, reason)
        return json_response(schema.OrderResponse(getpid()))

    app.router.add_get(GATEWAY, show)
    app.router.add_post(f"{GATEWAY}/stop", ordered(lambda: control.stop(by)))
    app.router.add_post(f"{GATEWAY}/restart", ordered(lambda: control.restart(by)))
    app.router.add_post(f"{GATEWAY}/announce/{{what}}", announce)


def add_session_routes(app: web.Application, keeper: KeepsSessions, by: Principal) -> None:
    """GET the sessions and their marks; POST …/ID/mark or unmark; POST release."""

    async def show(request: web.Request) -> web.Response:
        marks = [schema.SessionMark(**asdict(view)) for view in await keeper.sessions(by)]
        return json_response(schema.SessionMarkList(tuple(marks)))

    async def mark(request: web.Request) -> web.Response:
        session_id = requests.session_in(request)
        await keeper.mark(by, session_id)
        return json_response(schema.MarkResponse(session_id, marked=True))

    async def unmark(request: web.Request) -> web.Response:
        session_id = requests.session_in(request)
        await keeper.clear_mark(by, session_id)
        return json_response(schema.MarkResponse(session_id, marked=False))

    async def release(request: web.Request) -> web.Response:
        return json_response(schema.ReleaseResponse(await keeper.release(by)))

    app.router.add_get(SESSIONS, show)
    app.router.add_post(f"{SESSIONS}/{{session_id}}/mark", mark)
    app.router.add_post(f"{SESSIONS}/{{session_id}}/unmark", unmark)
    app.router.add_post(RELEASE, release)
