"""Responses of the chat-completions protocol: parse an answer, and classify an error.

The stream is handled as bytes until a line is complete, so split characters and split events are
no problem. The data of one read becomes at most one piece for each stretch of text or reasoning.

An answer is complete when the server has sent a finish reason or `[DONE]`. A stream that ends
before that was cut, even if the connection was closed properly; a stream that breaks after it has
lost nothing. Servers differ in how they write calls and errors; all known forms are accepted. Our
key is removed from all texts of the server. Nothing here does I/O.
"""

import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from holdfast.core.messages import Assistant, Proposal
from holdfast.core.redaction import Redactor
from holdfast.core.types import CallId, Usage, Value
from holdfast.errors import HoldfastError, Overflow, Rejected, Transient
from holdfast.models.model import Answer, Reasoning, Request, Text

_HELD_LIMIT = 16 << 20  # bytes of one line, or of one answer that is not streamed

_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|(prompt|input|request) is too (long|large)"
    r"|too many (input )?tokens|maximum prompt length|reduce the length|token count.*exceeds",
    re.IGNORECASE,
)
# Errors inside a stream have no HTTP status: these codes are permanent errors.
_FINAL = {
    "invalid_api_key": 401,
    "authentication_error": 401,
    "insufficient_quota": 402,
    "permission_error": 403,
    "model_not_found": 404,
    "not_found_error": 404,
    "invalid_request_error": 400,
}
_HINTS = {
    401: "check OPENAI_API_KEY",
    402: "check the account's credit, or OPENAI_API_KEY",
    403: "check OPENAI_API_KEY and HOLDFAST_MODEL",
    404: "check HOLDFAST_MODEL and OPENAI_BASE_URL",
}


class _FunctionDelta(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _CallDelta(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _FunctionDelta | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: Any = None  # of these three, any value that is not a string is ignored
    reasoning: Any = None
    thinking: Any = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class ServerError(msgspec.Struct, gc=False):
    """A server's error message."""

    message: str | None = None
    code: str | int | None = None
    type: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: ServerError | str | None = None


class _Refusal(msgspec.Struct):
    error: ServerError | str | None = None
    message: str | None = None


_encode = msgspec.json.Encoder().encode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_refusal = msgspec.json.Decoder(_Refusal).decode


class Peer(Value):
    """A server and model, and the classification of its errors."""

    host: str
    model: str
    key: str

    @property
    def name(self) -> str:
        """The name for people."""
        return f"openai at {self.host}" + (f" (model {self.model})" if self.model else "")

    def cut(self, why: str) -> Transient:
        """Return the error of an answer that was cut off."""
        return Transient(f"{self.name} {why}")

    def judge(self, status: int, error: ServerError, wait_s: float | None) -> HoldfastError:
        """Classify an error response with `status`."""
        if error.code == "insufficient_quota":
            status = 402
        details = f"{error.code or ''} {error.type or ''} {error.message or ''}"
        text = f"{self.name} answered {status}{self._excerpt(error.message or '')}"
        if status == 413 or (status not in (401, 403, 429) and _TOO_LONG.search(details)):
            return Overflow(text)
        if status in (408, 409, 425, 429) or status >= 500:
            return Transient(text, retry_after_s=wait_s)
        return Rejected(f"{text}; {_HINTS.get(status, 'check OPENAI_BASE_URL and HOLDFAST_MODEL')}")

    def judge_inside(self, error: ServerError | str) -> HoldfastError:
        """Classify an error inside a stream, which has no status."""
        if isinstance(error, str):
            error = ServerError(error)
        code = str(error.code or "")
        if code.isdecimal() and 400 <= int(code) < 600:
            status = int(code)
        else:
            status = _FINAL.get(code) or _FINAL.get(error.type or "") or 500
        return self.judge(status, error, None)

    def _excerpt(self, text: str) -> str:
        text = Redactor([self.key]).clean(text)  # before it is shortened
        text = " ".join(text.split())
        return f' "{text[:200]}{"…" if len(text) > 200 else ""}"' if text else ""


def read_refusal(body: bytes) -> ServerError:
    """Parse the body of an error response, in any of the known forms."""
    try:
        refusal = _decode_refusal(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ServerError(body.decode(errors="replace"))
    error = refusal.error or refusal.message or body.decode()
    return error if isinstance(error, ServerError) else ServerError(error)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the wait that the server asks for. A date is compared with the server's own clock."""
    for name, unit_s in (("retry-after-ms", 0.001), ("Retry-After", 1.0)):
        try:
            wait_s = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        if math.isfinite(wait_s):
            return max(0.0, wait_s)
    try:
        until = parsedate_to_datetime(headers.get("Retry-After", ""))
        wait_s = (until - parsedate_to_datetime(headers.get("Date", ""))).total_seconds()
    except (ValueError, TypeError):
        return None
    return max(0.0, wait_s)


@dataclass(slots=True)
class _Growing:
    """A tool call that is still being received."""

    id: str = ""
    tool: str = ""
    arguments: list[str] = field(default_factory=list)


class AnswerParser:
    """The parser of one answer, fed with bytes."""

    def __init__(self, peer: Peer, *, empty: bool) -> None:
        self.whole = empty  # the answer is complete, except perhaps for its usage
        self.done = empty  # no more data is expected
        self._peer = peer
        self._held: list[bytes] = []  # the beginning of a line; all data, if not streamed
        self._held_size = 0
        self._streamed: bool | None = None  # unknown until the first byte that is not blank
        self._pieces: list[Text | Reasoning] = []
        self._kind: type[Text] | type[Reasoning] = Text
        self._run: list[str] = []  # neighbouring deltas of that kind
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Growing] = []
        self._at: dict[int, _Growing] = {}  # by the server's index
        self._usage = Usage()

    def feed(self, data: bytes) -> list[Text | Reasoning]:
        """Add `data`, and return the new pieces."""
        if self._streamed is None and (start := data.lstrip()):
            self._streamed = not start.startswith(b"{")
        self._held.append(data)
        if not self._streamed or b"\n" not in data:
            self._held_size += len(data)
            if self._held_size > _HELD_LIMIT:
                raise self._peer.cut(f"sent {self._held_size} bytes without an end of line")
            return []
        lines = b"".join(self._held).split(b"\n")
        last = lines.pop()
        self._held, self._held_size = [last], len(last)
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())
        return self._flush()

    def end(self) -> list[Text | Reasoning]:
        """End the stream, and return the last pieces."""
        rest = b"".join(self._held)
        if self._streamed is False:
            self._event(rest)
        elif rest.startswith(b"data:"):
            self._event(rest[5:].strip())
        if not self.whole:
            raise self._peer.cut("ended its answer before it was complete")
        return self._flush()

    def answer(self, request: Request) -> Answer:
        """Return the complete answer, with call ids that are new in this conversation."""
        calls: tuple[Proposal, ...] = ()
        if self._calls:
            taken = {
                c.call_id for m in request.messages if isinstance(m, Assistant) for c in m.calls
            }
            calls = tuple(self._proposal(call, taken) for call in self._calls)
        return Answer("".join(self._text), "".join(self._reasoning), calls, self._usage)

    def _event(self, data: bytes) -> None:
        if self.done or not data:
            return
        if data == b"[DONE]":
            self.whole = self.done = True
            return
        try:
            chunk = _decode_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._peer.cut("sent a malformed chunk") from error
        if chunk.error:
            raise self._peer.judge_inside(chunk.error)
        if chunk.usage is not None:
            spent = chunk.usage
            self._usage = Usage(spent.prompt_tokens or 0, spent.completion_tokens or 0)
        for choice in chunk.choices or ():
            if choice.finish_reason == "error":
                raise self._peer.cut("gave up in the middle of its answer")
            if choice.finish_reason or choice.message is not None:
                self.whole = True
            if (delta := choice.delta or choice.message) is not None:
                self._take(delta)

    def _take(self, delta: _Delta) -> None:
        for thought in (delta.reasoning_content, delta.reasoning, delta.thinking):
            if thought and isinstance(thought, str):
                self._reasoning.append(thought)
                self._add(Reasoning, thought)
                break
        if delta.content:
            self._text.append(delta.content)
            self._add(Text, delta.content)
        for part in delta.tool_calls or ():
            self._grow(part)

    def _add(self, kind: type[Text] | type[Reasoning], text: str) -> None:
        if kind is not self._kind:
            self._flush_run()
            self._kind = kind
        self._run.append(text)

    def _flush_run(self) -> None:
        if self._run:
            self._pieces.append(self._kind("".join(self._run)))
            self._run = []

    def _flush(self) -> list[Text | Reasoning]:
        self._flush_run()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _grow(self, part: _CallDelta) -> None:
        function = part.function or _FunctionDelta()
        call = self._continued(part, function)
        if call is None:
            call = _Growing()
            self._calls.append(call)
            if part.index is not None:
                self._at[part.index] = call
        call.id = call.id or part.id or ""
        call.tool = call.tool or function.name or ""
        if isinstance(function.arguments, dict):
            call.arguments.append(_encode(function.arguments).decode())
        elif function.arguments:
            call.arguments.append(function.arguments)

    def _continued(self, part: _CallDelta, function: _FunctionDelta) -> _Growing | None:
        """Return the call that `part` continues; None if it begins a new one."""
        if part.index is not None:
            call = self._at.get(part.index)
        else:
            call = self._calls[-1] if self._calls and not function.name else None
        # Some servers give every call the index 0: a different id is a different call.
        another = call is not None and part.id and call.id and part.id != call.id
        return None if another else call

    def _proposal(self, call: _Growing, taken: set[CallId]) -> Proposal:
        if not call.tool:
            raise self._peer.cut("sent a tool call without a name")
        call_id = CallId(call.id)
        if not call_id or call_id in taken:
            call_id = CallId(f"call_{secrets.token_hex(12)}")
        taken.add(call_id)
        return Proposal(call_id, call.tool, "".join(call.arguments).strip() or "{}")
