"""Requests of Anthropic's Messages API: encode a request as bytes.

The server takes alternating turns of user and assistant. Results of calls are part of the user's
turn and come first in it. Thoughts are sent back as they came. Four marks tell the server which
prefixes to cache: the tools, the system prompt, and the last two turns of the user.
"""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.messages import Assistant, Image, Message, Proposal, System, User
from holdfast.core.types import CallId
from holdfast.models.declare import Declared
from holdfast.models.model import Request, ToolSpec
from holdfast.models.replay import as_object, parts, wire_id, with_results

_CACHED_TURNS = 2
_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2})(?!\d))?")
_ADAPTIVE = (4, 6)  # older models know only a budget of tokens: they are asked without thoughts
_BINDING = (5, 1)  # thoughts are bound to all that was sent before them
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
# The longest answer by version, from it on; every model of that version accepts the number.
_MAX_TOKENS = (((4, 5), 64_000), ((3, 7), 32_000), ((3, 5), 8_192), ((0, 0), 4_096))
_MAX_TOKENS_UNKNOWN = 8_192
_BEGINNING = "(The conversation begins with your own message.)"


class _Cache(msgspec.Struct, frozen=True, tag="ephemeral", tag_field="type"):
    pass


_Mark = _Cache | msgspec.UnsetType


class _Text(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    text: str
    cache_control: _Mark = msgspec.UNSET


class _Source(msgspec.Struct, frozen=True, tag="base64", tag_field="type"):
    media_type: str
    data: str


class _Image(msgspec.Struct, frozen=True, tag="image", tag_field="type"):
    source: _Source
    cache_control: _Mark = msgspec.UNSET


class _Result(msgspec.Struct, frozen=True, tag="tool_result", tag_field="type"):
    tool_use_id: str
    content: str
    cache_control: _Mark = msgspec.UNSET


class _ToolUse(msgspec.Struct, frozen=True, tag="tool_use", tag_field="type"):
    id: str
    name: str
    input: msgspec.Raw


_Given = _Text | _Image | _Result
_Said = _Text | _ToolUse | msgspec.Raw


class _User(msgspec.Struct, tag="user", tag_field="role"):
    content: list[_Given]


class _Assistant(msgspec.Struct, tag="assistant", tag_field="role"):
    content: list[_Said]


class _Tool(msgspec.Struct, frozen=True):
    name: str
    description: str
    input_schema: Mapping[str, Any]
    cache_control: _Mark = msgspec.UNSET


class _Binding(msgspec.Struct, frozen=True):
    """What the server does with thoughts if something before them has changed, like a summary.

    Without it, the server refuses the whole request.
    """

    prefix_mismatch_behavior: str = "drop_block"


class _Thinking(msgspec.Struct, frozen=True, tag="adaptive", tag_field="type"):
    display: str = "summarized"
    block_binding: _Binding | msgspec.UnsetType = msgspec.UNSET


class _Body(msgspec.Struct, frozen=True):
    model: str
    max_tokens: int
    messages: list[_User | _Assistant]
    stream: bool = True
    system: list[_Text] | msgspec.UnsetType = msgspec.UNSET
    tools: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    thinking: _Thinking | msgspec.UnsetType = msgspec.UNSET


_encode = msgspec.json.Encoder().encode


def encode(request: Request) -> bytes:
    """Encode the body of a request for a streamed answer."""
    version = _version(request.model)
    system = [request.system, *(m.text for m in request.messages if isinstance(m, System))]
    blocks = [_Text(text) for text in system if text.strip()]
    if blocks:
        blocks[-1] = replace(blocks[-1], cache_control=_Cache())
    body = _Body(
        request.model,
        request.max_output or _max_tokens(version),
        _turns(request.messages),
        system=blocks or msgspec.UNSET,
        tools=_tools.encode(request.tools) if request.tools else msgspec.UNSET,
        thinking=_thinking(version),
    )
    return _encode(body)


def headers(model: str) -> dict[str, str]:
    """Return the headers that a request to that model needs besides the usual ones."""
    version = _version(model)
    return {"anthropic-beta": _BINDING_BETA} if version and version >= _BINDING else {}


def _thinking(version: tuple[int, int] | None) -> _Thinking | msgspec.UnsetType:
    if version is None or version < _ADAPTIVE:
        return msgspec.UNSET
    return _Thinking(block_binding=_Binding() if version >= _BINDING else msgspec.UNSET)


def _version(model: str) -> tuple[int, int] | None:
    found = _VERSION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else None


def _max_tokens(version: tuple[int, int] | None) -> int:
    if version is None:
        return _MAX_TOKENS_UNKNOWN
    return next(tokens for since, tokens in _MAX_TOKENS if version >= since)


def _wire_tools(tools: Sequence[ToolSpec]) -> list[_Tool]:
    wired = [_Tool(t.name, t.description, dict(t.schema)) for t in tools]
    return [*wired[:-1], replace(wired[-1], cache_control=_Cache())]


_tools = Declared(_wire_tools)


def _turns(messages: Sequence[Message]) -> list[_User | _Assistant]:
    turns: list[_User | _Assistant] = []
    taken: set[str] = set()  # ids of calls
    for message, results in with_results(messages):
        match message:
            case Assistant(_, calls):
                ids = [_new_id(call.call_id, taken) for call in calls]
                _add_said(turns, _said(message, ids))
                pairs = zip(ids, results, strict=True)
                _add_given(turns, [_Result(i, r.text) for i, r in pairs if r is not None])
            case User(text, images):
                _add_given(turns, [*_texts(text), *map(_image, images)])
            case System():
                pass
    if not turns or isinstance(turns[0], _Assistant):
        turns.insert(0, _User([_Text(_BEGINNING)]))
    users = [turn for turn in turns if isinstance(turn, _User)]
    for turn in users[-_CACHED_TURNS:]:
        turn.content[-1] = replace(turn.content[-1], cache_control=_Cache())
    return turns


def _new_id(call_id: CallId, taken: set[str]) -> str:
    """Return an id that the server accepts, and that no other call has."""
    found = wire_id(call_id)
    while found in taken:
        found = wire_id(CallId(f"{found}#"))
    taken.add(found)
    return found


def _add_given(turns: list[_User | _Assistant], blocks: list[_Given]) -> None:
    match turns:
        case [*_, _User(content)]:
            content += blocks
        case _ if blocks:
            turns.append(_User(blocks))
        case _:
            pass


def _add_said(turns: list[_User | _Assistant], blocks: list[_Said]) -> None:
    match turns:
        case [*_, _Assistant(content)]:
            content += blocks
        case _ if blocks:
            turns.append(_Assistant(blocks))
        case _:
            pass


def _said(message: Assistant, ids: Sequence[str]) -> list[_Said]:
    blocks: list[_Said] = []
    new = iter(ids)
    for part in parts(message):
        match part:
            case str():
                blocks += _texts(part)
            case Proposal(_, tool, arguments):
                blocks.append(_ToolUse(next(new), tool, as_object(arguments)))
            case _:
                blocks.append(part)
    return blocks


def _texts(text: str) -> list[_Text]:
    """The text as a block; the server refuses blank ones."""
    return [_Text(text)] if text.strip() else []


def _image(image: Image) -> _Image:
    return _Image(_Source(image.media_type, b64encode(image.data).decode()))
