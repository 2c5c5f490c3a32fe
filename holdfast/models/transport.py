"""Requests to model servers over one connection pool.

The pool lives as long as the process. A connection whose answer was read to its end returns to
the pool; any other connection is closed, whatever ended the reading. A provider encodes its
requests and brings a parser for the responses; errors are classified by its peer.
"""

from asyncio import AbstractEventLoop, TimerHandle, get_running_loop
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from io import BytesIO
from typing import Protocol

import aiohttp
import anyio
import msgspec
from yarl import URL

from holdfast.core.types import Value
from holdfast.errors import HoldfastError, Misconfigured, Rejected
from holdfast.models.model import Answer, ListedModel, Piece, Reasoning, Request, Text
from holdfast.models.peer import Peer, ServerError, Settings, read_refusal, retry_after

_REFUSAL_LIMIT = 64 << 10  # bytes read of an error response
_REFUSAL_S = 5.0  # time limit for reading it
_USAGE_S = 2.0  # time limit for usage and the end of the stream once the answer is complete
_END_S = 0.1  # time limit for the end of the body, after which the connection can be used again
_IN_PARTS_FROM = 256 << 10  # a bigger body is sent in parts, so that the loop stays free
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


class Parser(Protocol):
    """The parser of one answer, fed with bytes."""

    whole: bool  # the answer is complete, except perhaps for its usage
    done: bool  # no more data is expected

    def feed(self, data: bytes) -> list[Text | Reasoning]:
        """Add `data`, and return the new pieces."""
        ...

    def end(self) -> list[Text | Reasoning]:
        """End the stream, and return the last pieces. Raises if the answer was cut off."""
        ...

    def answer(self, request: Request) -> Answer:
        """Return the complete answer."""
        ...


class EncodedRequest(Value):
    """An encoded request."""

    url: URL
    headers: Mapping[str, str]
    body: bytes


class Server(Value):
    """A model server: where it is, the key for it, and how long it may be silent."""

    provider: str  # the name of the provider for people
    base_url: str
    api_key: str
    settings: Settings
    stall_s: float = 120.0
    connect_s: float = 10.0
    list_s: float = 1.0  # time limit for the list of its models


class Transport:
    """Sends requests to one server."""

    def __init__(self, server: Server, session: aiohttp.ClientSession | None = None) -> None:
        self.url = _parse_url(server)
        self.key = _parse_key(server)
        self._server = server
        self._session = session
        self._owns_session = session is None
        # Silence is detected here, because aiohttp would set two timers for every chunk.
        self._timeout = aiohttp.ClientTimeout(total=None, connect=server.connect_s)
        self._asked: set[_Asked] = set()
        self._watch: TimerHandle | None = None

    def peer(self, model: str, if_missing: str = "") -> Peer:
        """Return the name and the judge of the server's errors.

        `if_missing`: what the operator can do if the server does not have the model.
        """
        port = "" if self.url.is_default_port() else f":{self.url.port}"
        host = f"{self.url.host}{port}"
        server = self._server
        return Peer(server.provider, host, model, self.key, server.settings, if_missing)

    async def stream(
        self, request: Request, outgoing: EncodedRequest, parser: Parser, peer: Peer
    ) -> AsyncGenerator[Piece, None]:
        """Send the request. Yield pieces as they arrive, then the answer."""
        asked = self._attend()
        try:
            response = await self._post(outgoing, asked, peer)
            if response.status != 200:
                raise peer.judge(*await _refusal(response))
            if response.content_length == 0:
                parser.whole = parser.done = True
            while data := await self._read(response, asked, parser, peer):
                for piece in parser.feed(data):
                    yield piece
            for piece in parser.end():
                yield piece
            yield parser.answer(request)
        finally:
            self._asked.discard(asked)
            if asked.response is not None:
                asked.response.close()

    async def get(self, url: URL, headers: Mapping[str, str], peer: Peer) -> bytes:
        """Return the body of a response that is expected within a second."""
        return await self._fetch("GET", url, headers, None, peer)

    async def post(self, url: URL, headers: Mapping[str, str], body: bytes, peer: Peer) -> bytes:
        """The same for a request with a body."""
        return await self._fetch("POST", url, headers, body, peer)

    async def list_models(
        self, url: URL, headers: Mapping[str, str], decode: Callable[[bytes], list[ListedModel]]
    ) -> list[ListedModel]:
        """Return the server's models, within a second."""
        peer = self.peer("")
        body = await self.get(url, headers, peer)
        try:
            return decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Rejected(
                f"{peer.name} answers, but not like a model server; check {peer.settings.url}"
            ) from None

    def describe(self, found: Sequence[ListedModel]) -> str:
        """Return a line for `doctor`."""
        count = f"{len(found)} model{'' if len(found) == 1 else 's'}"
        return f"{self._server.provider} at {self.url} answers, {count}"

    async def aclose(self) -> None:
        """Close the pool, unless the caller provided it."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._session is not None and self._owns_session:
            await self._session.close()

    async def _fetch(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None, peer: Peer
    ) -> bytes:
        try:
            with anyio.fail_after(self._server.list_s):
                response = await self._pool().request(
                    method, url, data=body, headers=headers, allow_redirects=False
                )
                try:
                    if response.status != 200:
                        raise peer.judge(*await _refusal(response))
                    return await response.read()
                finally:
                    response.close()
        except _BROKEN as error:
            raise _broken(peer, error, self._server.list_s) from error

    def _attend(self) -> "_Asked":
        """Register a request for the timer that ends silent ones; there is one timer for all."""
        loop = get_running_loop()
        asked = _Asked(loop.time())
        self._asked.add(asked)
        if self._watch is None:
            self._watch = loop.call_later(self._server.stall_s / 4, self._end_silent, loop)
        return asked

    def _end_silent(self, loop: AbstractEventLoop) -> None:
        silent_since = loop.time() - self._server.stall_s
        for asked in tuple(self._asked):
            if asked.heard_at < silent_since:
                asked.end()
        again = self._server.stall_s / 4
        self._watch = loop.call_later(again, self._end_silent, loop) if self._asked else None

    def _pool(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def _post(
        self, outgoing: EncodedRequest, asked: "_Asked", peer: Peer
    ) -> aiohttp.ClientResponse:
        body = outgoing.body
        try:
            with asked.posting:
                asked.response = await self._pool().post(
                    outgoing.url,
                    data=body if len(body) < _IN_PARTS_FROM else BytesIO(body),
                    headers=outgoing.headers,
                    timeout=self._timeout,
                    allow_redirects=False,
                )
        except _BROKEN as error:
            raise _broken(peer, error, self._server.stall_s) from error
        if asked.response is None:
            raise _broken(peer, TimeoutError(), self._server.stall_s)
        return asked.response

    async def _read(
        self, response: aiohttp.ClientResponse, asked: "_Asked", parser: Parser, peer: Peer
    ) -> bytes:
        """Return the data that has arrived; empty at the end."""
        content = response.content
        try:
            if not parser.whole:
                data = await content.readany()
                asked.heard_at = get_running_loop().time()
                return data
            if parser.done and content.at_eof():
                return b""
            with anyio.move_on_after(_END_S if parser.done else _USAGE_S):
                return await content.readany()
        except _BROKEN as error:
            if not parser.whole:
                cause = TimeoutError() if asked.stalled else error
                raise _broken(peer, cause, self._server.stall_s) from error
        return b""


class _Asked:
    """A request in progress, and when data last arrived for it."""

    __slots__ = ("heard_at", "posting", "response", "stalled")

    def __init__(self, asked_at: float) -> None:
        self.heard_at = asked_at
        self.posting = anyio.CancelScope()
        self.response: aiohttp.ClientResponse | None = None
        self.stalled = False

    def end(self) -> None:
        """End the request: it has been silent for too long."""
        self.stalled = True
        if self.response is None:
            self.posting.cancel()
        else:
            self.response.close()


def _parse_url(server: Server) -> URL:
    hint = "write it like https://api.openai.com/v1, without a user, a key or a query in it"
    try:
        url = URL(server.base_url.strip().rstrip("/"))
    except ValueError:
        raise Misconfigured(f"{server.settings.url} is not a URL", hint) from None
    if url.scheme not in ("http", "https") or not url.host or url.user or url.query_string:
        raise Misconfigured(f"{server.settings.url} is not a plain http or https URL", hint)
    return url


def _parse_key(server: Server) -> str:
    key = server.api_key.strip()
    if not key.isascii() or not key.isprintable():
        raise Misconfigured(
            f"{server.settings.key} has characters that no key has", "copy the whole key again"
        )
    return key


def _broken(peer: Peer, error: Exception, stall_s: float) -> HoldfastError:
    """Classify a failed connection."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return Rejected(
                f"{peer.name} shows a certificate that is not trusted; check {peer.settings.url}"
            )
        case aiohttp.ConnectionTimeoutError():
            return peer.absent("could not be reached in time")
        case TimeoutError():
            return peer.cut(f"sent nothing for {stall_s:g} s")
        case aiohttp.ClientConnectorError():
            return peer.absent("cannot be reached")
        case _:
            return peer.cut(f"broke the connection ({type(error).__name__})")


async def _refusal(response: aiohttp.ClientResponse) -> tuple[int, ServerError, float | None]:
    body = bytearray()
    try:
        with anyio.move_on_after(_REFUSAL_S):
            while len(body) < _REFUSAL_LIMIT and (data := await response.content.readany()):
                body += data
    except _BROKEN:
        pass  # the status is enough
    error = read_refusal(bytes(body))
    if 300 <= response.status < 400:
        error = ServerError(f"moved to {response.headers.get('Location', 'elsewhere')}")
    return response.status, error, retry_after(response.headers)
