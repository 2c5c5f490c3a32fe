"""The OpenAPI document, made from the types that requests are checked by."""

from typing import Any

import msgspec

from holdfast.channels.http.bodies import ApprovalRequest, RunRequest, SteerRequest
from holdfast.channels.http.door import ErrorEnvelope
from holdfast.channels.http.sessions import ForkRequest, TitleRequest
from holdfast.channels.http.wire import UsageObject

_JSON = "application/json"
_STATUSES = [
    "queued",
    "running",
    "waiting_for_approval",
    "stopping",
    "completed",
    "failed",
    "cancelled",
]
_RUN_ID = {"name": "run_id", "in": "path", "required": True, "schema": {"type": "string"}}
_MODEL_ID = {"name": "model_id", "in": "path", "required": True, "schema": {"type": "string"}}
_REQUEST_ID = {"name": "request_id", "in": "path", "required": True, "schema": {"type": "string"}}
_SESSION_ID = {"name": "session_id", "in": "path", "required": True, "schema": {"type": "string"}}
_RULE = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


class QuestionObject(msgspec.Struct):
    """What a run asks its user, and waits for. Answered by POST /v1/runs/{run_id}/steer."""

    call_id: str
    question: str
    options: list[str]


class RunObject(msgspec.Struct, omit_defaults=True):
    """A run's status."""

    object: str
    run_id: str
    status: str
    created_at: float
    updated_at: float
    session_id: str
    model: str
    last_event: str | None
    output: str = ""
    usage: UsageObject | None = None
    error: str = ""
    error_code: str = ""
    question: QuestionObject | None = None


class Started(msgspec.Struct):
    """The answer to POST /v1/runs."""

    run_id: str
    status: str


class RunList(msgspec.Struct):
    object: str
    data: list[RunObject]
    has_more: bool


class Steered(msgspec.Struct):
    object: str
    run_id: str
    accepted: bool


class Approved(msgspec.Struct):
    object: str
    run_id: str
    choice: str
    resolved: int
    note: str = ""


class SessionObject(msgspec.Struct):
    """A session as a list shows it."""

    object: str
    session_id: str
    title: str
    preview: str
    created_at: float
    updated_at: float
    workspace: str
    platform: str
    model: str
    status: str
    unfinished: int


class SessionPage(msgspec.Struct):
    object: str
    data: list[SessionObject]
    has_more: bool


class AnyObject(msgspec.Struct):
    """An object whose fields are described in the documentation."""


_TYPES = (
    RunRequest,
    SteerRequest,
    ApprovalRequest,
    ErrorEnvelope,
    RunObject,
    Started,
    RunList,
    Steered,
    Approved,
    TitleRequest,
    ForkRequest,
    SessionObject,
    SessionPage,
    AnyObject,
)


def document(version: str) -> dict[str, Any]:
    """The whole document."""
    _, components = msgspec.json.schema_components(
        _TYPES, ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": version},
        "security": [{"key": []}],
        "paths": _paths(),
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths() -> dict[str, Any]:
    return _ops_paths() | _run_paths() | _approval_paths() | _session_paths()


def _ops_paths() -> dict[str, Any]:
    return {
        "/health": {"get": _operation("How it is", AnyObject) | {"security": []}},
        "/v1/health": {"get": _operation("How it is", AnyObject) | {"security": []}},
        "/health/detailed": {"get": _operation("How it is, in detail", AnyObject, errors=(503,))},
        "/openapi.json": {"get": _operation("This document", AnyObject)},
        "/v1/capabilities": {"get": _operation("What this server can do", AnyObject)},
        "/v1/models": {"get": _operation("The configured model", AnyObject)},
        "/v1/models/{model_id}": {
            "get": _operation("One model", AnyObject, parameters=[_MODEL_ID])
        },
    }


def _run_paths() -> dict[str, Any]:
    run = [_RUN_ID]
    return {
        "/v1/runs": {
            "post": _operation(
                "Start a run",
                Started,
                status=202,
                body=RunRequest,
                parameters=[_header("Idempotency-Key")],
                errors=(409, 429, 503),
            ),
            "get": _operation("List runs, newest first", RunList, parameters=_list_parameters()),
        },
        "/v1/runs/{run_id}": {"get": _operation("A run's status", RunObject, parameters=run)},
        "/v1/runs/{run_id}/events": {"get": _run_events()},
        "/v1/runs/{run_id}/stop": {
            "post": _operation(
                "Stop a run",
                Started,
                parameters=[*run, _header("Idempotency-Key")],
                errors=(503,),
            )
        },
        "/v1/runs/{run_id}/steer": {
            "post": _operation(
                "Add guidance to a live run, or answer what it asks",
                Steered,
                body=SteerRequest,
                parameters=[*run, _header("Idempotency-Key")],
                errors=(409, 503),
            )
        },
        "/v1/runs/{run_id}/approval": {
            "post": _operation(
                "Answer an approval", Approved, body=ApprovalRequest, parameters=run, errors=(409,)
            )
        },
    }


def _approval_paths() -> dict[str, Any]:
    return {
        "/v1/approvals": {"get": _operation("Everything that waits for an approval", AnyObject)},
        "/v1/approvals/{request_id}": {
            "post": _operation(
                "Answer one request",
                Approved,
                body=ApprovalRequest,
                parameters=[_REQUEST_ID],
                errors=(409,),
            )
        },
        "/v1/rules": {"get": _operation("What is permitted for good", AnyObject)},
        "/v1/rules/{name}/revoke": {
            "post": _operation("Take a permission back", AnyObject, parameters=[_RULE])
        },
        "/v1/sandbox/accept": {
            "post": _operation("Go on, however well commands are confined", AnyObject)
        },
    }


def _session_paths() -> dict[str, Any]:
    settled = {"name": "settled", "in": "query", "schema": {"type": "boolean"}}
    whose = [_SESSION_ID]
    return {
        "/api/sessions": {
            "get": _operation(
                "List sessions, those that were spoken in last first",
                SessionPage,
                parameters=_list_parameters()[2:],
            )
        },
        "/api/sessions/{session_id}": {
            "get": _operation("A session", SessionObject, parameters=whose),
            "patch": _operation(
                "Call a session something else, or nothing",
                SessionObject,
                body=TitleRequest,
                parameters=whose,
                errors=(503,),
            ),
        },
        "/api/sessions/{session_id}/fork": {
            "post": _operation(
                "Another session that begins with what the model of this one reads now",
                SessionObject,
                status=201,
                body=ForkRequest,
                parameters=whose,
                errors=(409, 503),
            )
        },
        "/api/sessions/{session_id}/events": {
            "get": _events(_SESSION_ID, "Follow a session: everything that happens in it, for ever")
        },
        "/api/sessions/{session_id}/messages": {
            "get": _operation(
                "A session's transcript; with `settled` only what was said before the first run "
                "that is not over, and `after`: the number after which events tell the rest",
                AnyObject,
                parameters=[_SESSION_ID, settled],
            )
        },
    }


def _operation(
    summary: str,
    answer: type[msgspec.Struct],
    *,
    status: int = 200,
    body: type[msgspec.Struct] | None = None,
    parameters: list[dict[str, Any]] | None = None,
    errors: tuple[int, ...] = (),
) -> dict[str, Any]:
    possible = {400, 401, 403, 421, *errors}
    if parameters:
        possible.add(404)
    if body is not None:
        possible |= {408, 413, 415}
    operation: dict[str, Any] = {
        "summary": summary,
        "parameters": parameters or [],
        "responses": {
            str(status): {"description": "OK", "content": _content(answer)},
            **{str(s): _error() for s in sorted(possible)},
        },
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _content(body)}
    return operation


def _run_events() -> dict[str, Any]:
    operation = _events(_RUN_ID, "Follow a run: server-sent events, to its last")
    operation["responses"]["204"] = {"description": "Nothing follows the given number"}
    return operation


def _events(of: dict[str, Any], summary: str) -> dict[str, Any]:
    after = {"name": "after", "in": "query", "schema": {"type": "integer", "minimum": 0}}
    operation = _operation(
        summary,
        AnyObject,
        parameters=[of, after, _header("Last-Event-ID")],
    )
    operation["responses"]["200"] = {
        "description": "Server-sent events, each with the id to come back with. What a run asks "
        "its user is `question.asked` (call_id, question, options), then `question.answered`; what "
        "it has delegated is `subagent.started` (call_id, child_run_id, name, preview, background), "
        "then `subagent.completed` (with a status)",
        "content": {"text/event-stream": {}},
    }
    return operation


def _list_parameters() -> list[dict[str, Any]]:
    def parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "in": "query", "schema": schema}

    return [
        parameter("status", {"type": "string", "enum": _STATUSES}),
        parameter("session_id", {"type": "string"}),
        parameter("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
        parameter("after", {"type": "string"}),
    ]


def _header(name: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "schema": {"type": "string"}}


def _content(of: type[msgspec.Struct]) -> dict[str, Any]:
    return {_JSON: {"schema": {"$ref": f"#/components/schemas/{of.__name__}"}}}


def _error() -> dict[str, Any]:
    return {"description": "Refused, and why", "content": _content(ErrorEnvelope)}
