"""Run a command that needs a client."""

import argparse
from collections.abc import Awaitable, Callable

import anyio

from holdfast.cli import output
from holdfast.cli.client import operator
from holdfast.cli.client.client import Client, connect
from holdfast.config.settings import Config

Action = Callable[[Client, argparse.Namespace], Awaitable[int]]


def run(args: argparse.Namespace, action: Action, loaded: Config | None = None) -> int:
    """Load the configuration if it is not, connect, and return the exit code of the action."""
    config = loaded or operator.load({"model": args.model})

    async def connected() -> int:
        async with connect(config, output.note) as client:
            return await action(client, args)

    return anyio.run(connected)
