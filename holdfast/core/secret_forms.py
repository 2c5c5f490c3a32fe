"""Spellings of a secret: the forms in which tools and libraries print a value. Pure.

Exact spellings (the value itself, JSON within JSON) are strings. The others are sequences of
units, and each unit has a few ways to write it: a character or its percent-escape, a byte in hex
in either case. Between units there may be a gap: the separators of a hex dump, the line ends of
`base64`. There is no gap within the first `FIRM` characters of base64, because otherwise every
line with such an ending would be held back while streaming. So the text after such a line end is
a spelling of its own, which counts only there (`late`); one or two characters of base64 before the
line end stay visible. Each spelling is matched in one pass without backtracking, because at each
unit at most one way matches.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import ClassVar

from holdfast.core.types import Value

START = 2  # literal characters at the beginning of every spelling
FIRM = 3  # characters of base64 before the first gap

_WRAP = r"(?:(?:\\{1,2}r|\r)?(?:\\{1,2}n|\n)|\r)[ \t]{0,16}"
_BETWEEN = r"[ \t:,;._-]{0,2}"
_DIGITS = r"(?:0[xX]|\\{1,2}x|%)"
_LINES = re.compile(_WRAP)
_DUMPED = re.compile(rf"{_BETWEEN}(?:{_WRAP})?{_DIGITS}?")
_GAP_MOST = 26  # characters of the longest gap
_WRAPS = "\\\\\r\n"  # the first characters of a gap, for a character class
_DUMPS = rf"{_WRAPS} \t:,;._0%-"
_IN_WRAPS = "\\\r\n rnt\t"
_IN_DUMPS = f"{_IN_WRAPS}:,;._-0xX%"

Unit = tuple[str, ...]  # the ways to write one character or byte; none is a prefix of another


class Exact(Value):
    """One string."""

    text: str
    late: ClassVar[bool] = False

    @property
    def longest(self) -> int:
        return len(self.text)

    def starts(self) -> Iterator[tuple[str, str]]:
        """Yield its beginnings: literal characters, and a pattern for the next one or two."""
        yield self.text[:START], re.escape(self.text[START : START + 2])

    def length(self, text: str, at: int, *, ends: bool) -> int | None:
        """Return its length in `text` at `at`: 0 if it is not there, None if more text is needed."""
        if text.startswith(self.text, at):
            return len(self.text)
        left = len(text) - at
        if not ends and left < len(self.text) and self.text.startswith(text[at:]):
            return None
        return 0


class Spelled(Value):
    """A sequence of units, with gaps between them after the first `firm` units."""

    units: tuple[Unit, ...]
    gap: "re.Pattern[str] | None" = None
    begins_gap: str = ""  # the characters a gap may begin with
    in_gap: str = ""  # all characters of gaps
    firm: int = 0
    late: bool = False  # it counts only after a line end

    @property
    def longest(self) -> int:
        gaps = _GAP_MOST if self.gap is not None else 0
        return sum(max(map(len, unit)) + gaps for unit in self.units)

    def starts(self) -> Iterator[tuple[str, str]]:
        """Yield its beginnings: literal characters, and a pattern for the next one or two."""
        for head in sorted(_heads(self.units, START + 2)):
            if head[0] in "%\\":  # rare in texts, so any next character may follow
                yield head[:START], ""
            elif self.gap is None:
                yield head[:START], re.escape(head[START:])
            elif self.firm > START:
                either = f"(?:{re.escape(head[START + 1 :])}|[{self.begins_gap}])"
                yield head[:START], re.escape(head[START]) + either
            else:
                yield head[:START], f"(?:{re.escape(head[START:])}|[{self.begins_gap}])"

    def length(self, text: str, at: int, *, ends: bool) -> int | None:
        """Return its length, as `Exact.length` does."""
        now = at
        for number, unit in enumerate(self.units):
            then = _after(unit, text, now)
            if then is None and self.gap is not None and number >= self.firm:
                gap = self.gap.match(text, now)
                then = _after(unit, text, gap.end()) if gap else None
            if then is None:
                waits = not ends and self._may_go_on(text[now : now + 64], number)
                return None if waits and len(text) - now < 64 else 0
            now = then
        return now - at

    def _may_go_on(self, rest: str, number: int) -> bool:
        """Tell if `rest`, at the end of the text, may become a gap and the unit `number`."""
        unit = self.units[number]
        if _begins(rest, unit):
            return True
        if self.gap is None or number < self.firm:
            return False
        # A gap that is cut may not match: a rest of nothing but gap characters may become one.
        found = self.gap.match(rest)
        return (found is not None and _begins(rest[found.end() :], unit)) or (
            len(rest) <= _GAP_MOST and not rest.strip(self.in_gap)
        )


Spelling = Exact | Spelled


def _heads(units: tuple[Unit, ...], size: int) -> set[str]:
    """Return the first `size` characters, in every way to write them."""
    if size <= 0:
        return {""}
    ways = {way[:size] for way in units[0]}
    return {way + more for way in ways for more in _heads(units[1:], size - len(way))}


def _after(unit: Unit, text: str, at: int) -> int | None:
    for way in unit:
        if text.startswith(way, at):
            return at + len(way)
    return None


def _begins(rest: str, unit: Unit) -> bool:
    return any(way.startswith(rest) for way in unit)


def spellings(secret: str) -> Iterator[Spelling]:
    """Yield the spellings of `secret`."""
    raw = secret.encode("utf-8", "surrogatepass")
    exact = {secret}
    for ensure_ascii in (True, False):
        inner = json.dumps(secret, ensure_ascii=ensure_ascii)[1:-1]
        exact |= {inner, json.dumps(inner, ensure_ascii=ensure_ascii)[1:-1]}  # JSON within JSON
    yield from map(Exact, sorted(exact))
    yield Spelled(tuple(map(_in_url, raw)))
    yield Spelled(tuple(map(_in_json, _utf16(secret))))
    yield Spelled(tuple(map(_in_hex, raw)), _DUMPED, _DUMPS, _IN_DUMPS, 1)
    for form in _base64(raw):
        units = tuple((c,) for c in form)
        for cut in range(FIRM):
            yield Spelled(units[cut:], _LINES, _WRAPS, _IN_WRAPS, FIRM, late=cut > 0)


@cache
def _in_hex(byte: int) -> Unit:
    digits = f"{byte:02x}"
    return tuple(sorted({"".join(d) for d in product(*({d, d.upper()} for d in digits))}))


def _in_url(byte: int) -> Unit:
    """Return the ways to write a byte in a URL: the character, unless it is `%`, and its escapes."""
    escapes = tuple(f"%{digits}" for digits in _in_hex(byte))
    if byte >= 0x80 or chr(byte) == "%":
        return escapes
    return (chr(byte), "+", *escapes) if byte == 0x20 else (chr(byte), *escapes)


def _in_json(unit: int) -> Unit:
    """Return the ways to write a code unit of UTF-16 in JSON."""
    first, last = _in_hex(unit >> 8), _in_hex(unit & 0xFF)
    escapes = tuple(f"\\u{a}{b}" for a, b in product(first, last))
    ch = chr(unit)
    if ch in '"\\':
        return (f"\\{ch}", *escapes)
    if ch == "/":
        return ("/", "\\/", *escapes)
    return (ch, *escapes)


def _utf16(text: str) -> Sequence[int]:
    raw = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


def _base64(raw: bytes) -> set[str]:
    """Encode in each alignment and alphabet, without characters that depend on neighbours."""
    found = set[str]()
    for before in range(3):
        encoded = b64encode(bytes(before) + raw).decode()
        exact = encoded[(0, 2, 3)[before] : (before + len(raw)) * 8 // 6]
        found |= {exact, exact.translate({ord("+"): "-", ord("/"): "_"})}
    return found
