"""Shared by commands: ages, numbers and quoted text in replies; commands without an argument."""

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from holdfast.gateway import CommandTarget

NO_ARGUMENT = "Nothing was done: /{name} takes no argument. Send it alone."
_LONG_AGO_S = 30 * 86400.0
_SHOWN = 60  # characters of quoted text


def ago(at: float, now: float) -> str:
    """Return the age of a time: "5 min ago"; a date if it is long ago."""
    past_s = now - at
    if past_s < 60:
        return "just now"
    if past_s < _LONG_AGO_S:
        return f"{lasting(past_s)} ago"
    return f"on {datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def lasting(seconds: float) -> str:
    """Return a duration, rounded down."""
    if seconds < 60:
        return "less than a minute"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h"
    return count(int(seconds // 86400), "day")


def count(number: int, thing: str) -> str:
    """Return a number with its noun: "1 step", "3 steps"."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def code(text: str) -> str:
    """Quote the beginning of `text` on one line, so that none of it is read as Markdown."""
    line = " ".join(text.split())
    shown = line[:_SHOWN] + ("…" if len(line) > _SHOWN else "")
    ticks = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}" if shown else ""


def without_argument(
    name: str, run: Callable[[CommandTarget], Awaitable[str]]
) -> Callable[[CommandTarget, str], Awaitable[str]]:
    """Make a command that takes no argument: with one it does nothing."""

    async def checked(chat: CommandTarget, rest: str) -> str:
        if rest:
            return NO_ARGUMENT.format(name=name)
        return await run(chat)

    return checked
