"""How answers to commands put things: ages, numbers, other people's words."""

import re
from datetime import UTC, datetime

_LONG_AGO_S = 30 * 86400.0
_SHOWN = 60  # characters of other people's words


def ago(at: float, now: float) -> str:
    """When that was, as people say it; a date if it is long ago."""
    past_s = now - at
    if past_s < 60:
        return "just now"
    if past_s < _LONG_AGO_S:
        return f"{lasting(past_s)} ago"
    return f"on {datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def lasting(seconds: float) -> str:
    """How long that is, rounded down."""
    if seconds < 60:
        return "less than a minute"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h"
    return count(int(seconds // 86400), "day")


def count(number: int, thing: str) -> str:
    """So many of them: "1 step", "3 steps"."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def code(text: str) -> str:
    """The beginning of `text` on one line, as it is: nothing in it is read as markdown."""
    line = " ".join(text.split())
    shown = line[:_SHOWN] + ("…" if len(line) > _SHOWN else "")
    ticks = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}" if shown else ""


def alone(name: str) -> str:
    """What to say of words behind a command that takes none: it has done nothing."""
    return f"Nothing was done: /{name} takes no words. Send it alone."
