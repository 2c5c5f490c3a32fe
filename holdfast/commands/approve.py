"""/approve: let a command run that waits for a yes."""

from holdfast.commands.answering import settle
from holdfast.commands.command import Command
from holdfast.core.approval import Choice, Role
from holdfast.gateway import Chat

_YES = frozenset(Choice) - {Choice.DENY}


async def _run(chat: Chat, rest: str) -> str:
    words = rest.split()
    choices = [Choice(word.lower()) for word in words if word.lower() in _YES]
    ids = [word for word in words if word.lower() not in _YES]
    if len(choices) > 1 or len(ids) > 1:
        return "/approve takes once or session, and the id of what is asked; both may be left out."
    return await settle(chat, choices[0] if choices else Choice.ONCE, ids[0] if ids else "")


COMMAND = Command(
    name="approve",
    arguments="[once|session] [id]",
    help="Allow what waits for an approval: the oldest, or the one named.",
    needs=Role.APPROVE,
    run=_run,
)
