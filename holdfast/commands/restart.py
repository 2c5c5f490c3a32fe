"""/restart: the gateway, anew."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import alone
from holdfast.core.approval import Role
from holdfast.core.run import Status
from holdfast.gateway import Chat


async def _run(chat: Chat, rest: str) -> str:
    if rest:
        return alone("restart")
    run = (await chat.status()).run
    await chat.restart()
    warned = run is not None and run.status is Status.RUNNING  # as every such chat is
    return "" if warned else "Restarting. You will hear when it is back."


COMMAND = Command(
    name="restart",
    arguments="",
    help="Restart the gateway; what is at work goes on afterwards.",
    needs=Role.ADMIN,
    run=_run,
)
