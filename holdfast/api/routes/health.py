"""Health and models: what the gateway reports about itself."""

from aiohttp import web

from holdfast.api.auth import error_response, json_response
from holdfast.api.endpoints import Endpoint, RouteContext
from holdfast.api.schema import health as schema
from holdfast.core.life.lifecycle import DECLINES, LifecyclePhase
from holdfast.errors import Refused


async def health(context: RouteContext, request: web.Request) -> web.Response:
    """Report the status; always 200."""
    found = context.gateway.health()
    return json_response(schema.HealthObject("ok" if found.ready else found.status, found.version))


async def ready(context: RouteContext, request: web.Request) -> web.Response:
    """Report whether new work is accepted. A refusal discloses no details: no key is needed."""
    found = context.gateway.health()
    if (declined := DECLINES.get(LifecyclePhase(found.status))) is not None:
        return error_response(503, declined.code, declined.message, retry_after_s=1)
    if found.journal != "ok":
        why = "The journal takes no new work now. /health/detailed says why."
        return error_response(503, "journal_unavailable", why, retry_after_s=5)
    return json_response(schema.HealthObject("ok", found.version))


async def detailed(context: RouteContext, request: web.Request) -> web.Response:
    """Report the status in detail."""
    found = context.gateway.health()
    well = found.ready and found.audit == "ok"
    details = schema.HealthDetails(
        status="ok" if well else "degraded",
        version=found.version,
        uptime_s=found.uptime_s,
        checks={"process": found.status, "journal": found.journal, "audit": found.audit},
        model=found.model,
        model_reason=found.model_reason,
        runs=schema.RunCounts(found.running, found.queued, found.waiting),
        paused=found.paused,
        held=found.held,
        channels=dict(found.channels),
        undelivered=found.undelivered,
        sandbox=schema.SandboxObject(found.sandbox, found.sandbox_note),
        loop_lag_ms=found.loop_lag_ms,
    )
    return json_response(details, 200 if well else 503)


async def models(context: RouteContext, request: web.Request) -> web.Response:
    """List the configured models, the main one first."""
    return json_response(
        schema.ModelList(tuple(map(schema.ModelObject, context.gateway.health().models)))
    )


async def model(context: RouteContext, request: web.Request) -> web.Response:
    """Show a model."""
    known, wanted = context.gateway.health().models, request.match_info["model_id"]
    if wanted not in known:
        raise Refused("model_not_found", f"No such model; configured are {', '.join(known)}.")
    return json_response(schema.ModelObject(wanted))


ENDPOINTS = (
    Endpoint("GET", "/health", health, "Status of the gateway", schema.HealthObject, public=True),
    Endpoint(
        "GET", "/v1/health", health, "Status of the gateway", schema.HealthObject, public=True
    ),
    Endpoint(
        *("GET", "/health/ready", ready),
        "200 while new work is accepted; 503 while the gateway starts or drains, or its journal "
        "fails",
        schema.HealthObject,
        errors=(503,),
        public=True,
    ),
    Endpoint(
        *("GET", "/health/detailed", detailed, "Status of the gateway in detail"),
        schema.HealthDetails,
        errors=(503,),
    ),
    Endpoint("GET", "/v1/models", models, "The configured models", schema.ModelList),
    Endpoint("GET", "/v1/models/{model_id:.+}", model, "One model", schema.ModelObject),
)
