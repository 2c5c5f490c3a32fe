"""Checks of what answers: the owner of the home, the model's server, the sandbox, the HTTP port."""

from pathlib import Path

import anyio
import msgspec

import holdfast
from holdfast.api.schema.health import HealthDetails, HealthObject
from holdfast.app.models import build_model
from holdfast.cli.client import operator
from holdfast.cli.client.client import connect
from holdfast.cli.doctor.check import Checks, bad, note, ok
from holdfast.cli.exits import Exit
from holdfast.cli.ops import sandbox
from holdfast.config import program
from holdfast.config.home import KEY_FILE
from holdfast.config.settings import Config
from holdfast.core.approval.approval import Level
from holdfast.errors import HoldfastError
from holdfast.host.lock import Owner

MODEL_S = 0.7
OWNER_S = 3.0  # an owner answers at once, unless the machine is busy
SANDBOX_S = 3.0  # well more than an engine needs to test its sandbox
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
MOVABLE = "the image has no digest, so its name can come to mean another image"
_CONFINE = (
    "to confine commands, allow user namespaces, or install the system's bubblewrap "
    "(apt-get install bubblewrap)"
)
_PIN = (
    "name it with its digest in sandbox.container: podman image inspect "
    "--format '{{index .RepoDigests 0}}' IMAGE"
)
_ACCEPT = "continue at this level: holdfast sandbox accept; or"


async def owner(home: Path, found: Owner | None) -> Checks:
    """Ask the process that owns the home."""
    if found is None:
        return ok("owner", "no process owns the home: each command serves itself")
    kind = {"gateway": "a gateway", "terminal": "a terminal"}.get(found.kind, "a process")
    who = f"{kind} (pid {found.pid})"
    try:
        _, said = await operator.request(home, "GET", "/health", within_s=OWNER_S)
        health = msgspec.json.decode(said, type=HealthObject)
    except (*operator.LOST, msgspec.DecodeError):
        finding = f"{who} owns the home and does not answer"
        return bad("owner", finding, "if this stays so, end it: it hangs")
    if health.version != holdfast.__version__:
        return note("owner", f"{who} serves the home with version {health.version}", "restart it")
    also = ", and no gateway does" if found.kind == "terminal" else ""
    return ok("owner", f"{who} serves the home{also}: {health.status}")


async def model(config: Config) -> Checks:
    """Ask the model's server whether it has the model."""
    chosen = f"{config.model} ({config.model_reason})"
    if config.provider == "offline":
        step = f"{program.typed()} setup finds what is there; or export OPENAI_API_KEY=…"
        return note("model", f"{chosen}; only plain commands work", step)
    table = config.table
    if table is None:
        return ok("model", chosen)
    step = f"check {table.url_setting}, {table.key_setting} and the network"
    if table.lacks_key:
        step = f"export {table.vendor.variable}=…"
    try:
        with anyio.fail_after(MODEL_S):
            asked = build_model(config)
            try:
                said = await asked.check()
            finally:
                await asked.aclose()
    except HoldfastError as error:
        return bad("model", f"{chosen}: {error}", step)
    except TimeoutError:
        return bad("model", f"{chosen}: no answer from {table.base_url}", step)
    return ok("model", f"{chosen}: {said}")


def fallbacks(config: Config) -> Checks:
    """List the other models that are configured, and those that lack a key."""
    named = (*config.fallbacks, *filter(None, (config.small_model,)))
    tables = {name: config.models.get(name.partition("/")[0]) for name in named}
    for name, table in tables.items():
        if table is not None and table.lacks_key:
            finding = f"{name} has no key, and it is named in the configuration"
            return bad("models", finding, f"export {table.vendor.variable}=…")
    return ok("models", f"also {', '.join(tables)}") if tables else []


async def sandbox_and_runs(config: Config, found: Owner | None) -> Checks:
    """Test how well commands are confined; report work on hold and runs in quarantine."""
    health = await _health(config, found)
    runs: Checks = []
    if health is not None and health.held and found is not None:
        runs = note("runs", health.held, "continue all of them: holdfast sessions release")
    if health is not None and health.paused:
        finding = f"no work is done: {health.paused}"
        return [*note("sandbox", finding, f"{_ACCEPT} {_CONFINE}"), *runs]
    return [*await _sandbox(config), *runs]


async def _sandbox(config: Config) -> Checks:
    posture = await sandbox.probe(config)
    match posture.level:
        case Level.L0 if not config.sandbox.allow_none:
            return bad("sandbox", posture.note, _CONFINE)
        case Level.L0 | Level.L1:
            return note("sandbox", posture.note, _CONFINE)
        case Level.L3 if is_movable(config.sandbox.container):
            return note("sandbox", f"{posture.note}; {MOVABLE}", _PIN)
        case _:
            return ok("sandbox", posture.note)


def is_movable(image: str) -> bool:
    """Tell whether this name can come to mean another image; a directory or a local one cannot."""
    return not image.startswith(("/", "localhost/")) and "@sha256:" not in image


async def _health(config: Config, found: Owner | None) -> HealthDetails | None:
    """Ask the gateway or our own engine; None if it does not answer in time."""
    try:
        async with connect(config, lambda _: None, SANDBOX_S) as client:
            if found is not None and not await client.is_served():
                return None
            with anyio.move_on_after(SANDBOX_S):
                return await sandbox.found(client)
    except* (HoldfastError, Exit):
        pass  # what keeps an engine from starting is another check's finding
    return None


def door(config: Config, found: Owner | None) -> Checks:
    """Describe the HTTP port, its key, and the names it is allowed to have."""
    gateway = config.gateway
    file = config.home / KEY_FILE
    key = f"its key is in {file}" if file.exists() else f"its key will be made, in {file}"
    if gateway.api_key:
        key = f"its key is set by {config.origins['gateway.api_key']}"
    where = f"http://{gateway.host}:{gateway.port}"
    if found is not None and found.address:
        where = f"open on {found.address}"
    elif found is None or found.kind == "terminal":
        where += " once a gateway runs"
    if gateway.host in LOOPBACK or gateway.allowed_hosts:
        return ok("door", f"{where}, {key}")
    finding = f"{where} is open to other machines, but none of their names for it is allowed"
    step = f'write allowed_hosts = ["name.example.org"] under [gateway] in {config.file}'
    return note("door", finding, step)
