"""Requests that only a gateway answers, at the operator's socket: users and channels."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import aiohttp
import msgspec

from holdfast.cli.client.refusals import error_in, refusal
from holdfast.cli.exits import Code, Exit
from holdfast.config import process as configuration
from holdfast.config.settings import Config
from holdfast.host import observe
from holdfast.host.lock import SOCKET

ANSWER_S = 10.0
START = "start one: holdfast gateway start"
LOST = (aiohttp.ClientError, TimeoutError, OSError)

T = TypeVar("T")


class NoGateway(Exit):
    """No gateway serves the home."""


def load(flags: Mapping[str, str | None] = MappingProxyType({})) -> Config:
    """Load the configuration, and log to the file for terminals."""
    config = configuration.from_process({k: v for k, v in flags.items() if v is not None})
    observe.setup("warning", config.home / observe.CLI_LOG)
    return config


async def request(
    home: Path, method: str, path: str, body: msgspec.Struct | None = None, *, within_s: float
) -> tuple[int, bytes]:
    """Ask the process that serves the home; return the status and the body. Raises one of `LOST`."""
    timeout = aiohttp.ClientTimeout(total=within_s)
    connector = aiohttp.UnixConnector(str(home / SOCKET))
    data = None if body is None else msgspec.json.encode(body)
    json = {} if body is None else {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession("http://localhost", connector=connector, timeout=timeout) as http,
        http.request(method, path, data=data, headers=json) as response,
    ):
        return response.status, await response.read()


async def ask(
    config: Config, method: str, path: str, kind: type[T], body: msgspec.Struct | None = None
) -> T:
    """Ask the gateway of this home. Raises `NoGateway` if there is none."""
    home = config.home
    try:
        status, content = await request(home, method, path, body, within_s=ANSWER_S)
    except LOST:
        line = f"no gateway serves {home}, so no chat messages are received; {START}"
        raise NoGateway(Code.TRY_AGAIN, line) from None
    if status < 300:
        return msgspec.json.decode(content, type=kind)
    if error_in(status, content).code == "not_found":  # a terminal has no such route
        line = f"a terminal serves {home}, and no gateway does; {START}"
        raise NoGateway(Code.TRY_AGAIN, line)
    raise refusal(status, content)
