"""Gemini's API on the wire of tests.fakes.model_server."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tests.fakes.model_server import Ask, Message, Reply, Wire, split

WINDOW = 1_048_576
_encode = msgspec.json.Encoder().encode


def event(**fields: object) -> bytes:
    """An event; the server ends its lines with CR LF."""
    return b"data: " + _encode({"responseId": "r1", **fields}) + b"\r\n\r\n"


def parts(*given: dict[str, Any], **fields: object) -> bytes:
    """An event with these parts."""
    candidate = {"content": {"role": "model", "parts": list(given)}, "index": 0, **fields}
    return event(candidates=[candidate])


def token(text: str) -> bytes:
    """A piece of text."""
    return parts({"text": text})


def thought(text: str) -> bytes:
    """A piece of a thought."""
    return parts({"text": text, "thought": True})


def function_call(tool: str, args: object, signature: str = "", call_id: str = "") -> bytes:
    """A call."""
    made = {"name": tool, "args": args, **({"id": call_id} if call_id else {})}
    signed = {"thoughtSignature": signature} if signature else {}
    return parts({"functionCall": made, **signed})


def finish(
    prompt: int = 7,
    output: int = 2,
    reason: str = "STOP",
    signature: str = "",
    **usage: int,
) -> bytes:
    """The last event."""
    last = [{"text": "", "thoughtSignature": signature}] if signature else []
    content = {"content": {"role": "model", "parts": last}} if last else {}
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": output, **usage}
    candidate = {**content, "finishReason": reason, "index": 0}
    return event(candidates=[candidate], usageMetadata=counts)


def say(text: str, tokens: int = 3, *, prompt: int = 7, reasoning: str = "") -> Reply:
    """`text` in tokens, after the reasoning."""
    thoughts = [thought(part) for part in split(reasoning, tokens)]
    words = [token(part) for part in split(text, tokens)]
    last = finish(prompt, len(words), thoughtsTokenCount=len(thoughts))
    return Reply((*thoughts, *words, last))


def call(wanted: Sequence[tuple[str, str]]) -> Reply:
    """An answer that consists of calls."""
    made = (function_call(tool, msgspec.json.decode(given)) for tool, given in wanted)
    return Reply((*made, finish()))


def error(status: int, message: str, **more: object) -> dict[str, Any]:
    """An error, as a response or in the stream."""
    return {"code": status, "message": message, "status": "SOME_STATUS", **more}


def refuse(status: int, message: str, **more: object) -> Reply:
    """An error response."""
    body = _encode({"error": error(status, message, **more)})
    return Reply((body,), status, {}, "application/json", len(body))


class _Turn(msgspec.Struct):
    role: str
    parts: list[dict[str, Any]]


class _Body(msgspec.Struct):
    contents: list[_Turn]


def _read(path: str, body: bytes) -> Ask:
    asked = msgspec.json.decode(body, type=_Body)
    model = path.rpartition("/")[2].partition(":")[0]
    return Ask(model, [m for turn in asked.contents for m in _messages(turn)])


def _messages(turn: _Turn) -> list[Message]:
    results = [p["functionResponse"] for p in turn.parts if "functionResponse" in p]
    said = "".join(p.get("text", "") for p in turn.parts)
    role = "assistant" if turn.role == "model" else "user"
    others = [Message(role, said)] if len(results) < len(turn.parts) else []
    return [Message("tool", r["response"]["result"]) for r in results] + others


WIRE = Wire(
    path="/v1beta/models/{asked}",
    list_path="/v1beta/models",
    read=_read,
    list=lambda names: {
        "models": [
            *(
                {
                    "name": f"models/{name}",
                    "inputTokenLimit": WINDOW,
                    "supportedGenerationMethods": ["generateContent"],
                }
                for name in names
            ),
            {"name": "models/embedding", "supportedGenerationMethods": ["embedContent"]},
        ]
    },
    say=say,
    call=call,
    token=token,
    refuse=refuse,
)
