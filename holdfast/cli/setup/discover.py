"""What there is to talk to: servers with keys in the environment, and servers on this machine.

Who is on this machine is found by asking, all ports together and within 150 ms; nobody is
sent a key for that. A server is one if it lists models as OpenAI does; whose it is, it says
itself, else its port does. Servers that need a key are asked for their models only once they
are chosen: a key is used for what its owner has asked for.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import anyio
import msgspec

from holdfast.config import vendors
from holdfast.config.settings import Config
from holdfast.config.settings import OpenAISettings as Settings
from holdfast.core.types import Value

T = TypeVar("T")

WITHIN_S = 0.15  # for all servers on this machine together
LIST_S = 5.0  # for the models of the one that was chosen
PORTS = {11434: "Ollama", 1234: "LM Studio", 8080: "llama.cpp", 8000: "vLLM"}
OLLAMA = "Ollama"
OPENAI_URL = Settings().base_url

_OWNERS = {"llamacpp": "llama.cpp", "vllm": "vLLM"}  # as they say it of their models
_LIMIT = 4 << 20
_LOST = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


class FoundServer(Value):
    """A server that may have a model for us."""

    name: str
    base_url: str
    why: str  # we think so
    models: tuple[str, ...] = ()  # that it is known to have
    model: str = ""  # the one that is set for it, or that it usually is
    keyless: bool = False  # it has answered somebody without a key

    @property
    def is_ollama(self) -> bool:
        return self.name == OLLAMA


class _Entry(msgspec.Struct, frozen=True):
    id: str
    owned_by: str | None = None


class _List(msgspec.Struct, frozen=True):
    object: str
    data: list[_Entry] | None = None  # Ollama, as long as it has none


class _Tag(msgspec.Struct, frozen=True):
    name: str


class _Tags(msgspec.Struct, frozen=True):
    models: list[_Tag] | None


def configured(config: Config, found: Sequence[vendors.Vendor]) -> list[FoundServer]:
    """Those that the settings, or a vendor's key in the environment, name."""
    base_url, of_key = config.origins["openai.base_url"], config.origins["openai.api_key"]
    places: list[FoundServer] = []
    if base_url != "default":
        why = f"set by {base_url.removeprefix('environment ')}"
        places.append(place(config.openai.base_url, why, _set_model(config)))
    elif of_key != "default":
        model = _set_model(config) or vendors.OPENAI.model
        places.append(place(OPENAI_URL, _key_in(of_key), model))
    keys = [(v.base_url, v.variable) for v in found]
    if of_key == "environment OPENAI_API_KEY" and base_url == str(config.file):
        keys.append((OPENAI_URL, "OPENAI_API_KEY"))
    for url, variable in keys:
        model = vendors.OPENAI.model if url == OPENAI_URL else ""
        places.append(place(url, _key_in(variable), model))
    return distinct(places)


def _key_in(origin: str) -> str:
    return f"key in {origin.removeprefix('environment ')}"


def _set_model(config: Config) -> str:
    is_set = config.origins["model"] != "default" and config.provider == "openai"
    return config.model_name if is_set else ""


def place(base_url: str, why: str, model: str = "") -> FoundServer:
    """The server at that address, by the name that people know."""
    vendor, parts = vendors.at(base_url), urlsplit(base_url)
    if _address(base_url) == _address(OPENAI_URL):
        name = "OpenAI"
    elif vendor is not None:
        name = vendor.name
    else:
        name = OLLAMA if parts.port == 11434 else parts.netloc
    return FoundServer(name, base_url, why, model=model)


def distinct(places: Sequence[FoundServer]) -> list[FoundServer]:
    """Each server once, as it was named first, with what is known of it by either name."""
    known: dict[str, FoundServer] = {}
    for one in places:
        first = known.setdefault(_address(one.base_url), one)
        if first.models != one.models and not first.models:
            known[_address(one.base_url)] = msgspec.structs.replace(
                first, name=one.name, models=one.models, keyless=one.keyless
            )
    return list(known.values())


def _address(base_url: str) -> str:
    return base_url.strip().rstrip("/").replace("://localhost", "://127.0.0.1")


async def look(
    ports: Sequence[int] = tuple(PORTS), within_s: float = WITHIN_S
) -> list[FoundServer]:
    """The servers on this machine, in the order of the ports."""
    models: dict[int, list[_Entry]] = {}
    tags: dict[int, list[_Tag]] = {}

    async def ask(http: aiohttp.ClientSession, port: int) -> None:
        heard = await _get(http, f"http://127.0.0.1:{port}/v1/models", _List)
        if heard is not None and heard.object == "list":
            models[port] = heard.data or []

    async def ask_ollama(http: aiohttp.ClientSession, port: int) -> None:
        heard = await _get(http, f"http://127.0.0.1:{port}/api/tags", _Tags)
        if heard is not None:
            tags[port] = heard.models or []

    async with _pool() as http:
        with anyio.move_on_after(within_s):
            async with anyio.create_task_group() as tasks:
                for port in ports:
                    tasks.start_soon(ask, http, port)
                    tasks.start_soon(ask_ollama, http, port)
    return [_local(port, models.get(port, []), tags.get(port)) for port in ports if port in models]


def _local(port: int, models: Sequence[_Entry], tags: Sequence[_Tag] | None) -> FoundServer:
    said = {_OWNERS[m.owned_by] for m in models if m.owned_by in _OWNERS}
    if said:  # llama.cpp knows Ollama's list as well
        name = said.pop()
    else:
        name = PORTS.get(port, "a server") if tags is None else OLLAMA
    ids = [m.id for m in models] or [t.name for t in tags or ()]
    url = f"http://127.0.0.1:{port}/v1"
    return FoundServer(name, url, "on this machine", _talking(ids), keyless=True)


def _talking(ids: Sequence[str]) -> tuple[str, ...]:
    """Those that one can talk to, as far as their names tell."""
    return tuple(dict.fromkeys(one for one in ids if "embed" not in one.lower()))


async def list_models(config: Config, say: Callable[[str], None]) -> tuple[str, ...]:
    """What the configured server says it has; nothing if it does not say."""
    key = config.openai.api_key
    headers = {"Authorization": f"Bearer {key.reveal()}"} if key is not None else {}
    url = f"{config.openai.base_url.strip().rstrip('/')}/models"
    async with _pool(headers) as http:
        with anyio.move_on_after(LIST_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_tell_slow, say, f"… asking {url} which models it has")
                heard = await _get(http, url, _Listed)
                tasks.cancel_scope.cancel()
            return _talking([entry.id for entry in heard.data]) if heard is not None else ()
    return ()


class _Listed(msgspec.Struct, frozen=True):
    data: list[_Entry]


async def _tell_slow(say: Callable[[str], None], line: str) -> None:
    await anyio.sleep(1.0)
    say(line)


def _pool(headers: dict[str, str] | None = None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
    )


async def _get(http: aiohttp.ClientSession, url: str, kind: type[T]) -> T | None:
    """What it answers, if it answers like that."""
    body = bytearray()
    try:
        async with http.get(url, allow_redirects=False) as response:
            if response.status != 200:
                return None
            while len(body) <= _LIMIT and (data := await response.content.readany()):
                body += data
        return msgspec.json.decode(body, type=kind)
    except (*_LOST, msgspec.DecodeError):
        return None
