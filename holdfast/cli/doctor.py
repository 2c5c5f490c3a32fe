"""`holdfast doctor`: what is set and from where, what works, what to do next.

It is done within a second or two, network or not, and changes nothing but what any command's
start does, and with --fix what cli/mending.py does before. Where the configuration itself is
wrong, it says so beside whatever can be looked at without one.
"""

import argparse
import fcntl
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

import aiohttp
import anyio
import anyio.to_thread
import msgspec
from msgspec.structs import asdict

import holdfast
from holdfast import config as configuration
from holdfast import config_channels
from holdfast.app import build_model
from holdfast.cli import doctor_channels, mending, sandbox, units
from holdfast.cli.check import Check, Verdict
from holdfast.cli.client import connect
from holdfast.cli.exits import Code, Exit
from holdfast.config import Config, Secret
from holdfast.core.approval import Level
from holdfast.errors import HoldfastError, Misconfigured
from holdfast.journal import audit
from holdfast.lock import FILE as LOCK
from holdfast.lock import SOCKET, Owner, read_owner
from holdfast.plugins import find_tools

MODEL_S = 0.7
OWNER_S = 0.3
_CONFINE = (
    "let commands be confined: install bubblewrap (apt-get install bubblewrap), "
    "and allow user namespaces"
)
_ACCEPT = "go on at this level: holdfast sandbox accept; or"
_VERIFY = "holdfast audit verify"
SANDBOX_S = 3.0  # for an engine to find out; well more than it takes
AUDIT_BYTES = 4 * 1024 * 1024  # what can be looked at in passing
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


Show = Callable[[Path, Config | None, list[Check]], None]


class _Health(msgspec.Struct, frozen=True):
    status: str
    version: str


def main(args: argparse.Namespace) -> int:
    """Look, say, and tell by the exit code whether it is usable."""
    home = configuration.process_home()
    config: Config | None = None
    mistake: list[Check] = []
    mended = mending.mend_home(home) if args.fix else []
    try:
        config = configuration.from_process({})
    except Misconfigured as error:
        mistake = [Check("config", Verdict.BAD, str(error), error.hint)]
    mended += mending.mend(home, config) if args.fix else []
    show = _print_json if args.json else _print
    anyio.run(_examine, home, config, mistake, mended, show)
    return 0


async def _examine(
    home: Path, config: Config | None, mistake: list[Check], mended: list[Check], show: Show
) -> NoReturn:
    owner = read_owner(home) if _is_locked(home) else None
    checks = [_version(), _home(home)]
    if config is None:
        checks += [await _owner(home, owner)]
        checks += [check for check in mistake if check.finding != checks[1].finding]
    else:
        checks += await _configured(config, owner)
    checks += [*_variables(), *mended]
    show(home, config, checks)
    sys.stdout.flush()
    # A name server that does not answer holds a thread for seconds; it must not hold us.
    bad = any(check.verdict is Verdict.BAD for check in checks)
    os._exit(Code.CONFIG if config is None else Code.FAILED if bad else Code.OK)


async def _configured(config: Config, owner: Owner | None) -> list[Check]:
    """What can be looked at with a configuration."""
    found: dict[str, Check] = {}

    async def look(check: Awaitable[Check], name: str) -> None:
        found[name] = await check

    of_channels: list[Check] = []

    async def look_at_channels() -> None:
        of_channels.extend(await doctor_channels.look(config))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look_at_channels)
        tasks.start_soon(look, _model(config), "model")
        tasks.start_soon(look, _owner(config.home, owner), "owner")
        tasks.start_soon(look, _sandbox(config, owner), "sandbox")
        tasks.start_soon(look, _audit(config.home), "audit")
        tasks.start_soon(look, _runs(config, owner), "runs")
    plugins = [_plugins(config)] if config.plugins else []
    first = [found["owner"], _file(config), found["model"], found["sandbox"], found["audit"]]
    if found["runs"].verdict is not Verdict.OK:
        first.append(found["runs"])
    return [*first, *plugins, *_unit(config), _door(config, owner), *of_channels]


def _unit(config: Config) -> list[Check]:
    """An installed unit that is not what the settings ask for."""
    unit = units.installed(config)
    if unit is None:
        return []
    if trouble := units.disagreement(config, unit):
        return [Check("unit", Verdict.NOTE, trouble, units.MEND)]
    return [Check("unit", Verdict.OK, f"{unit.path} is installed")]


async def _sandbox(config: Config, owner: Owner | None) -> Check:
    """How well a command started from here would be confined, and whether work is held for it."""
    if paused := await _held(config, owner):
        return Check("sandbox", Verdict.NOTE, f"no work is done: {paused}", f"{_ACCEPT} {_CONFINE}")
    posture = await sandbox.probe(config)
    match posture.level:
        case Level.L0 if config.sandbox.allow_none:
            return Check("sandbox", Verdict.NOTE, posture.note, _CONFINE)
        case Level.L0:
            return Check("sandbox", Verdict.BAD, posture.note, _CONFINE)
        case Level.L1:
            return Check("sandbox", Verdict.NOTE, posture.note, _CONFINE)
        case _:
            return Check("sandbox", Verdict.OK, posture.note)


async def _held(config: Config, owner: Owner | None) -> str:
    """Why no work is done, if so. Who does not say in time has told nothing."""
    try:
        async with connect(config, lambda _: None, SANDBOX_S) as client:
            if owner is not None and not await client.is_served():
                return ""
            with anyio.move_on_after(SANDBOX_S):
                health = await sandbox.found(client)
                return health.paused if health else ""
    except* (HoldfastError, Exit):
        pass  # what keeps an engine from starting is another check's finding
    return ""


async def _runs(config: Config, owner: Owner | None) -> Check:
    """Whether runs are held because one of them may be what ends the process."""
    held = ""
    if owner is not None:
        try:
            async with connect(config, lambda _: None, SANDBOX_S) as client:
                with anyio.move_on_after(SANDBOX_S):
                    health = await client.health() if await client.is_served() else None
                    held = health.held if health else ""
        except* (HoldfastError, Exit):
            pass
    if held:
        return Check("runs", Verdict.NOTE, held, "let them all go on: holdfast sessions release")
    return Check("runs", Verdict.OK, "none is held")


async def _audit(home: Path) -> Check:
    """Whether what was written down about who allowed what is still all of it."""
    path = home / audit.FILE
    try:
        if path.exists() and path.stat().st_size > AUDIT_BYTES:
            finding = f"{path} is too long to be looked at here"
            return Check("audit", Verdict.OK, f"{finding}; holdfast audit verify does")
        verdict = await anyio.to_thread.run_sync(audit.verify, path)
    except OSError as error:
        return Check("audit", Verdict.NOTE, f"{path} cannot be read: {error.strerror}", _VERIFY)
    if verdict.why:
        finding = f"{path} is broken at line {verdict.line}: {verdict.why}"
        return Check("audit", Verdict.BAD, finding, f"look at it: {_VERIFY}")
    return Check("audit", Verdict.OK, f"whole, {verdict.entries} entries")


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


def _home(home: Path) -> Check:
    try:
        configuration.check_home(home)
        if not home.exists():
            return Check("home", Verdict.OK, f"{home}, made at first use")
        if why := configuration.probe(home):
            raise Misconfigured(f"nothing can be made {why}", "set HOLDFAST_HOME to another")
    except Misconfigured as error:
        return Check("home", Verdict.BAD, str(error), error.hint)
    if home.stat().st_mode & 0o077:
        finding = f"{home} is open to other users"
        return Check("home", Verdict.NOTE, finding, f"chmod 700 {home}")
    return Check("home", Verdict.OK, f"{home}, writable")


def _file(config: Config) -> Check:
    try:
        mode = config.file.stat().st_mode
    except FileNotFoundError:
        return Check(
            "config", Verdict.OK, f"{config.file} does not exist; defaults and environment"
        )
    holds_secret = any(
        isinstance(value, Secret) and origin == str(config.file)
        for _, value, origin in configuration.shown(config)
    )
    if holds_secret and mode & 0o077:
        return Check(
            "config",
            Verdict.NOTE,
            f"{config.file} holds a key and is open to other users",
            f"chmod 600 {config.file}",
        )
    return Check("config", Verdict.OK, f"{config.file}, every key known")


async def _owner(home: Path, owner: Owner | None) -> Check:
    if owner is None:
        return Check("owner", Verdict.OK, "nobody owns the home: each command serves itself")
    kind = {"gateway": "a gateway", "terminal": "a terminal"}.get(owner.kind, "a process")
    who = f"{kind} (pid {owner.pid})"
    health = await _ask_owner(home)
    if health is None:
        return Check(
            "owner",
            Verdict.BAD,
            f"{who} owns the home and does not answer",
            "if this stays so, end it: it hangs",
        )
    if health.version != holdfast.__version__:
        finding = f"{who} serves the home with version {health.version}"
        return Check("owner", Verdict.NOTE, finding, "start it again")
    also = ", and no gateway does" if owner.kind == "terminal" else ""
    return Check("owner", Verdict.OK, f"{who} serves the home{also}: {health.status}")


async def _ask_owner(home: Path) -> _Health | None:
    timeout = aiohttp.ClientTimeout(total=OWNER_S)
    connector = aiohttp.UnixConnector(str(home / SOCKET))
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
            http.get("http://localhost/health") as response,
        ):
            return msgspec.json.decode(await response.read(), type=_Health)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
        return None


def _is_locked(home: Path) -> bool:
    """Looked at through a shared lock: it excludes nobody for longer than this line."""
    try:
        with open(home / LOCK, "rb") as file:
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
            "holdfast setup finds what is there; or export OPENAI_API_KEY=…",
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


def _plugins(config: Config) -> Check:
    names = ", ".join(config.plugins)
    try:
        find_tools(config.plugins)
    except Misconfigured as error:
        return Check("plugins", Verdict.BAD, str(error), error.hint)
    except Exception as error:  # noqa: BLE001  somebody else's code: whatever it raises is the finding
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        mend = "mend the module, or remove it from `plugins`"
        return Check("plugins", Verdict.BAD, f"of {names}, one fails: {what}", mend)
    return Check("plugins", Verdict.OK, names)


def _door(config: Config, owner: Owner | None) -> Check:
    gateway = config.gateway
    file = config.home / configuration.KEY_FILE
    key = f"its key is in {file}" if file.exists() else f"its key will be made, in {file}"
    if gateway.api_key:
        key = f"its key is set by {config.origins['gateway.api_key']}"
    where = f"http://{gateway.host}:{gateway.port}"
    if owner is not None and owner.address:
        where = f"open on {owner.address}"
    elif owner is None or owner.kind == "terminal":
        where += " once a gateway runs"
    if gateway.host in LOOPBACK or gateway.allowed_hosts:
        return Check("door", Verdict.OK, f"{where}, {key}")
    return Check(
        "door",
        Verdict.NOTE,
        f"{where} is open to other machines, but none of their names for it is allowed",
        f'write allowed_hosts = ["name.example.org"] under [gateway] in {config.file}',
    )


def _variables() -> list[Check]:
    """Nobody reads them, so whoever has set them is mistaken."""
    return [
        Check("environ", Verdict.NOTE, f"{name} means nothing", f"{name}: {hint}")
        for name, hint in configuration.unknown_variables()
    ]


def _print(_: Path, config: Config | None, checks: list[Check]) -> None:
    marks = {Verdict.OK: "✓", Verdict.NOTE: "!", Verdict.BAD: "✗"}
    for check in checks:
        print(f"{marks[check.verdict]} {check.name:8} {check.finding}")
    for key, value, origin in _set(config):
        print(f"  {key} = {value}  # {origin}")
    steps = [check.next_step for check in checks if check.next_step]
    print("\nNext:" if steps else '\nAll is well. Try: holdfast run "list the files here"')
    for step in steps:
        print(f"  {step}")


def _print_json(home: Path, config: Config | None, checks: list[Check]) -> None:
    report = {
        "usable": all(check.verdict is not Verdict.BAD for check in checks),
        "version": holdfast.__version__,
        "home": str(home),
        "model": config.model if config else None,
        "model_reason": config.model_reason if config else None,
        "checks": [asdict(check) for check in checks],
        "set": {key: {"value": value, "origin": origin} for key, value, origin in _set(config)},
    }
    print(json.dumps(report, ensure_ascii=False))


def _set(config: Config | None) -> list[tuple[str, str, str]]:
    """What somebody has set, and where."""
    rows = configuration.shown(config) if config else ()
    return [(key, _plain(value), origin) for key, value, origin in rows if origin != "default"]


def _plain(value: object) -> str:
    return str(value) if isinstance(value, str | Secret) else config_channels.toml(value)
