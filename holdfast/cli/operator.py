"""What only a gateway answers, at the operator's own door: who is let in, how channels are."""

from typing import TypeVar

import aiohttp
import msgspec

from holdfast import config as configuration
from holdfast import observe
from holdfast.cli.exits import Code, Exit
from holdfast.cli.wire import refusal
from holdfast.config import Config
from holdfast.lock import SOCKET

ANSWER_S = 10.0
START = "start one: holdfast gateway start"

_LOST = (aiohttp.ClientError, TimeoutError, OSError)

T = TypeVar("T")


class Person(msgspec.Struct, frozen=True):
    """Somebody who is let in, or waits for it."""

    platform: str
    user: str
    name: str
    roles: tuple[str, ...]
    source: str
    expires_at: float


class People(msgspec.Struct, frozen=True):
    """What `GET /v1/users` answers."""

    data: tuple[Person, ...]


class Channel(msgspec.Struct, frozen=True):
    """A channel that is on."""

    name: str
    trouble: str
    can: tuple[str, ...]
    undelivered: int
    held: int
    given_up: int = 0


class Channels(msgspec.Struct, frozen=True):
    """What `GET /v1/channels` answers."""

    data: tuple[Channel, ...]


class _Error(msgspec.Struct, frozen=True):
    code: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error


class NoGateway(Exit):
    """Nobody answers who serves chats."""


def load() -> Config:
    """The configuration, with the log where a terminal's belongs."""
    config = configuration.from_process({})
    observe.setup("warning", config.home / observe.CLI_LOG)
    return config


async def ask(
    config: Config, method: str, path: str, kind: type[T], body: object | None = None
) -> T:
    """What the gateway of this home answers. `NoGateway`: there is none."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    connector = aiohttp.UnixConnector(str(config.home / SOCKET))
    json = {"Content-Type": "application/json"}
    try:
        async with (
            aiohttp.ClientSession("http://localhost", connector=connector, timeout=timeout) as http,
            http.request(method, path, data=_encoded(body), headers=json) as response,
        ):
            content = await response.read()
    except _LOST:
        raise NoGateway(
            Code.TRY_AGAIN, f"no gateway serves {config.home}, so nobody hears chats; {START}"
        ) from None
    if response.status < 300:
        return msgspec.json.decode(content, type=kind)
    if _code(content) == "not_found":  # a terminal's engine has no such door
        raise NoGateway(
            Code.TRY_AGAIN, f"a terminal serves {config.home}, and no gateway does; {START}"
        )
    raise refusal(response.status, content)


def _encoded(body: object | None) -> bytes | None:
    return None if body is None else msgspec.json.encode(body)


def _code(content: bytes) -> str:
    try:
        return msgspec.json.decode(content, type=_Refusal).error.code
    except msgspec.DecodeError:
        return ""
