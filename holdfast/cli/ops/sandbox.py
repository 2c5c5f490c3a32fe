"""`holdfast sandbox`: show how well commands are confined, and whether work is on hold.

The running gateway knows. Without one, the engine in this process tests the sandbox and compares.
If the home has no journal yet, nothing can be on hold: the sandbox is tested, and nothing is
written. Work is on hold if commands are confined worse than at the last work, until the operator
runs `holdfast sandbox accept`.
"""

import argparse
import tempfile
from pathlib import Path

import anyio

from holdfast.api.schema.health import HealthDetails, SandboxObject
from holdfast.cli import output
from holdfast.cli.client import connected
from holdfast.cli.client.client import Client
from holdfast.cli.exits import Code, Exit
from holdfast.config.settings import Config
from holdfast.core.approval.approval import Level, Posture
from holdfast.host.control import JOURNAL
from holdfast.tools.sandbox.sandbox import Sandbox, Unprobed

KNOWN_S = 10.0  # for a gateway to test its sandbox
TESTED_HERE = "no gateway runs: tested from this process"
NOT_ON_HOLD = "No work was on hold."
TO_CONTINUE = "To continue: holdfast runs RUN, or holdfast gateway run"


def main(args: argparse.Namespace) -> int:
    """Show, or accept."""
    return connected.run(args, _accept if args.what == "accept" else _show)


async def probe(config: Config) -> Posture:
    """Test how well a command started from here would be confined, in a temporary home."""
    with tempfile.TemporaryDirectory(prefix="holdfast-probe-") as home:
        sandbox = Sandbox(
            Path(home),
            config.user_home,
            allow_none=config.sandbox.allow_none,
            container=config.sandbox.container,
        )
        try:
            return await sandbox.probe()
        except Unprobed as why:
            return Posture(Level.L0, (), (), f"unknown: {why}")


async def _show(client: Client, args: argparse.Namespace) -> int:
    health = await found(client) or await _tried(client.config)
    alone = client.is_owner or not await client.is_served()
    if alone and not args.json:
        output.note(TESTED_HERE)
    print(_encoded(health) if args.json else _shown(health))
    return Code.FAILED if health.paused else Code.OK


async def found(client: Client) -> HealthDetails | None:
    """Return the health of the gateway or of our own engine; None if there is no journal."""
    if not await client.is_served():
        if not (client.config.home / JOURNAL).exists():
            return None
        await client.runs(limit=1)  # starts the embedded engine if no gateway runs
    return await _known(client)


async def _tried(config: Config) -> HealthDetails:
    posture = await probe(config)
    return HealthDetails(sandbox=SandboxObject(posture.level.name, posture.note), paused="")


def _encoded(health: HealthDetails) -> str:
    found = health.sandbox
    return output.as_json({"level": found.level, "note": found.note, "paused": health.paused})


def _shown(health: HealthDetails) -> str:
    level = health.sandbox.level
    note = health.sandbox.note.removeprefix(f"{level}: ")
    work = f"no work is done: {health.paused}" if health.paused else "no"
    return f"level   {level}\nnote    {note}\npaused  {work}"


async def _known(client: Client) -> HealthDetails:
    """Return the health once the sandbox has been tested."""
    with anyio.move_on_after(KNOWN_S):
        if (health := await client.health()) is not None:
            return health
    line = "the gateway has not tested its sandbox yet; try again, or restart it"
    raise Exit(Code.TRY_AGAIN, line)


async def _accept(client: Client, args: argparse.Namespace) -> int:
    await client.runs(limit=1)  # starts the embedded engine if no gateway runs
    before = await _known(client)
    print(f"accepted: {(await client.accept_sandbox()).note}")
    if not before.paused:
        print(NOT_ON_HOLD)
    elif client.is_owner:
        print(TO_CONTINUE)
    return Code.OK
