"""The file family: list, read, write, patch and search in the session's workspace.

Every path goes through the gate. A write keeps the version it replaces before it replaces
it. What the model gets is bounded, and says when it is not all and how to get the rest.
"""

import difflib
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Annotated, BinaryIO, TypeVar

import msgspec
from anyio import from_thread, to_thread
from msgspec import Meta

from holdfast.core.call import Kept, OnCrash
from holdfast.core.types import Value
from holdfast.errors import ToolFailed
from holdfast.tools import pattern
from holdfast.tools.gate import MAX_FILE, TEMPORARY, Entry, Gate, shown
from holdfast.tools.tool import Context, Done, Effect, Outcome, Tool, free

MAX_TEXT = 32 * 1024  # bytes to the model
_ROOM = MAX_TEXT - 512  # the rest is for the note at the end
_SNIFF = 8 * 1024  # bytes that tell text from binary
_LINE = 10_000  # characters of one line that are searched
_NEAR = 5_000  # lines among which a patch looks for the nearest

Path = Annotated[str, Meta(description="Relative to the workspace")]
A = TypeVar("A", bound=msgspec.Struct)


class ListFiles(msgspec.Struct, frozen=True):
    path: Path = "."


class ReadFile(msgspec.Struct, frozen=True):
    path: Path
    offset: Annotated[int, Meta(ge=1, description="First line")] = 1
    limit: Annotated[int, Meta(ge=1, le=2000, description="Number of lines")] = 2000


class WriteFile(msgspec.Struct, frozen=True):
    path: Path
    content: Annotated[str, Meta(description="The whole new content")]


class Patch(msgspec.Struct, frozen=True):
    path: Path
    old: Annotated[str, Meta(min_length=1, description="Exact text, without line numbers")]
    new: str
    all: Annotated[bool, Meta(description="Replace every occurrence")] = False


class SearchFiles(msgspec.Struct, frozen=True):
    pattern: Annotated[str, Meta(min_length=1, description="Regex, per line; (?i) ignores case")]
    path: Path = "."


class _Page:
    """Lines for the model, as many as there is room for."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._room = _ROOM

    def add(self, line: str) -> bool:
        """Take `line` if there is room for it."""
        size = len(line.encode(errors="replace")) + 1
        if size > self._room:
            return False
        self._room -= size
        self.lines.append(line)
        return True

    def text(self, *notes: str) -> str:
        return "\n".join([*self.lines, *(f"[{note}]" for note in notes if note)])


def _cut(text: str, size: int) -> str:
    """As much of `text` as fits `size` bytes."""
    return text.encode(errors="replace")[:size].decode(errors="ignore")


def list_files(gate: Gate, asked: ListFiles) -> str:
    """One directory, a line each."""
    entries, whole = gate.entries(asked.path)
    page = _Page()
    for entry in entries:
        if not page.add(_listed(entry)):
            break
    if not entries:
        return "(empty directory)"
    left = len(entries) - len(page.lines)
    if whole and not left:
        return page.text()
    more = f"{left} more" if whole else f"more than {left} more"
    return page.text(f"{more} not shown; search_files finds text among them")


def _listed(entry: Entry) -> str:
    name = shown(entry.name)
    match entry.mark:
        case "":
            return f"{name} ({entry.size} bytes)"
        case "@":
            return f"{name} (link)"
        case "!":
            return f"{name} (not a regular file)"
        case mark:
            return name + mark


def read_file(gate: Gate, asked: ReadFile) -> str:
    """Numbered lines of a text file, or what kind of binary it is."""
    with gate.open_file(asked.path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(_SNIFF)
        if b"\0" in start:
            return f"Binary file, {size} bytes, begins with {start[:16].hex(' ')}."
        if not start:
            return "(empty file)"
        file.seek(0)
        return _numbered(file, asked)


def _numbered(file: BinaryIO, asked: ReadFile) -> str:
    page = _Page()
    number = 0
    for raw in _raw_lines(file):
        number += 1
        if number < asked.offset:
            continue
        line = f"{number}\t{raw.decode(errors='replace')}"
        if len(page.lines) < asked.limit and page.add(line):
            continue
        if page.lines:
            shown_lines = f"lines {asked.offset} to {number - 1} shown"
            return page.text(f"{shown_lines}; go on with offset={number}")
        page.add(_cut(line, _ROOM - 1))
        return page.text(f"line {number} is too long and cut; go on with offset={number + 1}")
    if number < asked.offset:
        raise ToolFailed(
            f"{shown(asked.path)}: it has {number} lines; use an offset of at most {number}."
        )
    return page.text()


def _raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """Each line without its end; of a longer one as much as surely fills the page."""
    while raw := file.readline(_ROOM):
        rest = raw
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(1 << 20)
        yield raw.removesuffix(b"\n").removesuffix(b"\r")


def write_file(gate: Gate, context: Context, asked: WriteFile) -> Done:
    """Create or replace a file."""
    data = _encoded(asked.content)
    with gate.place(asked.path) as slot:
        kept = _keep(gate, context, asked.path, slot.former)
        slot.replace(data)
    verb = "Created" if slot.former is None else "Replaced"
    return Done(f"{verb} {kept.path} ({_lines(asked.content)}, {len(data)} bytes).", (kept,))


def patch(gate: Gate, context: Context, asked: Patch) -> Done:
    """Replace text in a file."""
    old, new = _encoded(asked.old), _encoded(asked.new)
    if old == new:
        raise ToolFailed("old and new are the same; say what should change.")
    with gate.existing(asked.path) as slot:
        former = slot.former or b""
        if old not in former and b"\r\n" in former and b"\r" not in old:
            old, new = old.replace(b"\n", b"\r\n"), new.replace(b"\n", b"\r\n")
        count = former.count(old)
        if count == 0:
            raise ToolFailed(_absent(asked, former))
        if count > 1 and not asked.all:
            raise ToolFailed(
                f"{shown(asked.path)}: old occurs {count} times; "
                "give more of the text around it, or set all."
            )
        if len(former) + count * (len(new) - len(old)) > MAX_FILE:
            raise ToolFailed(f"{shown(asked.path)}: the result would be too big; change less.")
        kept = _keep(gate, context, asked.path, former)
        slot.replace(former.replace(old, new))
    line = former[: former.index(old)].count(b"\n") + 1
    where = f"line {line}" if count == 1 else f"{count} places, the first in line {line}"
    return Done(f"Patched {kept.path}: {where}.", (kept,))


def _keep(gate: Gate, context: Context, path: str, former: bytes | None) -> Kept:
    try:
        blob = "" if former is None else context.blobs.put(former)
    except OSError as error:
        raise ToolFailed(
            f"{shown(path)}: nothing was written, because its former version could not be "
            f"kept ({error.strerror}); tell the user."
        ) from error
    return Kept(path=gate.relative(path), blob=blob)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolFailed("The text holds half a surrogate pair; leave that out.") from None


def _absent(asked: Patch, former: bytes) -> str:
    wanted = next((line for line in asked.old.splitlines() if line.strip()), asked.old)[:200]
    lines = [line[:200] for line in former.decode(errors="replace").split("\n")[:_NEAR]]
    near = difflib.get_close_matches(wanted, lines, n=1, cutoff=0.5)
    hint = f"the nearest line is {lines.index(near[0]) + 1}: {near[0]!r}" if near else ""
    return (
        f"{shown(asked.path)}: old does not occur; {hint or 'no line is like it'}. "
        "Read the file, then copy it exactly."
    )


class Bounds(Value):
    """How much one search may do. Counted, not timed: the same search ends in the same place."""

    files: int = 20_000
    matches: int = 200
    file_bytes: int = 2 * 1024 * 1024
    all_bytes: int = 256 * 1024 * 1024
    effort: int = 50_000_000  # of the pattern; some seconds
    skip: frozenset[str] = frozenset({".git", "node_modules", ".venv"})


BOUNDS = Bounds()


def search_files(gate: Gate, asked: SearchFiles, bounds: Bounds = BOUNDS) -> str:
    """Lines that match, as path:line: text."""
    wanted, notes = _pattern(asked.pattern)
    search = _Search(wanted, bounds)
    with closing(gate.files(asked.path, bounds.skip)) as files:
        ended = search.through(files)
    notes += [ended, *search.notes()]
    if not search.page.lines:
        return search.page.text(f"no match in {search.seen} files", *notes)
    return search.page.text(*notes)


def _pattern(text: str) -> tuple[pattern.Pattern, list[str]]:
    try:
        return pattern.regex(text), []
    except re.error as error:
        return pattern.literal(text), [f"not a regex ({error.msg}), so searched as plain text"]


class _Search:
    """One search on its way through the files."""

    def __init__(self, wanted: pattern.Pattern, bounds: Bounds) -> None:
        self._wanted = wanted
        self._bounds = bounds
        self._bytes = 0
        self._skipped = 0
        self._long = False
        self.page = _Page()
        self.seen = 0

    def through(self, files: Iterator[tuple[str, BinaryIO | None]]) -> str:
        """Search `files`; why it ended early, if it did."""
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
        """The file's text; none if it is not one to search."""
        if file is None or os.fstat(file.fileno()).st_size > self._bounds.file_bytes:
            self._skipped += 1
            return ""
        data = file.read(self._bounds.file_bytes)
        self._bytes += len(data)
        if b"\0" in data[:_SNIFF]:
            self._skipped += 1
            return ""
        return data.decode(errors="replace")

    def _in_text(self, path: str, text: str) -> str:
        if self._wanted.required not in text:
            return ""
        for number, line in enumerate(text.split("\n"), 1):
            if self._wanted.effort > self._bounds.effort:
                return f"stopped in {path}, this takes long; search a subdirectory"
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
        """What was left out on the way."""
        skipped = f"{self._skipped} files skipped: binary, too big or not readable"
        long = f"of long lines only the first {_LINE} characters were searched"
        return [skipped if self._skipped else "", long if self._long else ""]


def _around(line: str, end: int) -> str:
    """The part of a long line where the match is."""
    begin = max(0, end - 200) if len(line) > 400 else 0
    text = line[begin : begin + 400].strip()
    return f"{'…' if begin else ''}{text}{'…' if begin + 400 < len(line) else ''}"


def _lines(text: str) -> str:
    count = text.count("\n") + (not text.endswith("\n") and text != "")
    return "1 line" if count == 1 else f"{count} lines"


def _reads(work: Callable[[Gate, A], str]) -> Callable[[Context, A], Awaitable[Outcome]]:
    async def run(context: Context, asked: A) -> Outcome:
        def blocking() -> Outcome:
            with Gate(context.workspace) as gate:
                return Done(work(gate, asked))

        return await to_thread.run_sync(blocking, abandon_on_cancel=True)

    return run


def _writes(
    work: Callable[[Gate, Context, A], Done],
) -> Callable[[Context, A], Awaitable[Outcome]]:
    async def run(context: Context, asked: A) -> Outcome:
        def blocking() -> Outcome:
            with Gate(context.workspace) as gate:
                return work(gate, context, asked)

        return await to_thread.run_sync(blocking)  # not abandoned: it ends as done or failed

    return run


TOOLS = (
    Tool(
        name="list_files",
        description="List a directory.",
        arguments=ListFiles,
        effect=Effect.READ,
        on_crash=OnCrash.REPEAT,
        timeout_s=30.0,
        run=_reads(list_files),
        preview=lambda asked: shown(asked.path, 100),
        permit=free,
    ),
    Tool(
        name="read_file",
        description="Read a text file; each line is shown as number, tab, text.",
        arguments=ReadFile,
        effect=Effect.READ,
        on_crash=OnCrash.REPEAT,
        timeout_s=30.0,
        run=_reads(read_file),
        preview=lambda asked: shown(asked.path, 100),
        permit=free,
    ),
    Tool(
        name="write_file",
        description="Create a file or replace all of it; directories are made as needed.",
        arguments=WriteFile,
        effect=Effect.WRITE,
        on_crash=OnCrash.UNKNOWN,
        timeout_s=30.0,
        run=_writes(write_file),
        preview=lambda asked: f"{shown(asked.path, 100)} ({_lines(asked.content)})",
        permit=free,
    ),
    Tool(
        name="patch",
        description="Replace text in a file. `old` must occur exactly once unless `all` is set.",
        arguments=Patch,
        effect=Effect.WRITE,
        on_crash=OnCrash.UNKNOWN,
        timeout_s=30.0,
        run=_writes(patch),
        preview=lambda asked: f"{shown(asked.path, 100)} ({_lines(asked.old)})",
        permit=free,
    ),
    Tool(
        name="search_files",
        description="Find lines by regex in a file or below a directory. Links are not followed; "
        ".git, node_modules, .venv and binary files are skipped.",
        arguments=SearchFiles,
        effect=Effect.READ,
        on_crash=OnCrash.REPEAT,
        timeout_s=30.0,
        run=_reads(search_files),
        preview=lambda asked: f"{shown(asked.pattern, 60)} in {shown(asked.path, 100)}",
        permit=free,
    ),
)
