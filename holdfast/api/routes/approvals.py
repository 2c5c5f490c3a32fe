"""Approvals, standing permissions, and the consent to a weak sandbox."""

from aiohttp import web
from msgspec import UNSET

from holdfast.api import requests, responses
from holdfast.api.auth import json_response
from holdfast.api.endpoints import Endpoint, RouteContext, page
from holdfast.api.schema import approvals as schema
from holdfast.api.schema.health import SandboxObject
from holdfast.core.approval.approval import Choice
from holdfast.core.intents import Answer
from holdfast.core.types import RequestId, RunId
from holdfast.engine.permission import check_admin
from holdfast.errors import Refused

PAGE = 1_000  # approvals on one page

_CHOICES = {
    "once": Choice.ONCE,
    "approve": Choice.ONCE,
    "approved": Choice.ONCE,
    "allow": Choice.ONCE,
    "session": Choice.SESSION,
    "always": Choice.ALWAYS,
    "deny": Choice.DENY,
}


async def answer_run(context: RouteContext, request: web.Request) -> web.Response:
    """Answer an approval of a run."""
    run_id = requests.run_in(request)
    body = await context.read(request, schema.ApprovalRequest)
    request_id = None if body.request_id is None else RequestId(body.request_id)
    return await _respond(context, run_id, body, request_id)


async def index(context: RouteContext, request: web.Request) -> web.Response:
    """List the approvals that wait."""
    limit, after = requests.limit(request, PAGE, PAGE), requests.asked_place(request)
    waiting, more = await context.gateway.approvals(context.by, limit, after)
    data = tuple(responses.approval_object(w.asked, w.owner) for w in waiting)
    rest = responses.asked_place(waiting[-1].asked) if more else UNSET
    return json_response(schema.ApprovalPage(data, more, rest))


async def answer(context: RouteContext, request: web.Request) -> web.Response:
    """Answer the approval that the URL names."""
    request_id = RequestId(request.match_info["request_id"])
    body = await context.read(request, schema.ApprovalRequest)
    waiting = await context.gateway.approval(context.by, request_id)
    if waiting is None:
        raise Refused("approval_not_pending", "Nothing waits under that id.")
    return await _respond(context, waiting.asked.run_id, body, request_id)


async def _respond(
    context: RouteContext, run_id: RunId, body: schema.ApprovalRequest, request_id: RequestId | None
) -> web.Response:
    choice = _CHOICES.get(body.choice.strip().lower())
    if choice is None:
        raise Refused(
            "invalid_approval_choice",
            "`choice` must be one of once, session, always, deny.",
            param="choice",
        )
    intent = Answer(
        *(context.by, run_id, choice, request_id, requests.flag(body.all)), reason=body.reason
    )
    reply = await context.gateway.send(intent)
    note = f"recorded as {reply.choice}: {choice} is for administrators"
    return json_response(
        schema.ApprovalResponse(
            run_id, reply.choice, reply.resolved, "" if reply.choice is choice else note
        )
    )


async def rules(context: RouteContext, request: web.Request) -> web.Response:
    """List standing permissions."""
    known = context.gateway.rules(context.by)
    return json_response(
        schema.RuleList(tuple(schema.RuleObject(name, rule) for name, rule in known.items()))
    )


async def allow(context: RouteContext, request: web.Request) -> web.Response:
    """Add a standing permission for commands."""
    check_admin(context.by)  # before the body: it is not read for others
    body = await context.read(request, schema.RuleRequest)
    name, rule = await context.gateway.allow(context.by, body.pattern)
    return json_response(schema.RuleObject(name, rule))


async def revoke(context: RouteContext, request: web.Request) -> web.Response:
    """Revoke a standing permission."""
    name = request.match_info["name"]
    await context.gateway.revoke(context.by, name)
    return json_response(schema.RevokeResponse(name))


async def accept_sandbox(context: RouteContext, request: web.Request) -> web.Response:
    """Accept the sandbox as it is."""
    await context.gateway.accept_posture(context.by)
    health = context.gateway.health()
    return json_response(SandboxObject(health.sandbox, health.sandbox_note))


ENDPOINTS = (
    Endpoint(
        *("POST", "/v1/runs/{run_id}/approval", answer_run, "Answer an approval"),
        *(schema.ApprovalResponse, schema.ApprovalRequest),
        errors=(409,),
    ),
    Endpoint(
        *("GET", "/v1/approvals", index),
        "List waiting approvals, oldest first; `after` is the `next` of the page before",
        schema.ApprovalPage,
        parameters=page(PAGE),
    ),
    Endpoint(
        *("POST", "/v1/approvals/{request_id}", answer, "Answer one request"),
        *(schema.ApprovalResponse, schema.ApprovalRequest),
        errors=(409,),
    ),
    Endpoint("GET", "/v1/rules", rules, "List standing permissions", schema.RuleList),
    Endpoint(
        *("POST", "/v1/rules", allow, "Permit commands that match a pattern, from now on"),
        *(schema.RuleObject, schema.RuleRequest),
    ),
    Endpoint(
        "POST", "/v1/rules/{name}/revoke", revoke, "Revoke a permission", schema.RevokeResponse
    ),
    Endpoint(
        *("POST", "/v1/sandbox/accept", accept_sandbox),
        "Let work go on with the sandbox as it is",
        SandboxObject,
    ),
)
