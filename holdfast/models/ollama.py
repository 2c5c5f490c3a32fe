"""The provider for Ollama's own API.

The server streams JSON objects, one a line: `message` with pieces of `content` and `thinking`,
calls whole, with arguments as an object and often without ids; the last line has `done` and the
usage. An error is an object with `error`, as a response or as a line. The server reads `num_ctx`
tokens at once and would silently drop the beginning of a longer conversation, so each request
says how many it needs and that nothing may be dropped (`truncate`, `shift`; older servers ignore
them). Thoughts that led to calls go back with the results.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

import aiohttp
import anyio
import msgspec

from holdfast.core.messages import Assistant, Message, Proposal, System, ToolResult, User
from holdfast.core.types import CallId, Usage
from holdfast.errors import HoldfastError
from holdfast.models.building import Building, GrowingCall
from holdfast.models.declare import Declared
from holdfast.models.model import ListedModel, Piece, Request, ToolSpec
from holdfast.models.parsing import EventParser, Progress
from holdfast.models.peer import Peer, ServerError
from holdfast.models.replay import Layout, as_object, parts
from holdfast.models.transport import EncodedRequest, Server, Transport

CONTEXT_TOKENS = 16_384  # about 2 GB of memory for a model with 8 billion parameters

_encode = msgspec.json.Encoder().encode


class _Function(msgspec.Struct):
    name: str = ""
    arguments: dict[str, Any] | str | None = None


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_Call] | None = None


class _Line(msgspec.Struct):
    message: _Message | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: ServerError | str | None = None


class _Entry(msgspec.Struct):
    name: str


class _List(msgspec.Struct):
    models: list[_Entry]


class _Details(msgspec.Struct):
    model_info: dict[str, Any] | None = None


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_list = msgspec.json.Decoder(_List).decode
_decode_details = msgspec.json.Decoder(_Details).decode


class OllamaModel:
    """A provider for an Ollama server. `num_ctx`: the tokens that a model reads at once."""

    def __init__(
        self,
        server: Server,
        session: aiohttp.ClientSession | None = None,
        num_ctx: int = CONTEXT_TOKENS,
    ) -> None:
        self.name = server.provider
        self._transport = Transport(server, session)
        self._num_ctx = num_ctx
        url, key = self._transport.url, self._transport.key
        self._api = (url.parent if url.name in ("v1", "api") else url) / "api"
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "application/x-ndjson, application/json",
            "Accept-Encoding": "identity",  # compressing a stream delays tokens
            **({"Authorization": f"Bearer {key}"} if key else {}),
        }

    def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Send the request. Yield pieces as they arrive, then the answer."""
        peer = self._transport.peer(request.model, f"run: ollama pull {request.model}")
        body = encode(request, self._num_ctx)
        outgoing = EncodedRequest(self._api / "chat", self._headers, body)
        parser = EventParser(peer, OllamaReader(peer), prefix=b"")
        return self._transport.stream(request, outgoing, parser, peer)

    async def list_models(self) -> list[ListedModel]:
        """Return the server's models, each with the tokens that it would read at once."""
        url = self._api / "tags"
        names = await self._transport.list_models(url, self._headers, _read_models)
        windows: dict[str, int] = {}

        async def show(name: str) -> None:
            windows[name] = await self._window(name)

        async with anyio.create_task_group() as tasks:
            for listed in names:
                tasks.start_soon(show, listed.name)
        return [ListedModel(listed.name, windows[listed.name]) for listed in names]

    async def check(self) -> str:
        """Ask for the list of models, within a second."""
        url = self._api / "tags"
        found = await self._transport.list_models(url, self._headers, _read_models)
        return self._transport.describe(found)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def _window(self, model: str) -> int:
        """Return the tokens that the model would read at once; 0 if the server does not say."""
        body = _encode({"model": model})
        peer = self._transport.peer(model)
        try:
            found = await self._transport.post(self._api / "show", self._headers, body, peer)
            info = _decode_details(found).model_info or {}
        except (HoldfastError, msgspec.DecodeError, UnicodeDecodeError):
            return 0
        sizes = [size for name, size in info.items() if name.endswith(".context_length")]
        return min(sizes[0], self._num_ctx) if sizes and isinstance(sizes[0], int) else 0


class OllamaReader:
    """The reader of one answer."""

    def __init__(self, peer: Peer) -> None:
        self.building = Building(peer)
        self._peer = peer
        self._thoughts: list[str] = []

    def take(self, event: bytes) -> Progress:
        """Read one line."""
        line = _decode_line(event)
        if line.error:
            raise self._peer.judge_inside(line.error)
        if line.message is not None:
            self._add(line.message)
        if not line.done:
            return Progress.MORE
        self.building.usage = Usage(line.prompt_eval_count or 0, line.eval_count or 0)
        if line.done_reason == "length":
            self.building.cut_short()
        if self.building.calls and self._thoughts:
            layout = Layout()
            layout.own("".join(self._thoughts))
            self.building.opaque = layout.encode()
        return Progress.DONE

    def _add(self, message: _Message) -> None:
        if message.thinking:
            self._thoughts.append(message.thinking)
            self.building.add_reasoning(message.thinking)
        if message.content:
            self.building.add_text(message.content)
        for call in message.tool_calls or ():
            given = call.function.arguments
            text = given if isinstance(given, str) else _encode(given or {}).decode()
            self.building.calls.append(GrowingCall(call.id or "", call.function.name, [text]))


class _Named(msgspec.Struct, frozen=True):
    name: str
    arguments: msgspec.Raw


class _Made(msgspec.Struct, frozen=True):
    id: str
    function: _Named


class _System(msgspec.Struct, frozen=True, tag="system", tag_field="role"):
    content: str


class _User(msgspec.Struct, frozen=True, tag="user", tag_field="role", omit_defaults=True):
    content: str
    images: tuple[str, ...] = ()


class _Assistant(
    msgspec.Struct, frozen=True, tag="assistant", tag_field="role", omit_defaults=True
):
    content: str
    thinking: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    tool_calls: tuple[_Made, ...] = ()


class _Result(msgspec.Struct, frozen=True, tag="tool", tag_field="role"):
    content: str
    tool_name: str
    tool_call_id: str


class _Described(msgspec.Struct, frozen=True):
    name: str
    description: str
    parameters: Mapping[str, Any]


class _Tool(msgspec.Struct, frozen=True, tag="function", tag_field="type"):
    function: _Described


class _Options(msgspec.Struct, frozen=True):
    num_ctx: int
    num_predict: int | msgspec.UnsetType = msgspec.UNSET


class _Body(msgspec.Struct, frozen=True):
    model: str
    messages: list[_System | _User | _Assistant | _Result]
    options: _Options
    stream: bool = True
    truncate: bool = False
    shift: bool = False
    tools: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def encode(request: Request, num_ctx: int) -> bytes:
    """Encode the body of a request for a streamed answer."""
    head: list[_System | _User | _Assistant | _Result] = []
    if request.system:
        head.append(_System(request.system))
    body = _Body(
        request.model,
        head + list(_wire(request.messages)),
        _Options(num_ctx, request.max_output or msgspec.UNSET),
        tools=_tools.encode(request.tools) if request.tools else msgspec.UNSET,
    )
    return _encode(body)


def _wire_tools(tools: Sequence[ToolSpec]) -> list[_Tool]:
    return [_Tool(_Described(t.name, t.description, dict(t.schema))) for t in tools]


_tools = Declared(_wire_tools)


def _wire(messages: Iterable[Message]) -> Iterable[_System | _User | _Assistant | _Result]:
    tools: dict[CallId, str] = {}  # of the calls so far
    for message in messages:
        match message:
            case System(text):
                yield _System(text)
            case User(text, images):
                yield _User(text, tuple(b64encode(image.data).decode() for image in images))
            case Assistant():
                tools.update((call.call_id, call.tool) for call in message.calls)
                yield _said(message)
            case ToolResult(call_id, text):
                yield _Result(text, tools.get(call_id, ""), call_id)


def _said(message: Assistant) -> _Assistant:
    own = [part for part in parts(message) if not isinstance(part, str | Proposal)]
    calls = (_Made(c.call_id, _Named(c.tool, as_object(c.arguments))) for c in message.calls)
    return _Assistant(message.text, own[0] if own else msgspec.UNSET, tuple(calls))


def _read_models(body: bytes) -> list[ListedModel]:
    return [ListedModel(entry.name) for entry in _decode_list(body).models]
