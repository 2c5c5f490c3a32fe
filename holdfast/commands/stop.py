"""/stop: end what is at work. Whatever stands behind it: a stop is a stop."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import count
from holdfast.core.approval import Role
from holdfast.gateway import Chat


async def _run(chat: Chat, rest: str) -> str:
    stopped = await chat.stop()
    said = f"Stopped: {count(stopped, 'run')}." if stopped else "Nothing was at work."
    afresh = " Your next words begin afresh; /resume goes back to this session."
    return said + (afresh if (await chat.status()).suspended else "")


COMMAND = Command(
    name="stop",
    arguments="",
    help="Stop what is at work and what waits behind it, and leave the session.",
    needs=Role.RUN,
    run=_run,
)
