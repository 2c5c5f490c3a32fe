"""Snapshots of directory trees, to detect later whether a file has changed.

Promises: a snapshot is limited in files, bytes and time, and states what it does not cover. It
follows no link, opens only regular files, and never waits for another process. `look` and
`digest` block.

Theory: the identity of a file is its inode, size, mode and times. No command can set the change
time (ctime), so a file that was written to has another identity, even if its other times were
reset. One exception: a process that has mapped the file can write to pages that are not yet on
disk. If the files are few and small, their contents are hashed as well. Then a checkout or a copy
that leaves the same bytes does not count as a change.
"""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from holdfast.core.approval.tree import MOST_LEFT_OUT, LeftOut, Tree
from holdfast.core.types import Value
from holdfast.tools.fs.openat import descriptor

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

MOST_FILES = 100_000
READ_FILES, READ_BYTES = 10_000, 64 * 2**20  # contents are hashed up to these limits
NEWEST = MOST_LEFT_OUT + 1  # number of most recently changed names to remember
AT_ONCE = 2  # concurrent snapshots of all sessions
_CHUNK = 2**20
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Gap(Exception):
    """The reason why a tree cannot be checked."""


class _Entry(Value):
    """One name in a tree. `same` is the part of its content that is known without opening it."""

    name: bytes
    kind: bytes
    identity: bytes
    same: bytes
    size: int = 0
    changed_ns: int = 0


def look(
    path: str, within_s: float, but: tuple[str, ...] = (), own: str = "", *, contents: bool
) -> Tree:
    """Take a snapshot of all below `path`; it has a gap if that takes over `within_s` seconds.

    The files named in `but` and everything below `own` are left out. If a directory cannot be
    listed, but a command could enter it, the result's `but` names it too, as `name/`.
    """
    ends_at = time.monotonic() + within_s
    root = os.fsencode(path)
    skipped = frozenset(map(os.fsencode, but))
    looked_ns = time.time_ns()
    found, files, kept = sha256(), 0, list[_Entry]()
    newest: list[tuple[int, str]] = []
    unlisted = set(but)
    try:
        for entry in _walk(root, ends_at, os.fsencode(own)):
            if entry.name in skipped:
                continue
            _add(found, entry.name, entry.kind, entry.identity)
            files += entry.kind == b"f"
            if entry.kind == b"u":
                unlisted.add(os.fsdecode(entry.name) + "/")
            if contents and files <= READ_FILES:
                kept.append(entry)
            if entry.kind != b"d" and (len(newest) < NEWEST or entry.changed_ns > newest[-1][0]):
                newest.append((entry.changed_ns, os.fsdecode(entry.name)))
                newest = sorted(newest, reverse=True)[:NEWEST]
    except _Gap as gap:
        return Tree(path=path, gap=str(gap), but=but)
    few = files <= READ_FILES and sum(entry.size for entry in kept) <= READ_BYTES
    content = _contents(root, kept, ends_at) if contents and few else ""
    return Tree(
        path=path,
        files=files,
        identity=found.hexdigest(),
        content=content,
        but=tuple(sorted(unlisted)),
        looked_ns=looked_ns,
        newest=tuple(newest),
    )


class Lookout:
    """Takes snapshots in worker threads, a few at a time, and leaves out everything in `own`."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._at_once = anyio.CapacityLimiter(AT_ONCE)

    async def look(
        self, roots: tuple[str, ...], within_s: float, but: LeftOut, *, contents: bool
    ) -> tuple[Tree, ...]:
        """Take a snapshot of each of `roots`, without the files in `but`."""
        found: list[Tree] = []
        for root in roots:
            left_out = but.get(root, ())
            one = partial(look, root, within_s, left_out, self._own, contents=contents)
            found.append(
                await to_thread.run_sync(one, limiter=self._at_once, abandon_on_cancel=True)
            )
        return tuple(found)


def _walk(root: bytes, ends_at: float, own: bytes) -> Iterator[_Entry]:
    """Yield every name below `root`, always in the same order."""
    left, count = [b""], 0
    while left:
        listed = _listed(root, left.pop(), MOST_FILES - count)
        count += len(listed)
        if count > MOST_FILES:
            raise _Gap(f"it has more than {MOST_FILES:,} files")
        if time.monotonic() > ends_at:
            raise _Gap("there was not enough time to read all of it")
        yield from listed
        folders = [entry.name for entry in reversed(listed) if entry.kind == b"d"]
        left += [name for name in folders if os.path.join(root, name) != own]


def _listed(root: bytes, folder: bytes, most: int) -> list[_Entry]:
    """Return the entries of `folder`, sorted by name; at most `most` + 1."""
    entries: list[_Entry] = []
    try:
        with os.scandir(os.path.join(root, folder)) as found:
            for one in found:
                with suppress(FileNotFoundError):  # deleted since it was listed
                    entries.append(_entry(one, os.path.join(folder, one.name)))
                if len(entries) > most:
                    break
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _Gap(f"a part of it cannot be read ({error.strerror})") from error
    return sorted(entries, key=lambda entry: entry.name)


def _entry(one: os.DirEntry[bytes], name: bytes) -> _Entry:
    info = one.stat(follow_symlinks=False)
    mode = b"%o" % info.st_mode
    if stat.S_ISDIR(info.st_mode):
        kind = _folder(one.path, info)
        same = mode if kind == b"d" else mode + b" " + numbers(info)
        return _Entry(name, kind, same, same, 0, info.st_ctime_ns)
    if stat.S_ISLNK(info.st_mode):
        target = os.readlink(one.path)
        leads = target + b" " + _beyond(one.path, name, target)
        return _Entry(name, b"l", leads, leads, 0, info.st_ctime_ns)
    if stat.S_ISREG(info.st_mode):
        return _Entry(name, b"f", numbers(info), mode, info.st_size, info.st_ctime_ns)
    return _Entry(name, b"o", numbers(info), numbers(info), 0, info.st_ctime_ns)


def _folder(path: bytes, info: os.stat_result) -> bytes:
    """Return b"d" if we can list a directory, b"u" if only commands could get into it, else b"x".

    b"u": we own it, so a command can change its mode, or it can be entered but not listed. b"x":
    another user owns it, so it is closed to commands too, until its mode changes.
    """
    if os.access(path, os.R_OK | os.X_OK):
        return b"d"
    return b"u" if info.st_uid == os.geteuid() or os.access(path, os.X_OK) else b"x"


def _beyond(path: bytes, name: bytes, target: bytes) -> bytes:
    """Return the identity of the file that a link out of the tree points to, if it is a file."""
    inner = os.path.normpath(os.path.join(os.path.dirname(name), target))
    if not os.path.isabs(target) and not inner.startswith(b".."):
        return b""
    with suppress(OSError):
        info = os.stat(path)
        return numbers(info) if stat.S_ISREG(info.st_mode) else b""
    return b""


def numbers(info: os.stat_result) -> bytes:
    """Return the identity of a file: mode, inode, size and times."""
    return b"%o %d %d %d %d" % (
        info.st_mode,
        info.st_ino,
        info.st_size,
        info.st_mtime_ns,
        info.st_ctime_ns,
    )


def _contents(root: bytes, entries: list[_Entry], ends_at: float) -> str:
    """Hash all contents; "" if a file cannot be read or there is not enough time."""
    found = sha256()
    for entry in entries:
        same = entry.same
        if entry.kind == b"f":
            try:
                path = os.path.join(root, entry.name)
                same += b" " + digest(path, entry.size, entry.identity).encode()
            except OSError:
                return ""
        if time.monotonic() > ends_at:
            return ""
        _add(found, entry.name, entry.kind, same)
    return found.hexdigest()


def digest(path: bytes | str, most: int, identity: bytes = b"") -> str:
    """Return the sha256 of a regular file, or of its first `most` + 1 bytes.

    Raises `OSError` if the file does not have the given `identity`: names and contents must come
    from the same files, even if directories are exchanged in between.
    """
    with descriptor(os.open(path, _OPEN)) as fd:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or (identity and numbers(info) != identity):
            raise OSError(f"{path!r} is not a regular file, or was replaced")
        found, left = sha256(), most + 1
        while left > 0 and (data := os.read(fd, min(_CHUNK, left))):
            found.update(data)
            left -= len(data)
        return found.hexdigest()


def _add(found: "Hash", *parts: bytes) -> None:
    found.update(b"\0".join(parts) + b"\0")  # no part contains a NUL
