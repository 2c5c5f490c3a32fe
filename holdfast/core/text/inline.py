"""The marks inside a paragraph: `code`, links, **bold**, *italic*, ~~strike~~, escapes.

The text is read once, as it comes. What it means may hang on what is still to come: a mark may
find its partner, a link its end. Only what nothing to come can change is handed out, so the
result depends on the text alone, not on its pieces. A partner that is not found within REACH
characters is none: no more than that is ever held back.

Marks are paired as in CommonMark, each closing one with the nearest that it can close, but for
what models write: marks beside wide characters need no blank, a star or an underscore within
a word is text, and so are those of `__name__`. What is struck out keeps its marks.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.cli.rows import CODE, DIM, PLAIN, Look, Span

REACH = 2000
_LONGEST_RUN = 64
_WIDE_SCRIPTS = "\u2e80"  # they and what is above are written without blanks

_NEXT = re.compile(rf"\\|!?\[|https?://|([`*_~])\1{{0,{_LONGEST_RUN - 1}}}", re.IGNORECASE)
_BEGUN = re.compile(r"(?:!|h|ht|htt|http|https|https?:|https?:/)\Z", re.IGNORECASE)
_LONGEST_BEGUN = len("https:/")
_TICKS = re.compile("`+")
_ADDRESS = re.compile(r"[^\s<>`*_~\\\[\]|]+")
_IN_ADDRESS = re.compile(rf"[_~]{{1,{_LONGEST_RUN}}}")
_LABEL = re.compile(r"!?\[((?:[^\[\]\\]|\\.|\[[^\[\]]*+\])*+)", re.DOTALL)
_LABEL_BEGUN = re.compile(r"(?:\\|\[[^\[\]]*+)?\Z")
_BARE = r"[^\s()<>]*+"
_PATH = rf"{_BARE}(?:\({_BARE}\){_BARE})*+"
_TARGET = re.compile(rf'\]\(({_PATH})( +"[^"\n]*+")?\)')
_TARGET_BEGUN = re.compile(rf'\](?:\({_PATH}(?:\({_BARE}| +(?:"[^"\n]*+"?)?)?)?\Z')


@dataclass(slots=True)
class Paper:
    """What all parts of a page share."""

    colour: bool
    hopeful: bool = False  # what is open is shown as if it were closed


@dataclass(slots=True, eq=False)
class _Run:
    """A run of marks: what it ends, what is left of it as text, what it begins."""

    mark: str
    at: int
    left: int
    opens: bool
    closes: bool
    live: bool = False  # it may still find a partner
    ends: list[str] = field(default_factory=list)
    begins: list[str] = field(default_factory=list)


def spans(text: str, paper: Paper, look: Look = PLAIN) -> list[Span]:
    """The same for a text that is whole."""
    whole = Spans(paper, look)
    return [*whole.feed(text), *whole.close()]


class Spans:
    """A paragraph's text, made spans as it comes."""

    def __init__(self, paper: Paper, look: Look = PLAIN) -> None:
        self._paper, self._look = paper, look
        self._text = ""  # not read yet
        self._at = 0  # characters read
        self._before = " "
        self._in_address = False
        self._pieces: deque[Span | _Run] = deque()
        self._openers: dict[str, list[_Run]] = {"*": [], "_": [], "~": []}
        self._worn = {"bold": 0, "italic": 0, "dim": 0}

    def feed(self, text: str) -> list[Span]:
        """What can be told now."""
        self._text += text
        self._read(ended=False)
        for runs in self._openers.values():
            while runs and self._at - runs[0].at > REACH:
                runs.pop(0).live = False
        return list(self._settled())

    def close(self) -> list[Span]:
        """The rest."""
        self._read(ended=True)
        for runs in self._openers.values():
            for run in runs:
                run.live = False
                if self._paper.hopeful:
                    run.begins.append(_kind(run.mark, run.left))
                    run.left = 0
            runs.clear()
        return list(self._settled())

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
        """Read one thing; how far that is, or `at` if more must come first."""
        if self._in_address:
            return self._read_address(text, at, ended=ended)
        found = _NEXT.search(text, at)
        if found is None or found.start() > at:
            end = found.start() if found else _sure_end(text, at, ended=ended)
            self._say(text[at:end])
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
            case _:
                self._in_address = True
                self._say(found[0])
                return end

    def _read_address(self, text: str, at: int, *, ended: bool) -> int:
        """Marks within an address are part of it; at its end they are marks."""
        if found := _ADDRESS.match(text, at):
            self._say(found[0])
            return found.end()
        if found := _IN_ADDRESS.match(text, at):
            bounded = len(found[0]) < _LONGEST_RUN
            if found.end() == len(text) and not ended and bounded:
                return at
            after = text[found.end() : found.end() + 1]
            if bounded and (after.isalnum() or after == "/"):
                self._say(found[0])
                return found.end()
        self._in_address = False
        return self._read_on(text, at, ended=ended)

    def _read_escape(self, text: str, at: int) -> int:
        after = text[at + 1 : at + 2]
        if after.isascii() and after.isprintable() and not after.isalnum() and after.strip():
            self._say(after)
            return at + 2
        if after != "\n":  # there it says that the line ends, which it does
            self._say("\\")
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
            self._say_code(text[at:end], text[end : run.start()])
            return run.end()
        else:
            if not ended and len(text) - at <= REACH + _LONGEST_RUN and ticks < _LONGEST_RUN:
                return at
            if self._paper.hopeful and text[end:].strip():
                self._say_code(text[at:end], text[end:])
                return len(text)
        self._say(text[at:end])
        return end

    def _say_code(self, ticks: str, code: str) -> None:
        if self._paper.colour:
            padded = code[0] == " " == code[-1]
            self._say(code[1:-1] if padded else code, self._look._replace(code=CODE.code))
        else:
            self._say(f"{ticks}{code}{ticks}")

    def _read_link(self, text: str, at: int, end: int, *, ended: bool) -> int:
        label = _LABEL.match(text, at)
        assert label is not None
        target = _TARGET.match(text, label.end())
        if target is None:
            begun = _LABEL_BEGUN.match(text, label.end()) or _TARGET_BEGUN.match(text, label.end())
            if begun and not ended and len(text) - at <= REACH:
                return at
        elif target[1] and target.end() - at <= REACH:
            self._say_link(label[1], target[1], target[2] or "")
            return target.end()
        self._say(text[at:end])
        return end

    def _say_link(self, label: str, href: str, title: str) -> None:
        shown = spans(label, self._paper, self._look._replace(underline=True))
        self._pieces.extend(shown)
        said = "".join(span.text for span in shown)
        if href.removesuffix("/") not in (said, f"https://{said}", f"http://{said}"):
            self._say(f" ({href}{title})" if said else f"({href}{title})", DIM)

    def _say(self, text: str, look: Look | None = None) -> None:
        """One more text; what comes in pieces of one look is one."""
        look = self._look if look is None else look
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, Span) and last.look == look:
            self._pieces[-1] = Span(last.text + text, look)
        elif text:
            self._pieces.append(Span(text, look))

    def _read_run(self, text: str, at: int, end: int) -> int:
        mark, before, after = text[at], self._before, text[end : end + 1] or " "
        opens, closes = _flanks(before, after), _flanks(after, before)
        if mark == "_":
            opens, closes = opens and not before.isalnum(), closes and not after.isalnum()
        elif _within_word(before, after):
            opens = False
        run = _Run(mark, self._at, end - at, opens, closes)
        if (mark == "~" and run.left != len("~~")) or run.left == _LONGEST_RUN:
            self._say(text[at:end])
            return end
        self._pair(run)
        self._pieces.append(run)
        if run.opens and run.left:
            run.live = True
            self._openers[mark].append(run)
        return end

    def _pair(self, run: _Run) -> None:
        """Give a closing run the nearest opener of its mark; what lies between stays text."""
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
            if kind == "dim":
                run.opens = False
                openers.pop().live = False
                return
            width = 2 if kind == "bold" else 1
            opener.left -= width
            run.left -= width
            if not opener.left:
                openers.pop().live = False

    def _is_name(self, opener: _Run, run: _Run) -> bool:
        """Whether this is `__name__`, which programmers write and mean."""
        if (run.mark, run.left, opener.left) != ("_", 2, 2) or len(self._pieces) < len("xy"):
            return False
        first, last = self._pieces[-2], self._pieces[-1]
        return first is opener and isinstance(last, Span) and last.text.isidentifier()

    def _settled(self) -> Iterator[Span]:
        while self._pieces:
            piece = self._pieces[0]
            if isinstance(piece, _Run):
                if piece.live:
                    return
                for kind in piece.ends:
                    self._worn[kind] -= 1
                yield from self._dressed(Span(piece.mark * piece.left, self._look))
                for kind in piece.begins:
                    self._worn[kind] += 1
            else:
                yield from self._dressed(piece)
            self._pieces.popleft()

    def _dressed(self, span: Span) -> Iterator[Span]:
        if span.text and any(self._worn.values()):
            worn = {kind: True for kind, depth in self._worn.items() if depth > 0}
            yield Span(span.text, span.look._replace(**worn))
        elif span.text:
            yield span


def _sure_end(text: str, at: int, *, ended: bool) -> int:
    """Where the text ends that is nothing but text."""
    begun = None if ended else _BEGUN.search(text, max(at, len(text) - _LONGEST_BEGUN))
    return begun.start() if begun else len(text)


def _kind(mark: str, width: int) -> str:
    return "dim" if mark == "~" else "bold" if width > 1 else "italic"


def _flanks(outer: str, inner: str) -> bool:
    """Whether a mark between the two may hold the inner one."""
    if inner.isspace():
        return False
    return inner.isalnum() or not outer.isalnum() or outer >= _WIDE_SCRIPTS


def _within_word(before: str, after: str) -> bool:
    return (before + after).isascii() and before.isalnum() and after.isalnum()
