"""/steer: words for the run at work."""

from holdfast.commands.command import Command
from holdfast.commands.saying import say
from holdfast.core.approval import Role
from holdfast.core.inbox import Mode
from holdfast.gateway import Chat


async def _run(chat: Chat, rest: str) -> str:
    if not rest:
        return "/steer takes words: what the run at work is to know."
    return await say(chat, rest, Mode.STEER)


COMMAND = Command(
    name="steer",
    arguments="<words>",
    help="Tell the run at work something; it goes on with it in mind.",
    needs=Role.RUN,
    run=_run,
)
