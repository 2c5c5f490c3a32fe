"""/help: what there is. It is made once all others are known, and lists what the speaker may use."""

from collections.abc import Mapping

from holdfast.commands.command import Command
from holdfast.commands.parse import may, read, unknown
from holdfast.core.approval import Role
from holdfast.gateway import Chat

HEAD = (
    "This is Holdfast, an agent that works for you. Say what you need; it answers here.\n"
    "/stop ends what it does, /new begins afresh, /help lists all commands."
)


def create(commands: Mapping[str, Command]) -> Command:
    """The command that tells of `commands`."""

    async def run(chat: Chat, rest: str) -> str:
        usable = {name: one for name, one in commands.items() if may(chat, one)}
        if not rest:
            return "\n".join([HEAD, "", *map(_line, usable.values())])
        named = read(f"/{rest.removeprefix('/')}")
        if named is None or named.rest:
            return "/help takes the name of one command, or nothing."
        found = commands.get(named.name)
        return _line(found) if found else unknown(named.name, list(usable))

    return Command(
        name="help",
        arguments="[command]",
        help="All commands, or one.",
        needs=Role.READ,
        run=run,
    )


def _line(command: Command) -> str:
    return f"{usage(command)}: {command.help}"


def usage(command: Command) -> str:
    """How it is written."""
    return f"/{command.name} {command.arguments}".strip()
