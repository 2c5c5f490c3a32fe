"""Markdown as models write it → what a chat platform takes. Pure.

The text becomes a row of cells: what a character shows, how it reads where there is no
markup, and how it looks. A message is a slice of that row and carries its own tags, so
each part is valid by itself wherever a text is cut. No HTML of the input is ever read:
what this file recognises as markdown becomes a tag, everything else is escaped.

Recognised: fenced code, tables (shown as code), quotes, headings (bold), bullets, `code`,
links, **bold**, *italic*, ~~strike~~, backslash escapes. All else is text and stays.

An address whose host the user never named could carry away what the agent knows as soon
as somebody, or a preview, opens it. It is written so that nothing opens it (`defang`).
An address is what clients make one of: a scheme, a host with a path, a bare name under a
common ending. This is a net; that previews are off is the sender's work.
"""

import html
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, zip_longest
from typing import NamedTuple

from holdfast.core.types import Value

TELEGRAM_LENGTH = 4096  # UTF-16 code units, counted after Telegram has taken the tags away
_WIDEST = 40  # no column of a table is padded beyond it
_MARKUP_FACTOR = 7  # markup may be so many times as long as what it shows; then the part is cut


class Part(Value):
    """One message: as HTML, and the same without markup for when the HTML is refused."""

    html: str
    text: str


def telegram(
    markdown: str, *, named_hosts: Collection[str], max_length: int = TELEGRAM_LENGTH
) -> tuple[Part, ...]:
    """`markdown` as messages for Telegram's HTML mode, in order; none if nothing is to be seen."""
    cells = _joined(_blocks(_clean(markdown).split("\n")))
    return tuple(_parts(_disarmed(cells, named_hosts, max_length), max_length))


def defang(text: str, named_hosts: Collection[str]) -> str:
    """`text` with every address of another host written as `https[:]//host[.]example/path`."""
    named = frozenset(map(_normal, named_hosts))
    return _ADDRESS.sub(lambda m: m[0] if _harmless(m[0], named) else _bracketed(m[0]), text)


def hosts(text: str) -> frozenset[str]:
    """Every host that `text` names: what a user wrote, for `named_hosts`."""
    bare = (_normal(m[0]) for m in _NAME.finditer(text))
    full = (host for m in _ADDRESS.finditer(text) for host in _hosts_of(m[0]))
    return frozenset({*bare, *full} - {""})


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
    """What is shown, and what stands for it where there is no markup. Never cut."""

    shown: str
    plain: str
    look: Look


_BARE = Look()
_BREAK = Cell("\n", "\n", _BARE)

# Clients end a path at a bracket or a quote: what follows may be an address of its own.
_PATH = r"[/\\?\#][^\s<>()\[\]{}\"'«»\u2000-\u206f]*"
_ENDS = r"(?<![.,:;!?)\]}'\"*_~])"  # as a sentence does, not an address
_ADDRESS = re.compile(
    rf"""(?<![a-z0-9+.\-])[a-z0-9+.\-]*+:[/\\]{{2,}}[^\s<>/\\?\#]*(?:{_PATH})?{_ENDS}
    |(?<![\w@./\\\-])\.*+(?:[\w.+\-]++@)?(?:[\w\-]++[.。．｡])++[^\W\d_]{{2,}}+(?::\d++)?
       (?=[/\\?\#]\S){_PATH}{_ENDS}
    |(?<![\w@.\-])\.*+(?:[\w\-]++[.。．｡])+?(?:com|net|org|info|biz|io|ai|app|dev|me|co|xyz|top|site|
       online|shop|club|cloud|link|page|live|pro|tech|store|space|website|gov|edu|eu|de|uk|ru|cn|
       fr|nl|us|in|tk|ml|ga|cf|gq|onion|local|internal)(?![\w\-]|[.。．｡]\w)""",
    re.IGNORECASE | re.VERBOSE,
)
_NAME = re.compile(r"(?:[\w\-]++\.)++[\w\-]++|\blocalhost\b|\[[0-9a-fA-F:.]++\]")
_SCHEME = re.compile(r":[/\\]{2,}")
_LINK = re.compile(r"https?://[^\s/?#\\]", re.IGNORECASE)


def _hosts_of(address: str) -> list[str]:
    """Each host an address names: also that of an address inside its path or query."""
    rests = _SCHEME.split(address)
    return [_normal(_host(rest)) for rest in (rests[1:] or rests)]


def _host(rest: str) -> str:
    authority = re.split(r"[/\\?#]", rest, maxsplit=1)[0]
    return re.sub(r":\d*$", "", authority.rpartition("@")[2])


def _normal(host: str) -> str:
    return unicodedata.normalize("NFKC", host).casefold().strip(".").removeprefix("www.")


def _harmless(address: str, named: Collection[str]) -> bool:
    """Whether it leads nowhere but to `named` and is not glued to another word with a dot."""
    scheme, *rests = _SCHEME.split(address)
    return (not rests or scheme.isalpha()) and all(host in named for host in _hosts_of(address))


def _bracketed(address: str) -> str:
    return re.sub("[.。．｡:]", r"[\g<0>]", address)


def _disarmed(cells: list[Cell], named_hosts: Collection[str], max_length: int) -> list[Cell]:
    """The cells with foreign addresses defanged, and each link followed by where it leads.

    Found in the text as it is shown, so that no markup inside an address hides it. Code is
    shown as it is: clients open nothing there.
    """
    named = frozenset(map(_normal, named_hosts))
    row = list(cells)
    for match in _ADDRESS.finditer("".join(cell.shown for cell in cells)):
        if not _harmless(match[0], named):
            for at in range(match.start(), match.end()):
                shown, _, look = row[at]
                safe = _bracketed(shown)
                row[at] = Cell(shown if look.code or look.pre else safe, safe, look)
    out: list[Cell] = []
    for href, group in groupby(row, key=lambda cell: cell.look.href):
        label = list(group)
        fits = len(href) + 3 <= max_length // 4
        if not href or (fits and _harmless(href, named)):
            out += label
            if href and "".join(cell.shown for cell in label) != href:
                out.append(Cell("", f" ({href})", label[-1].look))
        else:
            safe = href if _harmless(href, named) else _bracketed(href)
            out += [cell._replace(look=cell.look._replace(href="")) for cell in label]
            out += _text(f" ({safe})", label[-1].look._replace(href="", code=False))
    return out


_FENCE = re.compile(r"([ \t]*)(`{3,}+(?=[^`]*$)|~{3,}+)[ \t]*([\w+#.\-]{0,32})[ \t]*(.*?)[ \t]*$")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
_QUOTE = re.compile(r"(?: *>)++ ?")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+(?=\S)")
_BULLET = re.compile(r"\A([ \t]*)[-*+](?=[ \t]+\S)")
_DELIMITERS = re.compile(r"[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?)?[ \t]*$")


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
        if fence := _FENCE.match(line):
            end = _fence_end(lines, at, fence)
            code = _code(lines[at + 1 : end], fence)
            label = fence[4] if code else f"{fence[3]} {fence[4]}".strip()
            yield from (block for block in (_text(label, _BARE), code) if block)
        elif _is_table(lines, at):
            while end < len(lines) and "|" in lines[end]:
                end += 1
            yield _text(_table([lines[at], *lines[at + 2 : end]]), Look(pre=True))
        elif _QUOTE.match(line):
            while end < len(lines) and _QUOTE.match(lines[end]):
                end += 1
            # What is left of a line begins with no mark of a quote: quotes do not nest.
            inner = _joined(_blocks([_QUOTE.sub("", one, count=1) for one in lines[at:end]]))
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
    marks = (_FENCE, _QUOTE, _HEADING, _ITEM)
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
    return _text(text, Look(pre=True, language=fence[3])) if text.strip() else []


def _is_table(lines: Sequence[str], at: int) -> bool:
    follows = lines[at + 1] if at + 1 < len(lines) else ""
    return "|" in lines[at] and _DELIMITERS.match(follows) is not None


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


_BLOCK, _LINE, _CODE_LINE, _SPACE = 4, 3, 2, 1
_JOINERS = "\u200d\ufe0e\ufe0f"


def _parts(cells: Sequence[Cell], max_length: int) -> Iterator[Part]:
    """Messages of at most `max_length`, cut where it hurts least."""
    ends = list(accumulate((utf16_length(cell.plain) for cell in cells), initial=0))
    at = 0
    while (at := _skip(cells, at)) < len(cells):
        end = max(at + 1, bisect_right(ends, ends[at] + max_length) - 1)
        if end < len(cells):
            end = _cut(cells, at, end, ends, max_length)
        part = _part(cells[at:end])
        while end > at + 1 and utf16_length(part.html) > _MARKUP_FACTOR * max_length:
            end = at + (end - at) // 2
            end -= end > at + 1 and not cells[end].shown
            part = _part(cells[at:end])
        if any(_visible(cell.shown) for cell in cells[at:end]):
            yield part
        at = end


def _skip(cells: Sequence[Cell], at: int) -> int:
    """Where the next message begins: blank, it would be dropped; indented code stays so."""
    while at < len(cells) and cells[at].shown.isspace():
        if cells[at].look.pre and cells[at].shown != "\n":
            break
        at += 1
    return at


def _cut(cells: Sequence[Cell], at: int, end: int, ends: Sequence[int], max_length: int) -> int:
    """Where to cut before `end`: at the best place that leaves no needlessly short message."""
    first = last = end
    while first > at and cells[first - 1].look.pre:
        first -= 1
    while ends[last] - ends[first] <= max_length and last < len(cells) and cells[last].look.pre:
        last += 1
    if cells[end].look.pre and at < first and ends[last] - ends[first] <= max_length:
        return first  # the code block fits into a message of its own
    best: dict[int, int] = {}
    for place in range(end, at + (end - at) // 4, -1):
        best.setdefault(_quality(cells, place), place)
    for quality in (_BLOCK, _LINE, _CODE_LINE, _SPACE):
        if quality in best:
            return best[quality]
    place = end
    while (
        place > at + 1 and end - place < 32 and _joins(cells[place - 1].shown, cells[place].shown)
    ):
        place -= 1
    return place


def _quality(cells: Sequence[Cell], place: int) -> int:
    """How good a place it is to cut before."""
    before, after = cells[place - 1], cells[place]
    if not after.shown:
        return 0
    if before.look.pre and after.look.pre:
        return _CODE_LINE if before.shown == "\n" else _SPACE if before.shown.isspace() else 0
    if before.shown == "\n":
        blank = place > 1 and cells[place - 2].shown == "\n"
        return _BLOCK if after.look.pre or blank else _LINE
    return _SPACE if before.shown.isspace() or after.shown.isspace() else 0


def _joins(before: str, after: str) -> bool:
    """Whether the two are one character to the eye."""
    return (
        after == ""
        or before == "\u200d"
        or after in _JOINERS
        or bool(unicodedata.combining(after[0]))
    )


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
