"""/queue: words that wait for their turn."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import count
from holdfast.commands.saying import say
from holdfast.core.approval import Role
from holdfast.core.inbox import Mode
from holdfast.gateway import Chat


async def _run(chat: Chat, rest: str) -> str:
    if not rest:
        waiting = (await chat.status()).waiting
        return f"Waiting: {count(waiting, 'run')}." if waiting else "Nothing waits."
    return await say(chat, rest, Mode.QUEUE)


COMMAND = Command(
    name="queue",
    arguments="[words]",
    help="Work on these words after what is at work; alone: how many wait.",
    needs=Role.RUN,
    run=_run,
)
