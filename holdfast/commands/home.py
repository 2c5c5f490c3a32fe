"""/home: where the gateway speaks when nobody asked."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import alone
from holdfast.core.approval import Role
from holdfast.gateway import Chat


async def _run(chat: Chat, rest: str) -> str:
    if rest:
        return alone("home")
    await chat.make_home()
    return "This is home now: what the gateway has to say unasked, it says here."


COMMAND = Command(
    name="home",
    arguments="",
    help="Have the gateway speak here when nobody asked: that it stops, that it is back.",
    needs=Role.ADMIN,
    run=_run,
)
