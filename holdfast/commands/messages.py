"""/queue, /steer, /interrupt and /busy: what a message does while a run is active."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import count
from holdfast.core.approval.approval import Role
from holdfast.core.inbox import Mode
from holdfast.gateway import CommandTarget

QUEUED = "Queued behind the active run"
ANSWERED = "Taken as the answer to its question."
PASSED_ON = "Passed on: the run reads it before its next step."
NOTHING_WAITS = "Nothing waits."
MEANS = {
    Mode.INTERRUPT: "A new message stops the active run and takes its place.",
    Mode.QUEUE: "A new message waits until the active run has ended.",
    Mode.STEER: "A new message is passed on to the active run.",
}
_BUSY_TAKES = "/busy takes interrupt, queue or steer."


async def _queue(chat: CommandTarget, rest: str) -> str:
    if not rest:
        waiting = (await chat.status()).waiting
        return f"Waiting: {count(waiting, 'run')}." if waiting else NOTHING_WAITS
    return await _say(chat, rest, Mode.QUEUE)


async def _steer(chat: CommandTarget, rest: str) -> str:
    if not rest:
        return "/steer takes a message for the active run."
    return await _say(chat, rest, Mode.STEER)


async def _interrupt(chat: CommandTarget, rest: str) -> str:
    if not rest:
        return "/interrupt takes a message: what to do instead. To stop only, send /stop."
    return await _say(chat, rest, Mode.INTERRUPT)


async def _say(chat: CommandTarget, words: str, mode: Mode) -> str:
    """Send the message and say what happened to it; empty: a run starts with it.

    The status afterwards decides: a message of a person who may not stop the run waits behind it.
    """
    before = await chat.status()
    await chat.say(words, mode)
    if before.run is None:
        return ""
    if before.question:
        return ANSWERED
    after = await chat.status()
    if after.run is None or after.run.run_id != before.run.run_id or after.run.stopping:
        return ""
    if after.waiting > before.waiting:
        more = f" and {before.waiting:,} more" if before.waiting else ""
        return f"{QUEUED}{more}."
    return PASSED_ON


async def _busy(chat: CommandTarget, rest: str) -> str:
    chosen = rest.lower()
    if not chosen:
        mode = (await chat.status()).busy_mode
        return f"Now: {mode}. {MEANS[mode]} {_BUSY_TAKES}"
    if chosen not in set(Mode):
        return _BUSY_TAKES
    await chat.choose_busy_mode(Mode(chosen))
    return MEANS[Mode(chosen)]


_QUEUE_HELP = "Queue a message behind the active run; alone: show how many wait."
_STEER_HELP = "Give the active run a message; it reads it before its next step."
_INTERRUPT_HELP = "Stop the active run and work on this message instead."
_BUSY_HELP = "Choose what a new message does while a run is active; alone: show the setting."
COMMANDS = (
    Command("queue", "[message]", _QUEUE_HELP, Role.RUN, _queue),
    Command("steer", "<message>", _STEER_HELP, Role.RUN, _steer),
    Command("interrupt", "<message>", _INTERRUPT_HELP, Role.RUN, _interrupt),
    Command("busy", "[interrupt|queue|steer]", _BUSY_HELP, Role.RUN, _busy),
)
