"""Rules for what a snapshot leaves out: some directories always, the rest by `.gitignore`.

A `.gitignore` is text that anyone may have written. So it is limited in size, and its patterns
are matched segment by segment, in time that does not explode. `fnmatch.translate` makes regular
expressions that do not backtrack over a `*`.
"""

import fnmatch
import re
from typing import Self

from holdfast.core.types import Value

FILE = ".gitignore"
MOST_BYTES = 64 * 1024  # of one file
MOST_RULES, MOST_CHARS = 500, 200
ALWAYS = frozenset((".git", ".hg", ".svn", ".jj", "node_modules", ".venv", "__pycache__"))
NEVER = ".env"  # no repository has a copy of these, so an undo is the only way back

_ANY = re.compile("")  # the segment `**`


class _Rule(Value):
    segments: tuple[re.Pattern[str], ...]
    negated: bool
    only_folders: bool
    anchored: bool

    def matches(self, parts: list[str]) -> bool:
        if not self.anchored:
            return bool(self.segments[-1].match(parts[-1]))
        return _match(self.segments, parts)


class IgnoreRules:
    """The rules of one directory and of those above it; the nearest decide first."""

    def __init__(self, base: str, rules: list[_Rule], above: "IgnoreRules | None") -> None:
        self._base = base  # the directory, ending in "/"; empty: the workspace
        self._rules = rules[::-1]  # the last one that matches decides
        self._above = above
        ends = [rule.segments[-1] for rule in rules]
        self._all = any(end is _ANY for end in ends)
        self._quick = re.compile("|".join(end.pattern for end in ends))

    @classmethod
    def parse(
        cls, text: bytes, base: str, above: "IgnoreRules | None"
    ) -> "Self | IgnoreRules | None":
        """Read the rules of a directory; `above` itself if there are none."""
        lines = text[:MOST_BYTES].decode(errors="replace").splitlines()
        parsed = [rule for line in lines if (rule := _parse(line))][:MOST_RULES]
        return cls(base, parsed, above) if parsed else above

    def leave_out(self, path: str, *, is_folder: bool) -> bool:
        """Return whether the rules leave out `path`, which is relative to the workspace."""
        name = path.rpartition("/")[2]
        if self._all or self._quick.match(name):
            parts = path[len(self._base) :].split("/")
            for rule in self._rules:
                if (is_folder or not rule.only_folders) and rule.matches(parts):
                    return not rule.negated
        return self._above is not None and self._above.leave_out(path, is_folder=is_folder)


def left_out(path: str, rules: IgnoreRules | None, *, is_folder: bool) -> bool:
    """Return whether a snapshot leaves out `path`."""
    name = path.rpartition("/")[2]
    if name in ALWAYS:
        return True
    if rules is None or (name.startswith(NEVER) and not is_folder):
        return False
    return rules.leave_out(path, is_folder=is_folder)


def _parse(line: str) -> _Rule | None:
    if not line.endswith("\\ "):
        line = line.rstrip()
    if not line or line.startswith("#") or len(line) > MOST_CHARS:
        return None
    negated = line.startswith("!")
    line = line.removeprefix("!")
    only_folders = line.endswith("/")
    body = line.removesuffix("/")
    anchored = "/" in body
    segments = body.removeprefix("/").split("/")
    if not all(segments):
        return None  # such a pattern matches nothing
    return _Rule(tuple(map(_segment, segments)), negated, only_folders, anchored)


def _segment(text: str) -> re.Pattern[str]:
    if text == "**":
        return _ANY
    plain = re.sub(r"\\(.)", _escaped, text.replace("[^", "[!"))
    return re.compile(fnmatch.translate(plain))


def _escaped(found: re.Match[str]) -> str:
    return f"[{found[1]}]" if found[1] in "*?[" else found[1]


def _match(segments: tuple[re.Pattern[str], ...], parts: list[str]) -> bool:
    """Match all parts; `**` stands for any number of them. Goes back to the last `**` only."""
    at = here = 0
    star, resume = -1, 0
    while here < len(parts):
        if at < len(segments) and segments[at] is _ANY:
            if at == len(segments) - 1:
                return True  # `folder/**`: all below it
            star, resume, at = at, here, at + 1
        elif at < len(segments) and segments[at].match(parts[here]):
            at, here = at + 1, here + 1
        elif star >= 0:
            resume += 1
            at, here = star + 1, resume
        else:
            return False
    return at == len(segments)
