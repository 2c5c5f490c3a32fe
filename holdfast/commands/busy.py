"""/busy: what words do while a run is at work."""

from holdfast.commands.command import Command
from holdfast.core.approval import Role
from holdfast.core.inbox import Mode
from holdfast.gateway import Chat

_MEANS = {
    Mode.INTERRUPT: "New words stop what is at work and take its place.",
    Mode.QUEUE: "New words wait until what is at work is done.",
    Mode.STEER: "New words are passed on to what is at work.",
}
_TAKES = "/busy takes interrupt, queue or steer."


async def _run(chat: Chat, rest: str) -> str:
    chosen = rest.lower()
    if not chosen:
        mode = (await chat.status()).busy_mode
        return f"Now: {mode}. {_MEANS[mode]} {_TAKES}"
    if chosen not in set(Mode):
        return _TAKES
    await chat.choose_busy_mode(Mode(chosen))
    return _MEANS[Mode(chosen)]


COMMAND = Command(
    name="busy",
    arguments="[interrupt|queue|steer]",
    help="What new words do while a run is at work; alone: how it is set.",
    needs=Role.RUN,
    run=_run,
)
