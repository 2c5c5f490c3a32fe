"""/help: list the commands that the sender may use; made after all other commands. /start: greet."""

from collections.abc import Mapping

from holdfast.commands.command import Command
from holdfast.commands.parse import may, read, unknown
from holdfast.core.approval.approval import Role
from holdfast.gateway import CommandTarget

HEAD = (
    "This is Holdfast, an agent that works for you. Write what you need; it answers here.\n"
    "/stop stops the active run, /new starts a new session, /help lists all commands."
)


def create(commands: Mapping[str, Command]) -> Command:
    """Return the command that lists `commands`."""

    async def run(chat: CommandTarget, rest: str) -> str:
        usable = {name: one for name, one in commands.items() if may(chat, one)}
        if not rest:
            return "\n".join([HEAD, "", *map(_line, usable.values())])
        named = read(f"/{rest.removeprefix('/')}")
        if named is None or named.rest:
            return "/help takes the name of one command, or nothing."
        found = commands.get(named.name)
        return _line(found) if found else unknown(named.name, list(usable))

    return Command("help", "[command]", "List all commands, or explain one.", Role.READ, run)


async def _start(chat: CommandTarget, rest: str) -> str:
    return HEAD


# The first message of every user on Telegram; a link can add an argument.
COMMANDS = (Command("start", "", "Show a greeting.", Role.READ, _start),)


def _line(command: Command) -> str:
    return f"{usage(command)}: {command.help}"


def usage(command: Command) -> str:
    """Return the command with its arguments."""
    return f"/{command.name} {command.arguments}".strip()
