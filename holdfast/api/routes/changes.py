"""Changed files of a run or a session, as JSON or as a patch."""

from collections.abc import Sequence

from aiohttp import web

from holdfast.api import requests, responses
from holdfast.api.auth import json_response
from holdfast.api.endpoints import Endpoint, RouteContext, query
from holdfast.api.schema import changes as schema
from holdfast.core.intents import Principal
from holdfast.core.types import CallId
from holdfast.gateway import DiffQuery, FileDiff

PATCH = "text/x-diff"


async def of_run(context: RouteContext, request: web.Request) -> web.Response:
    """Show what a run changed."""
    asked = DiffQuery(requests.run_in(request), None, *_part(request))
    return await _answer(context, request, context.by, asked)


async def of_session(context: RouteContext, request: web.Request) -> web.Response:
    """Show what a session changed."""
    asked = DiffQuery(None, requests.session_in(request), *_part(request))
    return await _answer(context, request, context.asking(request), asked)


def _part(request: web.Request) -> tuple[CallId | None, str, bool]:
    """Return the call and the path that are asked for, and whether each change is."""
    call_id = request.query.get("call_id")
    path = request.query.get("path", "").removeprefix("./").rstrip("/")
    each = requests.truth(request.query.get("each"))
    return (CallId(call_id) if call_id else None), path, each


async def _answer(
    context: RouteContext, request: web.Request, by: Principal, asked: DiffQuery
) -> web.Response:
    found = await context.gateway.diff(by, asked)
    if PATCH in request.headers.get("Accept", ""):
        return web.Response(text="".join(map(_patch, found)), content_type=PATCH, charset="utf-8")
    return json_response(_listed(found))


def _listed(found: Sequence[FileDiff]) -> schema.DiffResponse:
    data = tuple(map(responses.diff_object, found))
    return schema.DiffResponse(data, sum(f.added for f in data), sum(f.removed for f in data))


def _patch(diff: FileDiff) -> str:
    """Return the patch of a file; what it lacks is said in lines that `git apply` skips."""
    if diff.pruned:
        return f"# {diff.change.path!r}: a version of it is no longer kept\n"
    rest = f"# {diff.change.path!r}: the rest is too long\n" if diff.cut else ""
    return diff.text + rest


_PARTS = (
    query("path", {"type": "string"}),
    query("call_id", {"type": "string"}),
    query("each", {"type": "boolean"}),
)
_SUMMARY = (
    "as JSON, or as a patch if `Accept` names text/x-diff; only below `path`, or by one call; "
    "with `each` every single change with its call, without diffs"
)
ENDPOINTS = (
    Endpoint(
        *("GET", "/v1/runs/{run_id}/diff", of_run, f"The files that a run changed, {_SUMMARY}"),
        schema.DiffResponse,
        parameters=_PARTS,
    ),
    Endpoint(
        *("GET", "/api/sessions/{session_id}/diff", of_session),
        f"The files that a session changed, {_SUMMARY}",
        schema.DiffResponse,
        parameters=_PARTS,
    ),
)
