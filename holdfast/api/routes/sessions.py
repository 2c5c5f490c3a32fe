"""Sessions: list, show, rename, fork, read and follow them."""

from aiohttp import web

from holdfast.api import requests, responses
from holdfast.api.auth import json_response
from holdfast.api.endpoints import CURSOR, EVENTS, Endpoint, RouteContext, page, query
from holdfast.api.schema import sessions as schema
from holdfast.api.sse import stream_events
from holdfast.core.intents import Principal
from holdfast.core.types import SessionKey


async def index(context: RouteContext, request: web.Request) -> web.Response:
    """List sessions."""
    found, more = await context.gateway.library.sessions(
        context.asking(request), requests.limit(request), _last(request, context.by)
    )
    return json_response(schema.SessionPage(tuple(map(responses.session_object, found)), more))


async def show(context: RouteContext, request: web.Request) -> web.Response:
    """Show a session."""
    by = context.asking(request)
    found = await context.gateway.library.session(by, requests.session_in(request))
    return json_response(responses.session_object(found))


async def rename(context: RouteContext, request: web.Request) -> web.Response:
    """Give a session a title."""
    session_id = requests.session_in(request)
    title = (await context.read(request, schema.TitleRequest)).title
    by = context.asking(request)
    renamed = await context.gateway.library.rename(by, session_id, title)
    return json_response(responses.session_object(renamed))


async def fork(context: RouteContext, request: web.Request) -> web.Response:
    """Begin a session with what the model of another one reads now."""
    session_id = requests.session_in(request)
    body = requests.decode(await context.read_body(request) or b"{}", schema.ForkRequest)
    name = None if body.session_id is None else requests.session_id(body.session_id)
    by = context.asking(request)
    made = await context.gateway.library.fork(by, session_id, body.title or "", name)
    return json_response(responses.session_object(made), 201)


async def messages(context: RouteContext, request: web.Request) -> web.Response:
    """Show the transcript of a session."""
    session_id, by = requests.session_in(request), context.asking(request)
    if requests.truth(request.query.get("settled")):
        settled = await context.gateway.library.settled(by, session_id)
        data = tuple(map(responses.message_object, settled.messages))
        unfinished = tuple(settled.unfinished)
        return json_response(
            schema.SettledMessageList(data, session_id, after=settled.after, unfinished=unfinished)
        )
    transcript = await context.gateway.messages(by, session_id)
    return json_response(
        schema.MessageList(tuple(map(responses.message_object, transcript)), session_id)
    )


async def events(context: RouteContext, request: web.Request) -> web.StreamResponse:
    """Follow a session."""
    session_id = requests.session_in(request)
    after, by = requests.cursor(request), context.asking(request)
    async with context.gateway.follow_session(by, session_id, after) as batches:
        return await stream_events(request, batches, ends=False)


def _last(request: web.Request, by: Principal) -> SessionKey | None:
    """The session that a page comes after: its id, and its owner if that is not the caller."""
    asked = request.query
    if "after" not in asked:
        return None
    whose = by.among(requests.owner(asked["after_owner"])) if "after_owner" in asked else by
    return SessionKey(whose.owner, requests.session_id(asked["after"]))


_ONE = "/api/sessions/{session_id}"
ENDPOINTS = (
    Endpoint(
        *("GET", f"{_ONE}/events", events, "Follow a session: all of its events, without end"),
        None,
        parameters=CURSOR,
        stream=EVENTS,
    ),
    Endpoint(
        *("GET", "/api/sessions", index, "List sessions, last used first", schema.SessionPage),
        parameters=page(100),
    ),
    Endpoint("GET", _ONE, show, "A session", schema.SessionObject),
    Endpoint(
        *("PATCH", _ONE, rename, "Rename a session, or remove its title"),
        *(schema.SessionObject, schema.TitleRequest),
        errors=(503,),
    ),
    Endpoint(
        *("POST", f"{_ONE}/fork", fork),
        "Begin a session with what the model of this one reads now",
        *(schema.SessionObject, schema.ForkRequest),
        status=201,
        errors=(409, 503),
    ),
    Endpoint(
        *("GET", f"{_ONE}/messages", messages),
        "A session's transcript; with `settled` only up to the first run that is not over, and "
        "`after`: the number after which events tell the rest",
        schema.MessageList,
        parameters=(query("settled", {"type": "boolean"}),),
    ),
)
