"""Parse a message as a slash command, and run the command.

A command is a slash and a name, then a space or the end. Everything else, including paths and a
single slash, is a message for the agent. An unknown command is not passed on: it was meant for the
gateway.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches

from holdfast.commands.command import Command
from holdfast.core.approval.approval import Role
from holdfast.core.types import Value
from holdfast.errors import Refused
from holdfast.gateway import CommandTarget

NAME = re.compile("[a-z_]{1,32}")
_CALL = re.compile(r"/([A-Za-z_]{1,32})(?!\S)")


class GivenCommand(Value):
    """A command as it was sent, known or not."""

    name: str  # without the slash, in lower case
    rest: str  # the text after the name


def read(text: str) -> GivenCommand | None:
    """Return the command in `text`; None if it is a message for the agent."""
    found = _CALL.match(text)
    return GivenCommand(found[1].lower(), text[found.end() :].strip()) if found else None


async def answer(call: GivenCommand, chat: CommandTarget, commands: Mapping[str, Command]) -> str:
    """Run the command and return its reply as Markdown; empty: no reply."""
    command = commands.get(call.name)
    if command is None:
        return unknown(call.name, [name for name in commands if may(chat, commands[name])])
    if not may(chat, command):
        return f"You may not use /{call.name}: it needs the role {command.needs}."
    try:
        return await command.run(chat, call.rest)
    except Refused as refused:
        return str(refused)


def may(chat: CommandTarget, command: Command) -> bool:
    """Return true if the sender may use the command. Every role includes reading."""
    return command.needs in chat.roles or (command.needs is Role.READ and bool(chat.roles))


def unknown(name: str, names: list[str]) -> str:
    """Return the reply to an unknown command; `names` are the known ones."""
    near = get_close_matches(name, names, n=1)
    hint = f"Did you mean /{near[0]}? " if near else ""
    return f"There is no /{name}. {hint}/help lists all commands."
