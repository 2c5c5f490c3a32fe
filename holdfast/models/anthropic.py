"""The provider for Anthropic's Messages API, and for servers that speak it.

The server streams `message_start` (with the usage of the input), then the blocks of the answer
(`content_block_start`, `content_block_delta`, `content_block_stop`), `message_delta` (with the
reason why it stopped and the usage of the output) and `message_stop`; `ping` at any time, and
`error` instead of the rest. New events and blocks may appear and are to be ignored. Thoughts are
signed, and must come back unchanged with the results of calls. From version 5.1 on the server
checks that nothing before them has changed, and is told to ignore them otherwise.
`anthropic_request` encodes the requests.
"""

from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import msgspec

from holdfast.core.types import Usage
from holdfast.errors import Overflow
from holdfast.models.anthropic_request import encode, headers
from holdfast.models.building import Building, GrowingCall
from holdfast.models.model import ListedModel, Piece, Request
from holdfast.models.parsing import EventParser, Progress
from holdfast.models.peer import Peer, ServerError
from holdfast.models.replay import Layout
from holdfast.models.transport import EncodedRequest, Server, Transport

_API_VERSION = "2023-06-01"
_LISTED = 1_000  # the most that the server lists at once


class _Block(msgspec.Struct):
    """A block of the answer; also a delta of one."""

    type: str = ""
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Used(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class _Message(msgspec.Struct):
    usage: _Used | None = None


class _Event(msgspec.Struct):
    type: str
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Block | None = None
    usage: _Used | None = None
    error: ServerError | str | None = None


class _Thought(msgspec.Struct, frozen=True, tag="thinking", tag_field="type"):
    thinking: str
    signature: str


class _Redacted(msgspec.Struct, frozen=True, tag="redacted_thinking", tag_field="type"):
    data: str


class _Entry(msgspec.Struct):
    id: str
    max_input_tokens: int | None = None


class _List(msgspec.Struct):
    data: list[_Entry]


_encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_list = msgspec.json.Decoder(_List).decode


class AnthropicModel:
    """A provider for every server with Anthropic's Messages API."""

    def __init__(self, server: Server, session: aiohttp.ClientSession | None = None) -> None:
        self.name = server.provider
        self._transport = Transport(server, session)
        url, key = self._transport.url, self._transport.key
        self._api = url if url.name == "v1" else url / "v1"
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",  # compressing a stream delays tokens
            "anthropic-version": _API_VERSION,
            **({"x-api-key": key} if key else {}),
        }

    def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Send the request. Yield pieces as they arrive, then the answer."""
        peer = self._transport.peer(request.model)
        given = self._headers | headers(request.model)
        outgoing = EncodedRequest(self._api / "messages", given, encode(request))
        parser = EventParser(peer, AnthropicReader(peer))
        return self._transport.stream(request, outgoing, parser, peer)

    async def list_models(self) -> list[ListedModel]:
        """Return the server's models, within a second."""
        url = (self._api / "models").with_query(limit=_LISTED)
        return await self._transport.list_models(url, self._headers, _read_models)

    async def check(self) -> str:
        """Ask for the list of models, within a second."""
        return self._transport.describe(await self.list_models())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


class _Open:
    """A block that has begun."""

    def __init__(self, block: _Block) -> None:
        self.block = block
        self.call: GrowingCall | None = None
        self.thoughts: list[str] = []
        self.signatures: list[str] = []
        self.size = 0  # characters of text


class AnthropicReader:
    """The reader of one answer."""

    def __init__(self, peer: Peer) -> None:
        self.building = Building(peer)
        self._peer = peer
        self._blocks: dict[int, _Open] = {}
        self._used = _Used()

    def take(self, event: bytes) -> Progress:
        """Read one event."""
        it = _decode_event(event)
        match it.type:
            case "message_start" if it.message is not None:
                self._count(it.message.usage)
            case "content_block_start" if it.content_block is not None:
                self._open(it.index, it.content_block)
            case "content_block_delta" if it.delta is not None and it.index in self._blocks:
                self._grow(self._blocks[it.index], it.delta)
            case "message_delta":
                self._count(it.usage)
                if it.delta is not None and it.delta.stop_reason:
                    self._finish(it.delta.stop_reason)
                    return Progress.WHOLE
            case "message_stop":
                self.building.opaque = self._layout()
                return Progress.DONE
            case "error":
                raise self._peer.judge_inside(it.error or "")
            case _:
                pass
        return Progress.MORE

    def _open(self, index: int, block: _Block) -> None:
        opened = self._blocks[index] = _Open(block)
        if block.type == "tool_use":
            opened.call = GrowingCall(block.id or "", block.name or "")
            self.building.calls.append(opened.call)
            if block.input:  # some servers send it whole
                opened.call.arguments.append(_encode(block.input).decode())
        self._grow(opened, block)

    def _grow(self, opened: _Open, delta: _Block) -> None:
        if delta.text:
            opened.size += len(delta.text)
            self.building.add_text(delta.text)
        if delta.thinking:
            opened.thoughts.append(delta.thinking)
            self.building.add_reasoning(delta.thinking)
        if delta.signature:
            opened.signatures.append(delta.signature)
        if delta.partial_json and opened.call is not None:
            opened.call.arguments.append(delta.partial_json)

    def _count(self, used: _Used | None) -> None:
        """Take the latest numbers: those of `message_delta` are totals."""
        if used is None:
            return
        for name in used.__struct_fields__:
            if (tokens := getattr(used, name)) is not None:
                setattr(self._used, name, tokens)
        now = self._used
        cached = now.cache_read_input_tokens or 0
        given = (now.input_tokens or 0) + (now.cache_creation_input_tokens or 0) + cached
        self.building.usage = Usage(given, now.output_tokens or 0, cached)

    def _finish(self, reason: str) -> None:
        name = self._peer.name
        match reason:
            case "model_context_window_exceeded":
                raise Overflow(f"{name} ran out of its context window in its answer")
            case "refusal":
                raise self._peer.filtered("its safety filter")
            case "pause_turn":
                raise self._peer.cut("paused in the middle of its answer")
            case "max_tokens":
                self.building.cut_short()
            case _:
                pass
        self.building.opaque = self._layout()

    def _layout(self) -> str:
        """The order of the blocks, with the signed thoughts."""
        layout = Layout()
        for opened in self._blocks.values():
            match opened.block.type:
                case "text":
                    layout.text(opened.size)
                case "tool_use":
                    layout.call()
                case "thinking" if opened.signatures:
                    thought = "".join(opened.thoughts)
                    layout.own(_Thought(thought, "".join(opened.signatures)))
                case "redacted_thinking":
                    layout.own(_Redacted(opened.block.data or ""))
                case _:
                    pass
        return layout.encode()


def _read_models(body: bytes) -> list[ListedModel]:
    return [ListedModel(m.id, m.max_input_tokens or 0) for m in _decode_list(body).data]
