"""`holdfast outbox`: messages to chats that are not sent; to send one after all, or to drop it.

Only a gateway has channels. Where none serves the home, what is said here is written down, and
done when the next one runs.
"""

import argparse
import time
from collections.abc import Callable
from datetime import UTC, datetime

import anyio
import msgspec

from holdfast.cli import run
from holdfast.cli.client import Client, connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.question import visible
from holdfast.cli.screen import Plain
from holdfast.cli.wire import Message, NotFound
from holdfast.config import Config

_SEE = "see what is not sent: holdfast outbox --all"
_ROOM = 76  # for the first words of a message
_UNITS = ((90.0, 1.0, "s"), (90 * 60.0, 60.0, "min"), (2 * 86_400.0, 3600.0, "h"))


def main(args: argparse.Namespace) -> int:
    """List, show, resend or drop."""
    config = run.load(args)
    if args.what == "list":
        show = _encoded if args.json else _listed
        return anyio.run(_list, config, bool(args.all), show)
    if not args.delivery_id:
        raise Exit(Code.USAGE, f"say which: holdfast outbox {args.what} ID; {_SEE}")
    show = _encoded if args.json else _whole
    return anyio.run(_one, config, args.delivery_id, args.what, show)


async def _list(config: Config, everything: bool, show: Callable[[Message], str]) -> int:  # noqa: FBT001  the flag as it was given
    async with connect(config, Plain().note) as client:
        found = await client.unsent(everything=everything)
    for one in found:
        print(show(one))
    if not found and show is _listed:
        print("Nothing waits to be sent.")
    return Code.OK


async def _one(config: Config, named: str, word: str, show: Callable[[Message], str]) -> int:
    async with connect(config, Plain().note) as client:
        delivery_id = await _find(client, named)
        try:
            found = await client.message(delivery_id, "" if word == "show" else word)
        except NotFound:
            raise Exit(Code.FAILED, f"there is no message {delivery_id}; {_SEE}") from None
        if word == "show" or show is _encoded:
            print(show(found))
        elif word == "drop":
            print(f"{found.delivery_id} dropped")
        else:
            print(f"{found.delivery_id} is sent again")
        if word == "resend" and client.is_owner:
            Plain().note("nobody serves the home: it goes out with: holdfast gateway start")
    return Code.OK


async def _find(client: Client, named: str) -> str:
    """The id that is meant: whole, or the beginning of just one."""
    ids = [m.delivery_id for m in await client.unsent(everything=True)]
    match [i for i in ids if i.startswith(named)]:
        case [delivery_id]:
            return delivery_id
        case several if several and named not in several:
            raise Exit(Code.USAGE, f"say which of {len(several)}: {', '.join(several)}")
        case _:
            return named  # it is one, or was sent, or never was: whoever serves knows


def _encoded(one: Message) -> str:
    return msgspec.json.encode(one).decode()


def _listed(one: Message) -> str:
    head = f"{one.delivery_id}  {one.status}  {_chat(one)}  {_age(one)} old, {_tries(one)}"
    words = " ".join(one.text.split())
    words = words if len(words) <= _ROOM else f"{words[: _ROOM - 1]}…"
    lines = [head, one.reason, f"“{words}”"]
    return "\n  ".join(visible(" ".join(line.split("\n"))) for line in lines if line)


def _whole(one: Message) -> str:
    at = datetime.fromtimestamp(one.queued_at, UTC).astimezone()
    fields = {
        "message": one.delivery_id,
        "status": one.status,
        "reason": " ".join(one.reason.split("\n")),
        "to": _chat(one),
        "queued": f"{at:%Y-%m-%d %H:%M:%S}, {_age(one)} ago",
        "tries": _tries(one) + (", it may have arrived" if one.repeated else ""),
        "run": one.run_id,
        "changes": one.edits,
    }
    lines = [f"{name:8} {visible(value)}" for name, value in fields.items() if value]
    return "\n".join([*lines, "text", *(f"  {visible(line)}" for line in one.text.split("\n"))])


def _chat(one: Message) -> str:
    return f"{one.platform} {one.chat}" + (f", thread {one.thread}" if one.thread else "")


def _tries(one: Message) -> str:
    return "1 try" if one.attempts == 1 else f"{one.attempts} tries"


def _age(one: Message) -> str:
    age = max(0.0, time.time() - one.queued_at)  # noqa: TID251  for the eye only
    for limit, unit, name in _UNITS:
        if age < limit:
            return f"{round(age / unit)} {name}"
    return f"{round(age / 86_400.0)} d"
