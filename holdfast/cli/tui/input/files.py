"""Files to suggest: found below the workspace by a few of their letters, or listed as a shell does.

A walk goes level by level, so near files are found first. It ends after a number of entries or a
time, whichever comes first: in a large tree a suggestion may be missing, but none is late. It
follows no links. Its result is used for two seconds, so that typing a word takes one walk.

Everything here may block on a slow disk: call it in a thread.
"""

import heapq
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.cli.tui.input import ignored
from holdfast.cli.tui.input.ignored import IgnoreFile
from holdfast.core.types import Value
from holdfast.core.workspace import inside

ENTRIES = 20_000
SECONDS = 0.1
SHOWN = 100
_FRESH_S = 2.0
_SKIPPED = frozenset({".git", "node_modules", ".venv", "__pycache__"})

Rank = tuple[int, int, int, int, str]


class _Walk(Value):
    """The result of one walk: paths below `root`, directories with a slash at the end."""

    root: str
    hidden: bool
    ended: float
    paths: tuple[str, ...]


class _Budget:
    """The limits of one walk: entries and time."""

    def __init__(self, entries: int, seconds: float) -> None:
        self._left = entries
        self._until = time.monotonic() + seconds

    @property
    def spent(self) -> bool:
        return self._left <= 0 or time.monotonic() >= self._until

    def spend(self) -> None:
        """Count one entry."""
        self._left -= 1


class Files:
    """Finds files, and remembers the last walk."""

    def __init__(self, entries: int = ENTRIES, seconds: float = SECONDS) -> None:
        self._entries = entries
        self._seconds = seconds
        self._last = _Walk("", hidden=False, ended=0.0, paths=())

    def below(self, workspace: Path, query: str) -> list[str]:
        """Paths below `workspace` that have the letters of `query` in this order, best first.

        Where the query begins with the name of a directory, its contents are meant, also of
        one that is not looked into otherwise.
        """
        query = query.removeprefix("./")
        head, _, tail = query.rpartition("/")
        if ".." in query.split("/"):
            return []
        if head and (place := _directory(workspace, head)) is not None:
            prefix = head + "/"
            if found := [prefix + path for path in self._best(place, tail)]:
                return found
        return self._best(str(workspace), query)

    def _best(self, root: str, query: str) -> list[str]:
        hidden = query.startswith(".") or "/." in query
        wanted = query.lower()
        ranked = ((rank(wanted, path), path) for path in self._walk(root, hidden=hidden))
        best = heapq.nsmallest(SHOWN, ((r, path) for r, path in ranked if r is not None))
        return [path for _, path in best]

    def _walk(self, root: str, *, hidden: bool) -> tuple[str, ...]:
        last, now = self._last, time.monotonic()
        if (last.root, last.hidden) == (root, hidden) and now - last.ended < _FRESH_S:
            return last.paths
        budget = _Budget(self._entries, self._seconds)
        paths = tuple(_walk(root, budget, hidden=hidden))
        self._last = _Walk(root, hidden, time.monotonic(), paths)
        return paths

    def listed(self, workspace: Path, typed: str) -> list[str]:
        """Complete `typed`, the beginning of a path, as a shell does."""
        if typed == "~":
            return ["~/"]
        head, slash, tail = typed.rpartition("/")
        place = os.path.join(workspace, os.path.expanduser(head + slash))
        names = (
            entry.name + "/" * _is_directory(entry, follow=True)
            for entry in _entries(place, _Budget(self._entries, self._seconds))
            if entry.name.startswith(tail) and (tail or not entry.name.startswith("."))
        )
        return [head + slash + name for name in heapq.nsmallest(SHOWN, names)]


def rank(query: str, path: str) -> Rank | None:
    """Rate how well `path` matches `query`, in lower case; less is better, None: no match."""
    low = path.lower()
    bare = low.rstrip("/")
    name = bare[bare.rfind("/") + 1 :]
    spread = len(query)
    if query in (name, os.path.splitext(name)[0]):
        kind = 0
    elif name.startswith(query):
        kind = 1
    elif query in name:
        kind = 2
    elif query in low:
        kind = 3
    elif spread := _spread(query, name):
        kind = 4
    elif spread := _spread(query, low):
        kind = 5
    else:
        return None
    return kind, spread, bare.count("/"), len(bare) if query else 0, low


def _spread(query: str, text: str) -> int:
    """Return the length of the part of `text` with the letters of `query`; 0: not all are there."""
    at = -1
    for letter in query:
        if (at := text.find(letter, at + 1)) < 0:
            return 0
    end = at = at + 1
    for letter in reversed(query):  # from where they end, the shortest way back
        at = text.rfind(letter, 0, at)
    return end - at


def quoted(path: str) -> str | None:
    """Quote `path` for the input. The quotes of a directory stay open for more."""
    if not any(c.isspace() or c in "\"'" for c in path):
        return path
    for quote in ('"', "'"):
        if quote not in path:
            return quote + path + quote * (not path.endswith("/"))
    return None


def _directory(workspace: Path, named: str) -> str | None:
    """Return the directory of that name below `workspace`, if there is one. No link leads out."""
    with suppress(OSError, ValueError):
        place, root = os.path.realpath(workspace / named), os.path.realpath(workspace)
        if os.path.isdir(place) and inside(place, root):
            return place
    return None


def _walk(root: str, budget: _Budget, *, hidden: bool) -> Iterator[str]:
    pending: deque[tuple[str, tuple[IgnoreFile, ...]]] = deque([("", ())])
    while pending and not budget.spent:
        below, rules = pending.popleft()
        entries = sorted(_entries(os.path.join(root, below), budget), key=lambda e: e.name)
        rules = (*rules, *_rules(below, entries))
        for entry in entries:
            path, directory = below + entry.name, _is_directory(entry, follow=False)
            if entry.name in _SKIPPED or (entry.name.startswith(".") and not hidden):
                continue
            if ignored.ignores(rules, path, entry.name, directory=directory):
                continue
            yield path + "/" * directory
            if directory:
                pending.append((path + "/", rules))


def _entries(place: str, budget: _Budget) -> Iterator["os.DirEntry[str]"]:
    """Yield the entries of a directory within the budget; none if it cannot be read."""
    with suppress(OSError, ValueError), os.scandir(place) as entries:
        for entry in entries:
            if budget.spent:
                return
            budget.spend()
            yield entry


def _is_directory(entry: "os.DirEntry[str]", *, follow: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follow)
    except OSError:  # a broken link, or a target that we may not read
        return False


def _rules(below: str, entries: list["os.DirEntry[str]"]) -> Iterator[IgnoreFile]:
    for entry in entries:
        if entry.name == ".gitignore" and entry.is_file(follow_symlinks=False):
            with suppress(OSError), open(entry.path, encoding="utf-8", errors="replace") as file:
                yield ignored.read(below, file.read(ignored.LONGEST))
