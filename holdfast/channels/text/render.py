"""Render Markdown for a chat platform. Pure.

The text becomes a row of cells: the character shown, its form where there is no markup, and its
style. The parser is core/text; this file decides what each platform gets. HTML in the input is
never read: recognised Markdown becomes a tag, everything else is escaped.

Tables are shown as code, headings as bold text, indented code as text. The address of a host
that the user did not name is written so that nothing opens it (links.py).
"""

import html
import re
import unicodedata
from collections.abc import Collection, Sequence
from itertools import groupby, zip_longest
from typing import NamedTuple, assert_never

from holdfast.channels.text.links import ADDRESS, bracketed, harmless, normal
from holdfast.core.text import inline
from holdfast.core.text import markdown as md
from holdfast.core.text.escape import for_chat
from holdfast.core.text.width import columns
from holdfast.core.types import Value

TELEGRAM_LENGTH = 4096  # UTF-16 code units, counted after Telegram has removed the tags
_WIDEST = 40  # no column of a table is padded beyond it
_LONGEST_LINK = 1024  # a longer one is written out, not linked
_LONGEST_MARKUP = 7 * TELEGRAM_LENGTH  # Telegram reads no more; then the markup is left out
_PIECE = 4096  # characters are parsed at once: the parser joins the texts of a piece
_WHOLE_LINES = 1 << 62  # the text is complete: lines are never parsed by their beginning


class RenderedText(Value):
    """One message: as HTML, and the same without markup for when the HTML is refused."""

    html: str
    text: str  # never shorter than what the HTML shows


def telegram(markdown: str, *, named_hosts: Collection[str]) -> RenderedText | None:
    """Render `markdown` for Telegram's HTML mode, however long; None if nothing is visible.

    It is longest where no host is named.
    """
    cells = _disarmed(_parsed(for_chat(markdown)), named_hosts)
    if not any(_visible(cell.shown) for cell in cells):
        return None
    part = _part(cells[_blank_before(cells) :])
    if len(part.html) > _LONGEST_MARKUP:
        return RenderedText(html.escape(part.text, quote=False), part.text)
    return part


def utf16_length(text: str) -> int:
    """Measure a text as Telegram does."""
    return len(text) + sum(ch > "\uffff" for ch in text)


class CharStyle(NamedTuple):
    """The style of a character."""

    quote: bool = False
    href: str = ""
    bold: bool = False
    italic: bool = False
    strike: bool = False
    code: bool = False
    pre: bool = False
    language: str = ""


class Cell(NamedTuple):
    """A character as it is shown, and its form where there is no markup."""

    shown: str
    plain: str
    look: CharStyle


_BARE = CharStyle()
_BREAK = Cell("\n", "\n", _BARE)
_LINK = re.compile(r"https?://[^\s/?#\\]", re.IGNORECASE)


def _disarmed(cells: list[Cell], named_hosts: Collection[str]) -> list[Cell]:
    """Defang foreign addresses and write the target behind each link.

    Addresses are searched in the text as it is shown, so that markup inside an address does not
    hide it. Code is shown as it is: clients open nothing there.
    """
    named = frozenset(map(normal, named_hosts))
    row = list(cells)
    for match in ADDRESS.finditer("".join(cell.shown for cell in cells)):
        if not harmless(match[0], named):
            for at in range(match.start(), match.end()):
                shown, _, look = row[at]
                safe = bracketed(shown)
                row[at] = Cell(shown if look.code or look.pre else safe, safe, look)
    out: list[Cell] = []
    for href, group in groupby(row, key=lambda cell: cell.look.href):
        label = list(group)
        if not href or (len(href) <= _LONGEST_LINK and harmless(href, named)):
            out += label
            if href and "".join(cell.shown for cell in label) != href:
                out.append(Cell("", f" ({href})", label[-1].look))
        else:
            safe = href if harmless(href, named) else bracketed(href)
            out += [cell._replace(look=cell.look._replace(href="")) for cell in label]
            out += _text(f" ({safe})", label[-1].look._replace(href="", code=False))
    return out


_LANGUAGE = re.compile(r"([\w+#.\-]{0,32})[ \t]*(.*)")


def language(info: str) -> tuple[str, str]:
    """Split the text behind a fence into the language and the rest."""
    found = _LANGUAGE.match(info)
    return (found[1], found[2]) if found else ("", info)


def _text(text: str, look: CharStyle = _BARE) -> list[Cell]:
    return [Cell(ch, ch, look) for ch in text]


def _parsed(markdown: str) -> list[Cell]:
    parser = md.MarkdownParser(sure=_WHOLE_LINES, longest=_WHOLE_LINES)
    page = _Page()
    for line in markdown.split("\n"):
        page.add(parser.feed(f"{line}\n"))
    page.add(parser.close())
    return page.cells()


class _Frame:
    """Blocks one below the other, with at most one empty line between them."""

    def __init__(self) -> None:
        self._row: list[Cell] = []
        self._gap = True

    def add(self, block: list[Cell]) -> None:
        if block or not self._gap:
            self._row += (*block, _BREAK)
        self._gap = not block

    def cells(self) -> list[Cell]:
        while self._row and self._row[-1] is _BREAK:
            self._row.pop()
        return self._row


class _Page:
    """Turn events into cells."""

    def __init__(self) -> None:
        self._frames = [_Frame()]  # the page and the quotes that are open
        self._block: md.Block | None = None
        self._text: list[str] = []

    def cells(self) -> list[Cell]:
        return self._frames[0].cells()

    def add(self, events: Sequence[md.Event]) -> None:
        for event in events:
            match event:
                case md.Quote():
                    self._frames.append(_Frame())
                case md.Paragraph() | md.Heading() | md.Item() | md.Code():
                    self._block = event
                case md.Text(text):
                    self._text.append(text)
                case md.End():
                    self._end()
                case md.Gap():
                    self._frames[-1].add([])
                case md.Rule(_, source):
                    self._frames[-1].add(_text(source.rstrip()))
                case md.Table(_, rows, _):
                    self._frames[-1].add(_text(_table(rows), CharStyle(pre=True)))
                case _:
                    assert_never(event)

    def _end(self) -> None:
        if self._block is None:
            cells = self._frames.pop().cells()
            outermost = len(self._frames) == 1
            self._frames[-1].add(_quoted(cells) if outermost else cells)
            return
        block, text = self._block, "".join(self._text).removesuffix("\n")
        self._block, self._text = None, []
        for cells in _blocks(block, text):
            self._frames[-1].add(cells)


def _quoted(cells: Sequence[Cell]) -> list[Cell]:
    looks = {look: look._replace(quote=True) for look in {cell.look for cell in cells}}
    return [Cell(shown, plain, looks[look]) for shown, plain, look in cells]


def _blocks(block: md.Block, text: str) -> list[list[Cell]]:
    """Turn a finished block into cells; the label of a code block is a block of its own."""
    lines = [line.rstrip() for line in text.split("\n")]
    match block:
        case md.Paragraph():
            return [_inline("\n".join(lines), _BARE)]
        case md.Heading(_, level):
            return [_inline(text.rstrip() or "#" * level, CharStyle(bold=True))]
        case md.Item(_, indent, mark, gap, task):
            mark = mark if mark[0].isdigit() else "•"
            first = f"{indent}{mark}{gap}{task} " if task else f"{indent}{mark}{gap}"
            cells = _inline("\n".join(lines), _BARE)
            return [[*_text(first if cells else first.rstrip()), *cells]]
        case md.Code(_, None):
            return [_text("\n".join(f"    {line}" for line in lines))]
        case md.Code(_, str(info)):
            name, label = language(info)
            code = _text(text, CharStyle(pre=True, language=name)) if _visible(text) else []
            return [cells for cells in (_text(label if code else info), code) if cells]
        case _:
            raise AssertionError(block)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Draw columns of one width, with a rule under the first row."""
    texts = [[_reading(cell) for cell in row] for row in rows]
    widths = [
        min(_WIDEST, max(map(columns, column))) for column in zip_longest(*texts, fillvalue="")
    ]
    texts.insert(1, ["-" * width for width in widths])
    return "\n".join(
        " | ".join(
            cell + " " * (widths[at] - columns(cell)) for at, cell in enumerate(row)
        ).rstrip()
        for row in texts
    )


def _reading(markdown: str) -> str:
    """Return the text without markup, each link followed by its target."""
    groups = groupby(_inline(markdown.replace("\n", " "), _BARE), key=lambda cell: cell.look.href)
    texts = ((href, "".join(cell.plain for cell in group)) for href, group in groups)
    return "".join(f"{text} ({href})" if href not in ("", text) else text for href, text in texts)


def _inline(text: str, base: CharStyle) -> list[Cell]:
    """Turn the text of a paragraph into cells."""
    parser = inline.InlineParser()
    pieces = [p for at in range(0, len(text), _PIECE) for p in parser.feed(text[at : at + _PIECE])]
    cells: list[Cell] = []
    for piece in (*pieces, *parser.close()):
        look = base if piece.emphasis == inline.PLAIN else _emphasised(base, piece.emphasis)
        match piece:
            case inline.Text(shown):
                cells += _text(shown, look)
            case inline.Code(code):
                cells += _text(code, look._replace(code=True))
            case inline.Link():
                cells += _link(piece, look)
            case _:
                assert_never(piece)
    return cells


def _emphasised(base: CharStyle, emphasis: inline.Emphasis) -> CharStyle:
    bold, italic, strike = emphasis
    return base._replace(
        bold=base.bold or bold, italic=base.italic or italic, strike=base.strike or strike
    )


def _link(link: inline.Link, look: CharStyle) -> list[Cell]:
    """Make a link if it leads to the web and is not inside another; else write out its target."""
    label, title = link.label.strip() or link.href, f" {link.title}" if link.title else ""
    if _LINK.match(link.href) and not look.href:
        return [*_inline(label, look._replace(href=link.href)), *_text(title, look)]
    return [*_inline(label, look), *_text(f" ({link.href}{title})", look)]


def _blank_before(cells: Sequence[Cell]) -> int:
    """Count the blank cells before the first visible one; code keeps its indent."""
    at = 0
    while cells[at].shown.isspace() and not (cells[at].look.pre and cells[at].shown != "\n"):
        at += 1
    return at


def _visible(text: str) -> bool:
    return any(not ch.isspace() and unicodedata.category(ch) not in ("Cf", "Cc") for ch in text)


def _part(cells: Sequence[Cell]) -> RenderedText:
    last = len(cells)
    while last and cells[last - 1].shown.isspace():
        last -= 1
    out: list[str] = []
    open_tags: list[tuple[str, str]] = []
    for look, group in groupby(cells[:last], key=lambda cell: cell.look):
        tags = _tags(look)
        same = 0
        while same < min(len(tags), len(open_tags)) and tags[same] == open_tags[same]:
            same += 1
        out += (close for _, close in reversed(open_tags[same:]))
        out += (begin for begin, _ in tags[same:])
        out.append(html.escape("".join(cell.shown for cell in group), quote=False))
        open_tags = tags
    out += (close for _, close in reversed(open_tags))
    return RenderedText("".join(out), "".join(cell.plain for cell in cells[:last]))


def _tags(look: CharStyle) -> list[tuple[str, str]]:
    """List the tags, outermost first. Telegram allows code in a quote only, and nothing in code."""
    tags = [("<blockquote>", "</blockquote>")] if look.quote else []
    if look.pre and look.language:
        language = html.escape(look.language)
        return [*tags, (f'<pre><code class="language-{language}">', "</code></pre>")]
    if look.pre:
        return [*tags, ("<pre>", "</pre>")]
    if look.code and not look.href:
        return [*tags, ("<code>", "</code>")]
    if look.href:
        tags.append((f'<a href="{html.escape(look.href)}">', "</a>"))
    styles = (("b", look.bold), ("i", look.italic), ("s", look.strike))
    return tags + [(f"<{name}>", f"</{name}>") for name, worn in styles if worn]
