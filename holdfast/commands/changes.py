"""/diff: the files that the session has changed."""

import re

from holdfast.commands.command import Command
from holdfast.commands.phrases import count
from holdfast.core.approval.approval import Role
from holdfast.core.run.files import describe
from holdfast.core.text.escape import visible
from holdfast.gateway import CommandTarget, FileDiff

UNCHANGED = "No file was changed."
PRUNED = "a version of it is no longer kept"
FILES = 40  # that are listed
ROOM = 6_000  # characters of diffs: a few messages of a chat
MORE = "The rest is not shown here; `holdfast sessions diff` shows all of it."


async def _diff(chat: CommandTarget, rest: str) -> str:
    if len(rest.split()) > 1:
        return "/diff takes last, or the id of one run; alone it shows the whole session."
    found = await chat.diff(rest)
    if not found:
        return UNCHANGED
    added, removed = (sum(getattr(f.change, n) for f in found) for n in ("added", "removed"))
    listed = [f"- {_line(one)}" for one in found[:FILES]]
    text, whole = _shown("".join(visible(one.text) for one in found))
    whole = whole and len(found) <= FILES and not any(one.cut for one in found)
    head = f"{count(len(found), 'file')} changed, +{added:,} −{removed:,}"
    return "\n".join([head, *listed, *_fenced(text), *([] if whole else [MORE])])


def _line(one: FileDiff) -> str:
    """Return the file in one line, as code, so that none of it is read as Markdown."""
    text = describe(one.change).replace("`", "'")
    return f"`{text}`" + (f": {PRUNED}" if one.pruned else "")


def _shown(text: str) -> tuple[str, bool]:
    """Return as many whole lines as there is room for, and whether that is all."""
    if len(text) <= ROOM:
        return text, True
    return text[: text.rfind("\n", 0, ROOM) + 1], False


def _fenced(text: str) -> list[str]:
    if not text:
        return []
    fence = "`" * (1 + max(map(len, re.findall("`{2,}", text)), default=2))
    return ["", f"{fence}diff", text.removesuffix("\n"), fence]


_HELP = "Show the files that this session changed; last: by the last run; or name a run."
COMMANDS = (Command("diff", "[last|run]", _HELP, Role.RUN, _diff),)
