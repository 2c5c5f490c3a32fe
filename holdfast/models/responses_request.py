"""Requests of OpenAI's Responses API: encode a request as bytes.

The server keeps nothing: every request has the whole conversation as a list of items. Encrypted
reasoning goes back before the items that followed it, without its id, which names something that
the server did not keep.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.images import to_url
from holdfast.core.messages import Assistant, Message, Proposal, System, ToolResult, User
from holdfast.models.declare import Declared
from holdfast.models.model import Request, ToolSpec
from holdfast.models.replay import parts, wire_id

_REASONS = re.compile(r"(^|/)(o\d|codex|gpt-([5-9]|\d\d))(?!.*chat)")  # others refuse to be asked


class _InputText(msgspec.Struct, frozen=True, tag="input_text", tag_field="type"):
    text: str


class _InputImage(msgspec.Struct, frozen=True, tag="input_image", tag_field="type"):
    image_url: str


class _OutputText(msgspec.Struct, frozen=True, tag="output_text", tag_field="type"):
    text: str


class _Said(msgspec.Struct, frozen=True, tag="message", tag_field="type"):
    role: str
    content: str | list[_InputText | _InputImage] | list[_OutputText]
    phase: str | msgspec.UnsetType = msgspec.UNSET


class _Call(msgspec.Struct, frozen=True, tag="function_call", tag_field="type"):
    call_id: str
    name: str
    arguments: str


class _Result(msgspec.Struct, frozen=True, tag="function_call_output", tag_field="type"):
    call_id: str
    output: str


class Thought(msgspec.Struct, frozen=True, tag="reasoning", tag_field="type"):
    """Encrypted reasoning, as it is kept and sent back."""

    encrypted_content: str
    summary: tuple[Any, ...] = ()


class Phase(msgspec.Struct, frozen=True, tag="phase", tag_field="type"):
    """The phase of the message that follows (commentary or the final answer), as it is kept."""

    phase: str


class _Tool(msgspec.Struct, frozen=True, tag="function", tag_field="type"):
    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False  # the server would change the schema otherwise


class _Reasoning(msgspec.Struct, frozen=True):
    summary: str


_Item = _Said | _Call | _Result | Thought


class _Body(msgspec.Struct, frozen=True):
    model: str
    input: list[_Item]
    stream: bool = True
    store: bool = False
    instructions: str | msgspec.UnsetType = msgspec.UNSET
    tools: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    include: list[str] | msgspec.UnsetType = msgspec.UNSET
    reasoning: _Reasoning | msgspec.UnsetType = msgspec.UNSET
    max_output_tokens: int | msgspec.UnsetType = msgspec.UNSET


_encode = msgspec.json.Encoder().encode
_decode_own = msgspec.json.Decoder(Thought | Phase).decode


def encode(request: Request, summary: str) -> bytes:
    """Encode the body of a request for a streamed answer. `summary`: of reasoning; may be empty."""
    reasons = _REASONS.search(request.model) is not None
    body = _Body(
        request.model,
        list(_items(request.messages)),
        instructions=request.system or msgspec.UNSET,
        tools=_tools.encode(request.tools) if request.tools else msgspec.UNSET,
        include=["reasoning.encrypted_content"] if reasons else msgspec.UNSET,
        reasoning=_Reasoning(summary) if reasons and summary else msgspec.UNSET,
        max_output_tokens=request.max_output or msgspec.UNSET,
    )
    return _encode(body)


def _wire_tools(tools: Sequence[ToolSpec]) -> list[_Tool]:
    return [_Tool(t.name, t.description, dict(t.schema)) for t in tools]


_tools = Declared(_wire_tools)


def _items(messages: Iterable[Message]) -> Iterator[_Item]:
    for message in messages:
        match message:
            case User(text, images) if images:
                given: list[_InputText | _InputImage] = [_InputText(text)] if text else []
                yield _Said("user", given + [_InputImage(to_url(image)) for image in images])
            case User(text):
                yield _Said("user", text)
            case System(text):
                yield _Said("system", text)
            case ToolResult(call_id, text):
                yield _Result(wire_id(call_id), text)
            case Assistant():
                yield from _answer(message)


def _answer(message: Assistant) -> Iterator[_Item]:
    phase: str | msgspec.UnsetType = msgspec.UNSET
    thoughts: list[Thought] = []  # the server refuses those that nothing follows
    for part in parts(message):
        match part:
            case str() if part:
                yield from thoughts
                thoughts = []
                yield _Said("assistant", [_OutputText(part)], phase)
                phase = msgspec.UNSET
            case Proposal(call_id, tool, arguments):
                yield from thoughts
                thoughts = []
                yield _Call(wire_id(call_id), tool, arguments)
            case msgspec.Raw():
                own: Thought | Phase = _decode_own(part)
                if isinstance(own, Thought):
                    thoughts.append(own)
                else:
                    phase = own.phase
            case _:
                pass
