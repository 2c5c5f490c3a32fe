"""Words become rows of a terminal: looks, widths, and where a row ends.

A row is final when it is handed out. It is handed out when what follows does not fit on it, so
rows depend on the text alone, never on the pieces in which it came.

A character counts for as many columns as any terminal may give it: a row ends early rather
than late. Every run of a look is set and reset within its row: nothing leaks into the next.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from wcwidth import wcswidth, wcwidth


class Look(NamedTuple):
    """How a text looks."""

    bold: bool = False
    italic: bool = False
    dim: bool = False
    underline: bool = False
    code: bool = False


PLAIN = Look()
DIM = Look(dim=True)
BOLD = Look(bold=True)
CODE = Look(code=True)


class Span(NamedTuple):
    """A text in one look."""

    text: str
    look: Look = PLAIN


Row = Sequence[Span]

_EMPTY = Span("")
_CONTROLS = "\x1b[{}m", "\x1b[0m"


def paint(row: Row, *, colour: bool) -> str:
    """The row as the terminal takes it, without blanks at its end."""
    runs = [(look, "".join(text for text, _ in run)) for look, run in groupby(row, _look)]
    if not colour:
        return "".join(text for _, text in runs).rstrip(" ")
    while runs and not runs[-1][1].strip(" "):
        runs.pop()
    if runs:
        runs[-1] = runs[-1][0], runs[-1][1].rstrip(" ")
    return "".join(_painted(text, _codes(look)) for look, text in runs if text)


def _painted(text: str, codes: str) -> str:
    begin, end = _CONTROLS
    return f"{begin.format(codes)}{text}{end}" if codes else text


def _look(span: Span) -> Look:
    return span.look


@lru_cache
def _codes(look: Look) -> str:
    """Magenta is the one colour for text that reads well on black and on white."""
    codes = (
        ("1", look.bold and not look.dim),  # terminals do not agree on both
        ("2", look.dim),
        ("3", look.italic),
        ("4", look.underline),
        ("35", look.code),
    )
    return ";".join(code for code, worn in codes if worn)


_WIDE, _JOINER, _EMOJI = 2, "\u200d", "\ufe0f"
_CLOSING = frozenset(",.:;!?)]}%\"'»”’…、。，．：；！？）］｝〉》」』】〕〗ー々～")
_OPENING = frozenset("([{«“‘（［｛〈《「『【〔〖")
_SKINS = range(0x1F3FB, 0x1F400)
_FLAGS = range(0x1F1E6, 0x1F200)


def columns(text: str) -> int:
    """How many columns a text may take."""
    if text.isascii():
        return len(text)
    pairs = zip(" " + text, text, strict=False)
    return sum(_columns(before, char) for before, char in pairs)


@lru_cache(4096)
def _columns(before: str, char: str) -> int:
    """A mark belongs to the character before it; there it takes a column at times."""
    own = max(wcwidth(char), 0)
    if own:
        return own
    spacing = wcswidth("a" + char) > 1 or char == _EMOJI or before == " "
    return int(spacing and char != _JOINER)


@lru_cache(4096)
def _parts(before: str, char: str) -> bool:
    """Whether a row may end between the two, where there is no blank: around wide ones."""
    if before == " " or before in _OPENING or char in _CLOSING or ord(char) in _SKINS:
        return False
    if ord(char) in _FLAGS and ord(before) in _FLAGS:
        return False
    return _WIDE in (wcwidth(before), wcwidth(char)) and wcwidth(char) > 0


class _Rows:
    """What rows of words and rows of code have in common: a word that is longer than a row."""

    def __init__(self, width: int, first: Span = _EMPTY, rest: Span = _EMPTY) -> None:
        self._room = max(width - columns(rest.text), _WIDE)
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

    def _add(self, text: str, look: Look, length: int) -> None:
        self._word.append((Span(text, look), length))
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
                self._row.append(Span(span.text[:room], span.look))
                rest[0] = Span(span.text[room:], span.look), length - room
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
    """Words in rows. A line end of the text ends a row."""

    def __init__(self, width: int, first: Span = _EMPTY, rest: Span = _EMPTY) -> None:
        super().__init__(width, first, rest)
        self._blanks: list[Span] = []
        self._base = " "  # what the marks before are on

    def write(self, spans: Iterable[Span]) -> list[Row]:
        """The rows that are full now."""
        for text, look in spans:
            for token in _PROSE.findall(text):
                if token == "\n":
                    self._end_line()
                elif token[0] == " ":
                    self._end_word()
                    self._blanks.append(Span(token, look))
                    self._before = self._base = " "
                else:
                    self._write(token, look)
        return self._take()

    def close(self) -> list[Row]:
        """The rest."""
        self._end_line()
        if self._prefix.text.strip():  # of an item without words
            self._end_row()
        return self._take()

    def _write(self, token: str, look: Look) -> None:
        ascii_only = token.isascii()
        for part in (token,) if ascii_only else token:
            if self._before != _JOINER and _parts(self._base, part[0]):
                self._end_word()
            length = len(part) if ascii_only else _columns(self._before, part)
            self._add(part, look, length)
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
    """Code: every line as it is, in as many rows as it takes; `rest` marks those after the first.

    A line end of the text ends a line, and with it a row, also an empty one.
    """

    def __init__(self, width: int, first: Span = _EMPTY, rest: Span = _EMPTY) -> None:
        super().__init__(width, first, rest)
        self._first = first
        self._begun = False

    def write(self, spans: Iterable[Span]) -> list[Row]:
        """The rows that are full now."""
        for text, look in spans:
            for token in _LITERAL.findall(text):
                self._begun = token != "\n"
                if token == "\n":
                    self._end_line()
                elif token.isascii():
                    self._add(token, look, len(token))
                else:
                    for char in token:
                        self._add(char, look, _columns(self._before, char))
        return self._take()

    def close(self) -> list[Row]:
        """The rest."""
        if self._begun:
            self._end_line()
        return self._take()

    def _end_line(self) -> None:
        self._row += (span for span, _ in self._word)
        self._word, self._length, self._before = [], 0, " "
        self._end_row()
        self._prefix = self._first
