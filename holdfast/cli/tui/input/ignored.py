"""The rules of `.gitignore` files, as far as a list of suggestions needs them.

The last rule that matches counts. A rule without a slash is for names anywhere below, one with a
slash for paths from the file's own directory. Adjacent rules of one sort become one pattern,
because every file is matched. Two things are only approximate: `**` in the middle, and escapes
with a backslash. A file too many or too few in a list does no harm; a slow pattern would, so none
is slow.
"""

import fnmatch
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from holdfast.core.types import Value

LONGEST = 16 * 1024  # characters of one file that are read

_ANYWHERE = -1  # a name, in whatever directory
_DEEP = -2  # a path with `**` in it


class _Sort(NamedTuple):
    ignores: bool
    directories: bool  # only those
    slashes: int  # of the path it is for, or one of the above


class _Group(Value):
    """Rules of one sort that stand together."""

    sort: _Sort
    pattern: "re.Pattern[str]"

    def fits(self, path: str, name: str, *, directory: bool) -> bool:
        if self.sort.directories and not directory:
            return False
        if self.sort.slashes == _ANYWHERE:
            return self.pattern.match(name) is not None
        # As many slashes as in the rule: so no `*` can have stood for one.
        fitting = self.sort.slashes in (_DEEP, path.count("/"))
        return fitting and self.pattern.match(path) is not None


class IgnoreFile(Value):
    """The rules of one file."""

    below: str  # the directory it stands in, with a slash behind; empty: where the walk began
    groups: tuple[_Group, ...]

    def verdict(self, path: str, name: str, *, directory: bool) -> bool | None:
        """Tell whether `path` is ignored; None: no rule of this file matches."""
        path = path.removeprefix(self.below)
        for group in reversed(self.groups):
            if group.fits(path, name, directory=directory):
                return group.sort.ignores
        return None


def read(below: str, text: str) -> IgnoreFile:
    """Parse the rules in `text` for the directory `below`."""
    return IgnoreFile(below, _groups(text[:LONGEST]))


def ignores(rules: tuple[IgnoreFile, ...], path: str, name: str, *, directory: bool) -> bool:
    """Tell whether the files above `path`, the nearest last, ignore it."""
    for one in reversed(rules):
        if (verdict := one.verdict(path, name, directory=directory)) is not None:
            return verdict
    return False


@lru_cache(maxsize=256)
def _groups(text: str) -> tuple[_Group, ...]:
    return tuple(
        _Group(sort, re.compile("|".join(pattern for _, pattern in rules)))
        for sort, rules in groupby(_rules(text), itemgetter(0))
    )


def _rules(text: str) -> Iterator[tuple[_Sort, str]]:
    for line in text.splitlines():
        words = line.rstrip()
        ignored = not words.startswith("!")
        words = words.removeprefix("!")
        if not words.strip("/") or words.startswith("#"):
            continue
        path = words.removeprefix("\\").rstrip("/")
        anywhere = path.removeprefix("**/")
        if "/" not in anywhere:
            slashes, path = _ANYWHERE, anywhere
        else:
            path = path.removeprefix("/")
            slashes = _DEEP if "**" in path else path.count("/")
        yield _Sort(ignored, words.endswith("/"), slashes), fnmatch.translate(path)
