"""`holdfast users`: list who may use the chats and who waits; `remove` removes a person."""

import argparse
import time

import anyio

from holdfast.api.schema.operator import RemoveUserRequest, RemoveUserResponse, UserList, UserObject
from holdfast.cli import output
from holdfast.cli.client import operator
from holdfast.cli.exits import Code, Exit
from holdfast.cli.ops.pair import shown
from holdfast.cli.run import approval
from holdfast.config.settings import Config
from holdfast.core.text.escape import reveal

NO_USERS = "No users. A person who writes to the bot gets a code: holdfast pair CODE"


def main(args: argparse.Namespace) -> int:
    """List, or remove."""
    return anyio.run(_remove if args.what == "remove" else _list, operator.load(), args)


async def _list(config: Config, args: argparse.Namespace) -> int:
    people = (await operator.ask(config, "GET", "/v1/users", UserList)).data
    output.print_each(people, _row, NO_USERS, output.as_json if args.json else None)
    return Code.OK


def _row(person: UserObject) -> str:
    if person.source == "offer":
        left = approval.in_words(person.expires_at - time.time())  # noqa: TID251  for the eye only
        name = reveal(person.name)
        return f"{shown(person):28} waits, code {left}; calls themselves {name}"
    roles = ", ".join(person.roles) or "nothing"
    return f"{shown(person):28} {roles:28} by {person.source}"


async def _remove(config: Config, args: argparse.Namespace) -> int:
    platform, colon, user = args.user.partition(":")
    if not (platform and colon and user):
        raise Exit(Code.USAGE, "USER must look like telegram:12345, as `holdfast users` shows it")
    body = RemoveUserRequest(platform, user)
    await operator.ask(config, "POST", "/v1/users/remove", RemoveUserResponse, body)
    print(f"{reveal(args.user)} is removed.")
    return Code.OK
