"""/resume: back to an earlier session."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import ago, code
from holdfast.core.approval import Role
from holdfast.gateway import Chat

_DIGITS = 9  # more is no number of a session


async def _run(chat: Chat, rest: str) -> str:
    number = rest.removeprefix("#")
    if rest and not (number.isdecimal() and len(number) <= _DIGITS):
        return "/resume takes the number of a session; /sessions lists them."
    back = await chat.resume(int(number) if rest else None)
    words = code(back.first_words) or "no words yet"
    return f"Back in session {back.number}: {words}, begun {ago(back.begun_at, back.now)}."


COMMAND = Command(
    name="resume",
    arguments="[number]",
    help="Go back to an earlier session; alone: to the one before.",
    needs=Role.RUN,
    run=_run,
)
