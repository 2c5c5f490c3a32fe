"""`holdfast runs`: the latest runs; `holdfast runs RUN`: that one, to its end."""

import argparse
import signal
from datetime import UTC, datetime

import anyio
import msgspec

from holdfast.cli import question, run
from holdfast.cli.client import connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.screen import JsonLines, Plain, Screen
from holdfast.config import Config


def main(args: argparse.Namespace) -> int:
    """List, or follow."""
    config = run.load(args)
    screen: Screen = JsonLines() if args.json else Plain()
    if args.run_id:
        return anyio.run(_follow, config, args.run_id, screen)
    return anyio.run(_list, config, screen)


async def _follow(config: Config, run_id: str, screen: Screen) -> int:
    async with connect(config, screen.note) as client:
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            return await run.follow(client, run_id, screen, signals)


async def _list(config: Config, screen: Screen) -> int:
    async with connect(config, screen.note) as client:
        # Not worth an engine: it would take up what was cut, only to cut it again.
        if not await client.is_served():
            raise Exit(Code.TRY_AGAIN, "nobody serves the home; start: holdfast gateway run")
        for found in await client.runs():
            if isinstance(screen, JsonLines):
                print(msgspec.json.encode(found).decode())
            else:
                at = datetime.fromtimestamp(found.created_at, UTC).astimezone()
                whose = f"  of {question.visible(found.owner)}" if found.owner else ""
                line = f"{found.run_id}  {at:%Y-%m-%d %H:%M}  {found.status:12} {found.session_id}"
                print(line + whose)
    return 0
