"""A model server on loopback, faults included, that speaks OpenAI's chat-completions wire.

The other wires are modules beside this one, each with a `Wire`: how it reads requests and writes
answers. What is played, queued and recorded is the same for all.

In a test, `async with serve() as server` gives one whose answers are queued with
`server.then(…)`; past the queue, and as a process of its own, it answers by what the
last user text says (`react`), without any memory:

    tool:NAME {json}    asks for that call; of several such lines, one a turn; then says
                        what the last call's result was
    say:TEXT            says TEXT
    slow:S [TEXT]       one token, S seconds of nothing, then the rest
    tokens:N:S          N tokens over S seconds, each the `time.monotonic_ns()` of its writing
    fail:STATUS         that HTTP status
    rst:N, stall:N      N tokens, then a reset, or silence
    anything else       `echo: ` and the text

An answer is a `Reply`: bytes and what happens between them. Streams of paced tokens are
all driven from one timer, and tokens that are due together are the same bytes, so that
as a process (`python -m tests.fakes.model_server`) it costs the machine little.
"""

import argparse
import asyncio
import heapq
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import msgspec
from aiohttp import web

from holdfast.models.peer import Settings
from holdfast.models.transport import Server

DONE = b"data: [DONE]\n\n"
TICK_S = 0.005  # tokens that fall due within it are written together


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is sent until the test sets `gate`."""

    gate: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is sent for that long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Abort:
    """The connection is reset."""


@dataclass(frozen=True, slots=True)
class Paced:
    """`tokens` timestamps over `seconds`."""

    tokens: int
    seconds: float


Step = bytes | Wait | Pause | Abort | Paced


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `length` declares it beforehand; else it is chunked."""

    steps: tuple[Step, ...]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    length: int | None = None


class Part(msgspec.Struct):
    """A piece of a message: text, or a picture, which nobody here looks at."""

    type: str
    text: str = ""


class Message(msgspec.Struct):
    """A message of a request, as far as an answer depends on it."""

    role: str
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        """Its words."""
        parts = self.content if isinstance(self.content, list) else ()
        return "".join(p.text for p in parts) if parts else str(self.content or "")


class Ask(msgspec.Struct):
    """A request, as far as an answer depends on it."""

    model: str
    messages: list[Message]
    stream: bool = False
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it came."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    path: str = ""  # with its query


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Ask).decode
_HEAD = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"fake","choices":'


SETTINGS = Settings("OPENAI_API_KEY", "OPENAI_BASE_URL")


def server_at(
    url: str, key: str = "key", stall_s: float = 120.0, provider: str = "openai"
) -> Server:
    """A server for a provider under test."""
    return Server(provider, url, key, SETTINGS, stall_s)


def event(**chunk: object) -> bytes:
    """Any chunk as an SSE event."""
    return b"data: " + _encode(chunk) + b"\n\n"


def delta(**fields: object) -> bytes:
    """A chunk with one delta."""
    return (
        _HEAD
        + b'[{"index":0,"delta":'
        + _encode(fields)
        + b',"finish_reason":null}],"usage":null}\n\n'
    )


def token(text: str) -> bytes:
    """A chunk with a piece of text."""
    return delta(content=text)


def finish(reason: str = "stop") -> bytes:
    """The chunk that says why the answer is over."""
    return _HEAD + b'[{"index":0,"delta":{},"finish_reason":"%s"}]}\n\n' % reason.encode()


def usage(prompt: int, completion: int) -> bytes:
    """The chunk that says what it cost."""
    spent = {"prompt_tokens": prompt, "completion_tokens": completion}
    return _HEAD + b'[],"usage":' + _encode(spent) + b"}\n\n"


def split(text: str, parts: int) -> list[str]:
    """`text` in about so many tokens."""
    size = max(1, -(-len(text) // parts))
    return [text[i : i + size] for i in range(0, len(text), size)]


def stream(*steps: Step) -> Reply:
    """An answer made of exactly these steps."""
    return Reply(steps)


def say(text: str, tokens: int = 3, *, prompt: int = 7, reasoning: str = "") -> Reply:
    """`text` in tokens, as a well-behaved server says it."""
    thoughts = [delta(reasoning_content=t) for t in split(reasoning, tokens)]
    words = [token(t) for t in split(text, tokens)]
    cost = len(words) + len(thoughts)
    role = delta(role="assistant", content="")
    return Reply((role, *thoughts, *words, finish(), usage(prompt, cost), DONE))


def call(
    tool: str,
    arguments: str,
    *,
    call_id: str | None = "call_1",
    index: int | None = 0,
    parts: int = 2,
) -> tuple[bytes, ...]:
    """The chunks of one tool call, its arguments in parts."""
    place = {} if index is None else {"index": index}
    name = {} if call_id is None else {"id": call_id}
    first, *rest = split(arguments, parts) or [""]
    opening = {**place, **name, "type": "function", "function": {"name": tool, "arguments": first}}
    return (
        delta(tool_calls=[opening]),
        *(delta(tool_calls=[{**place, "function": {"arguments": part}}]) for part in rest),
    )


def calls(*chunks: Sequence[bytes]) -> Reply:
    """An answer that consists of calls."""
    body = tuple(chunk for one in chunks for chunk in one)
    return Reply((*body, finish("tool_calls"), usage(7, len(body)), DONE))


def refuse(
    status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """A refusal in OpenAI's form."""
    body = _encode({"error": {"message": message, "type": "error", "code": code}})
    return Reply((body,), status, headers or {}, "application/json", len(body))


def plain(text: str, *, tool_calls: Sequence[object] = ()) -> Reply:
    """An answer that is not streamed."""
    message = {"role": "assistant", "content": text, "tool_calls": list(tool_calls) or None}
    body = _encode(
        {
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 2},
        }
    )
    return Reply((body,), content_type="application/json", length=len(body))


def react(ask: Ask) -> Reply:
    """The answer to `ask` by the markers in its last user text."""
    words, turn = _last_words(ask.messages)
    marker, _, rest = words.partition(":")
    match marker:
        case "tool":
            return _tool_turn(words, turn, ask.messages)
        case "say":
            return say(rest)
        case "slow":
            seconds, _, text = rest.partition(" ")
            first, *more = (token(t) for t in split(text or "slow", 3))
            cost = 1 + len(more)
            return stream(first, Pause(float(seconds)), *more, finish(), usage(7, cost), DONE)
        case "tokens":
            count, _, seconds = rest.partition(":")
            return stamps(int(count), float(seconds))
        case "fail":
            return refuse(int(rest), "as you wish")
        case "rst":
            return stream(*(token("x") for _ in range(int(rest))), Abort())
        case "stall":
            return stream(*(token("x") for _ in range(int(rest))), Wait())
        case _:
            return say(f"echo: {words}")


def stamps(count: int, seconds: float) -> Reply:
    """`count` timestamps over `seconds`."""
    return stream(Paced(count, seconds), finish(), usage(7, count), DONE)


def _last_words(messages: Sequence[Message]) -> tuple[str, int]:
    """The last thing a user really said, and how many answers it has had."""
    turn = 0
    for message in reversed(messages):
        if message.role == "assistant":
            turn += 1
        elif message.role == "user":
            words = message.text
            if words.startswith("[System note:"):
                words = words.partition("]\n\n")[2]
            if words or isinstance(message.content, list):
                return words.strip(), turn
    return "", turn


def _tool_turn(words: str, turn: int, messages: Sequence[Message]) -> Reply:
    wanted = [line[5:] for line in words.splitlines() if line.startswith("tool:")]
    if turn >= len(wanted):
        result = next((m.text for m in reversed(messages) if m.role == "tool"), "nothing")
        return say(f"the tool said: {result}")
    tool, _, arguments = wanted[turn].strip().partition(" ")
    return calls(call(tool, arguments or "{}", call_id=f"call_{time.monotonic_ns():x}"))


class Pacer:
    """Writes the tokens of all paced streams from one timer."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, float, int, asyncio.Transport, anyio.Event]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, paced: Paced, transport: asyncio.Transport) -> None:
        """Write `paced`, framed as HTTP chunks, and return when its last token is out."""
        if paced.tokens < 1:
            return
        every_s = paced.seconds / paced.tokens
        finished = anyio.Event()
        self._number += 1
        entry = (time.monotonic() + every_s, self._number, every_s, paced.tokens)
        heapq.heappush(self._due, (*entry, transport, finished))
        if self._timer is None:
            self._arm()
        await finished.wait()

    def close(self) -> None:
        """Drop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        wait_s = max(TICK_S, self._due[0][0] - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        now = time.monotonic()
        chunk = token(f"{time.monotonic_ns()} ")
        framed = b"%x\r\n%b\r\n" % (len(chunk), chunk)
        due = self._due
        while due and due[0][0] <= now:
            at, number, every_s, left, transport, finished = due[0]
            gone = transport.is_closing()
            if not gone:
                transport.write(framed)
            if gone or left == 1:
                heapq.heappop(due)
                finished.set()
            else:
                again = (at + every_s, number, every_s, left - 1, transport, finished)
                heapq.heapreplace(due, again)
        self._timer = None
        if due:
            self._arm()


class Says(Protocol):
    """Writes a text as an answer."""

    def __call__(
        self, text: str, tokens: int = 3, *, prompt: int = 7, reasoning: str = ""
    ) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Wire:
    """A wire format: its routes, how a request is read, and how answers are written."""

    path: str  # of a request for an answer; may have a field in braces
    list_path: str
    read: Callable[[str, bytes], Ask]  # from the path and the body
    list: Callable[[Sequence[str]], object]
    say: Says
    call: Callable[[Sequence[tuple[str, str]]], Reply]  # of tools and their arguments
    token: Callable[[str], bytes]
    refuse: Callable[[int, str], Reply]
    base: str = ""  # the path of the base URL
    others: Mapping[str, Callable[[bytes], object]] = field(default_factory=dict)  # POST → JSON


OPENAI = Wire(
    path="/v1/chat/completions",
    list_path="/v1/models",
    read=lambda path, body: _decode(body),
    list=lambda names: {"object": "list", "data": [{"id": name} for name in names]},
    say=say,
    call=lambda wanted: calls(
        *(
            call(tool, arguments, call_id=f"call_{time.monotonic_ns():x}_{index}", index=index)
            for index, (tool, arguments) in enumerate(wanted)
        )
    ),
    token=token,
    refuse=refuse,
    base="/v1",
)


class ModelServer:
    """What a test holds of a running server."""

    def __init__(
        self,
        otherwise: Callable[[Ask], Reply] = react,
        *,
        record: bool = True,
        wire: Wire = OPENAI,
    ) -> None:
        self.base_url = ""
        self.wire = wire
        self.requests: list[Seen] = []
        self.models = ["fake-small", "fake-large"]
        self.refuse_models: Reply | None = None  # what GET /models answers instead of the list
        self.connections: set[object] = set()  # those that have asked something
        self.otherwise = otherwise
        self._record = record
        self._queue: deque[Reply | Callable[[Ask], Reply]] = deque()
        self._active = 0
        self._idle = anyio.Event()
        self._asked = anyio.Event()
        self._pacer = Pacer()

    def then(self, *replies: Reply | Callable[[Ask], Reply]) -> None:
        """Answer the next requests so, one each, whatever they ask."""
        self._queue.extend(replies)

    async def idle(self) -> None:
        """Wait until no request is being answered: all are read, or their clients gone."""
        while self._active:
            await self._idle.wait()

    async def asked(self, count: int) -> None:
        """Wait until that many requests have come in since the start."""
        while len(self.requests) < count:
            await self._asked.wait()

    def app(self) -> web.Application:
        """The routes, for whoever runs them."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post(self.wire.path, self._complete)
        app.router.add_get(self.wire.list_path, self._list)
        for path in self.wire.others:
            app.router.add_post(path, self._other)
        return app

    def close(self) -> None:
        """Let go of the timer."""
        self._pacer.close()

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if self.refuse_models is not None:
            return await self._play(request, self.refuse_models)
        return web.json_response(self.wire.list(self.models))

    async def _other(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.wire.others[request.path](await request.read()))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self._record:
            self.requests.append(
                Seen(msgspec.json.decode(body), dict(request.headers), request.path_qs)
            )
            self.connections.add(request.transport)
            self._asked.set()
            self._asked = anyio.Event()
        ask = self.wire.read(request.path, body)
        reply = self._queue.popleft() if self._queue else self.otherwise
        self._active += 1
        try:
            return await self._play(request, reply if isinstance(reply, Reply) else reply(ask))
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()
                self._idle = anyio.Event()

    async def _play(self, request: web.Request, reply: Reply) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        response.content_type = reply.content_type
        if reply.length is None:
            response.enable_chunked_encoding()
        else:
            response.content_length = reply.length
        await response.prepare(request)
        for step in reply.steps if self._record else _merged(reply.steps):
            match step:
                case bytes():
                    await response.write(step)
                case Wait(gate):
                    await gate.wait()
                case Pause(seconds):
                    await anyio.sleep(seconds)  # sleep: slowness is the fault being played
                case Paced():
                    # Headers wait for the first write; what follows is framed by the pacer.
                    await response.write(delta(role="assistant", content=""))
                    if isinstance(request.transport, asyncio.Transport):
                        await self._pacer.run(step, request.transport)
                case Abort():
                    _reset(request.transport)
                    return response
        await response.write_eof()
        return response


def _merged(steps: Sequence[Step]) -> list[Step]:
    """The same steps in fewer writes: the first by itself, then neighbours together."""
    merged: list[Step] = []
    for step in steps:
        last = merged[-1] if len(merged) > 1 else None
        if isinstance(step, bytes) and isinstance(last, bytes):
            merged[-1] = last + step
        else:
            merged.append(step)
    return merged


def _reset(transport: asyncio.BaseTransport | None) -> None:
    if isinstance(transport, asyncio.Transport):
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


@asynccontextmanager
async def serve(
    otherwise: Callable[[Ask], Reply] = react,
    *,
    port: int = 0,
    record: bool = True,
    wire: Wire = OPENAI,
) -> AsyncIterator[ModelServer]:
    """A server on loopback for the length of a block."""
    server = ModelServer(otherwise, record=record, wire=wire)
    runner = web.AppRunner(
        server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.01
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, backlog=2048).start()
        server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}{wire.base}"
        yield server
    finally:
        server.close()
        await runner.cleanup()


async def main(port: int, tokens: int, seconds: float) -> None:
    """Serve until SIGTERM or SIGINT. With `tokens`, text without a marker gets so many."""

    def answer(ask: Ask) -> Reply:
        words, _ = _last_words(ask.messages)
        marked = words.partition(":")[0] in _MARKERS
        return stamps(tokens, seconds) if tokens and not marked else react(ask)

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with serve(answer, port=port, record=False) as server:
            sys.stdout.write(f"listening on {server.base_url}\n")
            sys.stdout.flush()
            async for _ in signals:
                return


_MARKERS = ("tool", "say", "slow", "tokens", "fail", "rst", "stall")

if __name__ == "__main__":
    options = argparse.ArgumentParser(description=main.__doc__)
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--tokens", type=int, default=0)
    options.add_argument("--seconds", type=float, default=0.0)
    given = options.parse_args()
    anyio.run(main, given.port, given.tokens, given.seconds)
