"""The file gate: the one way from a path a model wrote to an open file.

Every path is opened beneath the workspace's directory fd, and the fd that was checked is
the fd that is used: there is no moment between check and use for a link to be swapped in.
Only regular files are read; a write goes to a new file beside the old one and is renamed
over it, so it never reaches through a link, soft or hard. Whatever the gate refuses is a
`ToolFailed` that names the path as given and says what to do.

Two resolvers keep the same promise. `openat2` lets the kernel hold the walk beneath the
root (Linux); it follows links that stay inside. `walk` opens component by component and
follows no link at all; it serves where `openat2` is missing or forbidden. `beneath`, the
default, is the first where it works and else the second.

The gate compares no names, so upper and lower case need no care: on a file system that
folds case the kernel finds the same link or file under either spelling, and judges it the
same. Names that are not UTF-8 can be listed but not opened.
"""

import ctypes
import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from holdfast.core.types import Value
from holdfast.errors import ToolFailed

MAX_PARTS = 100  # of one path; also bounds how deep a walk goes
MAX_ENTRIES = 10_000  # looked at in one directory
MAX_FILE = 64 * 1024 * 1024  # what a write may replace, because all of it is kept for undo
TEMPORARY = ".holdfast-"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a fifo must not hang us
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Resolver = Callable[[int, str, int], int]
"""(directory fd, relative path, open flags) to an fd that lies beneath it, or OSError."""


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_OPENAT2 = 437  # the same number on every architecture we know
_RESOLVE = 0x08 | 0x02  # BENEATH | NO_MAGICLINKS
_ATTEMPTS = 64  # the kernel asks for another try when a rename crosses a `..`
_libc = ctypes.CDLL(None, use_errno=True)


def openat2(root: int, path: str, flags: int) -> int:
    """Let the kernel keep the whole resolution beneath `root`."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    how = _OpenHow(flags, 0, _RESOLVE)
    name = os.fsencode(path)
    code = errno.EAGAIN
    for _ in range(_ATTEMPTS):
        fd: int = _libc.syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(root),
            ctypes.c_char_p(name),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code))


def walk(root: int, path: str, flags: int) -> int:
    """Open one component after the other, following no link."""
    above: list[int] = [root]  # `..` goes back to the fd we came from, never to the disk's
    *parents, last = path.split("/")
    if last == "..":
        parents, last = [*parents, last], "."
    try:
        for part in parents:
            if part != "..":
                above.append(os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above[-1]))
            elif len(above) == 1:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            else:
                os.close(above.pop())
        return os.open(last, flags | os.O_NOFOLLOW, dir_fd=above[-1])
    finally:
        for fd in above[1:]:
            os.close(fd)


def beneath(root: int, path: str, flags: int) -> int:
    """`openat2` where the system has it and allows it, else `walk`."""
    try:
        return openat2(root, path, flags)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    return walk(root, path, flags)


class Entry(Value):
    """One line of a directory."""

    name: str
    mark: str  # "/" directory, "@" link, "" file, "!" anything else
    size: int


class Gate:
    """A workspace, open. Blocks; use it in a worker thread."""

    def __init__(self, root: Path, resolve: Resolver = beneath) -> None:
        self._root = str(root)
        self._resolve = resolve
        try:
            self._fd = os.open(root, _DIRECTORY)
        except OSError as error:
            raise ToolFailed(f"The workspace cannot be opened: {error.strerror}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def relative(self, path: str) -> str:
        """`path` as seen from the root, without empty parts; `.` is the root itself."""
        with explained(path):
            return "/".join(self._parts(path)) or "."

    def _parts(self, path: str) -> list[str]:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise OSError(errno.EILSEQ, "") from None
        if not path or "\0" in path:
            raise OSError(errno.EINVAL, "")
        if path.startswith("/"):
            root = self._root.rstrip("/")
            if path != root and not path.startswith(root + "/"):
                raise OSError(errno.EXDEV, "")
            path = path[len(root) :]
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if len(parts) > MAX_PARTS:
            raise OSError(errno.ENAMETOOLONG, "")
        return parts

    @contextmanager
    def open_file(self, path: str) -> Iterator[BinaryIO]:
        """The regular file at `path`, open for reading."""
        with explained(path):
            fd = self._resolve(self._fd, self.relative(path), _FILE)
            with os.fdopen(_regular(fd), "rb") as file:
                yield file

    def entries(self, path: str) -> tuple[list[Entry], bool]:
        """What the directory at `path` holds, by name, and whether that is all of it."""
        with explained(path):
            fd = self._resolve(self._fd, self.relative(path), _DIRECTORY)
            try:
                with os.scandir(fd) as scan:
                    found = [_entry(entry) for entry in islice(scan, MAX_ENTRIES)]
                    whole = next(scan, None) is None
            finally:
                os.close(fd)
        return sorted(found, key=lambda entry: entry.name), whole

    def files(
        self, path: str, skip: frozenset[str]
    ) -> Generator[tuple[str, BinaryIO | None], None, None]:
        """Every regular file at or below `path`, open, or None where it could not be opened.

        No link is followed; directories named in `skip` are left out. Close the iterator.
        """
        start = self.relative(path)
        with explained(path):
            fd = self._resolve(self._fd, start, _FILE)
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                with os.fdopen(_regular(fd), "rb") as file:
                    yield start, file
                return
            try:
                yield from _below(fd, "" if start == "." else start + "/", skip, MAX_PARTS)
            finally:
                os.close(fd)

    @contextmanager
    def existing(self, path: str) -> Iterator["Slot"]:
        """The place of a file that is there, to change it."""
        with self._slot(path, self._open_parent) as slot:
            if slot.former is None:
                raise OSError(errno.ENOENT, "")
            yield slot

    @contextmanager
    def place(self, path: str) -> Iterator["Slot"]:
        """The place of a file, there or not; missing directories on the way are made."""
        with self._slot(path, self._make_parent) as slot:
            yield slot

    @contextmanager
    def _slot(self, path: str, parent: Callable[[list[str]], int]) -> Iterator["Slot"]:
        with explained(path):
            parts = self._parts(path)
            if not parts or parts[-1] == ".." or path.endswith("/"):
                raise OSError(errno.EISDIR, "")
            fd = parent(parts[:-1])
            try:
                yield Slot(fd, parts[-1])
            finally:
                os.close(fd)

    def _open_parent(self, parts: list[str]) -> int:
        return self._resolve(self._fd, "/".join(parts) or ".", _DIRECTORY)

    def _make_parent(self, parts: list[str]) -> int:
        try:
            return self._open_parent(parts)
        except FileNotFoundError:
            if ".." in parts:  # a directory made only to leave it again is nobody's wish
                raise
        at = os.dup(self._fd)
        for part in parts:
            try:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=at)
                below = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            finally:
                os.close(at)
            at = below
        return at


class Slot:
    """A name in an open directory, and what was there when it was looked at."""

    def __init__(self, directory: int, name: str) -> None:
        self._directory = directory
        self._name = name
        self._seen: tuple[int, ...] | None = None
        self._mode = 0o644
        self.former: bytes | None = None
        try:
            fd = os.open(name, _FILE | os.O_NOFOLLOW, dir_fd=directory)
        except FileNotFoundError:
            return
        with os.fdopen(_regular(fd), "rb") as file:
            state = os.fstat(file.fileno())
            if state.st_nlink > 1:
                raise OSError(errno.EMLINK, "")
            if state.st_size > MAX_FILE:
                raise OSError(errno.EFBIG, "")
            self._seen = _identity(state)
            self._mode = state.st_mode & 0o777
            self.former = file.read(MAX_FILE)

    def replace(self, data: bytes) -> None:
        """Put `data` there, whole or not at all, and durably."""
        temporary = f"{TEMPORARY}{secrets.token_hex(8)}.tmp"
        fd = os.open(temporary, _NEW, 0o600, dir_fd=self._directory)
        try:
            with os.fdopen(fd, "wb", buffering=0) as file:
                _write_all(file.fileno(), data)
                os.fchmod(file.fileno(), self._mode)
                os.fsync(file.fileno())
            if self._now() != self._seen:
                raise OSError(errno.ESTALE, "")
            at = self._directory
            os.rename(temporary, self._name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self._directory)
            raise
        os.fsync(self._directory)

    def _now(self) -> tuple[int, ...] | None:
        try:
            state = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return _identity(state)


def _identity(state: os.stat_result) -> tuple[int, ...]:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _regular(fd: int) -> int:
    """`fd` if it is a regular file; closed and refused if not."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO, "")


def _entry(entry: os.DirEntry[str]) -> Entry:
    if entry.is_symlink():
        return Entry(entry.name, "@", 0)
    if entry.is_dir(follow_symlinks=False):
        return Entry(entry.name, "/", 0)
    if not entry.is_file(follow_symlinks=False):
        return Entry(entry.name, "!", 0)
    try:
        return Entry(entry.name, "", entry.stat(follow_symlinks=False).st_size)
    except FileNotFoundError:  # gone since it was listed
        return Entry(entry.name, "", 0)


def _below(
    directory: int, prefix: str, skip: frozenset[str], depth: int
) -> Iterator[tuple[str, BinaryIO | None]]:
    with os.scandir(directory) as scan:
        entries = sorted(islice(scan, MAX_ENTRIES), key=lambda entry: entry.name)
    for entry in entries:
        is_directory = entry.is_dir(follow_symlinks=False)
        if is_directory and (entry.name in skip or depth == 0):
            continue
        if not is_directory and not entry.is_file(follow_symlinks=False):
            continue
        flags = (_DIRECTORY if is_directory else _FILE) | os.O_NOFOLLOW
        try:
            fd = os.open(entry.name, flags, dir_fd=directory)
            if not is_directory:
                _regular(fd)
        except OSError:
            yield prefix + entry.name, None
            continue
        if not is_directory:
            with os.fdopen(fd, "rb") as file:
                yield prefix + entry.name, file
            continue
        try:
            yield from _below(fd, f"{prefix}{entry.name}/", skip, depth - 1)
        finally:
            os.close(fd)


_REASONS = {
    errno.ENOENT: "there is no such file or directory; list_files shows what is there.",
    errno.ENOTDIR: "a part of this path is no directory, or a link; name a directory itself.",
    errno.EISDIR: "this is a directory; name a file in it.",
    errno.EXDEV: "this leads out of the workspace; use a relative path inside it.",
    errno.ELOOP: "this is a link that may not be followed; name the file it leads to.",
    errno.EMLINK: "this file has a second hard link; remove it and write a new file instead.",
    errno.ENXIO: "this is not a regular file; name one.",
    errno.EFBIG: f"this file is over {MAX_FILE >> 20} MiB, too big to keep for undo; write another.",
    errno.ESTALE: "somebody changed this file meanwhile; read it again, then repeat.",
    errno.EINVAL: "a path must not be empty or hold a NUL character; give a file's name.",
    errno.EILSEQ: "this path is not valid text; give it in plain characters.",
    errno.ENAMETOOLONG: "this path is too long; use a shorter one.",
    errno.EACCES: "the system does not permit this; choose another file.",
}


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn what the system refuses about `path` into a sentence for the model."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        reason = _REASONS.get(code) or f"{os.strerror(code)}; nothing was done."
        raise ToolFailed(f"{shown(path)}: {reason}") from error


def shown(text: str, most: int = 300) -> str:
    """`text` for people and models: printable, on one line, short."""
    if len(text) > most:
        text = text[:most] + "…"
    if text.isprintable():
        return text or "(empty)"
    return text.encode("unicode_escape").decode()
