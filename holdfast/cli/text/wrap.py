"""Wrap styled text into rows of a terminal.

A row is final when it is returned. It is returned when the text behind it does not fit on it, so
rows depend on the text alone, never on the pieces in which it arrives.

A character counts for as many columns as any terminal may give it: a row ends early rather
than late. Each style is set and reset within its row, so it cannot leak into the next.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from wcwidth import wcwidth

from holdfast.core.text.width import JOINER, WIDE, char_columns, columns


class TextStyle(NamedTuple):
    """The style of a text."""

    bold: bool = False
    italic: bool = False
    dim: bool = False
    underline: bool = False
    code: bool = False
    colour: str = ""  # as SGR numbers it


PLAIN = TextStyle()
DIM = TextStyle(dim=True)
BOLD = TextStyle(bold=True)
CODE = TextStyle(code=True)


class Span(NamedTuple):
    """A text in one style."""

    text: str
    style: TextStyle = PLAIN


Row = Sequence[Span]

_EMPTY = Span("")
_CONTROLS = "\x1b[{}m", "\x1b[0m"


def paint(row: Row, *, colour: bool) -> str:
    """Return the row with its escape sequences, without blanks at its end."""
    runs = [(style, "".join(text for text, _ in run)) for style, run in groupby(row, _style_of)]
    if not colour:
        return "".join(text for _, text in runs).rstrip(" ")
    while runs and not runs[-1][1].strip(" "):
        runs.pop()
    if runs:
        runs[-1] = runs[-1][0], runs[-1][1].rstrip(" ")
    return "".join(_painted(text, _codes(style)) for style, text in runs if text)


def _painted(text: str, codes: str) -> str:
    begin, end = _CONTROLS
    return f"{begin.format(codes)}{text}{end}" if codes else text


def _style_of(span: Span) -> TextStyle:
    return span.style


@lru_cache
def _codes(style: TextStyle) -> str:
    """Return the SGR codes; magenta is the colour that reads well on black and on white."""
    codes = (
        ("1", style.bold and not style.dim),  # terminals do not agree on both
        ("2", style.dim),
        ("3", style.italic),
        ("4", style.underline),
        ("35", style.code),
        (style.colour, bool(style.colour)),
    )
    return ";".join(code for code, worn in codes if worn)


_CLOSING = frozenset(",.:;!?)]}%\"'»”’…、。，．：；！？）］｝〉》」』】〕〗ー々～")
_OPENING = frozenset("([{«“‘（［｛〈《「『【〔〖")
_SKINS = range(0x1F3FB, 0x1F400)
_FLAGS = range(0x1F1E6, 0x1F200)


@lru_cache(4096)
def _parts(before: str, char: str) -> bool:
    """Tell whether a row may end between the two without a blank: around wide characters."""
    if before == " " or before in _OPENING or char in _CLOSING or ord(char) in _SKINS:
        return False
    if ord(char) in _FLAGS and ord(before) in _FLAGS:
        return False
    return WIDE in (wcwidth(before), wcwidth(char)) and wcwidth(char) > 0


class _Rows:
    """The shared part of prose and code: cutting a word that is longer than a row."""

    def __init__(self, width: int, first: Span = _EMPTY, rest: Span = _EMPTY) -> None:
        self._room = max(width - columns(rest.text), WIDE)
        self._prefix, self._rest = first, rest
        self._rows: list[Row] = []
        self._row: list[Span] = []
        self._column = 0
        self._word: list[tuple[Span, int]] = []
        self._length = 0  # of the word, in columns
        self._before = " "

    def _take(self) -> list[Row]:
        rows, self._rows = self._rows, []
        return rows

    def _add(self, text: str, style: TextStyle, length: int) -> None:
        self._word.append((Span(text, style), length))
        self._length += length
        self._before = text[-1]
        if self._length > self._room:
            if self._row:
                self._end_row()
            while self._length > self._room:
                self._cut()

    def _cut(self) -> None:
        """End a row within the word."""
        room = self._room
        for at, (span, length) in enumerate(self._word):
            if length <= room:
                self._row.append(span)
                room -= length
                continue
            rest = self._word[at:]
            if len(span.text) > 1:  # ascii
                self._row.append(Span(span.text[:room], span.style))
                rest[0] = Span(span.text[room:], span.style), length - room
            self._word = rest
            break
        self._length = sum(length for _, length in self._word)
        self._end_row()

    def _end_row(self) -> None:
        self._rows.append([self._prefix, *self._row])
        self._prefix = self._rest
        self._row, self._column = [], 0


_PROSE = re.compile(r"\n| +|[^ \n]{1,256}")
_LITERAL = re.compile(r"\n|[^\n]{1,256}")


class Prose(_Rows):
    """Wrap words into rows. A line end of the text ends a row."""

    def __init__(self, width: int, first: Span = _EMPTY, rest: Span = _EMPTY) -> None:
        super().__init__(width, first, rest)
        self._blanks: list[Span] = []
        self._base = " "  # the character that combining marks belong to

    def write(self, spans: Iterable[Span]) -> list[Row]:
        """Take text; return the rows that are full now."""
        for text, style in spans:
            for token in _PROSE.findall(text):
                if token == "\n":
                    self._end_line()
                elif token[0] == " ":
                    self._end_word()
                    self._blanks.append(Span(token, style))
                    self._before = self._base = " "
                else:
                    self._write(token, style)
        return self._take()

    def close(self) -> list[Row]:
        """Return the rest."""
        self._end_line()
        if self._prefix.text.strip():  # of an item without text
            self._end_row()
        return self._take()

    def _write(self, token: str, style: TextStyle) -> None:
        ascii_only = token.isascii()
        for part in (token,) if ascii_only else token:
            if self._before != JOINER and _parts(self._base, part[0]):
                self._end_word()
            length = len(part) if ascii_only else char_columns(self._before, part)
            self._add(part, style, length)
            self._base = part[-1] if length else self._base

    def _end_word(self) -> None:
        if not self._word:
            return
        blanks = sum(len(blank.text) for blank in self._blanks)
        if self._row and self._column + blanks + self._length > self._room:
            self._end_row()
        elif self._row:
            self._row += self._blanks
            self._column += blanks
        self._row += (span for span, _ in self._word)
        self._column += self._length
        self._blanks, self._word, self._length = [], [], 0

    def _end_line(self) -> None:
        self._end_word()
        self._blanks, self._before, self._base = [], " ", " "
        if self._row:
            self._end_row()


class Literal(_Rows):
    """Break each line of code into rows; `rest` marks those after the first.

    A line end of the text ends a line, and with it a row, also an empty one.
    """

    def __init__(self, width: int, first: Span = _EMPTY, rest: Span = _EMPTY) -> None:
        super().__init__(width, first, rest)
        self._first = first
        self._begun = False

    def write(self, spans: Iterable[Span]) -> list[Row]:
        """Take text; return the rows that are full now."""
        for text, style in spans:
            for token in _LITERAL.findall(text):
                self._begun = token != "\n"
                if token == "\n":
                    self._end_line()
                elif token.isascii():
                    self._add(token, style, len(token))
                else:
                    for char in token:
                        self._add(char, style, char_columns(self._before, char))
        return self._take()

    def close(self) -> list[Row]:
        """Return the rest."""
        if self._begun:
            self._end_line()
        return self._take()

    def _end_line(self) -> None:
        self._row += (span for span, _ in self._word)
        self._word, self._length, self._before = [], 0, " "
        self._end_row()
        self._prefix = self._first
