"""All endpoints of the public API, and the two that describe them."""

from aiohttp import web

from holdfast.api.auth import json_response
from holdfast.api.endpoints import Endpoint, RouteContext
from holdfast.api.openapi import document
from holdfast.api.routes import approvals, changes, health, processes, rewinds, runs, sessions
from holdfast.api.schema.health import CapabilityList

_BUILT = (
    "runs run_events run_events_resume run_stop run_steer run_approval run_question subagents "
    "idempotency_key session_events sessions session_fork session_rewind file_changes processes"
)
_NOT_BUILT = "late_delivery chat_completions responses"
_FEATURES = dict.fromkeys(_BUILT.split(), True) | dict.fromkeys(_NOT_BUILT.split(), False)


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
    *changes.ENDPOINTS,
    *rewinds.ENDPOINTS,
    *processes.ENDPOINTS,
)
