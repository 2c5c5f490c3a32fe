"""The scripted provider: it plays fixed answers from a file, for demos, tests and load.

`HOLDFAST_MODEL=scripted/path/to/script.json`. The file is a list of turns, or rules:

    [TURN, …]                                  the conversation's answers, in order
    {"rules": [{"when": REGEX, "turns": [TURN, …]}, …]}
                                               the first rule that matches the last user text;
                                               its turns answer that text, in order

A TURN is a list of steps, each an object with `do`:

    {"do": "say", "text": "Hello"}             `{input}` in it is the last user text,
    {"do": "think", "text": "Hm"}              `{result}` the last tool result,
                                               `{images}` the number of images with that text,
                                               which are not looked at
    {"do": "call", "tool": "read_file", "arguments": {"path": "a.txt"}}
    {"do": "wait", "seconds": 0.5}
    {"do": "spend", "input_tokens": 10, "output_tokens": 2}
    {"do": "fail", "as": "transient", "text": "busy", "retry_after_s": 1, "times": 2}
                                               `as`: transient, overflow or rejected;
                                               without `times`, always

The conversation determines which turn is next, so a restart changes nothing. The only state in
memory is how often a conversation has reached a `fail` with `times`.
"""

import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, assert_never

import anyio
import msgspec
from msgspec.structs import replace

from holdfast.core.messages import Assistant, Message, Proposal, ToolResult, User
from holdfast.core.types import CallId, Usage
from holdfast.errors import HoldfastError, Overflow, Rejected, Transient
from holdfast.models.model import Answer, Piece, Reasoning, Request, Text, without_note

OVER = "(the script is over)"


class _As(StrEnum):
    TRANSIENT = "transient"
    OVERFLOW = "overflow"
    REJECTED = "rejected"


class _Step(msgspec.Struct, frozen=True, tag_field="do", forbid_unknown_fields=True):
    pass


class ScriptedText(_Step, frozen=True, tag="say"):
    text: str


class Think(_Step, frozen=True, tag="think"):
    text: str


class ScriptedCall(_Step, frozen=True, tag="call"):
    tool: str
    arguments: dict[str, Any] = {}


class Wait(_Step, frozen=True, tag="wait"):
    seconds: float


class Spend(_Step, frozen=True, tag="spend"):
    input_tokens: int = 0
    output_tokens: int = 0


class Fail(_Step, frozen=True, tag="fail", rename={"kind": "as"}):
    kind: _As = _As.TRANSIENT
    text: str = "the script says so"
    retry_after_s: float | None = None
    times: int | None = None


Turn = tuple[ScriptedText | Think | ScriptedCall | Wait | Spend | Fail, ...]


class ScriptedRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    when: str
    turns: tuple[Turn, ...]


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: tuple[ScriptedRule, ...]


class Scripted:
    """A provider that reads its answers from a file; the model name is its path."""

    name = "scripted"

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        self._sleep = sleep
        self._scripts: dict[str, tuple[Turn, ...] | Script] = {}
        self._failed: dict[tuple[Message, ...], int] = {}

    async def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Play the next turn of the conversation."""
        asked, result, since, before = _place(request.messages)
        script = await self._load(request.model)
        if isinstance(script, Script):
            rule = next((r for r in script.rules if re.search(r.when, asked.text)), None)
            turns, number = rule.turns if rule else (), since
        else:
            turns, number = script, before
        turn = turns[number] if number < len(turns) else (ScriptedText(OVER),)
        texts: dict[type[Text] | type[Reasoning], list[str]] = {Text: [], Reasoning: []}
        calls: list[Proposal] = []
        usage = Usage()
        for step in turn:
            match step:
                case ScriptedText() | Think():
                    kind = Text if isinstance(step, ScriptedText) else Reasoning
                    texts[kind].append(_fill(step.text, asked, result))
                    yield kind(texts[kind][-1])
                case ScriptedCall(tool, arguments):
                    raw = msgspec.json.encode(arguments).decode()
                    raw = _fill(raw, replace(asked, text=_quoted(asked.text)), _quoted(result))
                    calls.append(Proposal(CallId(f"call_{secrets.token_hex(12)}"), tool, raw))
                case Wait(seconds):
                    await self._sleep(seconds)
                case Spend():
                    usage += Usage(step.input_tokens, step.output_tokens)
                case Fail():
                    self._fail(step, request.messages)
                case _:
                    assert_never(step)
        yield Answer("".join(texts[Text]), "".join(texts[Reasoning]), tuple(calls), usage)

    async def check(self) -> str:
        """Return the line for `doctor`: there is no server to reach."""
        return "scripted plays the file that HOLDFAST_MODEL names after scripted/"

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""

    async def _load(self, path: str) -> tuple[Turn, ...] | Script:
        if path not in self._scripts:
            try:
                text = await anyio.Path(path).read_bytes()
                self._scripts[path] = _parse(text)
            except (OSError, msgspec.DecodeError, re.error) as error:
                raise Rejected(
                    f"scripted cannot play {path!r} ({error}); check HOLDFAST_MODEL and the file"
                ) from error
        return self._scripts[path]

    def _fail(self, fail: Fail, messages: Sequence[Message]) -> None:
        if fail.times is not None:
            key = tuple(messages)
            count = self._failed.pop(key, 0) + 1
            if count > fail.times:
                return
            self._failed[key] = count
        raise _error(fail)


def _parse(text: bytes) -> tuple[Turn, ...] | Script:
    script = msgspec.json.decode(text, type=tuple[Turn, ...] | Script)
    if isinstance(script, Script):
        for rule in script.rules:
            re.compile(rule.when)
    return script


def _place(messages: Sequence[Message]) -> tuple[User, str, int, int]:
    """Return the last user message, the last tool result, and the answers since then and in all."""
    asked, result, since, before = User(""), "", 0, 0
    for message in messages:
        match message:
            case User(text, images) if images or without_note(text):
                asked, since = User(without_note(text), images), 0
            case ToolResult(_, text):
                result = text
            case Assistant():
                since, before = since + 1, before + 1
            case _:
                pass
    return asked, result, since, before


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]


def _fill(text: str, asked: User, result: str) -> str:
    text = text.replace("{images}", str(len(asked.images)))
    return text.replace("{input}", asked.text).replace("{result}", result)


def _error(fail: Fail) -> HoldfastError:
    match fail.kind:
        case _As.TRANSIENT:
            return Transient(fail.text, retry_after_s=fail.retry_after_s)
        case _As.OVERFLOW:
            return Overflow(fail.text)
        case _As.REJECTED:
            return Rejected(fail.text)
        case _:
            assert_never(fail.kind)
