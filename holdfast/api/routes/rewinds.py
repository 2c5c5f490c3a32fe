"""Points of a session: list them, go back to one, and forth again."""

from hashlib import sha256

from aiohttp import web

from holdfast.api import requests
from holdfast.api.auth import json_response
from holdfast.api.endpoints import KEY, Endpoint, RouteContext
from holdfast.api.frames import restored
from holdfast.api.schema import rewinds as schema
from holdfast.core.inbox import UpdateRef
from holdfast.core.intents import Principal
from holdfast.core.session.rewind import Point, Rewind, RewindDone
from holdfast.core.session.rewound import RewindScope
from holdfast.core.types import RunId

_CHANNEL = "/rewind"  # the scope of idempotency keys; no channel has such a name


async def points(context: RouteContext, request: web.Request) -> web.Response:
    """List the points of a session."""
    by, session_id = context.asking(request), requests.session_in(request)
    found = await context.gateway.library.points(by, session_id)
    return json_response(schema.PointList(tuple(map(_point_object, found))))


async def rewind(context: RouteContext, request: web.Request) -> web.Response:
    """Go back to a point."""
    body = requests.decode(await context.read_body(request) or b"{}", schema.RewindRequest)
    point = None if body.point is None else RunId(requests.clean(body.point, "point"))
    by, what = context.asking(request), body.what or RewindScope.BOTH
    came = _came(request, by, f"{point}\n{what}\n{body.force}")
    asked = Rewind(by, point, what, force=body.force, came=came)
    return await _carry_out(context, request, asked)


async def redo(context: RouteContext, request: web.Request) -> web.Response:
    """Bring back what was taken back last."""
    body = requests.decode(await context.read_body(request) or b"{}", schema.RedoRequest)
    by = context.asking(request)
    came = _came(request, by, f"redo\n{body.force}")
    return await _carry_out(context, request, Rewind(by, force=body.force, redo=True, came=came))


async def _carry_out(context: RouteContext, request: web.Request, asked: Rewind) -> web.Response:
    done = await context.gateway.library.rewind(requests.session_in(request), asked)
    replayed = {"Idempotency-Replayed": "true"} if done.repeated else None
    return json_response(_rewind_object(done), headers=replayed)


def _came(request: web.Request, by: Principal, what: str) -> UpdateRef | None:
    """Return the identity of a request with a key. The same key and body are the same request."""
    if (given := request.headers.get("Idempotency-Key")) is None:
        return None
    named = f"{requests.key_of(given)}\n{by.owner}\n{requests.session_in(request)}\n{what}"
    return UpdateRef(channel=_CHANNEL, external_id=sha256(named.encode()).hexdigest())


def _rewind_object(done: RewindDone) -> schema.RewindResponse:
    fact = done.fact
    return schema.RewindResponse(
        rewind_id=fact.rewind_id,
        point=fact.point,
        what=fact.what,
        redo=fact.redo,
        input=done.text,
        runs=fact.runs,
        files=tuple(map(restored, fact.files)),
    )


def _point_object(point: Point) -> schema.PointObject:
    files = tuple(schema.FileTotalObject(f.path, f.added, f.removed) for f in point.files)
    named = (point.number, point.run_id, point.at, point.text, point.counts)
    return schema.PointObject(*named, files)


_ONE = "/api/sessions/{session_id}"
ENDPOINTS = (
    Endpoint(
        *("GET", f"{_ONE}/points", points, "The points a session can go back to, oldest first"),
        schema.PointList,
    ),
    Endpoint(
        *("POST", f"{_ONE}/rewind", rewind),
        "Go back to a point: messages, files or both",
        *(schema.RewindResponse, schema.RewindRequest),
        parameters=(KEY,),
        errors=(409, 503),
    ),
    Endpoint(
        *("POST", f"{_ONE}/redo", redo),
        "Bring back what the last rewind took away",
        *(schema.RewindResponse, schema.RedoRequest),
        parameters=(KEY,),
        errors=(409, 503),
    ),
)
