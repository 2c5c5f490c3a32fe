"""`FileGate`: opens files in a workspace by paths that a model wrote. There is no other way.

Every path is opened relative to the file descriptor of the workspace's root, and the descriptor
that was checked is the one that is used. So there is no time between check and use in which a
link could be swapped in. Only regular files are read. A write goes to a new file in the same
directory, which is then renamed over the old one, so it never writes through a symbolic or hard
link. If the gate refuses a path, it raises `ToolFailed` with the path as given and what to do.

Two resolvers make the same promise. `openat2` (Linux) lets the kernel keep the resolution below
the root, and follows links that stay inside. `walk` opens one component at a time and follows no
link at all; it is used where `openat2` is missing or forbidden. The default, `beneath`, tries
`openat2` first and then `walk`.

The gate compares no names, so upper and lower case need no special handling: on a file system
that ignores case, the kernel finds the same link or file under both spellings and decides the
same. Names that are not UTF-8 can be listed but not opened.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Self

from holdfast.core.approval import autorun
from holdfast.core.types import Value
from holdfast.errors import ToolFailed
from holdfast.tools.fs import leads
from holdfast.tools.fs.openat import Resolver, beneath, descriptor, open_root, path_of, walk
from holdfast.tools.fs.roots import below, own_code

MAX_PARTS = 100  # components of one path; also the maximum depth of a walk
MAX_ENTRIES = 10_000  # entries read from one directory
MAX_FILE = 64 * 1024 * 1024  # size of a file that a write may replace; it is stored for undo
TEMPORARY = ".holdfast-"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a FIFO must not block us
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectoryEntry(Value):
    """One entry of a directory."""

    name: str
    mark: str  # "/": directory, "@": link, "": regular file, "!": anything else
    size: int


class FileGate:
    """An open workspace. Its methods block; use it in a worker thread."""

    def __init__(
        self,
        root: Path,
        resolve: Resolver = beneath,
        umask: int = 0o022,
        slots: "type[Slot] | None" = None,
    ) -> None:
        self._slots = slots or Slot
        self._root = str(root)
        self._resolve = resolve
        self._umask = umask  # for new files; the umask of our own process is stricter
        try:
            self._fd = open_root(self._root)
        except OSError as error:
            raise ToolFailed(f"Cannot open the workspace: {error.strerror}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._fd)

    def relative(self, path: str) -> str:
        """Return `path` relative to the root, without empty components; `.` is the root itself."""
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
        """Open the regular file at `path` for reading."""
        with explained(path):
            fd = self._resolve(self._fd, self.relative(path), _FILE)
            with os.fdopen(_regular(fd), "rb") as file:
                yield file

    def entries(self, path: str) -> tuple[list[DirectoryEntry], bool]:
        """Return the sorted entries of the directory at `path`, and whether they are complete."""
        with explained(path):
            fd = self._resolve(self._fd, self.relative(path), _DIRECTORY)
            with descriptor(fd), os.scandir(fd) as scan:
                found = [_entry(entry) for entry in islice(scan, MAX_ENTRIES)]
                whole = next(scan, None) is None
        return sorted(found, key=lambda entry: entry.name), whole

    def files(
        self, path: str, skip: frozenset[str], tick: Callable[[], None] = lambda: None
    ) -> Generator[tuple[str, BinaryIO | None], None, None]:
        """Yield every regular file at or below `path`, open, or None if it could not be opened.

        No link is followed; directories named in `skip` are left out. `tick` is called for each
        directory and may raise to stop, because there can be many directories without a file.
        Close the iterator.
        """
        start = self.relative(path)
        with explained(path):
            fd = self._resolve(self._fd, start, _FILE)
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                with os.fdopen(_regular(fd), "rb") as file:
                    yield start, file
                return
            with descriptor(fd):
                yield from _below(fd, "" if start == "." else start + "/", skip, MAX_PARTS, tick)

    def why_asked(self, path: str) -> tuple[str, str]:
        """Return the resolved target of a write to `path`, and why to ask the user, if so."""
        with explained(path):
            parts = self._parts(path)
            try:
                fd = self._open_parent(parts[:-1])
            except FileNotFoundError:  # the write would create it, without following a link
                return self._judged("/".join(parts))
            with descriptor(fd):
                return self._judged(self._real(fd, parts[-1] if parts else ""))

    def _real(self, directory: int, name: str) -> str:
        """Return the path, from the root, of a name in an open directory."""
        above, root = path_of(directory), path_of(self._fd)
        inside = above.removeprefix(root.rstrip("/")).strip("/")
        return f"{inside}/{name}" if inside else name

    def _judged(self, real: str) -> tuple[str, str]:
        if why := autorun.why_asked(real):
            return real, why
        parts = real.split("/")
        for at, part in enumerate(parts):
            if autorun.normalize(part) in autorun.GIT_PARTS and self._is_repository(parts[:at]):
                return real, autorun.BARE
        return real, self._why_led(parts) or self._why_run(real)

    def _why_led(self, parts: list[str]) -> str:
        """Return why the file gets executed: an autorun file in a directory above leads to it."""
        real = "/".join(parts)
        above = ("/".join(parts[:at]) for at in range(len(parts)))
        led = any(lead.covers(real) for folder in above for lead in leads.near(self._fd, folder))
        return autorun.LED_TO if led else ""

    def _why_run(self, real: str) -> str:
        """Return why the file gets executed: it is our own code, or on the user's PATH."""
        root = path_of(self._fd)
        package, environment = own_code()
        path = os.path.join(root, real)
        if below(path, package) or (below(environment, root) and below(path, environment)):
            return autorun.OURS
        folders = map(os.path.realpath, filter(os.path.isabs, os.get_exec_path()))
        inside = [folder for folder in folders if below(folder, root)]
        return autorun.ON_PATH if any(below(path, folder) for folder in inside) else ""

    def _is_repository(self, parts: list[str]) -> bool:
        try:
            os.close(walk(self._fd, "/".join((*parts, "HEAD")), _FILE))
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR)
        return True

    @contextmanager
    def existing(self, path: str) -> Iterator["Slot"]:
        """Return the slot of a file that must exist, to change it."""
        with self._slot(path, self._open_parent) as slot:
            if slot.former is None:
                raise OSError(errno.ENOENT, "")
            yield slot

    def present(self, path: str) -> bytes | None:
        """Return the content of the file at `path`; None if there is none."""
        try:
            with self._slot(path, self._open_parent) as slot:
                return slot.former
        except ToolFailed as failed:
            if isinstance(failed.__cause__, FileNotFoundError):
                return None
            raise

    @contextmanager
    def place(self, path: str) -> Iterator["Slot"]:
        """Return the slot of a file that may or may not exist; create missing directories."""
        with self._slot(path, self._make_parent) as slot:
            yield slot

    @contextmanager
    def found(self, path: str) -> Iterator["Slot | None"]:
        """Return the slot of a file that may or may not exist; None if its directory is missing."""
        with explained(path):
            try:
                os.close(self._open_parent(self._parts(path)[:-1]))
            except FileNotFoundError:
                yield None
                return
        with self._slot(path, self._open_parent) as slot:
            yield slot

    @contextmanager
    def _slot(self, path: str, parent: Callable[[list[str]], int]) -> Iterator["Slot"]:
        with explained(path):
            parts = self._parts(path)
            if not parts or parts[-1] == ".." or path.endswith("/"):
                raise OSError(errno.EISDIR, "")
            with descriptor(parent(parts[:-1])) as fd:
                where = self._judged(self._real(fd, parts[-1]))
                yield self._slots(fd, parts[-1], *where, mode=0o666 & ~self._umask)

    def _open_parent(self, parts: list[str]) -> int:
        return self._resolve(self._fd, "/".join(parts) or ".", _DIRECTORY)

    def _make_parent(self, parts: list[str]) -> int:
        try:
            return self._open_parent(parts)
        except FileNotFoundError:
            if ".." in parts:  # do not create a directory only to leave it again
                raise
        at = os.dup(self._fd)
        for part in parts:
            with descriptor(at):
                at = self._make_directory(part, at)
        return at

    def _make_directory(self, name: str, at: int) -> int:
        """Open the directory; create it if it is missing."""
        try:
            os.mkdir(name, 0o700, dir_fd=at)
        except FileExistsError:
            return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
        fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
        os.fchmod(fd, 0o777 & ~self._umask | os.fstat(fd).st_mode & stat.S_ISGID)
        return fd


class Slot:
    """A name in an open directory, and the file that was there when it was opened.

    `real` is its path from the root, without links. If `why` is not empty, the user must have
    approved the write. `former` is its content, and `former_mode` its st_mode; `mode` is that of
    the file that will replace it.
    """

    def __init__(self, directory: int, name: str, real: str, why: str, *, mode: int) -> None:
        self.real, self.why = real, why
        self._directory = directory
        self._name = name
        self._temporary = f"{TEMPORARY}{secrets.token_hex(8)}.tmp"
        self._seen: tuple[int, ...] | None = None
        self.mode = stat.S_IFREG | mode
        self.former: bytes | None = None
        self.former_mode = 0
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
            self._seen = identity(state)
            self.former_mode = state.st_mode
            self.mode = stat.S_IFREG | state.st_mode & 0o777
            self.former = file.read(MAX_FILE)

    def replace(self, data: bytes, mode: int | None = None) -> None:
        """Write `data` to the file, atomically and durably; `mode` None: as it was.

        With the mode of a symbolic link, it becomes a link to `data`.
        """
        mode = self.mode if mode is None else mode
        at, temporary = self._directory, self._temporary
        try:
            if stat.S_ISLNK(mode):
                os.symlink(data, temporary, dir_fd=at)
            else:
                _write_new(at, temporary, data, stat.S_IMODE(mode))
            self.check()
            os.rename(temporary, self._name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=at)
            raise
        os.fsync(at)

    def delete(self) -> None:
        """Delete the file durably, if it is still the one that was opened."""
        self.check()
        os.unlink(self._name, dir_fd=self._directory)
        os.fsync(self._directory)

    def check(self) -> None:
        """Raise `OSError` if another program has changed the file since it was opened."""
        if self._now() != self._seen:
            raise OSError(errno.ESTALE, "")

    def _now(self) -> tuple[int, ...] | None:
        try:
            state = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return identity(state)


def identity(state: os.stat_result) -> tuple[int, ...]:
    """Return what changes when a file is written or replaced."""
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def _write_new(directory: int, name: str, data: bytes, mode: int) -> None:
    """Write a new file, durably."""
    fd = os.open(name, _NEW, 0o600, dir_fd=directory)
    with os.fdopen(fd, "wb", buffering=0) as file:
        _write_all(file.fileno(), data)
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _regular(fd: int) -> int:
    """Return `fd` if it is a regular file; otherwise close it and raise `OSError`."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO, "")


def _entry(entry: os.DirEntry[str]) -> DirectoryEntry:
    if entry.is_symlink():
        return DirectoryEntry(entry.name, "@", 0)
    if entry.is_dir(follow_symlinks=False):
        return DirectoryEntry(entry.name, "/", 0)
    if not entry.is_file(follow_symlinks=False):
        return DirectoryEntry(entry.name, "!", 0)
    try:
        return DirectoryEntry(entry.name, "", entry.stat(follow_symlinks=False).st_size)
    except FileNotFoundError:  # deleted since it was listed
        return DirectoryEntry(entry.name, "", 0)


def _below(
    directory: int, prefix: str, skip: frozenset[str], depth: int, tick: Callable[[], None]
) -> Iterator[tuple[str, BinaryIO | None]]:
    tick()
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
        with descriptor(fd):
            yield from _below(fd, f"{prefix}{entry.name}/", skip, depth - 1, tick)


REASONS = {
    errno.ENOENT: "there is no such file or directory; use list_files to see what exists.",
    errno.ENOTDIR: "a part of this path is a link or not a directory; use the directory itself.",
    errno.EISDIR: "this is a directory; name a file in it.",
    errno.EXDEV: "this path is outside of the workspace; use a relative path inside it.",
    errno.ELOOP: "this is a link that may not be followed; use the path of its target.",
    errno.EMLINK: "this file has a second hard link; remove it and write a new file instead.",
    errno.ENXIO: "this is not a regular file; name a regular file.",
    errno.EFBIG: (
        f"this file is over {MAX_FILE >> 20} MiB, too big to store for undo; write to another file."
    ),
    errno.ESTALE: "another program changed this file; read it again, then repeat the change.",
    errno.EINVAL: "a path must not be empty or contain a NUL character; give a file name.",
    errno.EILSEQ: "this path is not valid Unicode; use only valid characters.",
    errno.ENAMETOOLONG: "this path is too long; use a shorter one.",
    errno.EACCES: "the system denies access; choose another file.",
}


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Convert an `OSError` about `path` to a `ToolFailed` with a message for the model."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        reason = REASONS.get(code) or f"{os.strerror(code)}; nothing was done."
        raise ToolFailed(f"{shown(path)}: {reason}") from error


def shown(text: str, most: int = 300) -> str:
    """Return `text` in a form to display: printable, on one line, and short."""
    if len(text) > most:
        text = text[:most] + "…"
    if text.isprintable():
        return text or "(empty)"
    return text.encode("unicode_escape").decode()
