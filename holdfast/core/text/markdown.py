"""Parse the blocks of Markdown, as models write it, while it arrives.

`feed` returns events that are final: they depend on the text alone, not on the pieces in which
it arrives. The kind of a line is known from its beginning, so no line is held longer than that
takes: `sure` characters, or `longest` where it may belong to a table. After that one block is
open and receives the rest of the line as it arrives. A table is held until it ends. Nothing is
read twice: the work is linear in the length of the text.

Between its event and its `End` a paragraph, a heading, an item or code receives `Text` events;
what that text means inside a paragraph is for `inline.InlineParser`. A quote contains blocks.
Line ends are kept, as models mean them.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.types import Value

SURE = 160
LONGEST = 4000
_NESTED = 2  # columns that an item is indented under another
_INDENTED = 4  # columns make code
_DEEPEST = 8  # quotes within quotes

FENCE = re.compile(r"(`{3,}+(?=[^`]*$)|~{3,}+)[ \t]*(.*?)[ \t]*$")
_HEADING = re.compile(r"(#{1,6})(?:[ \t]+|$)")
_HEADING_END = re.compile(r"(?:^|[ \t]+)#+[ \t]*$")
_RULE = re.compile(r"([-*_])(?:[ \t]*\1){2,}[ \t]*")
_ITEM = re.compile(r"([-*+•]|\d{1,9}[.)])([ \t]+|$)")
_TASK = re.compile(r"(\[[ xX]\])[ \t]+")
_TABLE_RULE = re.compile(r"\|?(?: *:?-+:? *\|)+(?: *:?-+:?)? *|\|(?: *:?-+:?) *")
_BAR = re.compile(r"(?<!\\)\|")
_BREAK = re.compile(r"<br */?>", re.IGNORECASE)


class Paragraph(Value):
    """Lines of prose within `items` list items."""

    items: int


class Heading(Value):
    """A heading of `level` 1 to 6."""

    items: int
    level: int


class Item(Value):
    """A list item with its first paragraph: indent, mark and gap of the source, and `[x]`."""

    items: int
    indent: str
    mark: str
    gap: str
    task: str


class Code(Value):
    """A code block; `info` is the text behind the fence, None where an indent makes the code."""

    items: int
    info: str | None


class Quote(Value):
    """A quote; it contains blocks."""

    items: int


Block = Paragraph | Heading | Item | Code | Quote


class Text(NamedTuple):
    """Text of the innermost open block, with its line ends."""

    text: str


class End(NamedTuple):
    """The innermost open block ends."""


class Gap(NamedTuple):
    """An empty line between blocks."""


class Rule(Value):
    """A line across the page, and its source."""

    items: int
    source: str


class Table(Value):
    """A table: `rows` of Markdown cells, the first is the header; `alignment` holds `^>` or ""."""

    items: int
    rows: Sequence[Sequence[str]]
    alignment: Sequence[str]


Event = Block | Text | End | Gap | Rule | Table


class _Fence(NamedTuple):
    mark: str
    indent: int


class MarkdownParser:
    """Parse a text, or the inside of a quote, into events."""

    def __init__(
        self, *, sure: int = SURE, longest: int = LONGEST, deepest: int = _DEEPEST
    ) -> None:
        self._sure, self._longest, self._deepest = sure, longest, deepest
        self._text = ""  # of a line whose kind is not known
        self._within = False  # the rest of the line belongs to the block
        self._block: Block | None = None
        self._quote: MarkdownParser | None = None  # the inside of the block, which is a quote
        self._fence: _Fence | None = None  # of the block, which is code
        self._bars: list[str] = []  # a table, or the line that may begin one
        self._items: list[int] = []  # the indents of the open items
        self._events: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        """Take a piece of the text; return the events that are final now."""
        self._text += text
        while self._text and self._step():
            pass
        return self._taken()

    def close(self) -> list[Event]:
        """End the text; return the rest."""
        line, self._text = self._text, ""
        if line:
            self._begin(line, whole=True)
        self._end_table()
        self._end_block()
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _step(self) -> bool:
        """Read a line, or the known part of it; return False if more must arrive first."""
        line, end, rest = self._text.partition("\n")
        if self._within:
            self._text = rest
            self._write(line, whole=bool(end))
            return True
        bar = self._bars or line[: self._sure].lstrip(" \t").startswith("|")
        patience = self._longest if bar else self._sure
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

    def _open(self, block: Block) -> None:
        self._end_block()
        self._block = block
        self._events.append(block)

    def _write(self, text: str, *, whole: bool) -> None:
        """Give the block a line, or the beginning of a long one."""
        text = f"{text}\n" if whole else text
        self._events += [Text(text)] if self._quote is None else self._quote.feed(text)
        self._within = not whole
        if whole and isinstance(self._block, Heading):
            self._end_block()

    def _end_block(self) -> None:
        if self._quote is not None:
            self._events += self._quote.close()
        if self._block is not None:
            self._events.append(End())
        self._block = self._quote = self._fence = None

    def _read_line(self, line: str, *, whole: bool) -> None:
        body = line.lstrip(" \t")
        indent = len(line) - len(body)
        shallow = bool(self._items) or indent < _INDENTED
        if not body:
            self._end_block()
            self._events.append(Gap())
        elif body[0] == ">" and shallow and self._deepest:
            self._read_quote(body, indent, whole=whole)
        elif whole and (fence := FENCE.match(body)):
            self._open(Code(self._depth(indent), fence[2]))
            self._fence = _Fence(fence[1], indent)
        elif whole and _RULE.fullmatch(body):
            self._end_block()
            self._events.append(Rule(self._depth(indent), body))
        elif shallow and (heading := _HEADING.match(body)):
            self._open(Heading(self._depth(indent), len(heading[1])))
            title = body[heading.end() :]
            self._write(_HEADING_END.sub("", title) if whole else title, whole=whole)
        elif item := _ITEM.match(body):
            self._read_item(item, line, indent, whole=whole)
        elif not shallow and not isinstance(self._block, (Paragraph, Item)):
            if not isinstance(self._block, Code):
                self._open(Code(0, None))
            self._write(line[_INDENTED:], whole=whole)
        elif whole and "|" in body:
            self._bars = [line]
        else:
            self._read_prose(line, indent, whole=whole)

    def _depth(self, indent: int) -> int:
        """Count the items that a block with this indent belongs to; the others end."""
        while self._items and indent < self._items[-1] + _NESTED:
            self._items.pop()
        return len(self._items)

    def _read_prose(self, line: str, indent: int, *, whole: bool) -> None:
        if not isinstance(self._block, (Paragraph, Item)):
            self._open(Paragraph(self._depth(indent)))
        self._write(line, whole=whole)

    def _read_item(self, item: re.Match[str], line: str, indent: int, *, whole: bool) -> None:
        text = line[indent + item.end() :]
        task = None if item[1][0].isdigit() else _TASK.match(text)
        text = text[task.end() :] if task else text
        box = task[1] if task else ""
        self._open(Item(self._depth(indent), line[:indent], item[1], item[2], box))
        self._items.append(indent)
        if text[:1] == ">" or (whole and FENCE.match(text)):
            self._end_block()
            self._read_line(" " * (indent + max(item.end(), _NESTED)) + text, whole=whole)
        else:
            self._write(text, whole=whole)

    def _read_quote(self, body: str, indent: int, *, whole: bool) -> None:
        if self._quote is None:
            self._open(Quote(self._depth(indent)))
            self._quote = MarkdownParser(
                sure=self._sure, longest=self._longest, deepest=self._deepest - 1
            )
        self._write(body[1:].removeprefix(" "), whole=whole)

    def _read_code(self, line: str, fence: _Fence, *, whole: bool) -> None:
        if whole and closes_fence(line, fence.mark):
            self._end_block()
            return
        indented = len(line) - len(line.lstrip(" \t"))
        self._write(line[min(indented, fence.indent) :], whole=whole)

    def _read_row(self, line: str, *, whole: bool) -> bool:
        """Take the line if it continues the table or makes one of the line before it."""
        first, more = self._bars[0], len(self._bars) > 1
        if whole and ("|" in line if more else is_table(first, line)):
            self._bars.append(line)
            return True
        self._end_table()
        return False

    def _end_table(self) -> None:
        lines, self._bars = self._bars, []
        indent = len(lines[0]) - len(lines[0].lstrip(" \t")) if lines else 0
        if len(lines) == 1:
            self._read_prose(lines[0], indent, whole=True)
        elif lines:
            self._end_block()
            head, rule, *body = map(_cells, lines)
            alignment = [_alignment(cell) for cell in rule]
            self._events.append(Table(self._depth(indent), [head, *body], alignment))


def closes_fence(line: str, mark: str) -> bool:
    """Tell whether the line ends the code that `mark` began."""
    body = line.strip(" \t")
    return body.startswith(mark) and not body.strip(mark[0])


def is_table(header: str, rule: str) -> bool:
    """Tell whether the two lines begin a table."""
    found = _TABLE_RULE.fullmatch(rule.strip())
    return found is not None and len(_cells(header)) == len(_cells(rule))


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    cells = _BAR.split(inner)
    if len(cells) > 1 and not cells[-1].strip():
        cells.pop()
    return [_BREAK.sub("\n", cell.strip().replace("\\|", "|")) for cell in cells]


def _alignment(cell: str) -> str:
    if not cell.endswith(":"):
        return ""
    return "^" if cell.startswith(":") else ">"
