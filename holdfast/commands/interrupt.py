"""/interrupt: words instead of what is at work."""

from holdfast.commands.command import Command
from holdfast.commands.saying import say
from holdfast.core.approval import Role
from holdfast.core.inbox import Mode
from holdfast.gateway import Chat


async def _run(chat: Chat, rest: str) -> str:
    if not rest:
        return "/interrupt takes words: what to do instead. To only stop, say /stop."
    return await say(chat, rest, Mode.INTERRUPT)


COMMAND = Command(
    name="interrupt",
    arguments="<words>",
    help="Drop what is at work and work on these words instead.",
    needs=Role.RUN,
    run=_run,
)
