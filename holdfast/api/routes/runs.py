"""Runs: start, list, follow, stop and steer them.

Handlers own no work: they call the gateway. A handler that is cancelled because its client
disconnected undoes nothing.
"""

from email.utils import formatdate

from aiohttp import web
from msgspec import UNSET
from msgspec.structs import replace

from holdfast.api import intents, requests, responses
from holdfast.api.auth import json_response
from holdfast.api.endpoints import CURSOR, EVENTS, KEY, Endpoint, RouteContext, page, query
from holdfast.api.schema import runs as schema
from holdfast.api.sse import stream_events
from holdfast.core.run.run import RunPhase
from holdfast.gateway import RunQuery

# A status of the API → the phases of a run that it stands for.
_STATUSES = {
    "queued": {RunPhase.QUEUED, RunPhase.INTERRUPTED},
    "running": {RunPhase.RUNNING},
    "stopping": {RunPhase.QUEUED, RunPhase.RUNNING, RunPhase.WAITING, RunPhase.INTERRUPTED},
    "waiting_for_approval": {RunPhase.WAITING},
    "completed": {RunPhase.COMPLETED},
    "failed": {RunPhase.FAILED},
    "cancelled": {RunPhase.CANCELLED},
}


async def start(context: RouteContext, request: web.Request) -> web.Response:
    """Start a run."""
    raw = await context.read_body(request)
    by, key = context.asking(request), request.headers.get("Idempotency-Key")
    reply = await context.gateway.send(await intents.submitted(raw, by, key))
    headers = {"Idempotency-Replayed": "true"} if reply.replayed else {}
    if key is not None and not reply.replayed and (at := context.gateway.restored_at):
        # The key may have been used before the backup was restored.
        headers["Holdfast-Restored"] = formatdate(at, usegmt=True)
    return json_response(schema.StartResponse(reply.run_id), 202, headers)


async def index(context: RouteContext, request: web.Request) -> web.Response:
    """List runs."""
    asked, by = request.query, context.asking(request)
    limit = requests.limit(request)
    if (status := asked.get("status")) is not None and status not in _STATUSES:
        raise requests.invalid(f"`status` must be one of {', '.join(_STATUSES)}.", "status")
    wanted = RunQuery(
        status=frozenset(_STATUSES[status]) if status else frozenset(),
        session_id=requests.session_id(asked["session_id"]) if "session_id" in asked else None,
        limit=limit,
        after=requests.run_id(asked["after"]) if "after" in asked else None,
    )
    data: list[schema.RunObject] = []
    more = True
    while more and len(data) < limit:  # a phase may be one of two statuses of the API
        views, more = await context.gateway.runs(by, wanted)
        found = map(responses.run_object, views)
        data += [run for run in found if status is None or run.status == status]
        if views:
            wanted = replace(wanted, limit=limit - len(data), after=views[-1].run_id)
    return json_response(schema.RunList(tuple(data), more))


async def show(context: RouteContext, request: web.Request) -> web.Response:
    """Show a run."""
    view = await context.gateway.run(context.by, requests.run_in(request))
    return json_response(responses.run_object(view))


async def events(context: RouteContext, request: web.Request) -> web.StreamResponse:
    """Follow a run."""
    run_id, after = requests.run_in(request), requests.cursor(request)
    async with context.gateway.follow(context.by, run_id, after) as batches:
        if batches is None:
            return web.Response(status=204)
        return await stream_events(request, batches, ends=True)


async def stop(context: RouteContext, request: web.Request) -> web.Response:
    """Stop a run."""
    run_id = requests.run_in(request)
    stopping = await context.gateway.send(intents.stop_of(request, context.by, run_id))
    wanted = request.query.get("unread", "") == "true"
    return json_response(schema.StopResponse(run_id, unread=stopping.unread if wanted else UNSET))


async def steer(context: RouteContext, request: web.Request) -> web.Response:
    """Steer a run."""
    run_id = requests.run_in(request)
    body = await context.read(request, schema.SteerRequest)
    key = request.headers.get("Idempotency-Key")
    await context.gateway.send(intents.steer_of(body, context.by, run_id, key))
    return json_response(schema.SteerResponse(run_id))


_ONE = "/v1/runs/{run_id}"
ENDPOINTS = (
    Endpoint(
        *("POST", "/v1/runs", start, "Start a run", schema.StartResponse, schema.RunRequest),
        status=202,
        parameters=(KEY,),
        errors=(409, 429, 503),
    ),
    Endpoint(
        *("GET", "/v1/runs", index, "List runs, newest first", schema.RunList),
        parameters=(
            query("status", {"type": "string", "enum": list(_STATUSES)}),
            query("session_id", {"type": "string"}),
            *page(100),
        ),
    ),
    Endpoint("GET", _ONE, show, "A run's status", schema.RunObject),
    Endpoint(
        *("GET", f"{_ONE}/events", events, "Follow a run: server-sent events, to its last", None),
        parameters=CURSOR,
        stream=EVENTS,
        empty="Nothing follows the given number",
    ),
    Endpoint(
        *("POST", f"{_ONE}/stop", stop, "Stop a run", schema.StopResponse),
        parameters=(KEY,),
        errors=(503,),
    ),
    Endpoint(
        *("POST", f"{_ONE}/steer", steer),
        "Add guidance to a live run, or answer its question",
        *(schema.SteerResponse, schema.SteerRequest),
        parameters=(KEY,),
        errors=(409, 503),
    ),
)
