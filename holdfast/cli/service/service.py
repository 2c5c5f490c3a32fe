"""`holdfast gateway start|stop|restart|status`: control the gateway as a service.

If its unit is installed, the service manager starts and ends it; otherwise it is a detached process
that logs to a file in the home. A stop or a restart is recorded in the journal before the process
ends.
"""

import argparse
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio
import msgspec

from holdfast.api.schema.health import HealthDetails
from holdfast.api.schema.operator import GatewayObject
from holdfast.app.embedded import record
from holdfast.cli import output
from holdfast.cli.client import operator
from holdfast.cli.client.refusals import refusal
from holdfast.cli.exits import Code, Exit
from holdfast.cli.service import units
from holdfast.config.settings import Config
from holdfast.core.life.lifecycle import Wanted
from holdfast.core.types import Value
from holdfast.host.control import LOG, detach, recorded
from holdfast.host.lock import is_locked, read_owner, take_lock

READY_S = 60.0  # for a start: it recovers first
END_S = 12.0  # for a stop, after the drain: more than it allows itself
MANAGER_S = 86_400.0 + 120.0  # a stop takes as long as the drain, which may be a day
LOOK_S = 2.0
POLL_S = 0.1
GATEWAY = "/v1/gateway"
NOT_RUNNING = 3  # as systemctl does
ALREADY_RUNNING = "The gateway is already running"
STAYS_STOPPED = "The gateway was not running. It stays stopped."
RECEIVES_NOTHING = "{} receives nothing"
NO_UNIT = "none installed; to install one: holdfast gateway install"

_LOST = (*operator.LOST, msgspec.DecodeError)


class Running(Value):
    """A gateway that answers."""

    pid: int
    wanted: str
    address: str
    health: HealthDetails
    restored: str = ""  # in words, if the journal is from a backup


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    flags = {"gateway.host": args.host, "gateway.port": args.port} if args.what == "start" else {}
    config = operator.load(flags)
    if args.what == "status":
        return anyio.run(_status, config, args)
    actions: Mapping[str, Callable[[Config], Awaitable[None]]] = {
        "start": start,
        "stop": stop,
        "restart": restart,
    }
    anyio.run(actions[args.what], config)
    return Code.OK


async def start(config: Config) -> None:
    """Start the gateway; return when it serves."""
    if (running := await look(config)) is not None:
        print(f"{ALREADY_RUNNING}: {_described(running)}")
        _warn(config)
        return
    unit = _warn(config)
    if unit is not None and units.manager_found(unit.scope):
        await manage(unit, "start")
        running = await _served(config, 0, None)
    else:
        running = await _start_detached(config)
    print(f"Running: {_described(running)}")


async def _start_detached(config: Config) -> Running:
    arguments = ["gateway", "run"]
    for name in ("host", "port"):
        if config.origins[f"gateway.{name}"] == "flag":
            arguments += [f"--{name}", str(getattr(config.gateway, name))]
    log = config.home / LOG
    process = detach(config, arguments)
    try:
        return await _served(config, 0, process.poll)
    except _Ended as ended:
        last = log.read_text("utf-8", "replace").splitlines()[-20:]
        lines = [line for line in last if not line.startswith("{")]
        raise Exit(_code(ended.code), (lines or [f"it ended; see {log}"])[-1]) from None


def _code(code: int) -> Code:
    return next((known for known in Code if known == code != Code.OK), Code.INTERNAL)


async def stop(config: Config) -> None:
    """Stop the gateway, also for the next boot; return when it has ended."""
    unit, running = units.installed(config), await look(config)
    if running is None:
        if unit is not None and await _reported(unit, "state") in ("activating", "active"):
            await manage(unit, "stop")
        await _record_stop(config)
    elif unit is not None and await _manages(unit, running.pid):
        await _announced(config, unit, "stop")
        print("Stopped.")
    else:
        await _order(config, "/stop")
        await _gone(config, running.pid)
        print("Stopped.")


async def _record_stop(config: Config) -> None:
    """Record that a gateway that does not run is to stay stopped."""
    if (lock := take_lock(config.home)) is not None:
        await record(config, lock, Wanted.STOPPED)
        print(STAYS_STOPPED)
        return
    owner = read_owner(config.home)
    if owner.kind == "terminal":
        print(f"The gateway was not running; a terminal (pid {owner.pid}) owns the home.")
        return
    raise Exit(
        Code.TRY_AGAIN,
        f"process {owner.pid} owns the home and does not answer; try again, "
        f"or end it if it hangs: kill -9 {owner.pid} (nothing accepted is lost)",
    )


async def restart(config: Config) -> None:
    """Restart the gateway; return when the new one serves."""
    unit, running = _warn(config), await look(config)
    if running is None:
        await start(config)
        return
    if unit is not None and await _manages(unit, running.pid):
        await _announced(config, unit, "restart")
    else:
        await _order(config, "/restart")
        await _gone(config, running.pid)
    print(f"Running: {_described(await _served(config, running.pid, None))}")


async def _announced(config: Config, unit: units.Unit, verb: str) -> None:
    """Record why before the service manager sends its signal; undo that if it fails."""
    await _order(config, f"/announce/{verb}")
    try:
        await manage(unit, verb)
    except Exit:
        await _order(config, "/announce/nothing")
        raise


async def manage(unit: units.Unit, verb: str) -> str:
    """Call the service manager and return its output."""
    command = unit.command(verb)
    try:
        with anyio.fail_after(MANAGER_S):
            done = await anyio.run_process(command, check=False)
    except TimeoutError:
        raise Exit(Code.TRY_AGAIN, f"{' '.join(command)}: not done after {MANAGER_S:g} s") from None
    except OSError as error:
        raise Exit(Code.FAILED, f"{' '.join(command)}: {error.strerror}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise Exit(Code.FAILED, f"{' '.join(command)}: {said}")
    return done.stdout.decode(errors="replace").strip()


async def _manages(unit: units.Unit, pid: int) -> bool:
    """Tell whether that process is the unit's."""
    return str(pid) in (await _reported(unit, "pid")).replace("=", " ").split()


async def _reported(unit: units.Unit, verb: str) -> str:
    """Ask the service manager about the unit; empty if it does not answer."""
    try:
        return await manage(unit, verb)
    except Exit:
        return ""


def _warn(config: Config) -> units.Unit | None:
    """Return the installed unit; warn if it does not match the settings."""
    unit = units.installed(config)
    if unit is not None and (what := units.disagreement(config, unit)):
        output.note(what)
    return unit


async def look(config: Config) -> Running | None:
    """Return the gateway that serves the home, if one does."""
    try:
        status, said = await operator.request(config.home, "GET", GATEWAY, within_s=LOOK_S)
        if status != 200:  # a terminal, which has no such route
            return None
        gateway = msgspec.json.decode(said, type=GatewayObject)
        path = "/health/detailed"  # 503 if there is a problem
        _, said = await operator.request(config.home, "GET", path, within_s=LOOK_S)
        health = msgspec.json.decode(said, type=HealthDetails)
    except _LOST:
        return None
    back = gateway.restored
    restored = "" if back is None else restored_line(back.at, back.runs, back.messages)
    address = read_owner(config.home).address
    return Running(gateway.pid, gateway.wanted, address, health, restored)


async def _order(config: Config, path: str) -> None:
    """Send an order to the gateway. Raises `Exit` if it is not accepted."""
    try:
        status, said = await operator.request(config.home, "POST", GATEWAY + path, within_s=LOOK_S)
    except _LOST as error:
        what = f"the gateway did not accept the order ({type(error).__name__}); try again"
        raise Exit(Code.TRY_AGAIN, what) from None
    if status >= 300:
        raise refusal(status, said)


class _Ended(Exception):
    """The started process ended before it served."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


async def _served(config: Config, before: int, ended: Callable[[], int | None] | None) -> Running:
    """Wait for a gateway that serves the home and is not the process `before`."""
    why = ""
    with anyio.move_on_after(READY_S):
        while True:
            running = await look(config)
            if running is not None and running.pid != before:
                if not (why := await _not_ready(config)):
                    return running
            if ended is not None and (code := ended()) is not None:
                raise _Ended(code)
            await anyio.sleep(POLL_S)
    said = f" ({why})" if why else ""
    what = f"it accepts no work after {READY_S:g} s{said}; see: holdfast gateway logs"
    raise Exit(Code.TRY_AGAIN, what)


async def _not_ready(config: Config) -> str:
    """Say why it accepts no work yet; empty if it does."""
    try:
        status, said = await operator.request(config.home, "GET", "/health/ready", within_s=LOOK_S)
    except _LOST as lost:
        return type(lost).__name__
    return "" if status == 200 else str(refusal(status, said))


async def _gone(config: Config, pid: int) -> None:
    """Return when the process has ended."""
    wait_s = config.gateway.drain_s + END_S
    with anyio.move_on_after(wait_s):
        await _end_of(pid)
        return
    raise Exit(Code.TRY_AGAIN, f"the process {pid} has not ended after {wait_s:g} s")


async def _end_of(pid: int) -> None:
    try:
        if sys.platform == "linux":  # works for a zombie too
            descriptor = os.pidfd_open(pid)
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
            return
        while True:
            os.kill(pid, 0)
            await anyio.sleep(POLL_S)
    except ProcessLookupError:
        return


def _described(running: Running) -> str:
    return f"pid {running.pid}, {running.address}"


async def _status(config: Config, args: argparse.Namespace) -> int:
    running, unit = await look(config), units.installed(config)
    wrong = units.disagreement(config, unit) if unit is not None else ""
    lines = {**(await _shown(config, running)), "unit": _unit_line(unit, wrong)}
    if args.json:
        print(output.as_json(lines))
    else:
        print("\n".join(f"{name:8} {text}" for name, text in lines.items()))
    if running is None:
        return NOT_RUNNING
    health = running.health
    unwell = wrong or health.paused or _unheard(health) or _ill(health.checks)
    return Code.FAILED if unwell else Code.OK


def _ill(checks: Mapping[str, str]) -> list[str]:
    """List the failed checks that keep work from being accepted or done."""
    ill = (checks.get(name, "ok") for name in ("journal", "audit"))
    return [said for said in ill if said != "ok"]


def restored_line(at: float, runs: int, messages: int) -> str:
    """Say that the journal is from a backup, and what that led to."""
    return (
        f"from a backup, noticed {output.local(at):%Y-%m-%d %H:%M}: {runs} unfinished runs ended, "
        f"{messages} messages held"
    )


def _unit_line(unit: units.Unit | None, wrong: str) -> str:
    if unit is None:
        return NO_UNIT
    return wrong or str(unit.path)


async def _shown(config: Config, running: Running | None) -> dict[str, str]:
    if running is None:
        known = await recorded(config.home)
        wanted = known.wanted if known is not None else Wanted.RUNNING
        shown = {"state": _who_has(config.home), "wanted": str(wanted)}
        if known is not None and (back := known.restored) is not None:
            shown["journal"] = restored_line(known.restored_at, back.runs, back.messages)
        return shown
    health = running.health
    since = output.local(time.time() - health.uptime_s)  # noqa: TID251  for the eye only
    counts = health.runs
    held = f"; {health.held}" if health.held else ""
    paused = f"; no work is done: {health.paused}" if health.paused else ""
    return {
        "state": "; ".join(
            [
                health.checks.get("process", ""),
                *_ill(health.checks),
                *map(RECEIVES_NOTHING.format, _unheard(health)),
            ]
        ),
        "wanted": running.wanted,
        "pid": str(running.pid),
        "since": f"{since:%Y-%m-%d %H:%M:%S}",
        "address": running.address,
        "version": health.version,
        "runs": f"{counts.running} running, {counts.queued} queued, {counts.waiting} waiting{held}",
        "sandbox": (health.sandbox.note or "not known yet") + paused,
        "chats": _chats(health.channels, health.undelivered),
        **({"journal": running.restored} if running.restored else {}),
    }


def _unheard(health: HealthDetails) -> list[str]:
    """List the channels that receive nothing now."""
    return [name for name, trouble in health.channels.items() if trouble]


def _chats(channels: Mapping[str, str], undelivered: int) -> str:
    heard = [f"{name} ({trouble})" if trouble else name for name, trouble in channels.items()]
    waiting = f"; {undelivered} undelivered: holdfast outbox" if undelivered else ""
    return (", ".join(heard) or "none; see docs/channels.md") + waiting


def _who_has(home: Path) -> str:
    """Say who owns the home, if no gateway answers."""
    if not is_locked(home):
        return "not running"
    owner = read_owner(home)
    if owner.kind == "terminal":
        return f"not running; a terminal (pid {owner.pid}) owns the home"
    return f"starting, ending or hung: pid {owner.pid} owns the home and does not answer"
