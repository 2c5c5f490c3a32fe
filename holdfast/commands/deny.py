"""/deny: do not let a command run."""

from holdfast.commands.answering import settle
from holdfast.commands.command import Command
from holdfast.core.approval import Choice, Role
from holdfast.gateway import Chat


async def _run(chat: Chat, rest: str) -> str:
    if len(rest.split()) > 1:
        return "/deny takes the id of what is asked, or nothing: then it is the oldest."
    return await settle(chat, Choice.DENY, rest)


COMMAND = Command(
    name="deny",
    arguments="[id]",
    help="Refuse what waits for an approval: the oldest, or the one named.",
    needs=Role.APPROVE,
    run=_run,
)
