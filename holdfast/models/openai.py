"""The provider for servers with OpenAI's chat-completions API.

`completions_request` encodes the requests and `completions` parses the responses.
"""

from collections.abc import AsyncGenerator

import aiohttp

from holdfast.models.completions import AnswerParser
from holdfast.models.completions_request import dialect_of, encode
from holdfast.models.model import ListedModel, Piece, Request
from holdfast.models.openai_list import read_models
from holdfast.models.transport import EncodedRequest, Server, Transport


class OpenAIModel:
    """A provider for every OpenAI-compatible chat-completions server."""

    def __init__(self, server: Server, session: aiohttp.ClientSession | None = None) -> None:
        self.name = server.provider
        self._transport = Transport(server, session)
        self._completions = self._transport.url / "chat" / "completions"
        self._dialect = dialect_of(self._transport.url.host or "")
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
        body = encode(request, self._dialect)
        outgoing = EncodedRequest(self._completions, self._headers, body)
        return self._transport.stream(request, outgoing, AnswerParser(peer), peer)

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
