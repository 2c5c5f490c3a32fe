"""Every provider with a server, and the fake that speaks its wire format."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.models.anthropic import AnthropicModel, AnthropicReader
from holdfast.models.completions import AnswerParser
from holdfast.models.gemini import GeminiModel, GeminiReader
from holdfast.models.model import RemoteModel
from holdfast.models.ollama import OllamaModel, OllamaReader
from holdfast.models.openai import OpenAIModel
from holdfast.models.parsing import EventParser
from holdfast.models.peer import Peer
from holdfast.models.responses import ResponsesModel, ResponsesReader
from holdfast.models.transport import Parser, Server
from tests.fakes import anthropic, gemini, ollama, responses
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import OPENAI, Ask, Reply, Wire, serve


@dataclass(frozen=True, slots=True)
class Remote:
    """A provider, its wire format, and what it can do."""

    name: str
    create: Callable[[Server], RemoteModel]
    wire: Wire
    parser: Callable[[Peer], Parser]
    window: int = 0  # that the fake's list gives
    key_header: str = ""  # that has the key, and what stands before it
    key_prefix: str = ""
    limit: tuple[str, ...] = ("max_tokens",)  # where a request has the longest answer


@asynccontextmanager
async def remote_gateway(
    directory: Path, remote: Remote, play: Callable[[Ask], Reply], more: str = ""
) -> AsyncIterator[GatewayProcess]:
    """A gateway whose model is `fake` at a server of that provider; `more`: settings."""
    async with serve(play, wire=remote.wire) as server:
        table = (
            f'[models.{remote.name}]\nbase_url = "{server.base_url}"\napi_key = "key-of-a-test"\n'
        )
        model = f'model = "{remote.name}/fake"\n'
        async with gateway(directory, config=f"{model}{more}{table}") as it:
            yield it


REMOTES = [
    Remote("openai", OpenAIModel, OPENAI, AnswerParser, 0, "Authorization", "Bearer "),
    Remote(
        "anthropic",
        AnthropicModel,
        anthropic.WIRE,
        lambda peer: EventParser(peer, AnthropicReader(peer)),
        200_000,
        "x-api-key",
    ),
    Remote(
        "ollama",
        OllamaModel,
        ollama.WIRE,
        lambda peer: EventParser(peer, OllamaReader(peer), prefix=b""),
        ollama.WINDOW,
        "Authorization",
        "Bearer ",
        ("options", "num_predict"),
    ),
    Remote(
        "responses",
        ResponsesModel,
        responses.WIRE,
        lambda peer: EventParser(peer, ResponsesReader(peer)),
        0,
        "Authorization",
        "Bearer ",
        ("max_output_tokens",),
    ),
    Remote(
        "gemini",
        GeminiModel,
        gemini.WIRE,
        lambda peer: EventParser(peer, GeminiReader(peer)),
        gemini.WINDOW,
        "x-goog-api-key",
        limit=("generationConfig", "maxOutputTokens"),
    ),
]
