"""Parse the marks inside a paragraph: `code`, links, **bold**, *italic*, ~~strike~~, escapes.

The text is read once, as it arrives. The meaning of a mark may depend on text that has not
arrived: a mark may find its partner, a link its end. `feed` returns only what later text cannot
change, so the result depends on the text alone, not on the pieces. A partner must come within
REACH characters; no more than that is ever held back.

Marks are paired as in CommonMark, each closing mark with the nearest opener, except where models
write otherwise: marks beside wide characters need no blank, a star or an underscore within
a word is text, and so are those of `__name__`. HTML is text.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

REACH = 2000
_LONGEST_RUN = 64
_WIDE_SCRIPTS = "\u2e80"  # from here on, scripts are written without blanks

_NEXT = re.compile(rf"\\|!?\[|<|https?://|([`*_~])\1{{0,{_LONGEST_RUN - 1}}}", re.IGNORECASE)
_BEGUN = re.compile(r"(?:!|h|ht|htt|http|https|https?:|https?:/)\Z", re.IGNORECASE)
_LONGEST_BEGUN = len("https:/")
_TICKS = re.compile("`+")
_AUTOLINK = re.compile(r"<(https?://[^\s<>]*+)>", re.IGNORECASE)
_AUTOLINK_BEGUN = re.compile(
    r"<(?:h|ht|htt|http|https|https?:|https?:/|https?://[^\s<>]*+)?\Z", re.IGNORECASE
)
_ADDRESS = re.compile(r"[^\s<>`*_~\\\[\]|]+")
_IN_ADDRESS = re.compile(rf"[_~]{{1,{_LONGEST_RUN}}}")
_LABEL = re.compile(r"!?\[((?:[^\[\]\\]|\\.|\[[^\[\]]*+\])*+)", re.DOTALL)
_LABEL_BEGUN = re.compile(r"(?:\\|\[[^\[\]]*+)?\Z")
_BARE = r"[^\s()<>]*+"
_PATH = rf"{_BARE}(?:\({_BARE}\){_BARE})*+"
_TARGET = re.compile(rf'\]\(({_PATH})(?: +("[^"\n]*+"))?\)')
_TARGET_BEGUN = re.compile(rf'\](?:\({_PATH}(?:\({_BARE}| +(?:"[^"\n]*+"?)?)?)?\Z')


class Emphasis(NamedTuple):
    """The emphasis around a text."""

    bold: bool = False
    italic: bool = False
    strike: bool = False


PLAIN = Emphasis()


class Text(NamedTuple):
    """A text with one emphasis."""

    text: str
    emphasis: Emphasis = PLAIN


class Code(NamedTuple):
    """A code span; `ticks` open it in the source, with the blank that pads the code."""

    text: str
    ticks: str
    emphasis: Emphasis = PLAIN


class Link(NamedTuple):
    """A link or an image: its label as Markdown, its target, and its title with quotes."""

    label: str
    href: str
    title: str
    emphasis: Emphasis = PLAIN


Inline = Text | Code | Link


@dataclass(slots=True, eq=False)
class _Run:
    """A run of marks: the emphasis it ends, the marks left as text, the emphasis it begins."""

    mark: str
    at: int
    left: int
    opens: bool
    closes: bool
    live: bool = False  # it may still find a partner
    ends: list[str] = field(default_factory=list)
    begins: list[str] = field(default_factory=list)


class InlineParser:
    """Parse the text of one paragraph as it arrives."""

    def __init__(self) -> None:
        self._text = ""  # not read yet
        self._at = 0  # characters read
        self._before = " "
        self._in_address = False
        self._hopeful = False
        self._pieces: deque[Inline | _Run] = deque()
        self._openers: dict[str, list[_Run]] = {"*": [], "_": [], "~": []}
        self._open = {"bold": 0, "italic": 0, "strike": 0}
        self._emphasis = PLAIN

    def feed(self, text: str) -> list[Inline]:
        """Take a piece of the text; return what is final now."""
        self._text += text
        self._read(ended=False)
        for runs in self._openers.values():
            while runs and self._at - runs[0].at > REACH:
                runs.pop(0).live = False
        return list(self._final())

    def close(self, *, hopeful: bool = False) -> list[Inline]:
        """End the text and return the rest; if `hopeful`, as if open marks were closed here."""
        self._hopeful = hopeful
        self._read(ended=True)
        for runs in self._openers.values():
            for run in runs:
                run.live = False
                if hopeful:
                    run.begins.append(_kind(run.mark, run.left))
                    run.left = 0
            runs.clear()
        return list(self._final())

    def _read(self, *, ended: bool) -> None:
        at, text = 0, self._text
        while at < len(text):
            step = self._read_on(text, at, ended=ended)
            if step == at:
                break
            self._at += step - at
            self._before = text[step - 1]
            at = step
        self._text = text[at:]

    def _read_on(self, text: str, at: int, *, ended: bool) -> int:
        """Read one thing; return where it ends, or `at` if more text must arrive first."""
        if self._in_address:
            return self._read_address(text, at, ended=ended)
        found = _NEXT.search(text, at)
        if found is None or found.start() > at:
            end = found.start() if found else _sure_end(text, at, ended=ended)
            self._add(text[at:end])
            return end
        end = found.end()
        grows = end == len(text) and not ended and end - at < _LONGEST_RUN
        match text[at]:
            case "\\":
                return at if grows else self._read_escape(text, at)
            case "`":
                return at if grows else self._read_code(text, at, end, ended=ended)
            case "*" | "_" | "~":
                return at if grows else self._read_run(text, at, end)
            case "[" | "!":
                return self._read_link(text, at, end, ended=ended)
            case "<":
                return self._read_autolink(text, at, ended=ended)
            case _:
                self._in_address = True
                self._add(found[0])
                return end

    def _read_address(self, text: str, at: int, *, ended: bool) -> int:
        """Take marks within an address as part of it; at its end they are marks."""
        if found := _ADDRESS.match(text, at):
            self._add(found[0])
            return found.end()
        if found := _IN_ADDRESS.match(text, at):
            bounded = len(found[0]) < _LONGEST_RUN
            if found.end() == len(text) and not ended and bounded:
                return at
            after = text[found.end() : found.end() + 1]
            if bounded and (after.isalnum() or after == "/"):
                self._add(found[0])
                return found.end()
        self._in_address = False
        return self._read_on(text, at, ended=ended)

    def _read_escape(self, text: str, at: int) -> int:
        after = text[at + 1 : at + 2]
        if after.isascii() and after.isprintable() and not after.isalnum() and after.strip():
            self._add(after)
            return at + 2
        if after != "\n":  # there it only marks the line end, which stays anyway
            self._add("\\")
        return at + 1

    def _read_code(self, text: str, at: int, end: int, *, ended: bool) -> int:
        ticks = end - at
        for run in _TICKS.finditer(text, end):
            if run.start() - at > REACH or ticks == _LONGEST_RUN:
                break
            if run.end() - run.start() != ticks:
                continue
            if run.end() == len(text) and not ended:
                return at
            if not text[end : run.start()].strip():
                break
            self._add_code(text[at:end], text[end : run.start()])
            return run.end()
        else:
            if not ended and len(text) - at <= REACH + _LONGEST_RUN and ticks < _LONGEST_RUN:
                return at
            if self._hopeful and text[end:].strip():
                self._add_code(text[at:end], text[end:])
                return len(text)
        self._add(text[at:end])
        return end

    def _add_code(self, ticks: str, code: str) -> None:
        padded = code[0] in " \n" and code[-1] in " \n"
        self._pieces.append(Code(code[1:-1], f"{ticks} ") if padded else Code(code, ticks))

    def _read_autolink(self, text: str, at: int, *, ended: bool) -> int:
        found = _AUTOLINK.match(text, at)
        if found and found.end() - at <= REACH:
            self._add(found[1])
            return found.end()
        if not ended and len(text) - at <= REACH and _AUTOLINK_BEGUN.match(text, at):
            return at
        self._add("<")
        return at + 1

    def _read_link(self, text: str, at: int, end: int, *, ended: bool) -> int:
        label = _LABEL.match(text, at)
        assert label is not None
        target = _TARGET.match(text, label.end())
        if target is None:
            begun = _LABEL_BEGUN.match(text, label.end()) or _TARGET_BEGUN.match(text, label.end())
            if begun and not ended and len(text) - at <= REACH:
                return at
        elif target[1] and target.end() - at <= REACH:
            self._pieces.append(Link(label[1], target[1], target[2] or ""))
            return target.end()
        self._add(text[at:end])
        return end

    def _add(self, text: str) -> None:
        """Add text; join it with the text before it."""
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, Text):
            self._pieces[-1] = Text(last.text + text)
        elif text:
            self._pieces.append(Text(text))

    def _read_run(self, text: str, at: int, end: int) -> int:
        mark, before, after = text[at], self._before, text[end : end + 1] or " "
        opens, closes = _flanks(before, after), _flanks(after, before)
        if mark == "_":
            opens, closes = opens and not before.isalnum(), closes and not after.isalnum()
        elif _within_word(before, after):
            opens = False
        run = _Run(mark, self._at, end - at, opens, closes)
        if (mark == "~" and run.left != len("~~")) or run.left == _LONGEST_RUN:
            self._add(text[at:end])
            return end
        self._pair(run)
        self._pieces.append(run)
        if run.opens and run.left:
            run.live = True
            self._openers[mark].append(run)
        return end

    def _pair(self, run: _Run) -> None:
        """Pair a closing run with the nearest opener of its mark; runs in between stay text."""
        openers = self._openers[run.mark]
        while run.closes and run.left and openers and run.at - openers[-1].at <= REACH:
            opener = openers[-1]
            if self._is_name(opener, run):
                run.opens = False
                openers.pop().live = False
                return
            kind = _kind(run.mark, min(opener.left, run.left))
            opener.begins.append(kind)
            run.ends.append(kind)
            for runs in self._openers.values():
                while runs and runs[-1].at > opener.at:
                    runs.pop().live = False
            width = 1 if kind == "italic" else 2
            opener.left -= width
            run.left -= width
            if not opener.left:
                openers.pop().live = False

    def _is_name(self, opener: _Run, run: _Run) -> bool:
        """Tell whether this is `__name__`, as programmers write it."""
        if (run.mark, run.left, opener.left) != ("_", 2, 2) or len(self._pieces) < len("xy"):
            return False
        first, last = self._pieces[-2], self._pieces[-1]
        return first is opener and isinstance(last, Text) and last.text.isidentifier()

    def _final(self) -> Iterator[Inline]:
        while self._pieces:
            piece = self._pieces[0]
            if isinstance(piece, _Run):
                if piece.live:
                    return
                self._change(piece.ends, -1)
                if piece.left:
                    yield Text(piece.mark * piece.left, self._emphasis)
                self._change(piece.begins, 1)
            else:
                plain = self._emphasis == PLAIN
                yield piece if plain else piece._replace(emphasis=self._emphasis)
            self._pieces.popleft()

    def _change(self, kinds: list[str], by: int) -> None:
        for kind in kinds:
            self._open[kind] += by
        if kinds:
            self._emphasis = Emphasis(*(depth > 0 for depth in self._open.values()))


def _sure_end(text: str, at: int, *, ended: bool) -> int:
    """Find the end of what can only be text."""
    begun = None if ended else _BEGUN.search(text, max(at, len(text) - _LONGEST_BEGUN))
    return begun.start() if begun else len(text)


def _kind(mark: str, width: int) -> str:
    return "strike" if mark == "~" else "bold" if width > 1 else "italic"


def _flanks(outer: str, inner: str) -> bool:
    """Tell whether a mark between the two may emphasise the side of `inner`."""
    if inner.isspace():
        return False
    return inner.isalnum() or not outer.isalnum() or outer >= _WIDE_SCRIPTS


def _within_word(before: str, after: str) -> bool:
    return (before + after).isascii() and before.isalnum() and after.isalnum()
