"""The provider for servers with OpenAI's chat-completions API.

`completions_request` encodes the requests and `completions` parses the responses.
"""

from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import msgspec

from holdfast.models.completions import AnswerParser
from holdfast.models.completions_request import encode
from holdfast.models.model import ListedModel, Piece, Request
from holdfast.models.transport import Outgoing, Server, Transport


class _Meta(msgspec.Struct):
    n_ctx_train: Any = None


class _Entry(msgspec.Struct):
    """A model in the list. Servers say its window in different fields, OpenAI in none."""

    id: str
    context_length: Any = None  # OpenRouter
    context_window: Any = None  # Groq
    max_model_len: Any = None  # vLLM
    meta: _Meta | None = None  # llama.cpp


class _List(msgspec.Struct):
    data: list[_Entry]


_decode_list = msgspec.json.Decoder(_List).decode


def read_models(body: bytes) -> list[ListedModel]:
    """Read the body of `GET /models`."""
    return [ListedModel(entry.id, _window(entry)) for entry in _decode_list(body).data]


def _window(entry: _Entry) -> int:
    trained = entry.meta.n_ctx_train if entry.meta is not None else None
    known = (entry.context_length, entry.context_window, entry.max_model_len, trained)
    return next((size for size in known if isinstance(size, int) and size > 0), 0)


class OpenAIModel:
    """A provider for every OpenAI-compatible chat-completions server."""

    def __init__(self, server: Server, session: aiohttp.ClientSession | None = None) -> None:
        self.name = server.provider
        self._transport = Transport(server, session)
        self._completions = self._transport.url / "chat" / "completions"
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
        outgoing = Outgoing(self._completions, self._headers, encode(request))
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
