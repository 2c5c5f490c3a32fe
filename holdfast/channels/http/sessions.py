"""Sessions over HTTP: listed, looked at, named, forked, read."""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from holdfast.channels.http import bodies, wire
from holdfast.channels.http.door import json_response
from holdfast.core.intents import Principal
from holdfast.core.types import SessionId, SessionKey
from holdfast.gateway import Gateway, SessionSummary

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class TitleRequest(msgspec.Struct):
    """The body of PATCH /api/sessions/{id}. Empty: it has no name any more."""

    title: str


class ForkRequest(msgspec.Struct):
    """The body of POST /api/sessions/{id}/fork; both may be left to us."""

    title: str | None = None
    session_id: str | None = None


def session_object(of: SessionSummary) -> dict[str, object]:
    """A session as the API shows it."""
    shown = msgspec.structs.asdict(of)
    whose = wire.owner_fields(shown.pop("owner"))
    return {"object": "hermes.session", **shown, **whose}


def table(
    gateway: Gateway, by: Principal, body_limit: int, body_wait_s: float
) -> list[tuple[str, str, Handler]]:
    """Method, path, handler."""
    library = gateway.library

    async def read(request: web.Request) -> bytes:
        return await bodies.read_body(request, body_limit, body_wait_s)

    async def index(request: web.Request) -> web.Response:
        found, more = await library.sessions(
            bodies.asking(request, by), bodies.limit(request), _last(request, by)
        )
        data = [session_object(one) for one in found]
        return json_response({"object": "list", "data": data, "has_more": more})

    async def show(request: web.Request) -> web.Response:
        whose = bodies.asking(request, by)
        return json_response(session_object(await library.session(whose, _named(request))))

    async def rename(request: web.Request) -> web.Response:
        session_id = _named(request)
        title = bodies.decode(await read(request), TitleRequest).title
        whose = bodies.asking(request, by)
        return json_response(session_object(await library.rename(whose, session_id, title)))

    async def fork(request: web.Request) -> web.Response:
        session_id = _named(request)
        body = bodies.decode(await read(request) or b"{}", ForkRequest)
        name = None if body.session_id is None else bodies.session_id(body.session_id)
        whose = bodies.asking(request, by)
        made = await library.fork(whose, session_id, body.title or "", name)
        return json_response(session_object(made), 201)

    async def messages(request: web.Request) -> web.Response:
        session_id, whose = _named(request), bodies.asking(request, by)
        answer: dict[str, object] = {"object": "list", "session_id": session_id}
        if bodies.truth(request.query.get("settled")):
            settled = await library.settled(whose, session_id)
            said = settled.messages
            answer |= {"after": settled.after, "unfinished": settled.unfinished}
        else:
            said = await gateway.messages(whose, session_id)
        data = [wire.message_object(m) for m in said]
        return json_response(answer | {"data": data, "has_more": False})

    one = "/api/sessions/{session_id}"
    return [
        ("GET", "/api/sessions", index),
        ("GET", one, show),
        ("PATCH", one, rename),
        ("POST", f"{one}/fork", fork),
        ("GET", f"{one}/messages", messages),
    ]


def _last(request: web.Request, by: Principal) -> SessionKey | None:
    """The session that a page comes after: an id, and whose it is where that is not the caller."""
    asked = request.query
    if "after" not in asked:
        return None
    whose = by.among(bodies.owner(asked["after_owner"])) if "after_owner" in asked else by
    return SessionKey(whose.owner, bodies.session_id(asked["after"]))


def _named(request: web.Request) -> SessionId:
    return bodies.session_id(request.match_info["session_id"])
