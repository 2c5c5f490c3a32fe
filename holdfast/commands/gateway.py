"""/home and /restart: the gateway itself."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import without_argument
from holdfast.core.approval.approval import Role
from holdfast.core.run.run import RunPhase
from holdfast.gateway import CommandTarget

IS_HOME = "This chat now gets the gateway's own messages."
RESTARTING = "Restarting. You will get a message when it is back."


async def _home(chat: CommandTarget) -> str:
    await chat.make_home()
    return IS_HOME


async def _restart(chat: CommandTarget) -> str:
    run = (await chat.status()).run
    await chat.restart()
    warned = run is not None and run.status is RunPhase.RUNNING  # every chat with a running run is
    return "" if warned else RESTARTING


_HOME_HELP = "Send the gateway's own messages to this chat: that it stops, that it is back."
_RESTART_HELP = "Restart the gateway; active runs continue afterwards."
COMMANDS = (
    Command("home", "", _HOME_HELP, Role.ADMIN, without_argument("home", _home)),
    Command("restart", "", _RESTART_HELP, Role.ADMIN, without_argument("restart", _restart)),
)
