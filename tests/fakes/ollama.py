"""Ollama's own API on the wire of tests.fakes.model_server."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tests.fakes.model_server import Ask, Message, Reply, Wire, split

WINDOW = 8_192
_encode = msgspec.json.Encoder().encode


def line(**fields: object) -> bytes:
    """One object of the stream."""
    return _encode({"model": "fake", "created_at": "2026-01-01T00:00:00Z", **fields}) + b"\n"


def piece(**message: object) -> bytes:
    """A piece of the message."""
    return line(message={"role": "assistant", "content": "", **message}, done=False)


def token(text: str) -> bytes:
    """A piece of text."""
    return piece(content=text)


def tool_call(tool: str, arguments: object, **more: object) -> dict[str, Any]:
    """A call in a message."""
    return {"function": {"name": tool, "arguments": arguments}, **more}


def finish(prompt: int = 7, output: int = 2, reason: str = "stop") -> bytes:
    """The last object."""
    message = {"role": "assistant", "content": ""}
    counts = {"prompt_eval_count": prompt, "eval_count": output}
    return line(message=message, done=True, done_reason=reason, **counts)


def reply(*steps: bytes) -> Reply:
    """A streamed answer."""
    return Reply(steps, content_type="application/x-ndjson")


def say(text: str, tokens: int = 3, *, prompt: int = 7, reasoning: str = "") -> Reply:
    """`text` in tokens, after the reasoning."""
    thoughts = [piece(thinking=part) for part in split(reasoning, tokens)]
    words = [token(part) for part in split(text, tokens)]
    return reply(*thoughts, *words, finish(prompt, len(thoughts) + len(words)))


def call(wanted: Sequence[tuple[str, str]]) -> Reply:
    """An answer that consists of calls, each in an object of its own."""
    made = (tool_call(tool, msgspec.json.decode(given)) for tool, given in wanted)
    return reply(*(piece(tool_calls=[one]) for one in made), finish())


def refuse(status: int, message: str) -> Reply:
    """An error response."""
    body = _encode({"error": message})
    return Reply((body,), status, {}, "application/json", len(body))


class _Body(msgspec.Struct):
    model: str
    messages: list[Message]


def _read(path: str, body: bytes) -> Ask:
    asked = msgspec.json.decode(body, type=_Body)
    return Ask(asked.model, asked.messages)


WIRE = Wire(
    path="/api/chat",
    list_path="/api/tags",
    read=_read,
    list=lambda names: {"models": [{"name": name, "model": name, "size": 1} for name in names]},
    say=say,
    call=call,
    token=token,
    refuse=refuse,
    others={
        "/api/show": lambda body: {
            "capabilities": ["completion", "tools"],
            "model_info": {"general.architecture": "qwen3", "qwen3.context_length": WINDOW},
        }
    },
)
