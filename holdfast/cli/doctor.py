"""`holdfast doctor`: what is set and from where, what works, what to do next.

It changes nothing and is done within a second, network or not.
"""

import argparse
import fcntl
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import NoReturn

import aiohttp
import anyio
import msgspec
from msgspec.structs import asdict

import holdfast
from holdfast import config as configuration
from holdfast.app import LOCK, SOCKET, build_model
from holdfast.config import Config
from holdfast.core.types import Value
from holdfast.errors import HoldfastError

MODEL_S = 0.7
OWNER_S = 0.3
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"  # usable, but worth knowing
    BAD = "bad"  # needs mending


class Check(Value):
    """One thing looked at, and what to do about it if something is to be done."""

    name: str
    verdict: Verdict
    finding: str
    next_step: str = ""


class _Health(msgspec.Struct, frozen=True):
    status: str
    version: str


def main(args: argparse.Namespace) -> int:
    """Look, say, and tell by the exit code whether it is usable."""
    config = configuration.from_process({})
    anyio.run(_examine, config, _print_json if args.json else _print)
    return 0


async def _examine(config: Config, show: Callable[[Config, list[Check]], None]) -> NoReturn:
    found: dict[str, Check] = {}

    async def look(check: Awaitable[Check], name: str) -> None:
        found[name] = await check

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look, _model(config), "model")
        tasks.start_soon(look, _owner(config), "owner")
    checks = [
        _version(),
        _home(config),
        found["owner"],
        _file(config),
        found["model"],
        _door(config),
    ]
    show(config, checks)
    sys.stdout.flush()
    # A name server that does not answer holds a thread for seconds; it must not hold us.
    os._exit(any(check.verdict is Verdict.BAD for check in checks))


def _version() -> Check:
    version = f"holdfast {holdfast.__version__}, Python {platform.python_version()}"
    source = holdfast.__file__
    compiled = importlib.util.cache_from_source(source)
    if os.path.exists(compiled) or os.access(os.path.dirname(source), os.W_OK):
        return Check("version", Verdict.OK, version)
    return Check(
        "version",
        Verdict.NOTE,
        f"{version}, without compiled bytecode: every start is slow",
        f"run once as the owner of it: python -m compileall {os.path.dirname(source)}",
    )


def _home(config: Config) -> Check:
    """That it can be written has been checked when the configuration was read."""
    if not config.home.exists():
        return Check("home", Verdict.OK, f"{config.home}, made at first use")
    if config.home.stat().st_mode & 0o077:
        return Check(
            "home",
            Verdict.NOTE,
            f"{config.home} is open to other users",
            f"chmod 700 {config.home}",
        )
    return Check("home", Verdict.OK, f"{config.home}, writable")


def _file(config: Config) -> Check:
    try:
        mode = config.file.stat().st_mode
    except FileNotFoundError:
        return Check(
            "config", Verdict.OK, f"{config.file} does not exist; defaults and environment"
        )
    holds_secret = str(config.file) in (
        config.origins["openai.api_key"],
        config.origins["gateway.api_key"],
    )
    if holds_secret and mode & 0o077:
        return Check(
            "config",
            Verdict.NOTE,
            f"{config.file} holds a key and is open to other users",
            f"chmod 600 {config.file}",
        )
    return Check("config", Verdict.OK, f"{config.file}, every key known")


async def _owner(config: Config) -> Check:
    health = await _ask_owner(config)
    if health is not None:
        if health.version == holdfast.__version__:
            return Check("owner", Verdict.OK, f"a gateway serves the home: {health.status}")
        return Check(
            "owner",
            Verdict.NOTE,
            f"the gateway that serves the home is version {health.version}",
            "start it again",
        )
    if _is_locked(config):
        return Check(
            "owner",
            Verdict.BAD,
            "a process owns the home and does not answer",
            "if this stays so, end it: it hangs",
        )
    return Check("owner", Verdict.OK, "nobody owns the home: each command serves itself")


async def _ask_owner(config: Config) -> _Health | None:
    timeout = aiohttp.ClientTimeout(total=OWNER_S)
    connector = aiohttp.UnixConnector(str(config.home / SOCKET))
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
            http.get("http://localhost/health") as response,
        ):
            return msgspec.json.decode(await response.read(), type=_Health)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
        return None


def _is_locked(config: Config) -> bool:
    """Looked at through a shared lock: it excludes nobody for longer than this line."""
    try:
        with open(config.home / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


async def _model(config: Config) -> Check:
    chosen = f"{config.model} ({config.model_reason})"
    if config.provider == "offline":
        return Check(
            "model",
            Verdict.NOTE,
            f"{chosen}; only plain commands work",
            "export OPENAI_API_KEY=… , or OPENAI_BASE_URL and HOLDFAST_MODEL=openai/<name>",
        )
    if config.provider != "openai":
        return Check("model", Verdict.OK, chosen)
    try:
        with anyio.fail_after(MODEL_S):
            model = build_model(config)
            try:
                said = await model.check()
            finally:
                await model.aclose()
    except HoldfastError as error:
        return Check("model", Verdict.BAD, f"{chosen}: {error}", _mend(config))
    except TimeoutError:
        where = config.openai.base_url
        return Check("model", Verdict.BAD, f"{chosen}: no answer from {where}", _mend(config))
    return Check("model", Verdict.OK, f"{chosen}: {said}")


def _mend(config: Config) -> str:
    if config.openai.api_key is None and config.origins["openai.base_url"] == "default":
        return "export OPENAI_API_KEY=…"
    return "check OPENAI_BASE_URL, OPENAI_API_KEY and the network"


def _door(config: Config) -> Check:
    gateway = config.gateway
    key = "its key is set" if gateway.api_key else f"its key is in {config.home}/api_key"
    where = f"http://{gateway.host}:{gateway.port}"
    if gateway.host in LOOPBACK or gateway.allowed_hosts:
        return Check("door", Verdict.OK, f"{where}, {key}")
    return Check(
        "door",
        Verdict.NOTE,
        f"{where} is open to other machines, but none of their names for it is allowed",
        f'write allowed_hosts = ["name.example.org"] under [gateway] in {config.file}',
    )


def _print(config: Config, checks: list[Check]) -> None:
    marks = {Verdict.OK: "✓", Verdict.NOTE: "!", Verdict.BAD: "✗"}
    for check in checks:
        print(f"{marks[check.verdict]} {check.name:8} {check.finding}")
    for key, value, origin in _set(config):
        print(f"  {key} = {value}  # {origin}")
    steps = [check.next_step for check in checks if check.next_step]
    print("\nNext:" if steps else '\nAll is well. Try: holdfast run "list the files here"')
    for step in steps:
        print(f"  {step}")


def _print_json(config: Config, checks: list[Check]) -> None:
    report = {
        "usable": all(check.verdict is not Verdict.BAD for check in checks),
        "version": holdfast.__version__,
        "home": str(config.home),
        "model": config.model,
        "model_reason": config.model_reason,
        "checks": [asdict(check) for check in checks],
        "set": {key: {"value": value, "origin": origin} for key, value, origin in _set(config)},
    }
    print(json.dumps(report, ensure_ascii=False))


def _set(config: Config) -> list[tuple[str, str, str]]:
    """What somebody has set, and where."""
    rows = configuration.shown(config)
    return [(key, str(value), origin) for key, value, origin in rows if origin != "default"]
