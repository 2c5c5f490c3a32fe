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
    """Return the rows of a line of ours, broken between words; those after the first are indented."""
    indent = line[: len(line) - len(line.lstrip(" "))]
    first, *more = wrapped(line, width)
    if not more:
        return [first]
    rest = line[len(first) :].lstrip(" ") if line.startswith(first) else " ".join(more)
    return [first, *(f"{indent}  {row}" for row in wrapped(rest, width - len(indent) - 2))]


def folded(line: str, width: int) -> list[str]:
    """Return the rows of a line that must be shown to the character; later rows are indented."""
    first, *more = fold(line, width, 0)[0]
    return [first, *(f"    {row}" for row in fold("".join(more), width - 4, 0)[0] if more)]


def middle(rows: list[str], room: int) -> list[str]:
    """Leave out the middle of the rows if there is no room: the beginning and the end stay."""
    if len(rows) <= room:
        return rows
    end = max((room - 1) // 2, 1)
    begin = max(room - 1 - end, 1)
    hidden = len(rows) - begin - end
    return [*rows[:begin], f"  … {hidden} more {_lines(hidden)}: Ctrl-O shows all", *rows[-end:]]


def top(rows: list[str], room: int) -> list[str]:
    """Leave out the end of the rows if there is no room."""
    if len(rows) <= room:
        return rows
    hidden = len(rows) - room + 1
    return [*rows[: room - 1], f"  … {hidden} more {_lines(hidden)}: Ctrl-O shows all"]


def _lines(number: int) -> str:
    return "line" if number == 1 else "lines"


def wall_clock() -> float:
    """Return the time, only to display it."""
    return time.time()  # noqa: TID251  for the eye only
