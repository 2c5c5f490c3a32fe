"""`holdfast sandbox`: how well commands are confined here, and whether work is held for that.

Whoever owns the home knows. Where nobody does, we do as any command would: the engine in this
process finds out, and compares. In a home where nothing was ever done nothing can be held; there
it is only tried, and nothing is made.
Work is held where commands are confined worse than when it went on last; to go on all the same
is the operator's word: `holdfast sandbox accept`.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec

from holdfast.cli import run
from holdfast.cli.client import Client, connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.screen import Plain
from holdfast.cli.wire import Confined, Health
from holdfast.config import Config
from holdfast.control import JOURNAL
from holdfast.core.approval import Level, Posture
from holdfast.tools.sandbox import Sandbox, Unprobed

KNOWN_S = 10.0  # for an owner to have tried its sandbox


def main(args: argparse.Namespace) -> int:
    """Show, or accept."""
    config = run.load(args)
    if args.what == "accept":
        return anyio.run(_accept, config)
    return anyio.run(_show, config, _encoded if args.json else _shown)


async def probe(config: Config) -> Posture:
    """How well a command started from here would be confined: found in a home of its own."""
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
            return Posture(Level.L0, (), (), f"not known: {why}")


async def _show(config: Config, show: Callable[[Health], str]) -> int:
    async with connect(config, Plain().note) as client:
        health = await found(client) or await _tried(config)
        alone = client.is_owner or not await client.is_served()
    if alone and show is _shown:
        Plain().note("nobody serves the home: tried from here, as the next command would")
    print(show(health))
    return Code.FAILED if health.paused else Code.OK


async def found(client: Client) -> Health | None:
    """What whoever serves says, or our own engine; None if there is nothing to ask about."""
    if not await client.is_served():
        if not (client.config.home / JOURNAL).exists():
            return None
        await client.runs(limit=1)  # somebody serves from here on, if only we ourselves
    return await _known(client)


async def _tried(config: Config) -> Health:
    posture = await probe(config)
    return Health(Confined(posture.level.name, posture.note), "")


def _encoded(health: Health) -> str:
    fields = {"level": health.sandbox.level, "note": health.sandbox.note, "paused": health.paused}
    return msgspec.json.encode(fields).decode()


def _shown(health: Health) -> str:
    level, note = (
        health.sandbox.level,
        health.sandbox.note.removeprefix(f"{health.sandbox.level}: "),
    )
    work = f"no work is done: {health.paused}" if health.paused else "no"
    return f"level   {level}\nnote    {note}\npaused  {work}"


async def _known(client: Client) -> Health:
    """What the owner says once it has tried its sandbox."""
    with anyio.move_on_after(KNOWN_S):
        if (health := await client.health()) is not None:
            return health
    raise Exit(Code.TRY_AGAIN, "whoever owns the home does not say; try again, or start it again")


async def _accept(config: Config) -> int:
    async with connect(config, Plain().note) as client:
        await client.runs(limit=1)  # somebody serves from here on, if only we ourselves
        before = await _known(client)
        accepted = await client.accept_sandbox()
        print(f"accepted: {accepted.note}")
        if not before.paused:
            print("No work was held for it.")
        elif client.is_owner:
            print("What was held goes on with: holdfast runs RUN, or holdfast gateway run")
    return Code.OK
