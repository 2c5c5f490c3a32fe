"""Find the paths in a workspace that programs of the user run by themselves."""

import hashlib
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from itertools import islice

from msgspec.structs import replace

from holdfast.core.approval import autorun
from holdfast.core.types import Value
from holdfast.tools.fs import leads
from holdfast.tools.fs.openat import descriptor, open_root, read_start, walk

MAX_DIRECTORIES = 2_000  # read by one search
MAX_DEPTH = 100  # of the directories that are searched
MAX_ENTRIES = 5_000  # listed in one directory; in a bigger one, only known names are looked for
MAX_LISTED = 200_000  # listed in all directories of one search
MAX_TEXT = 64 * 1024  # bytes of a settings file that are read
MAX_TEXTS = 8 * 2**20  # bytes that one search keeps of all settings files
MAX_FOUND = 5_000  # paths of one search; further ones are left out
HELD = ".held-"  # part of the new name of a file that was moved away
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SKIP = frozenset(("node_modules", "__pycache__"))
_REPOSITORIES = (frozenset(("head", "objects", "refs")), frozenset(("head", "commondir")))
_OURS = stat.S_IRWXU
_INSIDE = 200  # entries of a directory that are compared to detect a change
_LINK, _FOLDER = b"link ", b"directory "  # beginnings of a mark
ASIDE = re.compile(rf"(.+){re.escape(HELD)}[0-9a-f]{{8}}", re.DOTALL)


class AutorunKind(StrEnum):
    CONFIG = "config"
    COMMON = "commondir"
    HOOKS = "hooks"
    HOOK = "hook"
    POINTER = "pointer"  # a `.git` that is a file or a link
    INNER = "inner"  # directories in which git keeps its worktrees and submodules
    OTHER = "other"


class FoundPath(Value):
    """One autorun file or directory. `mark` changes when its content does."""

    kind: AutorunKind
    mark: bytes
    text: bytes | None = None  # its whole content, if it is a short file
    within: tuple[int, int] = (0, 0)  # device and inode of its directory


class AutorunPaths(Value):
    """The result of a search, by path from the workspace's root, nearest to the root first."""

    found: Mapping[str, FoundPath] = {}
    repositories: tuple[str, ...] = ()
    closed: frozenset[str] = frozenset()  # directories that could not be read
    asides: frozenset[str] = frozenset()  # files moved away after this or an earlier command


def look(workspace: str, before: AutorunPaths | None = None) -> AutorunPaths:
    """Find all autorun files; the result is empty if the workspace cannot be opened.

    Directories that became unreadable since `before` are made readable.
    """
    try:
        root = open_root(workspace)
    except OSError:
        return AutorunPaths()
    with descriptor(root):
        return _Search(root, before).all()


class _Search:
    def __init__(self, root: int, before: AutorunPaths | None) -> None:
        self._root = root
        self._before = before
        self._found: dict[str, FoundPath] = {}
        self._repositories: list[str] = []
        self._closed: set[str] = set()
        self._asides: set[str] = set()
        self._left = MAX_LISTED
        self._room = MAX_TEXTS

    def all(self) -> AutorunPaths:
        """Search the workspace, breadth first."""
        queue = deque([""])
        left = MAX_DIRECTORIES
        while queue and left:
            left -= 1
            queue.extend(self._directory(queue.popleft()))
        closed, asides = frozenset(self._closed), frozenset(self._asides)
        return AutorunPaths(self._found, tuple(self._repositories), closed, asides)

    def _entries(self, path: str) -> dict[str, bool]:
        """List a directory that may be unreadable, and note files that were moved away."""
        if path.count("/") >= MAX_DEPTH:
            return {}
        entries = self._listed(path)
        self._left = max(0, self._left - len(entries))
        self._asides.update(join(path, name) for name in entries if ASIDE.fullmatch(name))
        return entries

    def _listed(self, path: str) -> dict[str, bool]:
        try:
            return _entries_of(self._root, path, self._left)
        except PermissionError:
            if self._before is not None and path not in self._before.closed:
                with suppress(OSError):
                    make_accessible(self._root, path)
                    return _entries_of(self._root, path, self._left)
        self._closed.add(path)
        return {}

    def _directory(self, path: str) -> list[str]:
        """Search one directory; return its subdirectories to search next."""
        entries = self._entries(path)
        if _is_repository(entries):
            self._repository(path)
        below: list[str] = []
        for name, is_directory in entries.items():
            inside = join(path, name)
            if autorun.is_git(name):
                if is_directory:
                    self._repository(inside)
                else:
                    self._add(inside, AutorunKind.POINTER)
            elif autorun.is_sealed(name):
                self._add(inside, AutorunKind.OTHER)
            elif parts := autorun.SETTINGS.get(autorun.normalize(name)):
                for part in parts:
                    self._add(f"{inside}/{part}", AutorunKind.OTHER)
            elif is_directory and name not in _SKIP and not autorun.is_asked_within(name):
                below.append(inside)
        return below

    def _repository(self, path: str) -> None:
        if path in self._repositories:
            return
        self._parts(path)
        parent, _, name = path.rpartition("/")
        for lead in leads.of_settings(self._root, path, parent if autorun.is_git(name) else path):
            self._add_lead(lead)
        for name in ("worktrees", "modules"):
            self._add(join(path, name), AutorunKind.INNER)
        for name, is_directory in self._entries(join(path, "worktrees")).items():
            worktree = join(path, f"worktrees/{name}")
            if is_directory:
                self._parts(worktree)
            else:
                self._add(worktree, AutorunKind.INNER)
        queue = deque([join(path, "modules")])
        left = _INSIDE
        while queue and left:  # a submodule's name may contain slashes
            left -= 1
            at = queue.popleft()
            entries = self._entries(at)
            if _is_repository(entries):
                self._repository(at)
            else:
                queue.extend(f"{at}/{name}" for name, is_dir in entries.items() if is_dir)
                for name in (name for name, is_dir in entries.items() if not is_dir):
                    self._add(f"{at}/{name}", AutorunKind.INNER)

    def _parts(self, path: str) -> None:
        self._repositories.append(path)
        self._entries(path)  # makes it readable if needed
        for name in autorun.GIT_PARTS:
            kind = {"hooks": AutorunKind.HOOKS, "commondir": AutorunKind.COMMON}.get(
                name, AutorunKind.CONFIG
            )
            self._add(join(path, name), kind)
        for name in self._entries(join(path, "hooks")):
            if autorun.is_hook(name):
                self._add(join(path, f"hooks/{name}"), AutorunKind.HOOK)

    def _add(self, path: str, kind: AutorunKind) -> None:
        if not (found := _found(self._root, path, kind)):
            return
        self._put(path, found)
        if found.mark.startswith(_LINK) and kind not in (AutorunKind.POINTER, AutorunKind.INNER):
            for lead in leads.of_link(self._root, path):
                self._add_lead(lead)

    def _add_lead(self, lead: leads.Lead) -> None:
        """Add the file that another one leads to, if it is not an autorun file itself."""
        found = _found(self._root, lead.path, AutorunKind.OTHER)
        if found and (lead.tree or not found.mark.startswith(_FOLDER)):
            if lead.path not in self._found:
                self._put(lead.path, found)

    def _put(self, path: str, found: FoundPath) -> None:
        """Keep it, without its text if there is no room: a command can link a file many times."""
        size = len(found.text or b"")
        if len(self._found) < MAX_FOUND or path in self._found:
            self._found[path] = found if size <= self._room else replace(found, text=None)
            self._room -= min(size, self._room)


def join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _is_repository(entries: Iterable[str]) -> bool:
    names = {autorun.normalize(name) for name in entries}
    return any(names >= needed for needed in _REPOSITORIES)


def _entries_of(root: int, path: str, most: int = MAX_ENTRIES) -> dict[str, bool]:
    """Name → whether it is a directory; nothing if it cannot be read.

    A command can make a directory of any size. Of a big one, this is what it lists first, and the
    exact names of autorun files. Raises `PermissionError` if it is closed.
    """
    try:
        fd = walk(root, path or ".", DIRECTORY)
    except PermissionError:
        raise
    except OSError:
        return {}
    with descriptor(fd), suppress(OSError):
        with os.scandir(fd) as scan:
            first = islice(scan, min(most, MAX_ENTRIES))
            entries = {entry.name: entry.is_dir(follow_symlinks=False) for entry in first}
            whole = next(scan, None) is None
        return entries if whole else {**entries, **_known_in(fd)}
    return {}


def _known_in(directory: int) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for name in autorun.EXACT:
        with suppress(OSError):
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            found[name] = stat.S_ISDIR(mode)
    return found


def make_accessible(root: int, path: str) -> None:
    """Let its owner into a directory. Raises `OSError` if that is not us."""
    parent, _, name = path.rpartition("/")
    with descriptor(walk(root, parent or ".", DIRECTORY)) as above:
        fd = os.open(name or ".", os.O_PATH | DIRECTORY, dir_fd=above)
    with descriptor(fd):
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(os.fstat(fd).st_mode) | _OURS)


def _found(root: int, path: str, kind: AutorunKind) -> FoundPath | None:
    parent, _, name = path.rpartition("/")
    with suppress(OSError), descriptor(walk(root, parent or ".", DIRECTORY)) as fd:
        around = os.fstat(fd)
        within = (around.st_dev, around.st_ino)
        state = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISLNK(state.st_mode):
            mark = _LINK + os.fsencode(os.readlink(name, dir_fd=fd))
            return FoundPath(kind, mark, within=within)
        if stat.S_ISDIR(state.st_mode):
            own = kind in (AutorunKind.HOOKS, AutorunKind.INNER)
            return FoundPath(kind, b"" if own else _mark_of_directory(fd, name), within=within)
        text = _text(fd, name) if stat.S_ISREG(state.st_mode) else None
        mark = _mark(state) if text is None else b"text " + hashlib.sha256(text).digest()
        return FoundPath(kind, mark, text, within)
    return None


def _text(directory: int, name: str) -> bytes | None:
    text = read_start(directory, name, MAX_TEXT + 1)
    return text if len(text) <= MAX_TEXT else None


def _mark(state: os.stat_result) -> bytes:
    times = (state.st_mtime_ns, state.st_ctime_ns)  # a command can reset the first of them
    return b"%d %d %d %d %d" % (state.st_mode, state.st_ino, state.st_size, *times)


def _mark_of_directory(directory: int, name: str) -> bytes:
    """Return a mark that changes if one of the first `_INSIDE` entries is created or changed."""
    marks = hashlib.sha256()
    left = _INSIDE
    queue = deque([name])
    while queue and left:
        path = queue.popleft()
        entries: dict[str, bool] = {}
        with suppress(PermissionError):
            entries = _entries_of(directory, path)
        for entry, is_directory in sorted(entries.items())[:left]:
            left -= 1
            inside = f"{path}/{entry}"
            if is_directory:
                queue.append(inside)
            else:
                with suppress(OSError):
                    state = os.stat(inside, dir_fd=directory, follow_symlinks=False)
                    marks.update(os.fsencode(inside) + b"\0" + _mark(state))
    return _FOLDER + marks.digest()
