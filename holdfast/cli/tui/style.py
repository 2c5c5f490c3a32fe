"""Styles of our own text: the sixteen colours of every terminal, readable on dark and light.

Without colour nothing is lost: every line has words or a sign that say what it is.
"""

import re
import time

from holdfast.core.text.width import char_columns, fold
from holdfast.core.text.width import columns as text_columns
from holdfast.core.types import Value

_RESET = "\x1b[0m"
_SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")


class Style(Value):
    """Adds colours, if they are wanted."""

    colour: bool

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}{_RESET}" if self.colour and text else text

    def dim(self, text: str) -> str:
        return self._paint("2", text)

    def bold(self, text: str) -> str:
        return self._paint("1", text)

    def good(self, text: str) -> str:
        return self._paint("32", text)

    def bad(self, text: str) -> str:
        return self._paint("31", text)

    def ask(self, text: str) -> str:
        return self._paint("1;35", text)

    def mine(self, text: str) -> str:
        return self._paint("1;36", text)


def seconds(elapsed: float) -> str:
    """Return a short form of a duration."""
    whole = int(elapsed)
    if whole < 60:
        return f"{whole}s"
    minutes, left = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m {left:02}s"
    return f"{minutes // 60}h {minutes % 60:02}m"


def took(duration: float) -> str:
    """Return a duration, with tenths if it is below 10 s."""
    return f"{duration:.1f}s" if duration < 10 else seconds(duration)


def amount(tokens: int) -> str:
    """Return a short form of a number of tokens."""
    if tokens < 1000:
        return str(tokens)
    return f"{tokens / 1000:.1f}k" if tokens < 100_000 else f"{tokens // 1000}k"


def columns(line: str) -> int:
    """Return the width of a line with colours."""
    return text_columns(_SEQUENCE.sub("", line))


def cut(line: str, width: int) -> str:
    """Cut a line with colours to `width` columns; a `…` stands for the rest."""
    if columns(line) <= width:
        return line
    shown, room, at = "", width - 1, 0
    while at < len(line):
        if (sequence := _SEQUENCE.match(line, at)) is not None:
            shown, at = shown + sequence[0], sequence.end()
            continue
        room -= char_columns(line[at - 1 : at] or " ", line[at])
        if room < 0:
            break
        shown, at = shown + line[at], at + 1
    return f"{shown}…{_RESET}" if "\x1b" in shown else f"{shown}…"


def cut_before(line: str, end: str, width: int) -> str:
    """Cut a line before `end`, of which at least half a screen stays."""
    end = cut(end, max(width // 2, 1))
    return f"{cut(line, max(width - columns(end), 1))}{end}"


def wrapped(line: str, width: int) -> list[str]:
    """Return the rows of a line, broken between words if possible."""
    rows, row = list[str](), ""
    for word in re.findall(r"\s*\S+|\s+", line):
        if columns(row + word) <= width:
            row += word
            continue
        rows += [row] if row else []
        *full, row = fold(word.lstrip() or word, max(width, 1), 0)[0]
        rows += full
    return [*rows, row]


def hanging(line: str, width: int) -> list[str]:
    """Return the rows of a line; those after the first are indented."""
    first, *more = fold(line, width, 0)[0]
    return [first, *(f"    {row}" for row in fold("".join(more), width - 4, 0)[0] if more)]


def wall_clock() -> float:
    """Return the time, only to display it."""
    return time.time()  # noqa: TID251  for the eye only
