"""Reads a command from what somebody wrote, and has it answered.

A command is a slash and a name, then a space or the end. All else is words for the agent, paths
and lone slashes among them. What looks like a command and is none is not passed on: it was meant
for the gateway.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches

from holdfast.commands.command import Command
from holdfast.core.approval import Role
from holdfast.core.types import Value
from holdfast.errors import Refused
from holdfast.gateway import Chat

NAME = re.compile("[a-z_]{1,32}")
_CALL = re.compile(r"/([A-Za-z_]{1,32})(?!\S)")


class Call(Value):
    """A command that somebody gave, known or not."""

    name: str  # without the slash, in small letters
    rest: str  # what stands behind it


def read(text: str) -> Call | None:
    """The command that `text` is; None: it is words for the agent."""
    found = _CALL.match(text)
    return Call(found[1].lower(), text[found.end() :].strip()) if found else None


async def answer(call: Call, chat: Chat, commands: Mapping[str, Command]) -> str:
    """Do what `call` asks for; what to say about it, as markdown. Empty: nothing."""
    command = commands.get(call.name)
    if command is None:
        return unknown(call.name, [name for name in commands if may(chat, commands[name])])
    if not may(chat, command):
        return f"You may not use /{call.name}: it needs the role {command.needs}."
    try:
        return await command.run(chat, call.rest)
    except Refused as refused:
        return str(refused)


def may(chat: Chat, command: Command) -> bool:
    """Whether whoever speaks may use it. Whoever may do something may read."""
    return command.needs in chat.roles or (command.needs is Role.READ and bool(chat.roles))


def unknown(name: str, names: list[str]) -> str:
    """What to say where there is no command of that name; `names`: those there are."""
    near = get_close_matches(name, names, n=1)
    hint = f"Did you mean /{near[0]}? " if near else ""
    return f"There is no /{name}. {hint}/help lists what there is."
