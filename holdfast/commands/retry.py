"""/retry: the last words again."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import alone
from holdfast.core.approval import Role
from holdfast.gateway import Chat


async def _run(chat: Chat, rest: str) -> str:
    if rest:
        return alone("retry")
    await chat.retry()
    return ""  # the run that begins will answer


COMMAND = Command(
    name="retry",
    arguments="",
    help="Work on your last words again, in place of what came of them.",
    needs=Role.RUN,
    run=_run,
)
