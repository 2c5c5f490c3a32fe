"""Find model servers on this machine.

All ports are asked together, by GET on loopback, within 150 ms; no key is sent. A server is one if
it lists models as OpenAI does, or as Ollama does. Whose it is, it says itself, else its port does.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import aiohttp
import anyio
import msgspec

from holdfast.config.vendors import LLAMA_CPP, LM_STUDIO, OLLAMA, VLLM, Vendor
from holdfast.core.types import Value

T = TypeVar("T")

WITHIN_S = 0.15  # for all of them together
_BY_PORT = {11434: OLLAMA, 1234: LM_STUDIO, 8080: LLAMA_CPP, 8000: VLLM}
_OWNERS = {"llamacpp": LLAMA_CPP, "vllm": VLLM}  # as they say it of their models
_OTHER = Vendor("openai", "a server", "openai", "")  # it says nothing of itself
_LIMIT = 4 << 20
_LOST = (aiohttp.ClientError, TimeoutError, OSError, ValueError, msgspec.DecodeError)


class LocalServer(Value):
    """A model server on this machine."""

    vendor: Vendor
    base_url: str
    models: tuple[str, ...]


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


async def look(ports: Sequence[int], within_s: float = WITHIN_S) -> list[LocalServer]:
    """Return the servers, in the order of the ports."""
    lists: dict[int, _List] = {}
    tags: dict[int, _Tags] = {}

    async def ask(http: aiohttp.ClientSession, port: int) -> None:
        heard = await _get(http, f"http://127.0.0.1:{port}/v1/models", _List)
        if heard is not None and heard.object == "list":
            lists[port] = heard

    async def ask_ollama(http: aiohttp.ClientSession, port: int) -> None:
        heard = await _get(http, f"http://127.0.0.1:{port}/api/tags", _Tags)
        if heard is not None:
            tags[port] = heard

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar()
    ) as http:
        with anyio.move_on_after(within_s):
            async with anyio.create_task_group() as tasks:
                for port in ports:
                    tasks.start_soon(ask, http, port)
                    tasks.start_soon(ask_ollama, http, port)
    return list(_servers(ports, lists, tags))


def _servers(
    ports: Sequence[int], lists: Mapping[int, _List], tags: Mapping[int, _Tags]
) -> list[LocalServer]:
    found: list[LocalServer] = []
    for port in ports:
        listed = (lists[port].data or []) if port in lists else []
        said = {_OWNERS[m.owned_by] for m in listed if m.owned_by in _OWNERS}
        if port in tags and not said:  # llama.cpp knows Ollama's list as well
            names = [tag.name for tag in tags[port].models or ()]
            found.append(LocalServer(OLLAMA, f"http://127.0.0.1:{port}", talking(names)))
        elif port in lists:
            vendor = said.pop() if said else _BY_PORT.get(port, _OTHER)
            names = [m.id for m in listed]
            found.append(LocalServer(vendor, f"http://127.0.0.1:{port}/v1", talking(names)))
    return found


def talking(names: Sequence[str]) -> tuple[str, ...]:
    """Return those that one can talk to, as far as their names tell."""
    return tuple(dict.fromkeys(one for one in names if "embed" not in one.lower()))


async def _get(http: aiohttp.ClientSession, url: str, kind: type[T]) -> T | None:
    """Return the answer, if it has that form."""
    body = bytearray()
    try:
        async with http.get(url, allow_redirects=False) as response:
            if response.status != 200:
                return None
            while len(body) <= _LIMIT and (data := await response.content.readany()):
                body += data
        return msgspec.json.decode(body, type=kind)
    except _LOST:
        return None
