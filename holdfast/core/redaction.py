"""Redaction: known secrets leave every text before it becomes a fact. Pure.

Found are exact values and the forms that tools and libraries give them: hex, base64 in
each of its three alignments and both alphabets, URL-encoded, escaped as in JSON. This is
a net below accidents, not a wall: whoever has a secret and wants to can write it in a way
that nobody looks for. What keeps secrets away from a child or a model is elsewhere.

No secret shorter than `SHORTEST` characters is looked for. It would be found by chance in
honest text and garble it; and whoever may write a text and read what became of it could
guess so short a value, because a right guess is the one that disappears.

A text in pieces (`Stream`) gives what the whole would give, however it is cut: the tail of
a piece is held back while, and only while, it is the beginning of something known. Of
what is known the leftmost counts, then the longest.
"""

import json
import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from typing import NewType, TypeVar, cast
from urllib.parse import quote

import msgspec
from msgspec.structs import fields, replace

from holdfast.core.types import Value

SHORTEST = 8
REDACTED = "[redacted]"

_HEAD = 4  # characters that make a place worth a second look
# Names of things, not texts: changed, they would name something else.
_NAMES = frozenset({"workspace", "cwd", "path", "blob", "fingerprint", "execution"})

S = TypeVar("S", bound=msgspec.Struct)
V = TypeVar("V")


class _Known(Value):
    """What is looked for, and how it is found in one pass."""

    longest: int
    by_head: Mapping[str, tuple[str, ...]]  # longest first
    suspect: Callable[..., re.Match[str] | None]  # the next head, or a beginning of one at the end

    def scan(self, text: str, *, ends: bool) -> tuple[str, str]:
        """What can be shown of `text`, and what must wait because more may come."""
        shown: list[str] = []
        done = at = 0
        while (found := self.suspect(text, at)) is not None:
            at = found.start()
            length = self._length(text, at, ends=ends)
            if length is None:
                shown.append(text[done:at])
                return "".join(shown), text[at:]
            if length:
                shown += (text[done:at], REDACTED)
                done = at + length
            at += length or 1
        shown.append(text[done:])
        return "".join(shown), ""

    def _length(self, text: str, at: int, *, ends: bool) -> int | None:
        """How long what stands at `at` is: 0 if it is nothing, None if that is not certain yet."""
        left = len(text) - at
        if left < _HEAD:
            return 0 if ends else None
        for form in self.by_head[text[at : at + _HEAD]]:
            if len(form) <= left:
                if text.startswith(form, at):
                    return len(form)
            elif not ends and form.startswith(text[at:]):
                return None
        return 0


class Redactor:
    """Knows what must not be seen. Made once, from every secret of the configuration."""

    __slots__ = ("_known",)

    def __init__(self, secrets: Iterable[str]) -> None:
        self._known = _know(secrets)

    def clean(self, text: str) -> str:
        """`text` without anything known; itself if there is nothing."""
        if self._known.suspect(text) is None:
            return text
        shown, _ = self._known.scan(text, ends=True)
        return text if shown == text else shown

    def cut(self, text: str, limit: int) -> str:
        """The first `limit` characters, clean; nothing is left of a secret they end in."""
        seen = text[: limit + self._known.longest]
        shown, _ = self._known.scan(seen, ends=len(seen) == len(text))
        return shown[:limit]

    def cleaned(self, struct: S) -> S:
        """`struct` with every text in it clean; itself if it was. Ids and paths are no texts."""
        if not self._known.longest:
            return struct
        changed: dict[str, object] = {}
        for name in _texts(type(struct)):
            old = getattr(struct, name)
            if old and (new := self._walk(old)) is not old:
                changed[name] = new
        return replace(struct, **changed) if changed else struct

    def stream(self) -> "Stream":
        """For a text that comes in pieces."""
        return Stream(self._known)

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


class Stream:
    """One text in pieces."""

    __slots__ = ("_held", "_known")

    def __init__(self, known: _Known) -> None:
        self._known = known
        self._held = ""

    def feed(self, piece: str) -> str:
        """What of the text so far can be shown by now and has not been."""
        if not self._held and self._known.suspect(piece) is None:
            return piece
        shown, self._held = self._known.scan(self._held + piece, ends=False)
        return shown

    def flush(self) -> str:
        """The rest: the text has ended, and what was held back begins nothing any more."""
        held, self._held = self._held, ""
        return self._known.scan(held, ends=True)[0]


def _know(secrets: Iterable[str]) -> _Known:
    forms = sorted({f for s in secrets if len(s) >= SHORTEST for f in _forms(s)}, key=len)
    by_head: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for form in forms:
        by_head[form[:_HEAD]] = (form, *by_head[form[:_HEAD]])
    # Few branches at the top, each with a plain first character: that is what `re` is fast at.
    rest: defaultdict[str, set[str]] = defaultdict(set)
    for head in by_head:
        rest[head[0]].add(re.escape(head[1:]))
        rest[head[0]] |= {re.escape(head[1:n]) + r"\Z" for n in range(1, _HEAD)}
    branches = (f"{re.escape(c)}(?:{'|'.join(sorted(ends))})" for c, ends in rest.items())
    suspect = re.compile("|".join(branches)).search if forms else _nothing
    return _Known(len(forms[-1]) if forms else 0, dict(by_head), suspect)


def _forms(secret: str) -> Iterator[str]:
    """How `secret` may be written."""
    raw = secret.encode("utf-8", "surrogatepass")
    yield secret
    for ensure_ascii in (True, False):
        inner = json.dumps(secret, ensure_ascii=ensure_ascii)[1:-1]
        yield inner
        yield json.dumps(inner, ensure_ascii=ensure_ascii)[1:-1]  # JSON within JSON
    yield raw.hex()
    yield raw.hex().upper()
    every = "".join(f"%{byte:02X}" for byte in raw)
    for form in (every, quote(raw, safe=""), quote(raw), quote(raw, safe="!'()*")):
        yield form
        yield re.sub("%..", lambda escape: escape[0].lower(), form)
    for before in range(3):
        encoded = b64encode(bytes(before) + raw).decode()
        # The outermost characters may hold bits of what stands beside the secret.
        exact = encoded[(0, 2, 3)[before] : (before + len(raw)) * 8 // 6]
        yield exact
        yield exact.translate({ord("+"): "-", ord("/"): "_"})


def _nothing(text: str, at: int = 0) -> None:
    """Where nothing is known, nothing is found."""


@cache
def _texts(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that hold texts, or things that may."""
    return tuple(f.name for f in fields(kind) if f.name not in _NAMES and _may_tell(f.type))


def _may_tell(kind: object) -> bool:
    if isinstance(kind, NewType):  # an id
        return False
    if not isinstance(kind, type):
        return True
    if issubclass(kind, msgspec.Struct):
        return bool(_texts(kind))
    return not issubclass(kind, int | float | Enum)
