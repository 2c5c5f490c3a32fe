"""A change of a file: the arguments of `write_file` and `patch`, and the change as users see it.

An approval covers exactly one change (`execution`): the path, the new content, and the text that a
patch changes.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core.run.files import ChangeKind, FileChange
from holdfast.core.text import diff
from holdfast.core.text.diff import Version
from holdfast.core.text.escape import escape
from holdfast.errors import ToolFailed
from holdfast.tools.fs.search import Path
from holdfast.tools.tool import SURROGATE, BlobStore

MAX_SHOWN = 16 * 1024  # characters of a change that a user can be asked about


class WriteFile(msgspec.Struct, frozen=True):
    path: Path
    content: Annotated[str, Meta(description="The whole new content")]


class Patch(msgspec.Struct, frozen=True):
    path: Path
    old: Annotated[str, Meta(min_length=1, description="Exact text, without line numbers")]
    new: str
    all: Annotated[bool, Meta(description="Replace every occurrence")] = False


def shown_lines(asked: WriteFile | Patch, former: bytes) -> list[str] | None:
    """Return the lines that show the whole change; None if they are surely over `MAX_SHOWN`."""
    if isinstance(asked, Patch):
        return _changes(asked, former)
    return _marked("|", asked.content) if len(asked.content) <= MAX_SHOWN else None


def _changes(asked: Patch, former: bytes) -> list[str] | None:
    """Show a patch in whole lines: removing `# ` looks harmless until one sees `rm` after it.

    The size is known before the text is made: a file can be long, and a replacement too.
    """
    old, new = fitted(asked, former)
    left = 4 * MAX_SHOWN  # bytes; no character has more than four
    lines: list[str] = []
    for part in _parts(former, old, every=asked.all):
        left -= 2 * len(part) + part.count(old) * (len(new) - len(old))
        if left < 0:
            return None
        for mark, text in (("-", part), ("+", part.replace(old, new))):
            lines += _marked(mark, text.decode(errors="replace"))
    return lines


def _parts(former: bytes, old: bytes, *, every: bool) -> Iterator[bytes]:
    """Yield the lines of `former` that contain `old`, each once; or `old` itself if none does."""
    at = former.find(old)
    if at < 0:
        yield old
    while at >= 0:
        begin = former.rfind(b"\n", 0, at) + 1
        end = _line_end(former, at + len(old))
        at = former.find(old, at + len(old)) if every else -1
        while 0 <= at <= end:
            end = _line_end(former, at + len(old))
            at = former.find(old, at + len(old))
        yield former[begin:end]


def _line_end(text: bytes, at: int) -> int:
    found = text.find(b"\n", at)
    return len(text) if found < 0 else found


def fitted(asked: Patch, former: bytes) -> tuple[bytes, bytes]:
    """Return the old and new text with the line ends of the file."""
    old, new = encoded(asked.old), encoded(asked.new)
    if old not in former and b"\r\n" in former and b"\r" not in old:
        return old.replace(b"\n", b"\r\n"), new.replace(b"\n", b"\r\n")
    return old, new


def _marked(mark: str, text: str) -> list[str]:
    return [f"{mark} {escape(line)}" for line in text.split("\n")]


def execution(real: str, asked: WriteFile | Patch, former: bytes = b"") -> str:
    """Hash what an approval covers: the path, the new content, and the text a patch changes."""
    tool = type(asked).__name__
    body = [tool, escape(real), msgspec.to_builtins(asked), sha256(former).hexdigest()]
    return sha256(msgspec.json.encode(body)).hexdigest()


def encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolFailed(SURROGATE) from None


def stored(
    blobs: BlobStore, path: str, kind: ChangeKind, before: Version, after: Version
) -> FileChange:
    """Store both versions of a file durably, and return the change between them. Blocks."""
    names = ["" if v.content is None else blobs.put(v.content) for v in (before, after)]
    counts = diff.count(before.content, after.content)
    return FileChange(
        path=path,
        kind=kind,
        added=counts.added,
        removed=counts.removed,
        before=names[0],
        after=names[1],
        mode_before=before.mode,
        mode_after=after.mode,
        binary=counts.binary,
    )
