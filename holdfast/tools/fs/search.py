"""Full text search: match every line of every file at or below a path, within limits."""

import os
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, BinaryIO

import msgspec
from anyio import from_thread
from msgspec import Meta

from holdfast.core.types import Value
from holdfast.tools.fs import pattern
from holdfast.tools.fs.page import SNIFF, Page
from holdfast.tools.fs.workspace import TEMPORARY, FileGate, shown

_LINE = 10_000  # characters of one line that are searched

NOT_A_REGEX = "the pattern is not a regex"
TOO_SLOW = ", because this takes too long; search a subdirectory"
LONG_LINES = f"only the first {_LINE} characters of long lines were searched"

Path = Annotated[str, Meta(description="Relative to the workspace")]


class SearchFiles(msgspec.Struct, frozen=True):
    pattern: Annotated[str, Meta(min_length=1, description="Regex, per line; (?i) ignores case")]
    path: Path = "."


class Bounds(Value):
    """Limits of one search. They are counts, not times, so that a repeated search ends the same."""

    files: int = 20_000
    matches: int = 200
    file_bytes: int = 2 * 1024 * 1024
    all_bytes: int = 256 * 1024 * 1024
    effort: int = 50_000_000  # cost of matching (`Pattern.effort`); takes some seconds
    skip: frozenset[str] = frozenset({".git", "node_modules", ".venv"})


BOUNDS = Bounds()


def search_files(gate: FileGate, asked: SearchFiles, bounds: Bounds = BOUNDS) -> str:
    """Return the matching lines as "path:line: text"."""
    wanted, notes = _pattern(asked.pattern)
    search = _Search(wanted, bounds)
    with closing(gate.files(asked.path, bounds.skip, from_thread.check_cancelled)) as files:
        ended = search.through(files)
    notes += [ended, *search.notes()]
    if not search.page.lines:
        return search.page.text(f"no match in {search.seen} files", *notes)
    return search.page.text(*notes)


def _pattern(text: str) -> tuple[pattern.Pattern, list[str]]:
    try:
        return pattern.regex(text), []
    except re.error as error:
        note = f"{NOT_A_REGEX} ({error.msg}); searched for it as plain text"
        return pattern.literal(text), [note]


class _Search:
    """The state of one search."""

    def __init__(self, wanted: pattern.Pattern, bounds: Bounds) -> None:
        self._wanted = wanted
        self._bounds = bounds
        self._bytes = 0
        self._skipped = 0
        self._long = False
        self.page = Page()
        self.seen = 0

    def through(self, files: Iterator[tuple[str, BinaryIO | None]]) -> str:
        """Search `files`; return why it ended early, or "" if it did not."""
        for path, file in files:
            from_thread.check_cancelled()
            if path.rpartition("/")[2].startswith(TEMPORARY):
                continue
            if self.seen >= self._bounds.files or self._bytes >= self._bounds.all_bytes:
                return f"stopped after {self.seen} files; search a subdirectory"
            self.seen += 1
            if ended := self._in_text(shown(path, 4096), self._text(file)):
                return ended
        return ""

    def _text(self, file: BinaryIO | None) -> str:
        """Return the file's text; "" if it is binary, too big or unreadable."""
        if file is None or os.fstat(file.fileno()).st_size > self._bounds.file_bytes:
            self._skipped += 1
            return ""
        data = file.read(self._bounds.file_bytes)
        self._bytes += len(data)
        if b"\0" in data[:SNIFF]:
            self._skipped += 1
            return ""
        return data.decode(errors="replace")

    def _in_text(self, path: str, text: str) -> str:
        if self._wanted.required not in text:
            return ""
        for number, line in enumerate(text.split("\n"), 1):
            if self._wanted.effort > self._bounds.effort:
                return f"stopped in {path}{TOO_SLOW}"
            self._long = self._long or len(line) > _LINE
            end = self._wanted.find(line[:_LINE].removesuffix("\r"))
            if end is None:
                continue
            if len(self.page.lines) >= self._bounds.matches:
                return f"stopped after {self._bounds.matches} matches; make the pattern narrower"
            if not self.page.add(f"{path}:{number}: {_around(line, end)}"):
                return "more matches than fit here; make the pattern narrower"
        return ""

    def notes(self) -> list[str]:
        """Describe what was not searched."""
        skipped = f"{self._skipped} files skipped: binary, too big or not readable"
        return [skipped if self._skipped else "", LONG_LINES if self._long else ""]


def _around(line: str, end: int) -> str:
    """Return the part of a long line that contains the match."""
    begin = max(0, end - 200) if len(line) > 400 else 0
    text = line[begin : begin + 400].strip()
    return f"{'…' if begin else ''}{text}{'…' if begin + 400 < len(line) else ''}"
