"""Split a long text into parts, each valid Markdown by itself. Pure.

It is cut at the least harmful place: between paragraphs, between lines, between words. Code or a
table that fits into a message of its own stays whole; a longer one is cut between its lines,
closed and opened again, a table under its heading. Only white space at a cut is lost.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from holdfast.channels.text.render import language
from holdfast.core.text.markdown import FENCE, closes_fence, is_table

_QUOTED = "> "
_QUOTE = re.compile(r"(?: *>)++ ?")
_INDENT = re.compile(
    r"[ \t]*(?:(?:[-*+•]|\d{1,9}[.)])[ \t]+)?"
)  # of a fence, also behind an item's mark
_JOINERS = "\u200d\ufe0e\ufe0f"
_LONGEST_JOIN = 32
_WHOLE = 2  # messages' worth of Markdown may still fit into one: markup takes no room
_HEADING_SHARE = 8  # a heading longer than that part of a message is not repeated


class _Block(NamedTuple):
    """Code or a table: its place in the text, and the text that begins and ends each piece of it."""

    start: int
    body: int
    end: int
    opening: str
    closing: str
    prefix: str  # of each of its lines


class _Cut(NamedTuple):
    head: str
    tail: str
    opened: int = 0  # characters of the tail that only open the cut block again


def split(markdown: str, length: Callable[[str], int], limit: int) -> tuple[str, ...]:
    """Split `markdown` into parts with a `length` of at most `limit`; parts of length 0 are dropped."""
    # Measuring a text that is much longer than a message as a whole would take long.
    if len(markdown) <= _WHOLE * limit and (size := length(markdown)) <= limit:
        return (markdown,) if size else ()
    parts: list[str] = []
    rest = markdown.replace("\r\n", "\n").replace("\r", "\n")
    opened = 0
    while rest:
        room = limit
        cut = _cut(rest, opened, room, limit)
        while (size := length(cut.head)) > limit and room > 1:
            used = min(room, len(rest) - opened)
            room = max(1, min(used - 1, used * limit * 9 // (size * 10)))
            cut = _cut(rest, opened, room, limit)
        if size:
            parts.append(cut.head)
        rest, opened = cut.tail, cut.opened
    return tuple(parts)


def _cut(text: str, opened: int, room: int, limit: int) -> _Cut:
    """Cut the text within `room` characters, not counting the `opened` ones."""
    end = opened + room
    if len(text) <= end:
        return _Cut(text, "")
    blocks = list(_blocks(text[: end + limit + 1], limit))
    floor = max(opened + 1, opened + room // 4)
    around = next((block for block in blocks if block.start < end < block.end), None)
    if around is not None and text[opened : around.start].strip():
        if end <= around.body or around.end - around.start <= limit:
            return _Cut(text[: around.start].rstrip(), text[around.start :])
    if around is not None and end > around.body:
        place = _place(text, max(around.body + 1, floor), end, ("\n", " "))
        opening = around.opening + (around.prefix if text[place - 1] != "\n" else "")
        head = text[:place].rstrip("\n") + around.closing
        left = text[place : around.end].strip()
        if left in ("", around.closing.strip()) and around.end <= end + limit:
            return _Cut(head, text[around.end :].lstrip("\n"))
        return _Cut(head, opening + text[place:], len(opening))
    floor = max([floor, *(block.end for block in blocks if block.end <= end)])
    place = _place(text, floor, end, ("\n\n", "\n", " "))
    opening = _quote(text, place)
    return _Cut(text[:place].rstrip(), opening + text[place:].lstrip("\n"), len(opening))


def _quote(text: str, place: int) -> str:
    """Return the prefix that keeps a line quoted when it is cut there."""
    line = text[text.rfind("\n", 0, place) + 1 : place]
    return _QUOTED if line and _QUOTE.match(line) else ""


def _place(text: str, floor: int, end: int, marks: tuple[str, ...]) -> int:
    """Find the best place between the two: behind the first of `marks` that occurs."""
    for mark in marks:
        at = text.rfind(mark, max(0, floor - len(mark)), end)
        if at >= 0:
            return at + len(mark)
    place = end
    while place > floor and end - place < _LONGEST_JOIN and _joins(text[place - 1], text[place]):
        place -= 1
    return place


def _joins(before: str, after: str) -> bool:
    """Tell whether the two are displayed as one character."""
    return before == "\u200d" or after in _JOINERS or bool(unicodedata.combining(after))


def _blocks(text: str, limit: int) -> Iterator[_Block]:
    """Find the code and the tables of a text, in order."""
    lines = text.split("\n")
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    at = 0
    while at < len(lines):
        prefix = _QUOTED if _QUOTE.match(lines[at]) else ""
        first, second = _inner(lines, at, prefix) or "", _inner(lines, at + 1, prefix) or ""
        end = at + 1
        indent = _INDENT.match(first)
        if indent and (fence := FENCE.match(first, indent.end())):
            end = _fence_end(lines, end, prefix, fence[1])
            mark = f"{prefix}{' ' * indent.end()}{fence[1]}"
            opening, closing = f"{mark}{language(fence[2])[0]}\n", f"\n{mark}"
            yield _Block(starts[at], starts[at + 1], starts[end], opening, closing, prefix)
        elif is_table(first, second):
            end = at + 2
            while "|" in (_inner(lines, end, prefix) or ""):
                end += 1
            opening = f"{lines[at]}\n{lines[at + 1]}\n"
            if len(opening) <= limit // _HEADING_SHARE:
                yield _Block(starts[at], starts[at + 2], starts[end], opening, "", prefix)
        at = end


def _inner(lines: Sequence[str], at: int, prefix: str) -> str | None:
    """Return a line without its quote mark; None behind the last line or the end of the quote."""
    if at >= len(lines) or not prefix:
        return lines[at] if at < len(lines) else None
    quote = _QUOTE.match(lines[at])
    return lines[at][quote.end() :] if quote else None


def _fence_end(lines: Sequence[str], at: int, prefix: str, mark: str) -> int:
    """Find the line after the one that closes the fence, or where the code ends without one."""
    while (line := _inner(lines, at, prefix)) is not None:
        at += 1
        if closes_fence(line, mark):
            break
    return at
