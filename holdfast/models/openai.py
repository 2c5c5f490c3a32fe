"""The provider for servers with OpenAI's chat-completions API.

`completions_request` encodes the requests and `completions` parses the responses.
"""

from collections.abc import AsyncGenerator

import aiohttp
import msgspec

from holdfast.errors import Rejected
from holdfast.models.completions import AnswerParser
from holdfast.models.completions_request import encode
from holdfast.models.model import Piece, Request
from holdfast.models.transport import Outgoing, Server, Transport


class _Listed(msgspec.Struct):
    data: list[msgspec.Raw]


_decode_list = msgspec.json.Decoder(_Listed).decode


class OpenAIModel:
    """A provider for every OpenAI-compatible chat-completions server."""

    def __init__(self, server: Server, session: aiohttp.ClientSession | None = None) -> None:
        self.name = server.provider
        self._transport = Transport(server, session)
        self._completions = self._transport.url / "chat" / "completions"
        self._strict = self._transport.url.host == "api.openai.com"
        key = self._transport.key
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",  # compressing a stream delays tokens
            **({"Authorization": f"Bearer {key}"} if key else {}),
        }

    def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Send the request. Yield pieces as they arrive, then the answer."""
        peer = self._transport.peer(request.model)
        body = encode(request, strict=self._strict)
        outgoing = Outgoing(self._completions, self._headers, body)
        return self._transport.stream(request, outgoing, AnswerParser(peer), peer)

    async def check(self) -> str:
        """Ask for the list of models, within a second."""
        peer = self._transport.peer("")
        url = self._transport.url
        body = await self._transport.get(url / "models", self._headers, peer)
        try:
            found = len(_decode_list(body).data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Rejected(
                f"{peer.name} answers, but not like a model server; check {peer.settings.url}"
            ) from None
        return f"{self.name} at {url} answers, {found} model{'' if found == 1 else 's'}"

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()
