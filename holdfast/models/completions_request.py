"""Requests of the chat-completions protocol: encode a request as bytes.

A message is sent as plain text if possible, because some servers accept nothing else. Only a
message with images is a list of parts: the text, if there is any, then the images.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.images import to_url
from holdfast.core.messages import Assistant, Message, System, ToolResult, User
from holdfast.models.completions_thoughts import KeptThoughts, kept
from holdfast.models.declare import Declared
from holdfast.models.model import Request, ToolSpec


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


def encode(request: Request, *, strict: bool = False, thoughts: bool = False) -> bytes:
    """Encode the body of a request for a streamed answer.

    `strict`: for OpenAI itself. `thoughts`: for a server that demands reasoning with every call.
    """
    head: list[_System | _User | _Assistant | _ToolResult] = []
    if request.system:
        head.append(_System(request.system))
    body = _Body(
        request.model,
        head + [_wire(message, thoughts=thoughts) for message in request.messages],
        tools=_tools.encode(request.tools) if request.tools else msgspec.UNSET,
        max_tokens=request.max_output if request.max_output and not strict else msgspec.UNSET,
        max_completion_tokens=(request.max_output or msgspec.UNSET) if strict else msgspec.UNSET,
    )
    return _encode(body)


def _wire_tools(tools: Sequence[ToolSpec]) -> list[_Tool]:
    return [_Tool(_Described(t.name, t.description, dict(t.schema))) for t in tools]


_tools = Declared(_wire_tools)


def _wire_answer(message: Assistant, *, thoughts: bool) -> _Assistant:
    found = kept(message) if message.opaque else KeptThoughts()
    calls = [_Call(c.call_id, _Function(c.tool, c.arguments)) for c in message.calls]
    content = found.reasoning_content if found.reasoning_content or (calls and thoughts) else None
    return _Assistant(
        (message.text or None) if calls else message.text,
        calls or msgspec.UNSET,
        msgspec.UNSET if content is None else content,
        found.reasoning_details or msgspec.UNSET,
    )


def _wire(message: Message, *, thoughts: bool) -> _System | _User | _Assistant | _ToolResult:
    match message:
        case ToolResult(call_id, text):
            return _ToolResult(call_id, text)
        case Assistant():
            return _wire_answer(message, thoughts=thoughts)
        case User(text, images) if images:
            parts: list[_Text | _Image] = [_Text(text)] if text else []
            return _User(parts + [_Image(_Url(to_url(image))) for image in images])
        case User(text):
            return _User(text)
        case System(text):
            return _System(text)
