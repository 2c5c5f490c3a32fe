"""Markdown as models write it → what a chat platform takes. Pure.

The text becomes a row of cells: what a character shows, how it reads where there is no
markup, and how it looks. No HTML of the input is ever read: what this file recognises as
markdown becomes a tag, everything else is escaped.

Recognised: fenced code, tables (shown as code), quotes, headings (bold), bullets, `code`,
links, **bold**, *italic*, ~~strike~~, backslash escapes. All else is text and stays. An
address of a host that nobody named is written so that nothing opens it (addresses.py).
"""

import html
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import NamedTuple

from holdfast.channels.addresses import ADDRESS, bracketed, harmless, normal
from holdfast.core.types import Value

TELEGRAM_LENGTH = 4096  # UTF-16 code units, counted after Telegram has taken the tags away
_WIDEST = 40  # no column of a table is padded beyond it
_LONGEST_LINK = 1024  # a longer one is told, not linked
_LONGEST_MARKUP = 7 * TELEGRAM_LENGTH  # Telegram reads no more; then it is left out


class Part(Value):
    """One message: as HTML, and the same without markup for when the HTML is refused."""

    html: str
    text: str  # never shorter than what the HTML shows


def telegram(markdown: str, *, named_hosts: Collection[str]) -> Part | None:
    """`markdown` for Telegram's HTML mode, however long; None if nothing is to be seen.

    It is longest where no host is named.
    """
    cells = _disarmed(_joined(_blocks(_clean(markdown).split("\n"))), named_hosts)
    if not any(_visible(cell.shown) for cell in cells):
        return None
    part = _part(cells[_blank_before(cells) :])
    if len(part.html) > _LONGEST_MARKUP:
        return Part(html.escape(part.text, quote=False), part.text)
    return part


def utf16_length(text: str) -> int:
    """How long Telegram thinks it is."""
    return len(text) + sum(ch > "\uffff" for ch in text)


class Look(NamedTuple):
    """How a character looks."""

    quote: bool = False
    href: str = ""
    bold: bool = False
    italic: bool = False
    strike: bool = False
    code: bool = False
    pre: bool = False
    language: str = ""


class Cell(NamedTuple):
    """What is shown, and what stands for it where there is no markup."""

    shown: str
    plain: str
    look: Look


_BARE = Look()
_BREAK = Cell("\n", "\n", _BARE)
_LINK = re.compile(r"https?://[^\s/?#\\]", re.IGNORECASE)


def _disarmed(cells: list[Cell], named_hosts: Collection[str]) -> list[Cell]:
    """The cells with foreign addresses defanged, and each link followed by where it leads.

    Found in the text as it is shown, so that no markup inside an address hides it. Code is
    shown as it is: clients open nothing there.
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


FENCE = re.compile(r"([ \t]*)(`{3,}+(?=[^`]*$)|~{3,}+)[ \t]*([\w+#.\-]{0,32})[ \t]*(.*?)[ \t]*$")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
QUOTE = re.compile(r"(?: *>)++ ?")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+(?=\S)")
_BULLET = re.compile(r"\A([ \t]*)[-*+](?=[ \t]+\S)")
DELIMITERS = re.compile(r"[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?)?[ \t]*$")


def _clean(text: str) -> str:
    """Without what platforms drop or refuse: control characters, bidi overrides, half pairs."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub("[\x00-\x08\x0b-\x1f\x7f\u2028-\u202e]", "", text)
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


def _text(text: str, look: Look) -> list[Cell]:
    return [Cell(ch, ch, look) for ch in text]


def _joined(blocks: Iterator[list[Cell]]) -> list[Cell]:
    """Blocks one below the other, with at most one empty line between them."""
    row: list[Cell] = []
    gap = True
    for block in blocks:
        if block or not gap:
            row += (*block, _BREAK)
        gap = not block
    while row and row[-1] is _BREAK:
        row.pop()
    return row


def _blocks(lines: Sequence[str]) -> Iterator[list[Cell]]:
    at = 0
    while at < len(lines):
        line, end = lines[at], at + 1
        if fence := FENCE.match(line):
            end = _fence_end(lines, at, fence)
            code = _code(lines[at + 1 : end], fence)
            label = fence[4] if code else f"{fence[3]} {fence[4]}".strip()
            yield from (block for block in (_text(label, _BARE), code) if block)
        elif _is_table(lines, at):
            while end < len(lines) and "|" in lines[end]:
                end += 1
            yield _text(_table([lines[at], *lines[at + 2 : end]]), Look(pre=True))
        elif QUOTE.match(line):
            while end < len(lines) and QUOTE.match(lines[end]):
                end += 1
            # What is left of a line begins with no mark of a quote: quotes do not nest.
            inner = _joined(_blocks([QUOTE.sub("", one, count=1) for one in lines[at:end]]))
            yield [cell._replace(look=cell.look._replace(quote=True)) for cell in inner]
        elif heading := _HEADING.match(line):
            yield _inline(heading[1], Look(bold=True))
        else:
            while end < len(lines) and line.strip() and not _begins(lines, end):
                end += 1
            text = "\n".join(one.rstrip() for one in lines[at:end])
            yield _inline(_BULLET.sub(r"\1•", text, count=1), _BARE)
        at = end


def _begins(lines: Sequence[str], at: int) -> bool:
    """Whether a paragraph ends before this line."""
    line = lines[at]
    marks = (FENCE, QUOTE, _HEADING, _ITEM)
    return not line.strip() or any(mark.match(line) for mark in marks) or _is_table(lines, at)


def _fence_end(lines: Sequence[str], at: int, fence: re.Match[str]) -> int:
    """The line after the fence that closes it, or after the last: models get cut off."""
    for end in range(at + 1, len(lines)):
        line = lines[end].strip()
        if line.startswith(fence[2]) and not line.strip(fence[2][0]):
            return end + 1
    return len(lines)


def _code(lines: Sequence[str], fence: re.Match[str]) -> list[Cell]:
    last = lines[-1].strip() if lines else ""
    if last.startswith(fence[2]) and not last.strip(fence[2][0]):
        lines = lines[:-1]
    indent = re.compile(f"[ \\t]{{0,{len(fence[1])}}}")
    text = "\n".join(indent.sub("", line, count=1) for line in lines)
    return _text(text, Look(pre=True, language=fence[3])) if _visible(text) else []


def _is_table(lines: Sequence[str], at: int) -> bool:
    follows = lines[at + 1] if at + 1 < len(lines) else ""
    return "|" in lines[at] and DELIMITERS.match(follows) is not None


def _table(lines: Sequence[str]) -> str:
    """Rows below each other in columns of one width, a rule under the first."""
    rows = [[_reading(cell.strip()) for cell in _columns(line)] for line in lines]
    widths = [min(_WIDEST, max(map(_width, column))) for column in zip_longest(*rows, fillvalue="")]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        " | ".join(cell + " " * (widths[at] - _width(cell)) for at, cell in enumerate(row)).rstrip()
        for row in rows
    )


def _columns(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    return re.split(r"(?<!\\)\|", re.sub(r"(?<!\\)\|$", "", inner))


def _reading(markdown: str) -> str:
    """Without markup, each link followed by where it leads."""
    groups = groupby(_inline(markdown, _BARE), key=lambda cell: cell.look.href)
    texts = ((href, "".join(cell.plain for cell in group)) for href, group in groups)
    return "".join(f"{text} ({href})" if href not in ("", text) else text for href, text in texts)


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(ch) in "WF" for ch in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


_INLINE = re.compile(
    r"""\\(?P<escaped>[!-/:-@\[-`{-~])
    |(?P<ticks>`++)
    |<(?P<auto>https?://[^\s<>]++)>
    |(?P<url>https?://[^\s<>`]*[^\s<>`.,:;!?'"*_~)\]|])
    |!?\[(?P<label>(?:[^\[\]\\]|\\.|\[[^\[\]]*+\])*+)\]
       \((?P<href>[^\s<>()]*+(?:\([^\s<>()]*+\)[^\s<>()]*+)*+)\)
    |(?P<run>\*++|_++|(?<!~)~~(?!~))""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


@dataclass(slots=True)
class _Run:
    """A run of emphasis marks: what it ends, what is left over as text, what it begins."""

    mark: str
    left: int
    opens: bool
    closes: bool
    ends: list[str]
    begins: list[str]


def _inline(text: str, look: Look) -> list[Cell]:
    """One paragraph. Inside a link there is no other."""
    pieces: list[list[Cell] | _Run] = []
    at = 0
    while found := _INLINE.search(text, at):
        pieces.append(_text(text[at : found.start()], look))
        at = found.end()
        match found.lastgroup:
            case "ticks":
                close = re.compile(rf"(?<!`){found[0]}(?!`)").search(text, at)
                code = text[at : close.start()] if close else ""
                if close and code.strip():
                    pieces.append(_text(_unpadded(code), look._replace(code=True)))
                    at = close.end()
                else:
                    pieces.append(_text(found[0], look))
            case "href" if found["href"] and not look.href:
                pieces.append(_link(found["label"], found["href"], look))
            case "run":
                pieces.append(_mark(text, found))
            case "escaped" | "auto" as group:
                pieces.append(_text(found[group], look))
            case _:
                pieces.append(_text(found[0], look))
    pieces.append(_text(text[at:], look))
    _pair([piece for piece in pieces if isinstance(piece, _Run)])
    return list(_worn(pieces, look))


def _unpadded(code: str) -> str:
    padded = code.startswith((" ", "\n")) and code.endswith((" ", "\n"))
    return code[1:-1] if padded else code


def _link(label: str, href: str, look: Look) -> list[Cell]:
    """A link if it leads to the web; else its target is told."""
    cells = _inline(label if label.strip() else href, look._replace(href=href))
    if _LINK.match(href):
        return cells
    return [*(cell._replace(look=look) for cell in cells), *_text(f" ({href})", look)]


def _mark(text: str, found: re.Match[str]) -> _Run:
    """Whether a run of marks can begin or end emphasis, by what stands around it."""
    before = text[found.start() - 1] if found.start() else " "
    after = text[found.end()] if found.end() < len(text) else " "
    solid_before, solid_after = before.isalnum(), after.isalnum()
    left = not after.isspace() and (solid_after or not solid_before)
    right = not before.isspace() and (solid_before or not solid_after)
    mark = found[0][0]
    if mark == "_":
        left, right = left and not solid_before, right and not solid_after
    return _Run(mark, len(found[0]), left, right, [], [])


def _pair(runs: Sequence[_Run]) -> None:
    """Give each closing run the nearest opener of its mark; what lies between stays text."""
    openers: dict[str, list[int]] = {"*": [], "_": [], "~": []}
    for at, run in enumerate(runs):
        own = openers[run.mark]
        while run.closes and run.left and own:
            opener = runs[own[-1]]
            width = 2 if opener.left > 1 and run.left > 1 else 1
            kind = "strike" if run.mark == "~" else "bold" if width > 1 else "italic"
            opener.begins.append(kind)
            run.ends.append(kind)
            opener.left -= width
            run.left -= width
            for others in openers.values():
                while others and others[-1] > own[-1]:
                    others.pop()
            if not opener.left:
                own.pop()
        if run.opens and run.left:
            own.append(at)


def _worn(pieces: Sequence[list[Cell] | _Run], look: Look) -> Iterator[Cell]:
    """The cells in the emphasis that the runs around them say."""
    depth = dict.fromkeys(("bold", "italic", "strike"), 0)
    for piece in pieces:
        if isinstance(piece, _Run):
            for kind in piece.ends:
                depth[kind] -= 1
            yield from _emphasised(_text(piece.mark * piece.left, look), depth)
            for kind in piece.begins:
                depth[kind] += 1
        else:
            yield from _emphasised(piece, depth)


def _emphasised(cells: list[Cell], depth: Mapping[str, int]) -> list[Cell]:
    bold, italic, strike = depth["bold"] > 0, depth["italic"] > 0, depth["strike"] > 0
    if not (cells and (bold or italic or strike)):
        return cells
    worn = {
        look: look._replace(
            bold=look.bold or bold, italic=look.italic or italic, strike=look.strike or strike
        )
        for look in {cell.look for cell in cells}
    }
    return [cell._replace(look=worn[cell.look]) for cell in cells]


def _blank_before(cells: Sequence[Cell]) -> int:
    """How many cells show nothing before the first that does; indented code stays so."""
    at = 0
    while cells[at].shown.isspace() and not (cells[at].look.pre and cells[at].shown != "\n"):
        at += 1
    return at


def _visible(text: str) -> bool:
    return any(not ch.isspace() and unicodedata.category(ch) not in ("Cf", "Cc") for ch in text)


def _part(cells: Sequence[Cell]) -> Part:
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
    return Part("".join(out), "".join(cell.plain for cell in cells[:last]))


def _tags(look: Look) -> list[tuple[str, str]]:
    """Outermost first. Telegram lets code contain nothing and be part of a quote only."""
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
