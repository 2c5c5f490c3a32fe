"""What only the operator's own door has: a session is brought in from elsewhere."""

import msgspec
from aiohttp import web

from holdfast.channels.http import bodies
from holdfast.channels.http.bodies import InputMessage, Part
from holdfast.channels.http.door import json_response
from holdfast.channels.http.sessions import session_object
from holdfast.core.intents import Principal
from holdfast.core.library import Imported
from holdfast.core.messages import Assistant, Message, Proposal, ToolResult
from holdfast.core.types import CallId
from holdfast.errors import Refused
from holdfast.gateway import Library

IMPORT = "/v1/operator/import"
_LATEST = 253_402_300_799.0  # the end of the year 9999: what a date can be


class Function(msgspec.Struct):
    name: str
    arguments: str = ""


class ToolCall(msgspec.Struct):
    id: str
    function: Function


class ImportedMessage(msgspec.Struct):
    """A message as transcripts have it: the calls of an assistant, the result of one."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ImportRequest(msgspec.Struct):
    """The body of POST /v1/operator/import."""

    session_id: str
    messages: list[ImportedMessage]
    title: str | None = None
    source: str | None = None
    created_at: float | None = None
    updated_at: float | None = None
    workspace: str | None = None


def add_routes(
    app: web.Application, library: Library, by: Principal, body_limit: int, body_wait_s: float
) -> None:
    """POST a session as it was somewhere else."""

    async def bring_in(request: web.Request) -> web.Response:
        raw = await bodies.read_body(request, body_limit, body_wait_s)
        what = _imported(bodies.decode(raw, ImportRequest))
        return json_response(session_object(await library.bring_in(by, what)), 201)

    app.router.add_post(IMPORT, bring_in)


def _imported(body: ImportRequest) -> Imported:
    return Imported(
        session_id=bodies.session_id(body.session_id),
        title=bodies.clean(body.title or "", "title"),
        source=bodies.clean(body.source or "", "source"),
        messages=tuple(map(_message, body.messages)),
        created_at=_time(body.created_at, "created_at"),
        updated_at=_time(body.updated_at, "updated_at"),
        workspace=bodies.path_of(body.workspace or ""),
    )


def _time(given: float | None, name: str) -> float:
    if given is not None and not 0 <= given <= _LATEST:
        raise Refused("invalid_request", f"`{name}` is not a time.", param=name)
    return given or 0.0


def _message(given: ImportedMessage) -> Message:
    if given.role == "tool":
        if not given.tool_call_id:
            raise _unfit("a result that names no call")
        called = CallId(bodies.clean(given.tool_call_id, "messages"))
        return ToolResult(called, _said(given, "user").text)
    if not given.tool_calls:
        return _said(given, given.role)
    if given.role != "assistant":
        raise _unfit("calls that are not the assistant's")
    return Assistant(_said(given, given.role).text, tuple(map(_call, given.tool_calls)))


def _said(given: ImportedMessage, role: str) -> Message:
    content = "" if given.content is None else given.content
    return bodies.message_of(InputMessage(role, content), "messages")


def _call(given: ToolCall) -> Proposal:
    parts = (given.id, given.function.name, given.function.arguments)
    call_id, tool, arguments = (bodies.clean(part, "messages") for part in parts)
    if not call_id:
        raise _unfit("a call without an id")
    return Proposal(CallId(call_id), tool, arguments)


def _unfit(what: str) -> Refused:
    return Refused("invalid_request", f"`messages` has {what}.", param="messages")
