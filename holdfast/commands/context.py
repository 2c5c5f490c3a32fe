"""/context: show what fills the model's window. /compact: shorten what the model reads."""

from collections.abc import Iterator

from holdfast.commands.command import Command
from holdfast.commands.phrases import count, without_argument
from holdfast.core.approval.approval import Role
from holdfast.core.session.compaction import Filling
from holdfast.gateway import CommandTarget

NOTHING_LEFT = (
    "There is nothing to leave out: the model reads little more than the latest messages."
)
COMPACTED = "Done. The model reads notes in place of {hidden}; you still see everything."
NOT_KNOWN = "The size of the model's window is not known (`context_tokens` sets it)."


async def _context(chat: CommandTarget) -> str:
    return "\n".join(_lines(await chat.context()))


async def _compact(chat: CommandTarget, focus: str) -> str:
    now = await chat.compact(focus)
    if now is None:
        return NOTHING_LEFT
    done = COMPACTED.format(hidden=count(now.hidden, "message"))
    return "\n".join([done, *_lines(now)])


def _lines(now: Filling) -> Iterator[str]:
    about = "" if now.measured else "about "
    if now.window:
        share = round(100 * now.used / now.window)
        yield f"**The next request takes {about}{now.used:,} of {now.window:,} tokens ({share} %).**"
    else:
        yield f"**The next request takes {about}{now.used:,} tokens.** {NOT_KNOWN}"
    yield f"- Instructions and tools: {now.overhead:,}"
    if now.hidden:
        yield f"- Notes on {count(now.hidden, 'earlier message')}: {now.summary:,}"
    yield f"- Messages: {now.messages:,}"
    yield f"- Results of tools: {now.results:,}"


_CONTEXT_HELP = "Show what fills the model's window."
_COMPACT_HELP = "Replace the beginning of what the model reads by notes, which keep above all this."
COMMANDS = (
    Command("context", "", _CONTEXT_HELP, Role.READ, without_argument("context", _context)),
    Command("compact", "[what to keep]", _COMPACT_HELP, Role.RUN, _compact),
)
