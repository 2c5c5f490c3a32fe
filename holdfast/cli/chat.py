"""`holdfast` alone: a conversation, line by line. Through a pipe it is `holdfast run`.

Each line is a run in the same session. Ctrl-C during a run stops that run and comes
back to the prompt; Ctrl-C or Ctrl-D at the prompt, or /quit, leaves. A line typed while
a run works waits in the terminal and is the next one. What a line brings may fail; the
conversation goes on.
"""

import argparse
import os
import signal
import sys

import anyio
import msgspec
from msgspec.structs import replace

from holdfast.cli import run
from holdfast.cli.client import Client, connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.run import Errand, Signals
from holdfast.cli.screen import JsonLines, Plain, Screen
from holdfast.config import Config

PROMPT = "› "


def main(args: argparse.Namespace) -> int:
    """Talk, if there is a terminal to talk through."""
    if sys.stdin is None or not sys.stdin.isatty():
        return run.main(args)
    config = run.load(args)
    screen: Screen = JsonLines() if args.json else Plain()
    return anyio.run(_talk, config, run.prepare(args, config, ""), screen)


async def _talk(config: Config, errand: Errand, screen: Screen) -> int:
    async with connect(config, screen.note) as client:
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            while True:
                line = await run.unless_interrupted(signals, _read_line)
                if not line or line.strip() == "/quit":
                    return Code.OK
                if line.strip():
                    errand = _say(errand, input=line.strip())
                    errand = await _answer(client, errand, screen, signals)


async def _answer(client: Client, errand: Errand, screen: Screen, signals: Signals) -> Errand:
    """One line's run. Returns the errand that the next line goes on from."""
    try:
        run_id = await run.unless_interrupted(signals, lambda: run.submit(client, errand, screen))
        if run_id is not None:
            await run.follow(client, run_id, screen, signals)
            session = (await client.status(run_id)).session_id
            errand = _say(errand, session_id=session)
    except* Exit as group:
        screen.note(f"holdfast: {group.exceptions[0]}")
    return errand


def _say(errand: Errand, **fields: str) -> Errand:
    return replace(errand, submission=msgspec.structs.replace(errand.submission, **fields))


async def _read_line() -> str:
    """The next line with its end, or nothing at the end of the input.

    By readiness, not in a thread: a thread in read() could be neither cancelled nor left.
    """
    print(PROMPT, end="", flush=True)
    await anyio.wait_readable(sys.stdin)
    return os.read(sys.stdin.fileno(), 1 << 16).decode("utf-8", "replace")
