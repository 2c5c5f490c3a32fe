"""`holdfast sessions`: what cut their work, if anything; mark or unmark one; end a search.

A mark says that a session's work was cut and no run has completed since: whoever goes on with it
is told. To drop it by hand is for work that nobody wants to go on with.
"""

import argparse
from datetime import UTC, datetime

import anyio
import msgspec

from holdfast.cli import run
from holdfast.cli.client import connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.screen import Plain
from holdfast.cli.wire import SessionObject
from holdfast.config import Config


def main(args: argparse.Namespace) -> int:
    """List, mark, unmark or release."""
    config = run.load(args)
    match args.what:
        case "list":
            return anyio.run(_list, config, args.json)
        case "release":
            return anyio.run(_release, config)
        case word if args.session_id:
            return anyio.run(_mark, config, args.session_id, word)
        case word:
            raise Exit(
                Code.USAGE, f"say which: holdfast sessions {word} ID; all: holdfast sessions"
            )


async def _list(config: Config, as_json: bool) -> int:  # noqa: FBT001  the flag as it was given
    async with connect(config, Plain().note) as client:
        found = await client.sessions()
    for one in found:
        print(msgspec.json.encode(one).decode() if as_json else _shown(one))
    if not found and not as_json:
        print("There are no sessions.")
    return Code.OK


def _shown(one: SessionObject) -> str:
    words = [one.session_id, one.status if not one.reason else f"{one.status} ({one.reason})"]
    if one.unfinished:
        words.append(f"{one.unfinished} unfinished" + (f", {one.held} held" if one.held else ""))
    if one.mark:
        at = datetime.fromtimestamp(one.marked_at, UTC).astimezone()
        words.append(f"cut {at:%Y-%m-%d %H:%M:%S}: {one.mark} ({one.mark_reason})")
    return "  ".join(words)


async def _mark(config: Config, session_id: str, word: str) -> int:
    async with connect(config, Plain().note) as client:
        await client.mark(session_id, word)
    print(f"{session_id} {'has its mark' if word == 'mark' else 'has no mark any more'}")
    return Code.OK


async def _release(config: Config) -> int:
    async with connect(config, Plain().note) as client:
        if not await client.is_served():
            raise Exit(Code.TRY_AGAIN, "nobody serves the home, so nothing is held")
        released = await client.release()
    print(f"{released} runs go on" if released else "No run was held.")
    return Code.OK
