"""The file tools: list, read, write, patch and search files in the session's workspace.

Every path is opened through `FileGate` (fs/workspace.py). If a written file can make the user's
own programs run code (core/approval/autorun.py), the user is asked first and sees the complete
change. A write stores the version before and the version after, announces the change, and then
replaces the file; if a crash cuts it, the file's content tells what happened. The size of every
result is limited; a shortened result says so and says how to get the rest.
"""

import difflib
import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, BinaryIO, TypeVar

import msgspec
from anyio import from_thread, to_thread
from msgspec import Meta

from holdfast.core.approval import autorun
from holdfast.core.approval.approval import Choice
from holdfast.core.run.call import UNKNOWN_TEXT, OnCrash
from holdfast.core.run.files import ChangeKind, FileChange, Happened, find_out
from holdfast.core.session.answers import CHANGED_TEXT
from holdfast.core.text.diff import Version
from holdfast.core.text.escape import escape
from holdfast.errors import ToolFailed
from holdfast.tools.fs import change
from holdfast.tools.fs.change import Patch, WriteFile, stored
from holdfast.tools.fs.page import ROOM, SNIFF, Page, cut
from holdfast.tools.fs.search import Path, SearchFiles, search_files
from holdfast.tools.fs.workspace import MAX_FILE, DirectoryEntry, FileGate, Slot, shown
from holdfast.tools.tool import (
    Context,
    Done,
    Effect,
    Forbidden,
    Outcome,
    Permission,
    Question,
    Tool,
    ToolAllowed,
    ToolDenied,
    ToolFailure,
    Unknown,
    free,
)

NOT_SHOWN = " not shown; use search_files to find text in them"
CONTINUE = "; continue with offset={}"
SIMILAR_LINE = "the most similar line is"
CUT_AFTER = "The process was interrupted after that; the file has the new content."
CUT_BEFORE = (
    "not written: the process was interrupted before. The file is as it was; repeat the call if it "
    "is still needed."
)
CUT_BETWEEN = (
    "the process was interrupted during the write, and the file has neither the former nor the new "
    "content. Check it before you repeat the call."
)
SMALL_MODEL = "it comes from a small model, which makes mistakes"
MAX_READ = 256 * 1024 * 1024  # bytes of a file that are searched for lines
_CHUNK = 1024 * 1024
_NEAR = 5_000  # lines among which a failed patch looks for a similar one

A = TypeVar("A", bound=msgspec.Struct)


class ListFiles(msgspec.Struct, frozen=True):
    path: Path = "."


class ReadFile(msgspec.Struct, frozen=True):
    path: Path
    offset: Annotated[int, Meta(ge=1, description="First line")] = 1
    limit: Annotated[int, Meta(ge=1, le=2000, description="Number of lines")] = 2000


def list_files(gate: FileGate, asked: ListFiles) -> str:
    """List a directory, one entry per line."""
    entries, whole = gate.entries(asked.path)
    page = Page()
    for entry in entries:
        if not page.add(_listed(entry)):
            break
    if not entries:
        return "(empty directory)"
    left = len(entries) - len(page.lines)
    if whole and not left:
        return page.text()
    more = f"{left} more" if whole else f"more than {left} more"
    return page.text(more + NOT_SHOWN)


def _listed(entry: DirectoryEntry) -> str:
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


def read_file(gate: FileGate, asked: ReadFile) -> str:
    """Return numbered lines of a text file, or a description of a binary file."""
    with gate.open_file(asked.path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(SNIFF)
        if b"\0" in start:
            return f"Binary file, {size} bytes, starts with {start[:16].hex(' ')}."
        if not start:
            return "(empty file)"
        file.seek(0)
        return _numbered(file, asked)


def _numbered(file: BinaryIO, asked: ReadFile) -> str:
    page = Page()
    number = 0
    for raw in _raw_lines(file, asked.path):
        number += 1
        if number < asked.offset:
            continue
        line = f"{number}\t{raw.decode(errors='replace')}"
        if len(page.lines) < asked.limit and page.add(line):
            continue
        if page.lines:
            shown_lines = f"lines {asked.offset} to {number - 1} shown"
            return page.text(shown_lines + CONTINUE.format(number))
        page.add(cut(line, ROOM - 1))
        return page.text(f"line {number} is too long and cut" + CONTINUE.format(number + 1))
    if number < asked.offset:
        raise ToolFailed(
            f"{shown(asked.path)}: it has {number} lines; use an offset of at most {number}."
        )
    return page.text()


def _raw_lines(file: BinaryIO, path: str) -> Iterator[bytes]:
    """Yield each line without its line end; from a long line only as much as fills the page.

    A sparse file can be much longer than its size on disk. So at most `MAX_READ` bytes are read,
    and reading stops when the call is cancelled.
    """
    checked = 0
    while raw := file.readline(ROOM):
        yield raw.removesuffix(b"\n").removesuffix(b"\r")
        checked = _go_on(file, checked, path)
        while raw and not raw.endswith(b"\n"):
            raw = file.readline(_CHUNK)
            checked = _go_on(file, checked, path)


def _go_on(file: BinaryIO, checked: int, path: str) -> int:
    """Check after every `_CHUNK` whether to continue; return the position of the last check."""
    at = file.tell()
    if at - checked < _CHUNK:
        return checked
    from_thread.check_cancelled()
    if at > MAX_READ:
        raise ToolFailed(
            f"{shown(path)}: only the first {MAX_READ >> 20} MiB of a file can be read; use a "
            "command (tail, sed -n) to get the part that you need."
        )
    return at


def write_file(gate: FileGate, context: Context, asked: WriteFile) -> Done | ToolDenied:
    """Create or replace a file."""
    data = change.encoded(asked.content)
    with gate.place(asked.path) as slot:
        if slot.why and change.execution(slot.real, asked) != context.execution:
            return ToolDenied(CHANGED_TEXT)
        kind = ChangeKind.CREATED if slot.former is None else ChangeKind.REPLACED
        changes = _replace(context, slot, kind, data)
    name = gate.relative(asked.path)
    text = f"{kind.capitalize()} {name} ({_lines(asked.content)}, {len(data)} bytes)."
    return Done(text, changes)


def patch(gate: FileGate, context: Context, asked: Patch) -> Done | ToolDenied:
    """Replace text in a file."""
    if asked.old == asked.new:
        raise ToolFailed("old and new are the same; give a different new text.")
    with gate.existing(asked.path) as slot:
        former = slot.former or b""
        if slot.why and change.execution(slot.real, asked, former) != context.execution:
            return ToolDenied(CHANGED_TEXT)
        old, new = change.fitted(asked, former)
        count = former.count(old)
        if count == 0:
            raise ToolFailed(_absent(asked, former))
        if count > 1 and not asked.all:
            raise ToolFailed(
                f"{shown(asked.path)}: old occurs {count} times; "
                "include more of the surrounding text, or set all."
            )
        if len(former) + count * (len(new) - len(old)) > MAX_FILE:
            raise ToolFailed(f"{shown(asked.path)}: the new file would be too big; change less.")
        changes = _replace(context, slot, ChangeKind.PATCHED, former.replace(old, new))
    line = former[: former.index(old)].count(b"\n") + 1
    where = f"line {line}" if count == 1 else f"{count} places, the first in line {line}"
    return Done(f"Patched {gate.relative(asked.path)}: {where}.", changes)


async def _permit(context: Context, asked: WriteFile | Patch) -> Permission:
    """Allow the write, but ask each time if the file can make the user's programs run code."""
    return await to_thread.run_sync(_permission, context, asked)


def _permission(context: Context, asked: WriteFile | Patch) -> Permission:
    real, why, former = _place(context, asked)
    if not why:
        return ToolAllowed()
    verb = "change" if isinstance(asked, Patch) else "write"
    lines = change.shown_lines(asked, former)
    shown_text = "\n".join([f"{verb} {escape(real)}", *(lines or ())])
    if lines is None or len(shown_text) > change.MAX_SHOWN:
        return Forbidden(
            f"{shown(real)}: {why}. So the user must see the complete change, and this one is too "
            "long to show. Write less, or let the user write it."
        )
    return Question(
        command=shown_text,
        description=f"Asks to {verb} this file, because {why}. Can only be allowed once.",
        execution=change.execution(real, asked, former),
        choices=(Choice.ONCE, Choice.DENY),
    )


def _place(context: Context, asked: WriteFile | Patch) -> tuple[str, str, bytes]:
    """Return the resolved path, why the user must be asked, and the former text of a patch."""
    always = SMALL_MODEL if context.confirm_writes else ""
    if not context.workspace.is_dir():  # the workspace is created when it is first needed
        real = os.path.normpath(asked.path)
        return real, autorun.why_asked(real) or always, b""
    with FileGate(context.workspace) as gate:
        real, why = gate.why_asked(asked.path)
        why = why or always
        if not why or isinstance(asked, WriteFile):
            return real, why, b""
        with gate.open_file(asked.path) as file:
            return real, why, file.read(MAX_FILE)


def _replace(context: Context, slot: Slot, kind: ChangeKind, data: bytes) -> tuple[FileChange, ...]:
    """Store both versions, then write the new one. Return the change, if there is one."""
    if data == slot.former:
        slot.replace(data)
        return ()
    try:
        change = stored(
            context.blobs,
            slot.real,
            kind,
            Version(slot.former, slot.former_mode),
            Version(data, slot.mode),
        )
    except OSError as error:
        raise ToolFailed(
            f"{shown(slot.real)}: nothing was written, because its versions could not be "
            f"stored for undo ({error.strerror}); tell the user."
        ) from error
    from_thread.run(context.announce, change)
    slot.replace(data)
    return (change,)


def adopt(gate: FileGate, context: Context, asked: WriteFile | Patch) -> Outcome:
    """Find out by the file's content whether an interrupted call has changed it."""
    name = shown(asked.path)
    for planned in context.announced():
        match _happened(gate, planned):
            case Happened.YES:
                return Done(f"{planned.kind.capitalize()} {name}. {CUT_AFTER}", (planned,))
            case Happened.NO:
                return ToolFailure(f"{name}: {CUT_BEFORE}")
            case Happened.UNKNOWN:
                return Unknown(f"{name}: {CUT_BETWEEN}")
    return Unknown(UNKNOWN_TEXT)


async def abort(context: Context) -> tuple[FileChange, ...]:
    """Return the changes that a call of a stopped run has made."""

    def blocking() -> tuple[FileChange, ...]:
        with FileGate(context.workspace) as gate:
            announced = context.announced()
            return tuple(one for one in announced if _happened(gate, one) is Happened.YES)

    return await to_thread.run_sync(blocking) if context.announced() else ()


def _happened(gate: FileGate, change: FileChange) -> Happened:
    try:
        content = gate.present(change.path)
    except ToolFailed:  # it cannot be read: it is not what we wrote
        return Happened.UNKNOWN
    return find_out(change, "" if content is None else sha256(content).hexdigest())


def _absent(asked: Patch, former: bytes) -> str:
    wanted = next((line for line in asked.old.splitlines() if line.strip()), asked.old)[:200]
    raw = former.split(b"\n", _NEAR)[:_NEAR]
    lines = [line[:800].decode(errors="replace")[:200] for line in raw]
    near = difflib.get_close_matches(wanted, lines, n=1, cutoff=0.5)
    hint = f"{SIMILAR_LINE} {lines.index(near[0]) + 1}: {near[0]!r}" if near else ""
    return (
        f"{shown(asked.path)}: old does not occur; {hint or 'no line is similar'}. "
        "Read the file, then copy the text exactly."
    )


def _lines(text: str) -> str:
    count = text.count("\n") + (not text.endswith("\n") and text != "")
    return "1 line" if count == 1 else f"{count} lines"


def _reads(work: Callable[[FileGate, A], str]) -> Callable[[Context, A], Awaitable[Outcome]]:
    async def run(context: Context, asked: A) -> Outcome:
        def blocking() -> Outcome:
            with FileGate(context.workspace) as gate:
                return Done(work(gate, asked))

        return await to_thread.run_sync(blocking, abandon_on_cancel=True)

    return run


def _writes(
    work: Callable[[FileGate, Context, A], Outcome], umask: int
) -> Callable[[Context, A], Awaitable[Outcome]]:
    async def run(context: Context, asked: A) -> Outcome:
        def blocking() -> Outcome:
            with FileGate(context.workspace, umask=umask) as gate:
                return work(gate, context, asked)

        return await to_thread.run_sync(blocking)  # not abandoned, so the outcome is known

    return run


def _path(asked: ListFiles | ReadFile | WriteFile | Patch | SearchFiles) -> str:
    return shown(asked.path, 100)


_READS: Callable[..., Tool[Any]] = partial(
    Tool, effect=Effect.READ, on_crash=OnCrash.REPEAT, timeout_s=30.0, permit=free
)
_WRITES: Callable[..., Tool[Any]] = partial(
    Tool,
    effect=Effect.WRITE,
    on_crash=OnCrash.ADOPT,
    timeout_s=30.0,
    permit=_permit,
    adopt=_writes(adopt, 0o077),
    abort=abort,
)


def tools(umask: int = 0o022) -> tuple[Tool[Any], ...]:
    """Create the tools. New files and directories get modes according to the user's `umask`."""
    return (
        _READS("list_files", "List a directory.", ListFiles, run=_reads(list_files), preview=_path),
        _READS(
            "read_file",
            "Read a text file; each line is shown as number, tab, text.",
            ReadFile,
            run=_reads(read_file),
            preview=_path,
        ),
        _WRITES(
            "write_file",
            "Create a file or replace its content; missing directories are created.",
            WriteFile,
            run=_writes(write_file, umask),
            preview=lambda asked: f"{_path(asked)} ({_lines(asked.content)})",
        ),
        _WRITES(
            "patch",
            "Replace text in a file. `old` must occur exactly once unless `all` is set.",
            Patch,
            run=_writes(patch, umask),
            preview=lambda asked: f"{_path(asked)} ({_lines(asked.old)})",
        ),
        _READS(
            "search_files",
            "Find lines by regex in a file or below a directory. Links are not followed; "
            ".git, node_modules, .venv and binary files are skipped.",
            SearchFiles,
            run=_reads(search_files),
            preview=lambda asked: f"{shown(asked.pattern, 60)} in {_path(asked)}",
        ),
    )
