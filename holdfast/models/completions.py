"""Answers of the chat-completions protocol: parse a stream, or one answer that is not streamed.

An answer is complete when the server has sent a finish reason or `[DONE]`. A stream that ends
before that was cut, even if the connection was closed properly; a stream that breaks after it has
lost nothing. Servers differ in how they write calls and errors; all known forms are accepted.
Nothing here does I/O.
"""

from typing import Any

import msgspec

from holdfast.core.types import Usage
from holdfast.errors import Transient
from holdfast.models.building import HELD_LIMIT, Building, GrowingCall, Lines
from holdfast.models.completions_thoughts import Thoughts, demands_thoughts
from holdfast.models.model import Answer, Reasoning, Request, Text
from holdfast.models.peer import Peer, ServerError


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
    reasoning_details: Any = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: ServerError | str | None = None


_encode = msgspec.json.Encoder().encode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class AnswerParser:
    """The parser of one answer, fed with bytes."""

    def __init__(self, peer: Peer) -> None:
        self.whole = False  # the answer is complete, except perhaps for its usage
        self.done = False  # no more data is expected
        self._peer = peer
        self._lines = Lines(peer)
        self._body: list[bytes] = []  # all data, if not streamed
        self._body_size = 0
        self._streamed: bool | None = None  # unknown until the first byte that is not blank
        self._building = Building(peer)
        self._at: dict[int, GrowingCall] = {}  # by the server's index
        self._thoughts = Thoughts()

    def feed(self, data: bytes) -> list[Text | Reasoning]:
        """Add `data`, and return the new pieces."""
        if self._streamed is None and (start := data.lstrip()):
            self._streamed = not start.startswith(b"{")
        if self._streamed is False:
            self._hold(data)
            return []
        for line in self._lines.feed(data):
            if line.startswith(b"data:"):
                self._event(line[5:].strip())
        return self._building.flush()

    def end(self) -> list[Text | Reasoning]:
        """End the stream, and return the last pieces."""
        if self._streamed is False:
            self._event(b"".join(self._body))
        elif (rest := self._lines.rest()).startswith(b"data:"):
            try:
                self._event(rest[5:].strip())
            except Transient:
                if not self.whole:  # else only the usage was cut
                    raise
        if not self.whole:
            raise self._peer.cut("ended its answer before it was complete")
        return self._building.flush()

    def answer(self, request: Request) -> Answer:
        """Return the complete answer, with call ids that are new in this conversation."""
        if self._building.calls or demands_thoughts(self._peer.host):
            self._building.opaque = self._thoughts.encode()
        return self._building.answer(request)

    def _hold(self, data: bytes) -> None:
        self._body.append(data)
        self._body_size += len(data)
        if self._body_size > HELD_LIMIT:
            raise self._peer.cut(f"sent {self._body_size} bytes without an end of line")

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
            self._building.usage = _used(chunk.usage)
        for choice in chunk.choices or ():
            if choice.finish_reason == "error":
                raise self._peer.cut("gave up in the middle of its answer")
            if (delta := choice.delta or choice.message) is not None:
                self._take(delta)
            if choice.finish_reason or choice.message is not None:
                self._finish(choice.finish_reason)

    def _finish(self, reason: str | None) -> None:
        if reason == "content_filter":
            raise self._peer.filtered("its content filter")
        if reason == "length":
            self._building.cut_short()
        self.whole = True

    def _take(self, delta: _Delta) -> None:
        if delta.reasoning_content or delta.reasoning_details:
            self._thoughts.add(delta.reasoning_content, delta.reasoning_details)
        for thought in (delta.reasoning_content, delta.reasoning, delta.thinking):
            if thought and isinstance(thought, str):
                self._building.add_reasoning(thought)
                break
        if delta.content:
            self._building.add_text(delta.content)
        for part in delta.tool_calls or ():
            self._grow(part)

    def _grow(self, part: _CallDelta) -> None:
        function = part.function or _FunctionDelta()
        call = self._continued(part, function)
        if call is None:
            call = GrowingCall()
            self._building.calls.append(call)
            if part.index is not None:
                self._at[part.index] = call
        call.id = call.id or part.id or ""
        call.tool = call.tool or function.name or ""
        if isinstance(function.arguments, dict):
            call.arguments.append(_encode(function.arguments).decode())
        elif function.arguments:
            call.arguments.append(function.arguments)

    def _continued(self, part: _CallDelta, function: _FunctionDelta) -> GrowingCall | None:
        """Return the call that `part` continues; None if it begins a new one."""
        if part.index is not None:
            call = self._at.get(part.index)
        else:
            calls = self._building.calls
            call = calls[-1] if calls and not function.name else None
        # Some servers give every call the index 0: a different id is a different call.
        another = call is not None and part.id and call.id and part.id != call.id
        return None if another else call


def _used(spent: _Usage) -> Usage:
    details = spent.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details is not None else 0
    return Usage(spent.prompt_tokens or 0, spent.completion_tokens or 0, cached)
