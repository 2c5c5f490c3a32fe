"""Redaction: remove known secrets from every text before it becomes a fact. Pure.

It finds exact values and the forms that tools and libraries give them (core/secret_forms.py): hex
with or without separators and line ends; base64 in each of its three alignments and both
alphabets, in lines or not; URL-encoded in either case; escaped as in JSON. This protects against
accidents, not against intent: a program that has a secret can write it in a form that is not
searched for. Other parts keep secrets away from child processes and models.

Secrets shorter than `SHORTEST` characters are not searched for. They would be found by chance in
harmless text and garble it. And a reader of the redacted text could guess so short a value,
because only the right guess disappears.

A text in pieces (`RedactedStream`) gives the same result as the whole text, however it is cut:
the end of a piece is held back only while it may be the beginning of a secret. If several match,
the leftmost counts, then the longest.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import NewType, TypeVar, cast

import msgspec
from msgspec.structs import fields, replace

from holdfast.core.secret_forms import START, Spelling, spellings
from holdfast.core.types import Value

SHORTEST = 8
REDACTED = "[redacted]"

# These fields identify something: a change would make them refer to something else.
_NAMES = frozenset({"workspace", "cwd", "path", "blob", "fingerprint", "execution"})

_LINE_ENDS = ("\n", "\\n")
_MAY_GO_ON = (*_LINE_ENDS, "\\")
_MAY_WRAP = frozenset(" \t\nn\\")
_BLANK = " \t"
_BLANKS = rf"[{_BLANK}]*+"

_Search = Callable[..., re.Match[str] | None]
S = TypeVar("S", bound=msgspec.Struct)
V = TypeVar("V")


class _Known(Value):
    """The spellings to search for, prepared for a search in one pass."""

    longest: int
    by_start: Mapping[str, tuple[Spelling, ...]]
    late: Mapping[str, tuple[Spelling, ...]]  # those that count only after a line end
    suspect: _Search  # finds the next start, or a part of one at the end; a late one as a group
    suspect_whole: _Search  # finds the next start in a text that has ended

    def scan(self, text: str, *, ends: bool, behind: bool = False) -> tuple[str, str]:
        """Return the part of `text` that can be shown, and the part that must wait for more text.

        `behind`: `text` follows the end of a line.
        """
        shown: list[str] = []
        done = at = 0
        while True:
            if behind:
                late, behind, at = True, False, len(text) - len(text.lstrip(_BLANK))
            elif (found := self.suspect(text, at)) is not None:
                late, at = found.lastindex is not None, found.start(found.lastindex or 0)
            else:
                break
            length = self._length(text, at, ends=ends, late=late)
            if length is None:
                shown.append(text[done:at])
                return "".join(shown), text[at:]
            if length:
                shown += (text[done:at], REDACTED)
                done = at + length
            at += length or (0 if late else 1)
        shown.append(text[done:])
        return "".join(shown), ""

    def _length(self, text: str, at: int, *, ends: bool, late: bool) -> int | None:
        """Return the length of the secret at `at`: 0 if there is none, None if not yet known."""
        start = text[at : at + START]
        found = self.by_start.get(start, ())
        if late:
            found += self.late.get(start, ())
        if len(start) < START:
            return None if found and not ends else 0
        longest = 0
        for spelling in found:
            length = spelling.length(text, at, ends=ends)
            if length is None:
                return None
            longest = max(longest, length)
        return longest


class Redactor:
    """Removes all secrets of the configuration from texts. Created once."""

    __slots__ = ("_known",)

    def __init__(self, secrets: Iterable[str]) -> None:
        self._known = _know(secrets)

    def clean(self, text: str) -> str:
        """Return `text` without known secrets; the same object if there are none."""
        if self._known.suspect_whole(text) is None:
            return text
        shown, _ = self._known.scan(text, ends=True)
        return text if shown == text else shown

    def hides(self, text: str) -> bool:
        """Tell if `text` contains a known secret."""
        return self.clean(text) is not text

    def cut(self, text: str, limit: int) -> str:
        """Return the first `limit` characters, redacted, with no part of a secret at the end."""
        seen = text[: limit + self._known.longest]
        shown, _ = self._known.scan(seen, ends=len(seen) == len(text))
        return shown[:limit]

    def cleaned(self, struct: S) -> S:
        """Return `struct` with all its texts redacted; ids and paths are left as they are.

        The result is the same object if nothing changed.
        """
        if not self._known.longest:
            return struct
        changed: dict[str, object] = {}
        suspect = self._known.suspect_whole
        for name in _texts(type(struct)):
            old = getattr(struct, name)
            if type(old) is str:  # most are, and most hold nothing
                if old and suspect(old) is not None and (new := self.clean(old)) is not old:
                    changed[name] = new
            elif old and (walked := self._walk(old)) is not old:
                changed[name] = walked
        return replace(struct, **changed) if changed else struct

    def stream(self) -> "RedactedStream":
        """Return a redactor for a text that arrives in pieces."""
        return RedactedStream(self._known)

    def _walk(self, value: V) -> V:
        found: object = value
        if isinstance(value, str):
            found = self.clean(value)
        elif isinstance(value, msgspec.Struct):
            found = self.cleaned(value)
        elif isinstance(value, tuple | list):
            parts = [self._walk(part) for part in value]
            if any(new is not old for new, old in zip(parts, value, strict=True)):
                found = type(value)(parts)
        elif isinstance(value, Mapping):
            entries = {self._walk(name): self._walk(part) for name, part in value.items()}
            found = value if entries == value else entries
        return cast(V, found)


class RedactedStream:
    """The redaction of one text that arrives in pieces."""

    __slots__ = ("_before", "_held", "_known")

    def __init__(self, known: _Known) -> None:
        self._known = known
        self._held = ""
        self._before = ""  # the end of the shown text, without blanks, if it may end a line

    def feed(self, piece: str) -> str:
        """Add a piece, and return the text that can be shown now."""
        if self._held or self._before or self._known.suspect(piece) is not None:
            return self._look(self._held + piece)
        if piece[-1:] in _MAY_WRAP:
            self._before = _end_of(piece)
        return piece

    def _look(self, text: str) -> str:
        behind = self._before.endswith(_LINE_ENDS)
        shown, self._held = self._known.scan(text, ends=False, behind=behind)
        seen = text[: len(text) - len(self._held)]
        if seen:
            self._before = _end_of(self._before + seen) if seen[-1] in _MAY_WRAP else ""
        return shown

    def flush(self) -> str:
        """End the text, and return what was held back."""
        held, self._held = self._held, ""
        behind, self._before = self._before.endswith(_LINE_ENDS), ""
        if not held:
            return ""
        return self._known.scan(held, ends=True, behind=behind)[0]


def _end_of(text: str) -> str:
    """Return the last characters of `text` if they are, or may become, the end of a line."""
    last = text.rstrip(_BLANK)[-2:]
    return last if last.endswith(_MAY_GO_ON) else ""


def _know(secrets: Iterable[str]) -> _Known:
    known = {found for s in secrets if len(s) >= SHORTEST for found in spellings(s)}
    if not known:
        return _Known(0, {}, {}, _nothing, _nothing)
    main = [spelling for spelling in known if not spelling.late]
    late = _by_start(spelling for spelling in known if spelling.late)
    return _Known(
        max(spelling.longest for spelling in known),
        _by_start(main),
        late,
        _suspect(main, late, ends=False),
        _suspect(main, late, ends=True),
    )


def _suspect(main: Sequence[Spelling], late: Iterable[str], *, ends: bool) -> _Search:
    """The search for starts. Unless the text `ends`, a piece of a start at its end is one too."""
    whole = [re.escape(start) for start in sorted(late) if len(start) == START]
    pieces = [] if ends else [rf"{re.escape(s)}\Z" for s in sorted(late) if len(s) < START]
    behind = "|".join(whole + pieces)
    starts = rf"{_branches(main, ends=ends)}|\n{_BLANKS}({behind})|\\n{_BLANKS}({behind})"
    return re.compile(starts, re.DOTALL).search


def _by_start(spellings: Iterable[Spelling]) -> dict[str, tuple[Spelling, ...]]:
    """Index the spellings by their first characters, and by fewer of these."""
    found: defaultdict[str, set[Spelling]] = defaultdict(set)
    for spelling in spellings:
        for start, _ in spelling.starts():
            for size in range(1, START + 1):
                found[start[:size]].add(spelling)
    return {start: tuple(some) for start, some in found.items()}


def _branches(spellings: Iterable[Spelling], *, ends: bool) -> str:
    """Return a pattern for the beginnings of the spellings.

    Unless the text `ends`, a part of a beginning at its end counts too.

    It has few branches at the top, each with a literal first character, because `re` is fast then.
    """
    found: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for spelling in spellings:
        for start, more in spelling.starts():
            found[re.escape(start[0])][re.escape(start[1:])].add(more)
    parts = []
    for first, seconds in sorted(found.items()):
        cut, cut_short = ("", "") if ends else (r"|.?\Z", r"|\Z")
        ways = (rf"{second}(?:{'|'.join(sorted(m))}{cut})" for second, m in sorted(seconds.items()))
        parts.append(rf"{first}(?:{'|'.join(ways)}{cut_short})")
    return "|".join(parts)


def _nothing(text: str, at: int = 0) -> None:
    """Find nothing: the search if there are no secrets."""


@cache
def _texts(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields that may contain texts."""
    return tuple(f.name for f in fields(kind) if f.name not in _NAMES and _may_have_text(f.type))


def _may_have_text(kind: object) -> bool:
    if isinstance(kind, NewType):  # an id
        return False
    if not isinstance(kind, type):
        return True
    if issubclass(kind, msgspec.Struct):
        return bool(_texts(kind))
    return not issubclass(kind, int | float | Enum)
