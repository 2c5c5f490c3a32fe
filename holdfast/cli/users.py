"""`holdfast users`: who is let into chats, by what, and who waits; `remove` shuts one out."""

import argparse
import time

import anyio
import msgspec

from holdfast.cli import operator, question
from holdfast.cli.exits import Code, Exit
from holdfast.cli.operator import People, Person
from holdfast.cli.pair import shown
from holdfast.config import Config


def main(args: argparse.Namespace) -> int:
    """List, or remove."""
    config = operator.load()
    if args.what == "remove":
        return anyio.run(_remove, config, args.user)
    return anyio.run(_list, config, args.json)


async def _list(config: Config, as_json: bool) -> int:  # noqa: FBT001  the flag as it was given
    people = (await operator.ask(config, "GET", "/v1/users", People)).data
    for person in people:
        print(msgspec.json.encode(person).decode() if as_json else _row(person))
    if not people and not as_json:
        print("Nobody is let in. Who writes to the bot is shown a code: holdfast pair CODE")
    return Code.OK


def _row(person: Person) -> str:
    if person.source == "offer":
        left = question.in_words(person.expires_at - time.time())  # noqa: TID251  for the eye only
        name = question.visible(person.name)
        return f"{shown(person):28} waits, their code {left}; says to be: {name}"
    roles = ", ".join(person.roles) or "nothing"
    return f"{shown(person):28} {roles:28} by {person.source}"


async def _remove(config: Config, named: str) -> int:
    platform, colon, user = named.partition(":")
    if not (platform and colon and user):
        raise Exit(Code.USAGE, "say who, as `holdfast users` shows them: telegram:12345")
    body = {"platform": platform, "user": user}
    await operator.ask(config, "POST", "/v1/users/remove", dict, body)
    print(f"{question.visible(named)} is shut out.")
    return Code.OK
