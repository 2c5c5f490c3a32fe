"""Look at the files of a workspace, and report each one that is not as it was at the last look.

Promises: no link is followed and only regular files are read, through the descriptors of their
directories; so nothing outside of the workspace is read, whatever runs in it meanwhile. A look is
limited in time, files and bytes: it ends with `LookIncomplete`. What was seen until then stays seen, and
the next look goes on from there.

Theory: a file whose inode and change time (ctime) are the same has the same content; no command can
set the ctime. A directory with the same inode and times has the same names, so it is not listed
again. Times have ticks: what changed within the last tick may change again within the same one, so
it is looked at again the next time. Files that are known stay known, even if a rule would leave
them out now.
"""

import errno
import os
import stat
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import field

from holdfast.core.types import Part, Value
from holdfast.tools.fs.openat import descriptor, walk
from holdfast.tools.snapshot import ignore
from holdfast.tools.snapshot.ignore import IgnoreRules
from holdfast.tools.snapshot.store import FileState
from holdfast.tools.snapshot.watch import Watch

TICK_NS = 20_000_000
DEEPEST = 100  # directories in each other

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class SnapshotLimits(Value):
    """The most that one look may take, and that the store of a workspace may hold."""

    seconds: float = 3.0
    files: int = 100_000
    size: int = 512 * 2**20  # bytes of all files
    large: int = 10 * 2**20  # bytes of a file whose content is not kept
    changes: int = 1_000  # files that one command may change


class LookIncomplete(Exception):
    """A look ended before it had seen everything. The text is the reason."""


class TooBig(LookIncomplete):
    """The workspace is too big; the next look will not get further."""


class SeenFolder(Part):
    """A directory as it was seen."""

    identity: tuple[int, int, int] | None = None  # inode and times; None: look again
    files: dict[str, FileState] = field(default_factory=dict)
    folders: dict[str, "SeenFolder"] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)  # names left out; a directory ends in "/"
    ignores: bytes = b""  # the text of its .gitignore
    rules: IgnoreRules | None = None
    above: IgnoreRules | None = None  # the rules that `rules` was made with


class SeenTree(Part):
    """A workspace as it was seen."""

    root: SeenFolder = field(default_factory=SeenFolder)
    count: int = 0  # files
    size: int = 0  # bytes of their kept contents
    again: set[str] = field(default_factory=set)  # directories to look at in any case


class Sink(Protocol):
    """Takes what a look finds."""

    def changed(
        self, path: str, old: FileState | None, new: FileState | None, data: bytes | None
    ) -> None:
        """A file is not as it was. `old` is None: it is new; `new` is None: it is gone."""

    def appeared(self, path: str, new: FileState, data: bytes | None) -> None:
        """A file that was there and left out before is now looked at."""

    def skipped(self, path: str) -> None:
        """Something is there and left out; the path of a directory ends in "/"."""

    def unskipped(self, path: str, *, gone: bool) -> None:
        """Something that was left out is gone, or is looked at now."""


class Scan:
    """One look. Blocks; use it in a worker thread."""

    def __init__(
        self,
        tree: SeenTree,
        sink: Sink,
        watch: Watch | None,
        limits: SnapshotLimits,
        own: tuple[int, int],  # device and inode of a directory to leave out
        monotonic: Callable[[], float],
        tick: Callable[[], None],  # called for each directory; may raise
    ) -> None:
        self._tree, self._sink, self._limits, self._own = tree, sink, limits, own
        self.watch = watch
        self._monotonic, self._tick = monotonic, tick
        self._ends_at = monotonic() + limits.seconds
        self._device = 0

    def everything(self, root: int) -> None:
        """Look at all files below an open directory."""
        self._device = os.fstat(root).st_dev
        self._visit(root, self._tree.root, "", None, DEEPEST)

    def some(self, root: int, paths: set[str]) -> None:
        """Look only at these directories, and at all that is new in them."""
        self._device = os.fstat(root).st_dev
        for path in sorted(paths):  # a directory before what is in it
            self._look_at(root, path)

    def _look_at(self, root: int, path: str) -> None:
        folder, prefix = self._tree.root, ""
        for name in path.split("/")[:-1]:
            rules = self._rules(folder, prefix, folder.above)
            inner = folder.folders.get(name)
            if inner is None:
                return  # it is gone, and the directory that it was in is looked at too
            folder, prefix = inner, f"{prefix}{name}/"
            self._rules(folder, prefix, rules)
        try:
            fd = walk(root, path.rstrip("/") or ".", _DIRECTORY)
        except OSError:
            self._tree.again.add(path)  # it moved, or is closed to us
            return
        with descriptor(fd):
            self._visit(fd, folder, path, folder.above, DEEPEST, deep=False)

    def _visit(
        self,
        fd: int,
        folder: SeenFolder,
        prefix: str,
        above: IgnoreRules | None,
        left: int,
        *,
        deep: bool = True,
    ) -> None:
        """Look at an open directory. Its path, `prefix`, is empty or ends in "/"."""
        self._check_time()
        if not left:
            raise TooBig(f"the workspace has directories more than {DEEPEST} deep")
        info = os.fstat(fd)
        identity = (info.st_ino, info.st_mtime_ns, info.st_ctime_ns)
        self._tree.again.discard(prefix)
        fresh = set[str]()
        if identity == folder.identity:
            self._look_at_known(fd, folder, prefix)
        else:
            folder.identity = None
            self._watch(fd, prefix)
            fresh = self._list(fd, folder, prefix, above)
            last = max(info.st_mtime_ns, info.st_ctime_ns)
            if last < time.time_ns() - TICK_NS:
                folder.identity = identity
            else:
                self._tree.again.add(prefix)
        rules = self._rules(folder, prefix, above)
        for name in list(folder.folders) if deep else fresh:
            self._enter(fd, name, folder, prefix, rules, left)

    def _check_time(self) -> None:
        self._tick()
        if self._monotonic() > self._ends_at:
            raise LookIncomplete(
                f"it takes over {self._limits.seconds:g} s to read the files of the workspace"
            )

    def _watch(self, fd: int, prefix: str) -> None:
        if self.watch is not None:
            try:
                self.watch.add(fd, prefix)
            except OSError:  # no watches left
                self.watch.close()
                self.watch = None

    def _look_at_known(self, fd: int, folder: SeenFolder, prefix: str) -> None:
        changed: list[tuple[str, os.stat_result | None]] = []
        look = os.stat
        for name, (ino, ctime_ns, _, _, _) in folder.files.items():
            try:
                info = look(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                changed.append((name, None))
                continue
            if info.st_ctime_ns != ctime_ns or info.st_ino != ino:
                changed.append((name, info))
        for name, seen in changed:
            self._take(fd, folder, prefix, name, seen)

    def _list(
        self, fd: int, folder: SeenFolder, prefix: str, above: IgnoreRules | None
    ) -> set[str]:
        """Look at all names of a directory; return the directories in it that are new."""
        files, folders = dict[str, os.stat_result](), dict[str, int]()
        with os.scandir(fd) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    folders[entry.name] = entry.inode()
                    continue
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                    files[entry.name] = info
        for name in [name for name in folder.folders if name not in folders]:
            self._drop(folder.folders.pop(name), f"{prefix}{name}/")
        for name in [name for name in folder.files if name not in files]:
            self._take(fd, folder, prefix, name, None)
        if ignore.FILE in files:
            folder.ignores = self._read(fd, ignore.FILE, files[ignore.FILE])[1] or b""
            folder.rules = None
        rules = self._rules(folder, prefix, above)
        skipped = folder.skipped
        folder.skipped = self._left_out(folder, prefix, rules, files, folders)
        for name in folder.skipped - skipped:
            self._sink.skipped(prefix + name)
        for name in skipped - folder.skipped:
            plain = name.removesuffix("/")
            self._sink.unskipped(prefix + name, gone=plain not in files and plain not in folders)
        for name, info in files.items():
            if name not in folder.skipped:
                self._take_known(fd, folder, prefix, name, info, was_there=name in skipped)
        return self._new_folders(folder, folders, prefix)

    def _left_out(
        self,
        folder: SeenFolder,
        prefix: str,
        rules: IgnoreRules | None,
        files: dict[str, os.stat_result],
        folders: dict[str, int],
    ) -> set[str]:
        found = {
            name
            for name in files
            if name not in folder.files and ignore.left_out(prefix + name, rules, is_folder=False)
        }
        for name in folders:
            if name not in folder.folders and ignore.left_out(prefix + name, rules, is_folder=True):
                found.add(name + "/")
        return found

    def _new_folders(self, folder: SeenFolder, folders: dict[str, int], prefix: str) -> set[str]:
        new = set[str]()
        for name, inode in folders.items():
            if name + "/" in folder.skipped:
                continue
            known = folder.folders.get(name)
            if known is None:
                folder.folders[name] = SeenFolder()
                new.add(name)
            elif known.identity is None or known.identity[0] != inode:
                new.add(name)
        return new

    def _take_known(
        self,
        fd: int,
        folder: SeenFolder,
        prefix: str,
        name: str,
        info: os.stat_result,
        *,
        was_there: bool = False,
    ) -> None:
        old = folder.files.get(name)
        if old is None or (old.ino, old.ctime_ns) != (info.st_ino, info.st_ctime_ns):
            self._take(fd, folder, prefix, name, info, was_there=was_there)

    def _take(
        self,
        fd: int,
        folder: SeenFolder,
        prefix: str,
        name: str,
        info: os.stat_result | None,
        *,
        was_there: bool = False,
    ) -> None:
        """Report a file that is new, changed or gone."""
        tree, limits, path = self._tree, self._limits, prefix + name
        self._check_time()
        old = folder.files.get(name)
        new, data = (None, None) if info is None else self._read(fd, name, info)
        if new is None:
            if old is not None:
                self._sink.changed(path, old, None, None)
                del folder.files[name]
                self._count(old, -1)
            return
        if old is None and tree.count >= limits.files:
            raise TooBig(f"the workspace has more than {limits.files:,} files")
        if tree.size + len(data or b"") > limits.size:
            raise TooBig(f"the files of the workspace have more than {limits.size >> 20:,} MB")
        if was_there and old is None:
            self._sink.appeared(path, new, data)
        else:
            self._sink.changed(path, old, new, data)
        if old is not None:
            self._count(old, -1)
        folder.files[name] = new
        self._count(new, 1)
        if not new.ctime_ns:
            tree.again.add(prefix)
        if name == ignore.FILE:
            folder.ignores = data or b""
            folder.rules = None

    def _count(self, state: FileState, sign: int) -> None:
        self._tree.count += sign
        self._tree.size += sign * state.size * state.kept

    def _read(
        self, fd: int, name: str, info: os.stat_result
    ) -> tuple[FileState | None, bytes | None]:
        """Return the state and the content of a file; no state: it is gone, or no plain file."""
        data: bytes | None = None
        try:
            if stat.S_ISLNK(info.st_mode):
                data = os.fsencode(os.readlink(name, dir_fd=fd))
            else:
                with descriptor(os.open(name, _FILE, dir_fd=fd)) as file:
                    info = os.fstat(file)
                    if not stat.S_ISREG(info.st_mode):
                        return None, None
                    data = _whole(file, info.st_size, self._limits.large)
        except OSError as error:
            if error.errno in _GONE or error.errno == errno.EINVAL:
                return None, None
        racy = data is not None and info.st_ctime_ns >= time.time_ns() - TICK_NS
        ctime_ns = 0 if racy else info.st_ctime_ns
        size = info.st_size if data is None else len(data)
        return FileState(info.st_ino, ctime_ns, size, info.st_mode, data is not None), data

    def _enter(
        self,
        fd: int,
        name: str,
        folder: SeenFolder,
        prefix: str,
        rules: IgnoreRules | None,
        left: int,
    ) -> None:
        inner, path = folder.folders[name], f"{prefix}{name}/"
        try:
            opened = os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError as error:
            if error.errno in _GONE:
                self._drop(folder.folders.pop(name), path)
                folder.identity = None
                self._tree.again.add(prefix)
            return  # closed to us: what is known of it stays
        with descriptor(opened):
            info = os.fstat(opened)
            if info.st_dev != self._device or (info.st_dev, info.st_ino) == self._own:
                self._drop(folder.folders.pop(name), path)
                folder.skipped.add(name + "/")
                self._sink.skipped(path)
                return
            self._visit(opened, inner, path, rules, left - 1)

    def _drop(self, folder: SeenFolder, prefix: str) -> None:
        """Report all files of a directory that is gone."""
        for name, state in folder.files.items():
            self._sink.changed(prefix + name, state, None, None)
            self._count(state, -1)
        for name in folder.skipped:
            self._sink.unskipped(prefix + name, gone=True)
        for name, inner in folder.folders.items():
            self._drop(inner, f"{prefix}{name}/")
        self._tree.again.discard(prefix)
        if self.watch is not None:
            self.watch.drop(prefix)

    def _rules(
        self, folder: SeenFolder, prefix: str, above: IgnoreRules | None
    ) -> IgnoreRules | None:
        """Return the rules for the names in a directory."""
        if folder.rules is None or folder.above is not above:
            folder.above = above
            folder.rules = IgnoreRules.parse(folder.ignores, prefix, above)
        return folder.rules


def _whole(fd: int, size: int, most: int) -> bytes | None:
    """Return the content of an open file; None if it has more than `most` bytes."""
    if size > most:
        return None
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    total = len(data)
    while part := os.read(fd, 2**20):  # it grows, or the system reads in parts
        parts.append(part)
        total += len(part)
        if total > most:
            return None
    return b"".join(parts)
