"""Markdown as models write it, made lines of a terminal while it comes.

`feed` hands out lines that are final: they go to the terminal's scrollback and are never taken
back. `pending` tells how the rest would look now: it is drawn below and drawn again. Both hang
on the text alone, not on the pieces in which it comes: whatever is handed out could not have
come out otherwise, however the text went on.

A line's kind is told from its beginning, and no line is held longer than that takes: up to
_SURE characters, or _LONGEST where it may belong to a table. Then one block is open, and takes
the rest of the line as it comes: a paragraph, code, or a quote, which is a page of its own with
a bar in the margin. A table is held until it ends. Everything that is held is bounded, but for
a table, and nothing is read twice: the work is that of the length of the text.

Line ends are kept, as models mean them. HTML is text. What would steer the terminal is made
visible or dropped before anything else looks at it.
"""

import re
from copy import deepcopy
from typing import NamedTuple, Protocol

from holdfast.cli.rows import BOLD, DIM, PLAIN, Literal, Look, Prose, Span, columns, paint
from holdfast.cli.spans import Paper, Spans
from holdfast.cli.tables import is_table, table

_SURE = 160  # characters tell what a line is
_LONGEST = 4000  # characters of a table's row
_PIECE = 4096  # characters are read at once: no copy of a long text for each of its lines
_ROOM = 8  # columns that margins must leave for the words
_NESTED = 2  # columns that an item is indented under another
_INDENTED = 4  # columns make code
_RULE_WIDTH = 40
_DEEPEST = 8  # quotes within quotes
_BAR, _INDENT, _GOES_ON = "│ ", "  ", "↳ "

_VISIBLE: dict[int, int | str | None] = {c: 0x2400 + c for c in range(32)}
_VISIBLE |= dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], 0xFFFD)
_VISIBLE |= dict.fromkeys([0xAD, 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), 0xFEFF])
_VISIBLE |= dict.fromkeys(range(0x2066, 0x206A))
_VISIBLE |= {0x0A: "\n", 0x09: "    ", 0x0D: None, 0x7F: 0x2421, 0x2028: " ", 0x2029: " "}

_FENCE = re.compile(r"(`{3,}+(?=[^`]*$)|~{3,}+) *(.*?) *$")
_HEADING = re.compile(r"(#{1,6})(?: +|$)")
_HEADING_END = re.compile(r"(?:^| +)#+ *$")
_RULE = re.compile(r"([-*_])(?: *\1){2,} *")
_ITEM = re.compile(r"([-*+•]|\d{1,9}[.)])(?: +|$)")
_TASK = re.compile(r"\[[ xX]\] +")
_HEADINGS = {1: Look(bold=True, underline=True), 2: BOLD}
_LOWER_HEADING = Look(bold=True, italic=True)


class Stream:
    """One answer of a model, as lines of a terminal `width` columns wide."""

    def __init__(self, width: int, colour: bool) -> None:  # noqa: FBT001  the contract
        self._page = _Page(max(width, 2), Paper(colour))

    def feed(self, text: str) -> list[str]:
        """Take a piece of the text; the lines that are final now."""
        clean = text.translate(_VISIBLE)
        pieces = range(0, len(clean), _PIECE)
        return [line for at in pieces for line in self._page.feed(clean[at : at + _PIECE])]

    def pending(self) -> list[str]:
        """How the rest would look now, with open marks shown as if they were closed."""
        return deepcopy(self._page).hope()

    def close(self) -> list[str]:
        """The text has ended: the rest."""
        return self._page.close()


class _Block(Protocol):
    """A block that is open: it takes text and hands out what is final of it."""

    def feed(self, text: str) -> list[str]: ...

    def close(self) -> list[str]: ...


class _Paragraph:
    def __init__(self, paper: Paper, width: int, first: str, look: Look = PLAIN) -> None:
        self._paper = paper
        self._spans = Spans(paper, look)
        self._rows = Prose(width, Span(first), Span(" " * columns(first)))

    def feed(self, text: str) -> list[str]:
        rows = self._rows.write(self._spans.feed(text))
        return [paint(row, colour=self._paper.colour) for row in rows]

    def close(self) -> list[str]:
        rows = [*self._rows.write(self._spans.close()), *self._rows.close()]
        return [paint(row, colour=self._paper.colour) for row in rows]


class _Heading(_Paragraph):
    """A paragraph that ends with its line."""


class _Code:
    def __init__(self, paper: Paper, width: int, margin: str) -> None:
        rest = f"{margin[: -len(_GOES_ON)]}{_GOES_ON}" if margin else ""
        self._colour = paper.colour
        self._rows = Literal(width, Span(margin), Span(rest, DIM))

    def feed(self, text: str) -> list[str]:
        return [paint(row, colour=self._colour) for row in self._rows.write([Span(text)])]

    def close(self) -> list[str]:
        return [paint(row, colour=self._colour) for row in self._rows.close()]


class _Quote:
    def __init__(self, page: "_Page", column: int, paper: Paper) -> None:
        self._page = page
        self._margin = " " * column + paint([Span(_BAR, DIM)], colour=paper.colour)

    def feed(self, text: str) -> list[str]:
        return self._marked(self._page.feed(text))

    def close(self) -> list[str]:
        return self._marked(self._page.close())

    def _marked(self, lines: list[str]) -> list[str]:
        return [f"{self._margin} {line}" if line else self._margin for line in lines]


class _Fence(NamedTuple):
    mark: str
    indent: int


class _Item(NamedTuple):
    """An item of a list: where its mark is in the text, and where its words are on the page."""

    indent: int
    column: int


class _Page:
    """Blocks below each other, the last of them open."""

    def __init__(self, width: int, paper: Paper, depth: int = 0) -> None:
        self._width, self._paper, self._depth = width, paper, depth
        self._text = ""  # of a line that may still be anything
        self._within = False  # a line whose rest belongs to the block
        self._block: _Block | None = None
        self._fence: _Fence | None = None  # of the block, which is code
        self._bars: list[str] = []  # a table, or the line that may begin one
        self._items: list[_Item] = []
        self._lines: list[str] = []
        self._begun = self._gap = False

    def feed(self, text: str) -> list[str]:
        self._text += text
        while self._text and self._step():
            pass
        return self._taken()

    def close(self) -> list[str]:
        line, self._text = self._text, ""
        if line:
            self._begin(line, whole=True)
        self._end_table()
        self._end_block()
        return self._taken()

    def hope(self) -> list[str]:
        """The rest, as it would look if all that is open were closed now."""
        self._paper.hopeful = True
        return self.close()

    def _taken(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    def _emit(self, lines: list[str]) -> None:
        if lines:
            self._lines += [""] * (self._gap and self._begun)
            self._lines += lines
            self._begun, self._gap = True, False

    def _step(self) -> bool:
        """Read a line, or what there is of it; False if more must come first."""
        line, end, rest = self._text.partition("\n")
        if self._within:
            self._text = rest
            self._write(line, whole=bool(end))
            return True
        bar = self._bars or line[:_SURE].lstrip(" ").startswith("|")
        patience = _LONGEST if bar else _SURE
        if len(line) > patience:
            self._text = self._text[patience:]
            self._begin(line[:patience], whole=False)
        elif end:
            self._text = rest
            self._begin(line, whole=True)
        else:
            return False
        return True

    def _begin(self, line: str, *, whole: bool) -> None:
        """Read a line, or the beginning of a long one."""
        if self._fence is not None:
            self._read_code(line, self._fence, whole=whole)
        elif not (self._bars and self._read_row(line, whole=whole)):
            self._read_line(line, whole=whole)

    def _write(self, text: str, *, whole: bool) -> None:
        """Give the block a line, or the beginning of a long one."""
        if self._block is not None:
            self._emit(self._block.feed(f"{text}\n" if whole else text))
        self._within = not whole
        if whole and isinstance(self._block, _Heading):
            self._end_block()

    def _end_block(self) -> None:
        block, self._block, self._fence = self._block, None, None
        if block is not None:
            self._emit(block.close())

    def _read_line(self, line: str, *, whole: bool) -> None:
        body = line.lstrip(" ")
        indent = len(line) - len(body)
        shallow = bool(self._items) or indent < _INDENTED
        if not body:
            self._end_block()
            self._gap = True
        elif body[0] == ">" and shallow and self._is_quotable():
            self._read_quote(body, indent, whole=whole)
        elif whole and (fence := _FENCE.match(body)):
            self._begin_code(fence[1], fence[2], indent)
        elif whole and _RULE.fullmatch(body):
            self._end_block()
            self._draw_rule(self._place(indent))
        elif shallow and (heading := _HEADING.match(body)):
            self._read_heading(heading[1], body[heading.end() :], indent, whole=whole)
        elif item := _ITEM.match(body):
            self._read_item(item, body, indent, whole=whole)
        elif not shallow and not isinstance(self._block, _Paragraph):
            self._read_indented(line[_INDENTED:], whole=whole)
        elif whole and "|" in body:
            self._bars = [line]
        else:
            self._read_prose(body, indent, whole=whole)

    def _place(self, indent: int) -> int:
        """The column where a block so far indented begins: below the item it belongs to."""
        while self._items and indent < self._items[-1].indent + _NESTED:
            self._items.pop()
        column = self._items[-1].column if self._items else 0
        return column if column + _ROOM <= self._width else 0

    def _read_prose(self, body: str, indent: int, *, whole: bool) -> None:
        if not isinstance(self._block, _Paragraph):
            self._end_block()
            self._block = _Paragraph(self._paper, self._width, " " * self._place(indent))
        self._write(body, whole=whole)

    def _read_heading(self, marks: str, title: str, indent: int, *, whole: bool) -> None:
        self._end_block()
        first = " " * self._place(indent) + ("" if self._paper.colour else f"{marks} ")
        look = _HEADINGS.get(len(marks), _LOWER_HEADING)
        self._hang(_Heading, first, look)
        self._write(_HEADING_END.sub("", title) if whole else title, whole=whole)

    def _hang(self, kind: type[_Paragraph], first: str, look: Look = PLAIN) -> None:
        """Begin a paragraph that hangs on its mark, or just begins with it where it is narrow."""
        hangs = len(first) + _ROOM <= self._width
        self._block = kind(self._paper, self._width, first if hangs else "", look)
        if not hangs:
            self._emit(self._block.feed(first))

    def _read_item(self, item: re.Match[str], body: str, indent: int, *, whole: bool) -> None:
        self._end_block()
        text = body[item.end() :]
        task = None if item[1][0].isdigit() else _TASK.match(text)
        if task:
            text = text[task.end() :]
        mark = f"{task[0].rstrip()} " if task else f"{item[1] if item[1][0].isdigit() else '•'} "
        column = self._place(indent)
        column = column if column + len(mark) + _ROOM <= self._width else 0
        self._items.append(_Item(indent, column + len(mark)))
        self._hang(_Paragraph, " " * column + mark)
        if text[:1] == ">" or (whole and _FENCE.match(text)):
            self._end_block()
            self._read_line(" " * (indent + max(item.end(), _NESTED)) + text, whole=whole)
        else:
            self._write(text, whole=whole)

    def _is_quotable(self) -> bool:
        return self._depth < _DEEPEST and len(_BAR) + _ROOM <= self._width

    def _read_quote(self, body: str, indent: int, *, whole: bool) -> None:
        if not isinstance(self._block, _Quote):
            self._end_block()
            column = self._place(indent)
            column = column if column + len(_BAR) + _ROOM <= self._width else 0
            page = _Page(self._width - column - len(_BAR), self._paper, self._depth + 1)
            self._block = _Quote(page, column, self._paper)
        self._write(body[1:].removeprefix(" "), whole=whole)

    def _begin_code(self, mark: str, label: str, indent: int) -> None:
        self._end_block()
        margin = self._code_margin(self._place(indent))
        if label:
            named = Span(label if self._paper.colour else f"{label}:", DIM)
            rows = Prose(self._width, Span(margin), Span(margin))
            told = [*rows.write([named]), *rows.close()]
            self._emit([paint(row, colour=self._paper.colour) for row in told])
        self._fence = _Fence(mark, indent)
        self._block = _Code(self._paper, self._width, margin)

    def _code_margin(self, column: int) -> str:
        margin = " " * column + _INDENT
        return margin if len(margin) + _ROOM <= self._width else ""

    def _read_code(self, line: str, fence: _Fence, *, whole: bool) -> None:
        body = line.strip(" ")
        if whole and body.startswith(fence.mark) and not body.strip(fence.mark[0]):
            self._end_block()
            return
        indented = len(line) - len(line.lstrip(" "))
        self._write(line[min(indented, fence.indent) :], whole=whole)

    def _read_indented(self, code: str, *, whole: bool) -> None:
        if not isinstance(self._block, _Code):
            self._end_block()
            self._block = _Code(self._paper, self._width, self._code_margin(0))
        self._write(code, whole=whole)

    def _draw_rule(self, column: int) -> None:
        rule = "─" * min(self._width - column, _RULE_WIDTH)
        self._emit([paint([Span(" " * column), Span(rule, DIM)], colour=self._paper.colour)])

    def _read_row(self, line: str, *, whole: bool) -> bool:
        """Whether the line goes on with the table, or makes one of the line before it."""
        first, more = self._bars[0], len(self._bars) > 1
        if whole and ("|" in line if more else is_table(first, line)):
            self._bars.append(line)
            return True
        self._end_table()
        return False

    def _end_table(self) -> None:
        lines, self._bars = self._bars, []
        indent = len(lines[0]) - len(lines[0].lstrip(" ")) if lines else 0
        if len(lines) == 1:
            self._read_prose(lines[0].lstrip(" "), indent, whole=True)
        elif lines:
            self._end_block()
            margin = Span(" " * self._place(indent))
            rows = table(lines, self._width - len(margin.text), self._paper)
            self._emit([paint([margin, *row], colour=self._paper.colour) for row in rows])
