"""OpenAI's Responses API on the wire of tests.fakes.model_server."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from tests.fakes.model_server import OPENAI, Ask, Message, Reply, Wire, refuse, split

_encode = msgspec.json.Encoder().encode


def event(kind: str, **fields: object) -> bytes:
    """An event of that type."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def added(index: int, **item: object) -> bytes:
    """The beginning of an item."""
    return event("response.output_item.added", output_index=index, item=item)


def done(index: int, **item: object) -> bytes:
    """The end of an item, which has it whole."""
    return event("response.output_item.done", output_index=index, item=item)


def message(text: str, tokens: int, index: int = 0, **more: object) -> list[bytes]:
    """An item with text."""
    head = {"type": "message", "id": f"msg_{index}", "role": "assistant", **more}
    part = {"type": "output_text", "text": text, "annotations": []}
    where = {"item_id": f"msg_{index}", "output_index": index, "content_index": 0}
    deltas = (
        event("response.output_text.delta", delta=piece, **where) for piece in split(text, tokens)
    )
    return [
        added(index, content=[], **head),
        event("response.content_part.added", part={**part, "text": ""}, **where),
        *deltas,
        event("response.output_text.done", text=text, **where),
        event("response.content_part.done", part=part, **where),
        done(index, content=[part], **head),
    ]


def token(text: str, index: int = 0) -> bytes:
    """A piece of text."""
    return event("response.output_text.delta", output_index=index, delta=text)


def thought(text: str, tokens: int, index: int = 0, sealed: str | None = None) -> list[bytes]:
    """An item with reasoning: its summary, and its encrypted content, if any."""
    head = {"type": "reasoning", "id": f"rs_{index}", "encrypted_content": sealed}
    summary = [{"type": "summary_text", "text": text}]
    where = {"output_index": index, "summary_index": 0}
    return [
        added(index, summary=[], **head),
        event("response.reasoning_summary_part.added", **where),
        *(
            event("response.reasoning_summary_text.delta", delta=piece, **where)
            for piece in split(text, tokens)
        ),
        done(index, summary=summary, **head),
    ]


def function_call(tool: str, arguments: str, index: int = 0, call_id: str = "") -> list[bytes]:
    """An item with a call, its arguments in parts."""
    call_id = call_id or f"call_{time.monotonic_ns():x}_{index}"
    head = {"type": "function_call", "id": f"fc_{index}", "call_id": call_id, "name": tool}
    kind = "response.function_call_arguments"
    return [
        added(index, arguments="", **head),
        *(event(f"{kind}.delta", output_index=index, delta=part) for part in split(arguments, 3)),
        event(f"{kind}.done", output_index=index, arguments=arguments),
        done(index, arguments=arguments, **head),
    ]


def finish(
    prompt: int = 7, output: int = 2, kind: str = "response.completed", **response: object
) -> bytes:
    """The last event."""
    details: dict[str, Any] = {"input_tokens_details": {"cached_tokens": 0}}
    usage = {"input_tokens": prompt, "output_tokens": output, **details}
    return event(kind, response={"id": "resp_1", "usage": usage, **response})


START = (
    event("response.created", response={"id": "resp_1", "usage": None}),
    event("response.in_progress", response={"id": "resp_1", "usage": None}),
)


def say(text: str, tokens: int = 3, *, prompt: int = 7, reasoning: str = "") -> Reply:
    """`text` in tokens, after the reasoning."""
    cost = len(split(text, tokens)) + len(split(reasoning, tokens))
    thoughts = thought(reasoning, tokens) if reasoning else []
    said = message(text, tokens, 1 if thoughts else 0)
    return Reply((*START, *thoughts, *said, finish(prompt, cost)))


def call(wanted: Sequence[tuple[str, str]]) -> Reply:
    """An answer that consists of calls."""
    items = [
        chunk for i, (tool, given) in enumerate(wanted) for chunk in function_call(tool, given, i)
    ]
    return Reply((*START, *items, finish()))


class _Body(msgspec.Struct):
    model: str
    input: list[dict[str, Any]]


def _read(path: str, body: bytes) -> Ask:
    asked = msgspec.json.decode(body, type=_Body)
    return Ask(asked.model, [_message(item) for item in asked.input])


def _message(item: dict[str, Any]) -> Message:
    match item["type"]:
        case "message":
            content = item["content"]
            if isinstance(content, list):
                content = "".join(part.get("text", "") for part in content)
            return Message(item["role"], content)
        case "function_call_output":
            return Message("tool", item["output"])
        case _:
            return Message("assistant", "")


WIRE = Wire(
    path="/v1/responses",
    list_path=OPENAI.list_path,
    read=_read,
    list=OPENAI.list,
    say=say,
    call=call,
    token=token,
    refuse=refuse,
    base=OPENAI.base,
)
