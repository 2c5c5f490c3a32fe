"""/new: a fresh session."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import alone
from holdfast.core.approval import Role
from holdfast.gateway import Chat


async def _run(chat: Chat, rest: str) -> str:
    if rest:
        return alone("new")
    await chat.begin()
    return "A fresh start. /resume goes back to where you were."


COMMAND = Command(
    name="new",
    arguments="",
    help="Begin afresh; what is at work is stopped.",
    needs=Role.RUN,
    run=_run,
)
