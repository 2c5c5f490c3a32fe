"""`holdfast runs`: the latest runs; `holdfast runs RUN`: that one, to its end."""

import argparse
import signal

import anyio

from holdfast.api.schema.runs import RunObject
from holdfast.cli import output
from holdfast.cli.client import connected
from holdfast.cli.client.client import Client
from holdfast.cli.exits import Code, Exit
from holdfast.cli.run import run
from holdfast.cli.run.screen import JsonScreen, Plain
from holdfast.core.text.escape import reveal


def main(args: argparse.Namespace) -> int:
    """List, or follow."""
    return connected.run(args, _follow if args.run_id else _list)


async def _follow(client: Client, args: argparse.Namespace) -> int:
    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        screen = JsonScreen() if args.json else Plain()
        return await run.follow(client, args.run_id, screen, signals)


async def _list(client: Client, args: argparse.Namespace) -> int:
    # Do not start an engine for this: it would resume interrupted runs only to interrupt them again.
    if not await client.is_served():
        raise Exit(Code.TRY_AGAIN, "no server is running; start one: holdfast gateway run")
    encode = output.as_json if args.json else None
    output.print_each(await client.runs(), _row, "", encode)
    return Code.OK


def _row(found: RunObject) -> str:
    whose = f"  of {reveal(found.owner)}" if found.owner else ""
    at = f"{output.local(found.created_at):%Y-%m-%d %H:%M}"
    return f"{found.run_id}  {at}  {found.status:12} {found.session_id}{whose}"
