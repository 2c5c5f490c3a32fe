"""Anthropic's Messages API on the wire of tests.fakes.model_server."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from tests.fakes.model_server import Ask, Message, Reply, Wire, split

SIGNATURE = "EqQBCgIYAhIM+signed/=="
_encode = msgspec.json.Encoder().encode


def event(kind: str, **fields: object) -> bytes:
    """An event of that type."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def start(prompt: int = 7, **cache: int) -> bytes:
    """The first event, with the usage of the input."""
    usage = {"input_tokens": prompt, "output_tokens": 1, **cache}
    message = {"id": "msg_1", "role": "assistant", "content": [], "usage": usage}
    return event("message_start", message=message)


def opening(index: int, kind: str, **fields: object) -> bytes:
    """The beginning of a block."""
    return event("content_block_start", index=index, content_block={"type": kind, **fields})


def delta(index: int, kind: str, **fields: object) -> bytes:
    """A piece of a block."""
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def closing(index: int) -> bytes:
    """The end of a block."""
    return event("content_block_stop", index=index)


def token(text: str, index: int = 0) -> bytes:
    """A piece of text; at the beginning of its block if it is an answer's first."""
    return opening(index, "text", text="") + delta(index, "text_delta", text=text)


def thought(text: str, tokens: int, index: int = 0, signature: str = SIGNATURE) -> list[bytes]:
    """A block of thinking, signed."""
    return [
        opening(index, "thinking", thinking="", signature=""),
        *(delta(index, "thinking_delta", thinking=part) for part in split(text, tokens)),
        delta(index, "signature_delta", signature=signature),
        closing(index),
    ]


def words(text: str, tokens: int, index: int = 0) -> list[bytes]:
    """A block of text."""
    parts = (delta(index, "text_delta", text=part) for part in split(text, tokens))
    return [opening(index, "text", text=""), *parts, closing(index)]


def tool_use(tool: str, arguments: str, index: int = 0, call_id: str = "") -> list[bytes]:
    """A block with a call, its arguments in parts."""
    call_id = call_id or f"toolu_{time.monotonic_ns():x}_{index}"
    parts = ["", *split(arguments, 3)]
    return [
        opening(index, "tool_use", id=call_id, name=tool, input={}),
        *(delta(index, "input_json_delta", partial_json=part) for part in parts),
        closing(index),
    ]


def finish(reason: str = "end_turn", *, output: int = 2, **usage: int) -> list[bytes]:
    """The last two events."""
    spent = {"output_tokens": output, **usage}
    stopped = {"stop_reason": reason, "stop_sequence": None}
    return [event("message_delta", delta=stopped, usage=spent), event("message_stop")]


def say(text: str, tokens: int = 3, *, prompt: int = 7, reasoning: str = "") -> Reply:
    """`text` in tokens, after the reasoning."""
    cost = len(split(text, tokens)) + len(split(reasoning, tokens))
    thoughts = thought(reasoning, tokens) if reasoning else []
    said = words(text, tokens, 1 if thoughts else 0)
    return Reply((start(prompt), event("ping"), *thoughts, *said, *finish(output=cost)))


def call(wanted: Sequence[tuple[str, str]]) -> Reply:
    """An answer that consists of calls."""
    blocks = [chunk for i, (tool, given) in enumerate(wanted) for chunk in tool_use(tool, given, i)]
    return Reply((start(), *blocks, *finish("tool_use")))


def refuse(status: int, message: str, kind: str = "error") -> Reply:
    """An error response."""
    body = _encode({"type": "error", "error": {"type": kind, "message": message}})
    return Reply((body,), status, {}, "application/json", len(body))


class _Turn(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]]


class _Body(msgspec.Struct):
    model: str
    max_tokens: int  # required
    messages: list[_Turn]


def _read(path: str, body: bytes) -> Ask:
    asked = msgspec.json.decode(body, type=_Body)
    messages = [m for turn in asked.messages for m in _messages(turn)]
    return Ask(asked.model, messages)


def _messages(turn: _Turn) -> list[Message]:
    """A turn as the messages that it consists of."""
    if isinstance(turn.content, str):
        return [Message(turn.role, turn.content)]
    results = [b for b in turn.content if b["type"] == "tool_result"]
    said = "".join(b["text"] for b in turn.content if b["type"] == "text")
    others = [Message(turn.role, said)] if len(results) < len(turn.content) else []
    return [Message("tool", b.get("content", "")) for b in results] + others


WIRE = Wire(
    path="/v1/messages",
    list_path="/v1/models",
    read=_read,
    list=lambda names: {
        "data": [{"type": "model", "id": name, "max_input_tokens": 200_000} for name in names],
        "has_more": False,
    },
    say=say,
    call=call,
    token=token,
    refuse=refuse,
)
