"""All endpoints of the public API, and the two that describe them."""

from aiohttp import web

from holdfast.api.auth import json_response
from holdfast.api.endpoints import Endpoint, RouteContext
from holdfast.api.openapi import document
from holdfast.api.routes import approvals, health, runs, sessions
from holdfast.api.schema.health import CapabilityList

_FEATURES = {
    "runs": True,
    "run_events": True,
    "run_events_resume": True,
    "run_stop": True,
    "run_steer": True,
    "run_approval": True,
    "run_question": True,
    "subagents": True,
    "idempotency_key": True,
    "session_events": True,
    "sessions": True,
    "session_fork": True,
    "late_delivery": False,
    "chat_completions": False,
    "responses": False,
}


async def openapi(context: RouteContext, request: web.Request) -> web.Response:
    """Show the OpenAPI document."""
    return json_response(document(ENDPOINTS, context.gateway.health().version))


async def capabilities(context: RouteContext, request: web.Request) -> web.Response:
    """List features and endpoints."""
    endpoints = tuple(f"{one.method} {one.path}" for one in ENDPOINTS)
    return json_response(CapabilityList(context.gateway.health().model, _FEATURES, endpoints))


ENDPOINTS = (
    *health.ENDPOINTS,
    Endpoint("GET", "/openapi.json", openapi, "This document", None),
    Endpoint("GET", "/v1/capabilities", capabilities, "Features of this server", CapabilityList),
    *runs.ENDPOINTS,
    *approvals.ENDPOINTS,
    *sessions.ENDPOINTS,
)
