"""The provider for servers with OpenAI's chat-completions API, over one connection pool.

The pool lives as long as the process. A connection whose answer was read to its end returns to
the pool; any other connection is closed, whatever ended the reading. `completions_request` encodes
the requests and `completions` parses the responses.
"""

from asyncio import AbstractEventLoop, TimerHandle, get_running_loop
from collections.abc import AsyncGenerator
from io import BytesIO

import aiohttp
import anyio
import msgspec
from yarl import URL

from holdfast.errors import HoldfastError, Misconfigured, Rejected
from holdfast.models.completions import AnswerParser, Peer, ServerError, read_refusal, retry_after
from holdfast.models.completions_request import encode
from holdfast.models.model import Piece, Request

_REFUSAL_LIMIT = 64 << 10  # bytes read of an error response
_REFUSAL_S = 5.0  # time limit for reading it
_USAGE_S = 2.0  # time limit for usage and [DONE] once the answer is complete
_END_S = 0.1  # time limit for the end of the body, after which the connection can be used again
_CHECK_S = 1.0
_IN_PARTS_FROM = 256 << 10  # a bigger body is sent in parts, so that the loop stays free
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


class _Models(msgspec.Struct):
    data: list[msgspec.Raw]


_decode_models = msgspec.json.Decoder(_Models).decode


class OpenAIModel:
    """A provider for every OpenAI-compatible chat-completions server."""

    name = "openai"

    def __init__(
        self,
        base_url: str,
        api_key: str,
        session: aiohttp.ClientSession | None = None,
        stall_s: float = 120.0,
        connect_s: float = 10.0,
    ) -> None:
        self._url = _parse_url(base_url)
        self._completions = self._url / "chat" / "completions"
        self._key = _parse_key(api_key)
        self._session = session
        self._owns_session = session is None
        self._stall_s = stall_s
        # Silence is detected here, because aiohttp would set two timers for every chunk.
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_s)
        self._asked: set[_Asked] = set()
        self._watch: TimerHandle | None = None
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",  # compressing a stream delays tokens
            **({"Authorization": f"Bearer {self._key}"} if self._key else {}),
        }

    async def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Send the request. Yield pieces as they arrive, then the answer."""
        peer = self._peer(request.model)
        asked = self._attend()
        try:
            response = await self._post(request, asked, peer)
            if response.status != 200:
                raise peer.judge(*await _refusal(response))
            incoming = AnswerParser(peer, empty=response.content_length == 0)
            while data := await self._read(response, asked, incoming, peer):
                for piece in incoming.feed(data):
                    yield piece
            for piece in incoming.end():
                yield piece
            yield incoming.answer(request)
        finally:
            self._asked.discard(asked)
            if asked.response is not None:
                asked.response.close()

    def _attend(self) -> "_Asked":
        """Register a request for the timer that ends silent ones; there is one timer for all."""
        loop = get_running_loop()
        asked = _Asked(loop.time())
        self._asked.add(asked)
        if self._watch is None:
            self._watch = loop.call_later(self._stall_s / 4, self._end_silent, loop)
        return asked

    def _end_silent(self, loop: AbstractEventLoop) -> None:
        silent_since = loop.time() - self._stall_s
        for asked in tuple(self._asked):
            if asked.heard_at < silent_since:
                asked.end()
        again = self._stall_s / 4
        self._watch = loop.call_later(again, self._end_silent, loop) if self._asked else None

    async def check(self) -> str:
        """Ask for the list of models, within a second."""
        peer = self._peer("")
        try:
            with anyio.fail_after(_CHECK_S):
                response = await self._pool().get(
                    self._url / "models", headers=self._headers, allow_redirects=False
                )
                try:
                    if response.status != 200:
                        raise peer.judge(*await _refusal(response))
                    found = len(_decode_models(await response.read()).data)
                finally:
                    response.close()
        except _BROKEN as error:
            raise _broken(peer, error, _CHECK_S) from error
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Rejected(
                f"{peer.name} answers, but not like a model server; check OPENAI_BASE_URL"
            ) from None
        return f"openai at {self._url} answers, {found} model{'' if found == 1 else 's'}"

    async def aclose(self) -> None:
        """Close the pool, unless the caller provided it."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._session is not None and self._owns_session:
            await self._session.close()

    def _peer(self, model: str) -> Peer:
        port = "" if self._url.is_default_port() else f":{self._url.port}"
        return Peer(f"{self._url.host}{port}", model, self._key)

    def _pool(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def _post(self, request: Request, asked: "_Asked", peer: Peer) -> aiohttp.ClientResponse:
        body = encode(request)
        try:
            with asked.posting:
                asked.response = await self._pool().post(
                    self._completions,
                    data=body if len(body) < _IN_PARTS_FROM else BytesIO(body),
                    headers=self._headers,
                    timeout=self._timeout,
                    allow_redirects=False,
                )
        except _BROKEN as error:
            raise _broken(peer, error, self._stall_s) from error
        if asked.response is None:
            raise _broken(peer, TimeoutError(), self._stall_s)
        return asked.response

    async def _read(
        self, response: aiohttp.ClientResponse, asked: "_Asked", incoming: AnswerParser, peer: Peer
    ) -> bytes:
        """Return the data that has arrived; empty at the end."""
        content = response.content
        try:
            if not incoming.whole:
                data = await content.readany()
                asked.heard_at = get_running_loop().time()
                return data
            if incoming.done and content.at_eof():
                return b""
            with anyio.move_on_after(_END_S if incoming.done else _USAGE_S):
                return await content.readany()
        except _BROKEN as error:
            if not incoming.whole:
                cause = TimeoutError() if asked.stalled else error
                raise _broken(peer, cause, self._stall_s) from error
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


def _parse_url(base_url: str) -> URL:
    hint = "write it like https://api.openai.com/v1, without a user, a key or a query in it"
    try:
        url = URL(base_url.strip().rstrip("/"))
    except ValueError:
        raise Misconfigured("OPENAI_BASE_URL is not a URL", hint) from None
    if url.scheme not in ("http", "https") or not url.host or url.user or url.query_string:
        raise Misconfigured("OPENAI_BASE_URL is not a plain http or https URL", hint)
    return url


def _parse_key(api_key: str) -> str:
    key = api_key.strip()
    if not key.isascii() or not key.isprintable():
        raise Misconfigured(
            "OPENAI_API_KEY has characters that no key has", "copy the whole key again"
        )
    return key


def _broken(peer: Peer, error: Exception, stall_s: float) -> HoldfastError:
    """Classify a failed connection."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return Rejected(
                f"{peer.name} shows a certificate that is not trusted; check OPENAI_BASE_URL"
            )
        case aiohttp.ConnectionTimeoutError():
            return peer.cut("could not be reached in time")
        case TimeoutError():
            return peer.cut(f"sent nothing for {stall_s:g} s")
        case aiohttp.ClientConnectorError():
            return peer.cut("cannot be reached")
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
