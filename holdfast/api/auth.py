"""Authentication: key, Host, Origin, and the form of every response.

The same routes are served at two places. On the network a request needs the key, and its Host
and Origin are checked, because a browser on this machine can be made to send requests. The
operator's unix socket needs no key: only the operator can open it.

Whatever fails inside, the response is the JSON error object, and never a traceback.
"""

import hmac
import logging
from collections.abc import Awaitable, Callable
from functools import lru_cache
from hashlib import sha256
from math import ceil
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from multidict import CIMultiDict

from holdfast.api.connections import Connection
from holdfast.api.schema.errors import ErrorBody, ErrorEnvelope
from holdfast.core.intents import Principal
from holdfast.core.types import Value
from holdfast.errors import JournalUnavailable, Refused

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN_ROUTES = frozenset({"/health", "/health/ready", "/v1/health"})
HOOKS = "/hooks/"  # platforms call below it; each channel authenticates them
LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_TOKEN_PARAMETERS = frozenset({"token", "api_key", "apikey", "key", "access_token", "auth"})

_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_CORS = {
    "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key, Last-Event-ID",
    "Access-Control-Expose-Headers": "Holdfast-Restored, Idempotency-Replayed, Retry-After",
    "Access-Control-Max-Age": "600",
    "Vary": "Origin",
}

# Refusals with a status other than 400.
_STATUS = {
    code: status
    for status, codes in {
        403: "admin_only",
        404: "run_not_found rule_not_found run_ended session_not_found delivery_not_found "
        "process_not_found model_not_found code_not_found user_not_found not_found no_such_point",
        405: "method_not_allowed",
        408: "request_timeout",
        409: "port_not_published approval_not_active approval_not_pending run_begun run_not_accepting_steer "
        "question_not_waiting session_not_marked session_suspended session_exists "
        "delivery_not_waiting idempotency_key_conflict misconfigured no_gateway "
        "session_busy files_changed nothing_said nothing_to_redo workspace_gone",
        413: "body_too_large",
        415: "unsupported_media_type",
        429: "queue_full too_many_codes",
        503: "gateway_starting gateway_draining",
    }.items()
    for code in codes.split()
}


def json_response(
    value: object, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """Make a JSON response."""
    fields = {"Content-Type": "application/json"}
    if headers:
        fields.update(headers)
    return web.Response(body=msgspec.json.encode(value), status=status, headers=fields)


def error_response(
    status: int,
    code: str,
    message: str,
    param: str | None = None,
    retry_after_s: float | None = None,
) -> web.Response:
    """Make a refusal. All refusals have this form."""
    if status >= 500:
        name = "server_error"
    elif status == 429:
        name = "rate_limit_error"
    else:
        name = "invalid_request_error"
    headers = {"x-should-retry": "false"} if status == 409 else {}
    if retry_after_s is not None:
        headers["Retry-After"] = str(ceil(retry_after_s))
    return json_response(ErrorEnvelope(ErrorBody(message, name, param, code)), status, headers)


class Doorway(Value):
    """An entrance of the API: who the caller is, and what is checked."""

    principal: Principal
    key_hash: bytes = b""  # empty: the operator's socket
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def refusal(self, request: web.Request) -> web.Response | None:
        """The refusal of a request that fails the checks; None if it passes."""
        if not self.key_hash:
            return None
        if _host_name(request.host) not in self.hosts:
            why = "This Host is not allowed. See gateway.allowed_hosts."
            return error_response(421, "unknown_host", why)
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self.origins:
            why = "This Origin is not allowed. See gateway.allowed_origins."
            return error_response(403, "origin_not_allowed", why)
        if request.query_string and _has_token(request.query_string):
            why = "A key in a URL gets logged. Send it as `Authorization: Bearer …`, and replace this one."
            return error_response(400, "key_in_url", why)
        if self._knows(request.headers.get("Authorization", "")):
            if isinstance(request.protocol, Connection):
                request.protocol.admit()
            return None
        if request.path in OPEN_ROUTES or request.path.startswith(HOOKS):
            return None
        if request.method == "OPTIONS" and origin is not None:
            return None
        return error_response(401, "invalid_api_key", "Invalid API key")

    def _knows(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        given = sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(given, self.key_hash) and scheme.lower() == "bearer"


def key_hash(key: str) -> bytes:
    """Hash the key, so that the key itself is not kept."""
    return sha256(key.encode()).digest()


@lru_cache
def _host_name(host: str) -> str:
    name = host[: host.rindex("]") + 1] if host.startswith("[") and "]" in host else host
    return name.partition(":")[0].lower() if not name.startswith("[") else name


def _has_token(query: str) -> bool:
    return any(name.lower() in _TOKEN_PARAMETERS for name, _ in parse_qsl(query, max_num_fields=99))


def guard(door: Doorway) -> Middleware:
    """Make the middleware: check the request, call the handler, turn errors into responses."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if (refusal := door.refusal(request)) is not None:
                return refusal
            if request.method == "OPTIONS":
                return web.Response(status=204)
            return await handler(request)
        except Refused as refused:
            return error_response(
                _STATUS.get(refused.code, 400),
                refused.code,
                str(refused),
                refused.param,
                refused.retry_after_s,
            )
        except JournalUnavailable as down:
            return error_response(
                503, "journal_unavailable", str(down), retry_after_s=down.retry_after_s or 5
            )
        except web.HTTPException as error:
            return http_error(request, error)
        except web.RequestPayloadError:
            return error_response(400, "bad_request", "The body cannot be read to its end.")
        except ValueError as error:  # raised by aiohttp for a request that it cannot parse
            return error_response(400, "bad_request", f"The request cannot be read: {error}")

    return guarded


def http_error(request: web.BaseRequest, error: web.HTTPException) -> web.Response:
    """Turn an error of aiohttp into our error object."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        response = error_response(
            405, "method_not_allowed", f"{request.method} is not possible here; {allowed} is."
        )
        response.headers["Allow"] = allowed
        return response
    if error.status == 404:
        return error_response(404, "not_found", "There is no such route. See /openapi.json.")
    if error.status == 413:
        return error_response(413, "body_too_large", "The body is too large.")
    if error.status == 417:
        return error_response(417, "bad_request", "The only supported Expect is 100-continue.")
    return error_response(error.status, "bad_request", error.reason)


def secure(response: web.StreamResponse) -> None:
    """Add the security headers for browsers."""
    response.headers.update(_SECURITY)


def headers_of(door: Doorway) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Make a hook that adds security and CORS headers to every response, also errors and streams."""

    async def add(request: web.Request, response: web.StreamResponse) -> None:
        secure(response)
        if door.origins and (origin := request.headers.get("Origin")) in door.origins:
            fields: CIMultiDict[str] = response.headers
            fields.update(_CORS)
            fields["Access-Control-Allow-Origin"] = origin

    return add
