"""Draw Markdown as lines of a terminal while it arrives.

`feed` returns lines that are final: they go to the terminal's scrollback and are never redrawn.
`pending` returns the rest as it would look now: it is drawn below and drawn again. The parser
(core/text) decides what is final; this file decides what it looks like.

Characters that would steer the terminal are made visible or dropped before they are parsed.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import assert_never

from holdfast.cli.text.syntax import coloured
from holdfast.cli.text.tables import draw_table
from holdfast.cli.text.wrap import (
    BOLD,
    DIM,
    PLAIN,
    Literal,
    Prose,
    Row,
    Span,
    TextStyle,
    paint,
)
from holdfast.core.text import markdown as md
from holdfast.core.text.escape import VISIBLE
from holdfast.core.text.inline import Code as CodeSpan
from holdfast.core.text.inline import Emphasis, Inline, InlineParser
from holdfast.core.text.inline import Text as TextSpan
from holdfast.core.text.width import columns

_PIECE = 4096  # characters are parsed at once: no copy of a long text for each of its lines
_ROOM = 8  # columns that margins must leave for the text
_RULE_WIDTH = 40
_DEEPEST = 8  # quotes within quotes
_BAR, _INDENT, _CONTINUED, _STRIKE = "│ ", "  ", "↳ ", "~~"
_HEADINGS = {1: TextStyle(bold=True, underline=True), 2: BOLD}
_LOWER_HEADING = TextStyle(bold=True, italic=True)

_CLEANED = VISIBLE | {0x09: "    ", 0xAD: None}


class MarkdownStream:
    """One answer of a model, as lines of a terminal `width` columns wide."""

    def __init__(self, width: int, colour: bool) -> None:  # noqa: FBT001  the contract
        width = max(width, 2)
        deepest = min(_DEEPEST, max(0, (width - _ROOM) // len(_BAR)))
        self._parser = md.MarkdownParser(deepest=deepest)
        self._page = _Page(width, colour)

    def feed(self, text: str) -> list[str]:
        """Take a piece of the text; return the lines that are final now."""
        clean = text.translate(_CLEANED)
        pieces = range(0, len(clean), _PIECE)
        events = (self._parser.feed(clean[at : at + _PIECE]) for at in pieces)
        return [line for piece in events for line in self._page.draw(piece)]

    def pending(self) -> list[str]:
        """Return the rest as it would look now, with open marks shown as if they were closed."""
        parser, page = deepcopy((self._parser, self._page))
        page.hopeful = True
        return page.draw(parser.close())

    def close(self) -> list[str]:
        """End the text; return the rest."""
        return self._page.draw(self._parser.close())


class _InlineStyler:
    """Parse the text of a paragraph into spans of the terminal's styles."""

    def __init__(self, base: TextStyle, *, colour: bool) -> None:
        self._parser = InlineParser()
        self._base, self._colour = base, colour
        self._struck = False

    def feed(self, text: str) -> list[Span]:
        return self._styled(self._parser.feed(text))

    def close(self, *, hopeful: bool) -> list[Span]:
        rest = self._styled(self._parser.close(hopeful=hopeful))
        return [*rest, Span(_STRIKE, self._base)] if self._struck and not hopeful else rest

    def _styled(self, pieces: list[Inline]) -> list[Span]:
        out: list[Span] = []
        for piece in pieces:
            if piece.emphasis.strike != self._struck:
                self._struck = not self._struck
                out.append(Span(_STRIKE, self._base))
            out += _spans(piece, _emphasised(self._base, piece.emphasis), colour=self._colour)
        return out


def _emphasised(base: TextStyle, emphasis: Emphasis) -> TextStyle:
    return base._replace(
        bold=base.bold or emphasis.bold,
        italic=base.italic or emphasis.italic,
        dim=base.dim or emphasis.strike,
    )


def _spans(piece: Inline, style: TextStyle, *, colour: bool) -> list[Span]:
    if isinstance(piece, TextSpan):
        return [Span(piece.text, style)]
    if isinstance(piece, CodeSpan):
        if colour:
            return [Span(piece.text, style._replace(code=True))]
        return [Span(f"{piece.ticks}{piece.text}{piece.ticks[::-1]}", style)]
    label = style_inline(piece.label, style._replace(underline=True), colour=colour)
    shown = "".join(span.text for span in label)
    if piece.href.removesuffix("/") in (shown, f"https://{shown}", f"http://{shown}"):
        return label
    target = f"({piece.href} {piece.title})" if piece.title else f"({piece.href})"
    return [*label, Span(f" {target}" if shown else target, DIM)]


def style_inline(
    text: str, base: TextStyle = PLAIN, *, colour: bool, hopeful: bool = False
) -> list[Span]:
    """Parse a complete text into spans."""
    styler = _InlineStyler(base, colour=colour)
    return [*styler.feed(text), *styler.close(hopeful=hopeful)]


class _ProseBlock:
    """An open paragraph, heading or item."""

    def __init__(self, width: int, first: str, style: TextStyle, *, colour: bool) -> None:
        self._styler = _InlineStyler(style, colour=colour)
        self._rows = Prose(width, Span(first), Span(" " * columns(first)))

    def feed(self, text: str) -> list[Row]:
        return self._rows.write(self._styler.feed(text))

    def close(self, *, hopeful: bool) -> list[Row]:
        return [*self._rows.write(self._styler.close(hopeful=hopeful)), *self._rows.close()]


class _CodeBlock:
    """An open code block. A line is coloured, and final, when it ends."""

    def __init__(self, width: int, margin: str, info: str) -> None:
        rest = f"{margin[: -len(_CONTINUED)]}{_CONTINUED}" if margin else ""
        self._rows = Literal(width, Span(margin), Span(rest, DIM))
        self._info = info
        self._line = ""  # so far

    def feed(self, text: str) -> list[Row]:
        *lines, self._line = (self._line + text).split("\n")
        return [row for line in lines for row in self._write(line, Span("\n"))]

    def close(self, *, hopeful: bool) -> list[Row]:
        return [*self._write(self._line), *self._rows.close()]

    def _write(self, line: str, *end: Span) -> list[Row]:
        return self._rows.write([*coloured(self._info, line), *end])


@dataclass(slots=True)
class _Frame:
    """The page, or the inside of a quote: where its lines begin and what is open on it."""

    width: int
    margin: str = ""  # what each line of a quote begins with
    columns: list[int] = field(default_factory=list)  # where the text of each open item begins
    begun: bool = False
    gap: bool = False

    def place(self, items: int, needed: int = 0) -> int:
        """Return the column where a block within so many items begins."""
        del self.columns[items:]
        column = self.columns[-1] if self.columns else 0
        return column if column + needed + _ROOM <= self.width else 0


class _Page:
    """Draw events one below the other."""

    def __init__(self, width: int, colour: bool) -> None:  # noqa: FBT001
        self.hopeful = False  # draw open marks as if they were closed
        self._colour = colour
        self._frames = [_Frame(width)]
        self._block: _ProseBlock | _CodeBlock | None = None
        self._lines: list[str] = []

    def draw(self, events: list[md.Event]) -> list[str]:
        """Return the lines that are final after these events."""
        for event in events:
            self._draw(event)
        lines, self._lines = self._lines, []
        return lines

    def _draw(self, event: md.Event) -> None:
        frame = self._frames[-1]
        match event:
            case md.Paragraph() | md.Heading() | md.Item() | md.Code() | md.Quote():
                self._begin(event, frame)
            case md.Text(text):
                assert self._block is not None
                self._emit(self._block.feed(text))
            case md.End():
                self._end()
            case md.Gap():
                frame.gap = True
            case md.Rule():
                column = frame.place(event.items)
                rule = "─" * min(frame.width - column, _RULE_WIDTH)
                self._emit([[Span(" " * column), Span(rule, DIM)]])
            case md.Table():
                margin = Span(" " * frame.place(event.items))
                self._emit([[margin, *row] for row in self._table(event, len(margin.text))])
            case _:
                assert_never(event)

    def _emit(self, rows: list[Row]) -> None:
        """Add rows to the innermost frame and, behind their margins, to the frames around it."""
        lines = [paint(row, colour=self._colour) for row in rows]
        for frame in reversed(self._frames):
            if not lines:
                return
            lines = [""] * (frame.gap and frame.begun) + lines
            frame.begun, frame.gap = True, False
            if frame.margin:
                lines = [f"{frame.margin} {line}" if line else frame.margin for line in lines]
        self._lines += lines

    def _begin(self, block: md.Block, frame: _Frame) -> None:
        match block:
            case md.Paragraph():
                self._block = self._prose(frame, " " * frame.place(block.items))
            case md.Heading():
                marks = "" if self._colour else f"{'#' * block.level} "
                style = _HEADINGS.get(block.level, _LOWER_HEADING)
                self._hang(frame, " " * frame.place(block.items) + marks, style)
            case md.Item():
                number = block.mark if block.mark[0].isdigit() else "•"
                mark = f"{block.task or number} "
                column = frame.place(block.items, len(mark))
                frame.columns.append(column + len(mark))
                self._hang(frame, " " * column + mark)
            case md.Code():
                self._begin_code(block, frame)
            case md.Quote():
                column = frame.place(block.items, len(_BAR))
                bar = " " * column + paint([Span(_BAR, DIM)], colour=self._colour)
                narrow = frame.width - column - len(_BAR) < _ROOM // 2
                inner = (
                    _Frame(frame.width) if narrow else _Frame(frame.width - column - len(_BAR), bar)
                )
                self._frames.append(inner)
            case _:
                assert_never(block)

    def _end(self) -> None:
        if self._block is None:
            self._frames.pop()
            return
        block, self._block = self._block, None
        self._emit(block.close(hopeful=self.hopeful))

    def _prose(self, frame: _Frame, first: str, style: TextStyle = PLAIN) -> _ProseBlock:
        return _ProseBlock(frame.width, first, style, colour=self._colour)

    def _hang(self, frame: _Frame, first: str, style: TextStyle = PLAIN) -> None:
        """Begin a paragraph that hangs on its mark, or just begins with it on a narrow page."""
        hangs = len(first) + _ROOM <= frame.width
        self._block = self._prose(frame, first if hangs else "", style)
        if not hangs:
            self._emit(self._block.feed(first))

    def _begin_code(self, code: md.Code, frame: _Frame) -> None:
        margin = " " * frame.place(code.items) + _INDENT
        margin = margin if len(margin) + _ROOM <= frame.width else ""
        if code.info:
            label = Prose(frame.width, Span(margin), Span(margin))
            named = Span(code.info if self._colour else f"{code.info}:", DIM)
            self._emit([*label.write([named]), *label.close()])
        self._block = _CodeBlock(frame.width, margin, code.info or "")

    def _table(self, table: md.Table, column: int) -> list[Row]:
        head, *body = table.rows
        styled = [[self._cell(cell, BOLD) for cell in head]]
        styled += [[self._cell(cell, PLAIN) for cell in row] for row in body]
        return draw_table(styled, table.alignment, self._frames[-1].width - column)

    def _cell(self, cell: str, style: TextStyle) -> list[Span]:
        return style_inline(cell, style, colour=self._colour, hopeful=self.hopeful)
