"""/sessions: the sessions this conversation has had."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import ago, code
from holdfast.core.approval import Role
from holdfast.gateway import Chat, ChatSession

_SHOWN = 10  # as many as fit a phone


async def _run(chat: Chat, rest: str) -> str:
    found = sorted(await chat.sessions(), key=lambda one: one.number, reverse=True)
    if not found:
        return "No sessions yet: your next words begin one."
    shown = [one for at, one in enumerate(found) if at < _SHOWN or one.current]
    lines = [_line(one) for one in shown]
    if len(found) > len(shown):
        lines.append(f"And {len(found) - len(shown):,} older.")
    return "\n".join([*lines, "/resume and a number brings one back."])


def _line(one: ChatSession) -> str:
    current = ", **current**" if one.current else ""
    words = code(one.first_words) or "no words yet"
    return f"{one.number}. {words}, {ago(one.begun_at, one.now)}{current}"


COMMAND = Command(
    name="sessions",
    arguments="",
    help="The sessions of this chat, newest first.",
    needs=Role.READ,
    run=_run,
)
