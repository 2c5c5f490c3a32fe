"""Requests of the chat-completions protocol: encode a request as bytes.

A message is sent as plain text if possible, because some servers accept nothing else. Only a
message with images is a list of parts: the text, if there is any, then the images.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.images import to_url
from holdfast.core.messages import Assistant, Message, System, ToolResult, User
from holdfast.core.types import CallId
from holdfast.models.completions_thoughts import KeptThoughts, demands_thoughts, kept
from holdfast.models.declare import Declared
from holdfast.models.model import Request, ToolSpec
from holdfast.models.replay import short_id


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class _Call(msgspec.Struct, frozen=True, tag="function", tag_field="type"):
    id: str
    function: _Function


class _System(msgspec.Struct, frozen=True, tag="system", tag_field="role"):
    content: str


class _Text(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    text: str


class _Url(msgspec.Struct, frozen=True):
    url: str


class _Image(msgspec.Struct, frozen=True, tag="image_url", tag_field="type"):
    image_url: _Url


class _User(msgspec.Struct, frozen=True, tag="user", tag_field="role"):
    content: str | list[_Text | _Image]


class _Assistant(msgspec.Struct, frozen=True, tag="assistant", tag_field="role"):
    content: str | None
    tool_calls: list[_Call] | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_details: tuple[dict[str, Any], ...] | msgspec.UnsetType = msgspec.UNSET


class _ToolResult(msgspec.Struct, frozen=True, tag="tool", tag_field="role"):
    tool_call_id: str
    content: str


class _Described(msgspec.Struct, frozen=True):
    name: str
    description: str
    parameters: Mapping[str, Any]


class _Tool(msgspec.Struct, frozen=True, tag="function", tag_field="type"):
    function: _Described


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = True


class _Body(msgspec.Struct, frozen=True):
    model: str
    messages: list[_System | _User | _Assistant | _ToolResult]
    stream: bool = True
    stream_options: _StreamOptions = _StreamOptions()
    tools: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    max_tokens: int | msgspec.UnsetType = msgspec.UNSET
    max_completion_tokens: int | msgspec.UnsetType = msgspec.UNSET  # the same, for OpenAI itself


_encode = msgspec.json.Encoder().encode


class Dialect(msgspec.Struct, frozen=True):
    """What a server does differently. The default: nothing."""

    new_limit: bool = False  # the longest answer has its new name
    thoughts: bool = False  # it refuses calls without their reasoning
    short_ids: bool = False  # ids of calls have nine letters or digits


def dialect_of(host: str) -> Dialect:
    """Return the dialect of the server at that host."""
    return Dialect(
        new_limit=host == "api.openai.com",
        thoughts=demands_thoughts(host),
        short_ids=host.endswith("mistral.ai"),
    )


def encode(request: Request, dialect: Dialect) -> bytes:
    """Encode the body of a request for a streamed answer."""
    head: list[_System | _User | _Assistant | _ToolResult] = []
    if request.system:
        head.append(_System(request.system))
    limit = request.max_output or msgspec.UNSET
    body = _Body(
        request.model,
        head + [_wire(message, dialect) for message in request.messages],
        tools=_tools.encode(request.tools) if request.tools else msgspec.UNSET,
        max_tokens=msgspec.UNSET if dialect.new_limit else limit,
        max_completion_tokens=limit if dialect.new_limit else msgspec.UNSET,
    )
    return _encode(body)


def _wire_tools(tools: Sequence[ToolSpec]) -> list[_Tool]:
    return [_Tool(_Described(t.name, t.description, dict(t.schema))) for t in tools]


_tools = Declared(_wire_tools)


def _wire_answer(message: Assistant, dialect: Dialect) -> _Assistant:
    found = kept(message) if message.opaque else KeptThoughts()
    calls = [
        _Call(_wire_id(c.call_id, dialect), _Function(c.tool, c.arguments)) for c in message.calls
    ]
    demanded = calls and dialect.thoughts
    content = found.reasoning_content if found.reasoning_content or demanded else msgspec.UNSET
    return _Assistant(
        (message.text or None) if calls else message.text,
        calls or msgspec.UNSET,
        content,
        found.reasoning_details or msgspec.UNSET,
    )


def _wire_id(call_id: CallId, dialect: Dialect) -> str:
    return short_id(call_id) if dialect.short_ids else call_id


def _wire(message: Message, dialect: Dialect) -> _System | _User | _Assistant | _ToolResult:
    match message:
        case ToolResult(call_id, text):
            return _ToolResult(_wire_id(call_id, dialect), text)
        case Assistant():
            return _wire_answer(message, dialect)
        case User(text, images) if images:
            parts: list[_Text | _Image] = [_Text(text)] if text else []
            return _User(parts + [_Image(_Url(to_url(image))) for image in images])
        case User(text):
            return _User(text)
        case System(text):
            return _System(text)
