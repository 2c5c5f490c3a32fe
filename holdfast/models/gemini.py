"""The provider for Gemini's API.

The server streams answers that are parts of one another: each event has `candidates` with the next
parts (text, thoughts, whole calls, often without ids) and the usage so far; the one with a
`finishReason` is the last. A part may have a signature, which must come back in the same part.
A question that is refused has no candidates but `promptFeedback`. How long to wait is in the
details of an error. The key is sent in a header, never in the URL. `gemini_request` encodes the
requests.
"""

from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import msgspec

from holdfast.core.types import Usage
from holdfast.models.building import Building, GrowingCall
from holdfast.models.gemini_request import SignedPart, encode
from holdfast.models.model import ListedModel, Piece, Request
from holdfast.models.parsing import EventParser, Progress
from holdfast.models.peer import Peer, ServerError
from holdfast.models.replay import Layout
from holdfast.models.transport import EncodedRequest, Server, Transport

_VERSIONS = ("v1", "v1alpha", "v1beta")
_LISTED = 1_000  # the most that the server lists at once
_REFUSED = {  # the same question would be refused again
    "SAFETY",
    "RECITATION",
    "LANGUAGE",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "IMAGE_SAFETY",
    "MISSING_THOUGHT_SIGNATURE",
}
_GAVE_UP = {  # another try may be better
    "MALFORMED_FUNCTION_CALL",
    "MALFORMED_RESPONSE",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
    "OTHER",
}


class _Call(msgspec.Struct):
    name: str = ""
    args: dict[str, Any] | None = None
    id: str | None = None


class _Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    function_call: _Call | None = None
    thought_signature: str | None = None


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None


class _Used(msgspec.Struct, gc=False, rename="camel"):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None


class _Event(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: _Used | None = None
    error: ServerError | str | None = None


class _Entry(msgspec.Struct, rename="camel"):
    name: str
    input_token_limit: int | None = None
    supported_generation_methods: list[str] | None = None


class _List(msgspec.Struct):
    models: list[_Entry]


_encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_list = msgspec.json.Decoder(_List).decode


class GeminiModel:
    """A provider for Gemini's API."""

    def __init__(self, server: Server, session: aiohttp.ClientSession | None = None) -> None:
        self.name = server.provider
        self._transport = Transport(server, session)
        url, key = self._transport.url, self._transport.key
        self._models = (url if url.name in _VERSIONS else url / "v1beta") / "models"
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",  # compressing a stream delays tokens
            **({"x-goog-api-key": key} if key else {}),
        }

    def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Send the request. Yield pieces as they arrive, then the answer."""
        peer = self._transport.peer(request.model)
        model = request.model.removeprefix("models/")
        url = (self._models / f"{model}:streamGenerateContent").with_query(alt="sse")
        outgoing = EncodedRequest(url, self._headers, encode(request))
        parser = EventParser(peer, GeminiReader(peer))
        return self._transport.stream(request, outgoing, parser, peer)

    async def list_models(self) -> list[ListedModel]:
        """Return the server's models that answer, within a second."""
        url = self._models.with_query(pageSize=_LISTED)
        return await self._transport.list_models(url, self._headers, _read_models)

    async def check(self) -> str:
        """Ask for the list of models, within a second."""
        return self._transport.describe(await self.list_models())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


class GeminiReader:
    """The reader of one answer."""

    def __init__(self, peer: Peer) -> None:
        self.building = Building(peer)
        self._peer = peer
        self._layout = Layout()
        self._plain = 0  # characters of text without a signature since the last part with one

    def take(self, event: bytes) -> Progress:
        """Read one event."""
        it = _decode_event(event)
        if it.error:
            raise self._peer.judge_inside(it.error)
        if it.prompt_feedback is not None and it.prompt_feedback.block_reason:
            raise self._peer.filtered(it.prompt_feedback.block_reason)
        if it.usage_metadata is not None:
            self.building.usage = _usage(it.usage_metadata)
        finished = False
        for candidate in (it.candidates or ())[:1]:
            for part in (candidate.content or _Content()).parts or ():
                self._add(part)
            if candidate.finish_reason:
                self._finish(candidate.finish_reason)
                finished = True
        if not finished:
            return Progress.MORE
        return Progress.WHOLE if it.usage_metadata is None else Progress.DONE

    def _add(self, part: _Part) -> None:
        if part.thought:
            if part.text:
                self.building.add_reasoning(part.text)
            return
        if part.text:
            self.building.add_text(part.text)
        size, call = len(part.text or ""), part.function_call
        if part.thought_signature or call is not None:
            self._end_plain()
            kept = SignedPart(
                part.thought_signature or "", (call.id if call is not None else "") or ""
            )
            if kept != SignedPart():
                self._layout.own(kept)
        if call is not None:
            self._layout.call()
            text = _encode(call.args or {}).decode()
            self.building.calls.append(GrowingCall(call.id or "", call.name, [text]))
        elif part.thought_signature:
            self._layout.text(size)
        else:
            self._plain += size

    def _end_plain(self) -> None:
        if self._plain:
            self._layout.text(self._plain)
            self._plain = 0

    def _finish(self, reason: str) -> None:
        if reason in _REFUSED:
            raise self._peer.filtered(reason)
        if reason in _GAVE_UP:
            raise self._peer.cut(f"gave up in the middle of its answer ({reason})")
        if reason == "MAX_TOKENS":
            self.building.cut_short()
        self._end_plain()
        self.building.opaque = self._layout.encode()


def _usage(used: _Used) -> Usage:
    given = (used.prompt_token_count or 0) + (used.tool_use_prompt_token_count or 0)
    made = (used.candidates_token_count or 0) + (used.thoughts_token_count or 0)
    return Usage(given, made, used.cached_content_token_count or 0)


def _read_models(body: bytes) -> list[ListedModel]:
    return [
        ListedModel(entry.name.removeprefix("models/"), entry.input_token_limit or 0)
        for entry in _decode_list(body).models
        if "generateContent" in (entry.supported_generation_methods or ["generateContent"])
    ]
