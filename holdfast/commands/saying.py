"""Words that a command passes to the agent: /queue, /steer, /interrupt."""

from holdfast.core.inbox import Mode
from holdfast.gateway import Chat


async def say(chat: Chat, words: str, mode: Mode) -> str:
    """Pass `words` on, and tell what became of them; empty: a run begins with them.

    Read from how things stand afterwards: whoever may not stop a run waits behind it.
    """
    before = await chat.status()
    await chat.say(words, mode)
    if before.run is None:
        return ""
    if before.question:
        return "Taken as the answer to its question."
    after = await chat.status()
    if after.run is None or after.run.run_id != before.run.run_id or after.run.stopping:
        return ""
    if after.waiting > before.waiting:
        more = f" and {before.waiting:,} more" if before.waiting else ""
        return f"Queued, behind the run at work{more}."
    return "Passed on: it is read before the next step."
