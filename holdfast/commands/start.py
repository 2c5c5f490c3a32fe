"""/start: the first word of everybody on Telegram; links can put something behind it."""

from holdfast.commands.command import Command
from holdfast.commands.help import HEAD
from holdfast.core.approval import Role
from holdfast.gateway import Chat


async def _run(chat: Chat, rest: str) -> str:
    return HEAD


COMMAND = Command(
    name="start",
    arguments="",
    help="A greeting.",
    needs=Role.READ,
    run=_run,
)
