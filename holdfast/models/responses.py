"""The provider for OpenAI's Responses API, and for servers that speak it.

The server streams typed events: each item of the answer (a message, a call, reasoning) begins
with `response.output_item.added`, grows by deltas that name its `output_index`, and is complete
with `response.output_item.done`. `response.completed`, `response.incomplete` or `response.failed`
is the last event, with the usage; `error` may come instead. Other events are to be ignored. The
server stores nothing (`store` is false), so encrypted reasoning is kept with the answer and goes
back with it. `responses_request` encodes the requests.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import aiohttp
import msgspec

from holdfast.core.types import Usage
from holdfast.errors import Rejected
from holdfast.models.building import Building, GrowingCall
from holdfast.models.model import ListedModel, Piece, Request
from holdfast.models.openai_list import read_models
from holdfast.models.parsing import EventParser, Progress
from holdfast.models.peer import Peer, ServerError
from holdfast.models.replay import Layout
from holdfast.models.responses_request import Phase, Thought, encode
from holdfast.models.transport import EncodedRequest, Server, Transport


class _Content(msgspec.Struct):
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[_Content] | None = None
    encrypted_content: str | None = None
    summary: list[Any] | None = None
    phase: str | None = None


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Used(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    usage: _Used | None = None
    error: ServerError | None = None
    incomplete_details: _Incomplete | None = None


class _Event(msgspec.Struct):
    type: str
    output_index: int = 0
    summary_index: int = 0
    delta: Any = None
    item: _Item | None = None
    response: _Response | None = None
    error: ServerError | str | None = None  # of an error, which may also be flat:
    message: str | None = None
    code: str | int | None = None


_NO_SUMMARY = re.compile(r"verified to .*summar|reasoning[. ]summary", re.IGNORECASE)
_decode_event = msgspec.json.Decoder(_Event).decode


class ResponsesModel:
    """A provider for every server with OpenAI's Responses API.

    `summary`: the kind of summaries of reasoning to ask for; empty: none. OpenAI makes them only for
    verified organizations; if it refuses them, it is asked without.
    """

    def __init__(
        self,
        server: Server,
        session: aiohttp.ClientSession | None = None,
        summary: str = "auto",
    ) -> None:
        self.name = server.provider
        self._transport = Transport(server, session)
        self._summary = summary
        key = self._transport.key
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",  # compressing a stream delays tokens
            **({"Authorization": f"Bearer {key}"} if key else {}),
        }

    async def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Send the request. Yield pieces as they arrive, then the answer."""
        try:
            async with aclosing(self._stream(request)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        except Rejected as refused:
            if not (self._summary and _NO_SUMMARY.search(str(refused))):
                raise
        self._summary = ""  # for this organization there are none
        async with aclosing(self._stream(request)) as pieces:
            async for piece in pieces:
                yield piece

    def _stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        peer = self._transport.peer(request.model)
        url = self._transport.url / "responses"
        outgoing = EncodedRequest(url, self._headers, encode(request, self._summary))
        parser = EventParser(peer, ResponsesReader(peer))
        return self._transport.stream(request, outgoing, parser, peer)

    async def list_models(self) -> list[ListedModel]:
        """Return the server's models, within a second."""
        url = self._transport.url / "models"
        return await self._transport.list_models(url, self._headers, read_models)

    async def check(self) -> str:
        """Ask for the list of models, within a second."""
        return self._transport.describe(await self.list_models())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


class _Growing:
    """An item that is being received."""

    def __init__(self) -> None:
        self.item = _Item()
        self.call: GrowingCall | None = None
        self.size = 0  # characters of text


class ResponsesReader:
    """The reader of one answer."""

    def __init__(self, peer: Peer) -> None:
        self.building = Building(peer)
        self._peer = peer
        self._items: dict[int, _Growing] = {}

    def take(self, event: bytes) -> Progress:
        """Read one event."""
        it = _decode_event(event)
        delta = it.delta if isinstance(it.delta, str) else ""
        match it.type:
            case "response.output_text.delta" | "response.refusal.delta":
                self._add_text(self._at(it.output_index), delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self.building.add_reasoning(delta)
            case "response.reasoning_summary_part.added" if it.summary_index:
                self.building.add_reasoning("\n\n")
            case "response.function_call_arguments.delta":
                if (call := self._at(it.output_index).call) is not None:
                    call.arguments.append(delta)
            case "response.output_item.added" if it.item is not None:
                self._begin(self._at(it.output_index), it.item)
            case "response.output_item.done" if it.item is not None:
                self._complete(self._at(it.output_index), it.item)
            case "response.completed" | "response.incomplete" | "response.failed" | "error":
                self._end(it)
                return Progress.DONE
            case _:
                pass
        return Progress.MORE

    def _at(self, index: int) -> _Growing:
        return self._items.setdefault(index, _Growing())

    def _add_text(self, growing: _Growing, text: str) -> None:
        if text:
            growing.size += len(text)
            self.building.add_text(text)

    def _begin(self, growing: _Growing, item: _Item) -> None:
        growing.item = item
        if item.type == "function_call" and growing.call is None:
            growing.call = GrowingCall(item.call_id or "", item.name or "")
            self.building.calls.append(growing.call)

    def _complete(self, growing: _Growing, item: _Item) -> None:
        """Take the whole item; what was not streamed is in it."""
        self._begin(growing, item)
        if growing.call is not None and item.arguments:
            growing.call.arguments[:] = [item.arguments]
        if item.type == "message" and not growing.size:
            for part in item.content or ():
                self._add_text(growing, part.text or part.refusal or "")

    def _end(self, event: _Event) -> None:
        response = event.response or _Response()
        if event.type == "error":
            flat = ServerError(event.message, event.code)
            raise self._peer.judge_inside(event.error or flat)
        if event.type == "response.failed":
            raise self._peer.judge_inside(response.error or "")
        if (used := response.usage) is not None:
            details = used.input_tokens_details
            cached = (details.cached_tokens or 0) if details is not None else 0
            self.building.usage = Usage(used.input_tokens or 0, used.output_tokens or 0, cached)
        if event.type == "response.incomplete":
            self._cut_short((response.incomplete_details or _Incomplete()).reason)
        self.building.opaque = self._layout()

    def _cut_short(self, reason: str | None) -> None:
        if reason == "content_filter":
            raise self._peer.filtered("its content filter")
        self.building.cut_short()

    def _layout(self) -> str:
        """The order of the items, with the encrypted reasoning."""
        layout = Layout()
        for growing in self._items.values():
            item = growing.item
            if growing.call is not None:
                layout.call()
            elif item.type == "reasoning" and item.encrypted_content:
                layout.own(Thought(item.encrypted_content, tuple(item.summary or ())))
            elif growing.size:
                if item.phase:
                    layout.own(Phase(item.phase))
                layout.text(growing.size)
        return layout.encode()
