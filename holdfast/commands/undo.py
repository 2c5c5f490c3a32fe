"""/undo: as if the last words had not been said."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import alone, code
from holdfast.core.approval import Role
from holdfast.gateway import Chat


async def _run(chat: Chat, rest: str) -> str:
    if rest:
        return alone("undo")
    words = code(await chat.undo())
    return f"Taken back, with what was answered{f': {words}' if words else '.'}"


COMMAND = Command(
    name="undo",
    arguments="",
    help="Take back your last words and the answer; what was done stays done.",
    needs=Role.RUN,
    run=_run,
)
