"""The width of text in columns of a terminal, and truncation. Pure."""

from functools import lru_cache

from wcwidth import wcswidth, wcwidth

WIDE, JOINER = 2, "\u200d"
_EMOJI = "\ufe0f"
_TAB = 8


def columns(text: str) -> int:
    """Count the columns that a text may take: as many as any terminal may give it."""
    if text.isascii():
        return len(text)
    pairs = zip(" " + text, text, strict=False)
    return sum(char_columns(before, char) for before, char in pairs)


@lru_cache(4096)
def char_columns(before: str, char: str) -> int:
    """Count the columns of a character; a combining mark sometimes takes one of its own."""
    own = max(wcwidth(char), 0)
    if own:
        return own
    spacing = wcswidth("a" + char) > 1 or char == _EMOJI or before == " "
    return int(spacing and char != JOINER)


def clip(text: str, length: int) -> str:
    """Cut `text` to `length` characters; a `…` stands for the rest."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def fold(text: str, width: int, column: int) -> tuple[list[str], int]:
    """Break a text into rows, the first from `column` on; return them and the last column.

    A character counts for as many columns as it may take: a row ends early rather than late.
    If `width` is 0, each line is one row.
    """
    rows: list[str] = []
    for number, line in enumerate(text.split("\n")):
        column = 0 if number else column
        begin, before = 0, " "
        for at, char in enumerate(line if width else ""):
            wide = _TAB if char == "\t" else max(char_columns(before, char), 1)
            if column + wide > width:
                rows.append(line[begin:at])
                begin, column = at, 0
            column += wide
            before = char
        rows.append(line[begin:])
    return rows, column
