"""Follow autorun files to other files of the workspace that run because of them.

`.git/hooks/pre-commit` is often a link to a script of the project, `.envrc` a link to a shared
file, and git's settings name directories of hooks, further settings and programs. What they lead to
runs as the autorun file itself does. A link to the outside leads to nothing that tools can write.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from holdfast.core.approval import autorun
from holdfast.core.types import Value
from holdfast.tools.fs.openat import path_of, read_start, walk
from holdfast.tools.fs.roots import below

MAX_ENTRIES = 10_000  # entries of one directory that are searched for links
MAX_TEXT = 64 * 1024  # bytes of a settings file that are read
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_POINTER = "gitdir: "


class Lead(Value):
    """A path from the workspace's root. `tree`: everything in it runs too."""

    path: str
    tree: bool

    def covers(self, path: str) -> bool:
        """Return whether a file of this path runs."""
        return path == self.path or (self.tree and below(path, self.path))


def near(root: int, folder: str) -> Iterator[Lead]:
    """Yield what the autorun files in `folder` lead to, and those of its git repository."""
    for name in _links(root, folder):
        if autorun.why_asked(name):
            yield from of_link(root, _join(folder, name))
    repository = _repository(root, folder)
    for name in autorun.GIT_PARTS:
        yield from of_link(root, _join(repository, name))
    for name in _links(root, _join(repository, "hooks")):
        yield from of_link(root, _join(repository, f"hooks/{name}"))
    yield from of_settings(root, repository, folder)


def of_link(root: int, path: str) -> Iterator[Lead]:
    """Yield the target, if `path` is a link that stays in the workspace."""
    top = path_of(root)
    full = os.path.join(top, path)
    if os.path.islink(full):
        yield from _inside(top, os.path.realpath(full), tree=True)


def of_settings(root: int, repository: str, folder: str) -> Iterator[Lead]:
    """Yield the paths that the settings of `repository` name; `folder` has its files."""
    top = path_of(root)
    for name in ("config", "config.worktree"):
        for word, tree in autorun.named_paths(_text(root, _join(repository, name))):
            for base in (folder, repository):
                yield from _inside(top, os.path.realpath(os.path.join(top, base, word)), tree=tree)


def _repository(root: int, folder: str) -> str:
    """Return the path of the repository that git uses in `folder`, if it has a `.git`."""
    dot = _join(folder, ".git")
    text = _text(root, dot)
    if not text.startswith(_POINTER):
        return dot
    return os.path.normpath(os.path.join(folder, text.removeprefix(_POINTER).strip()))


def _inside(top: str, real: str, *, tree: bool) -> Iterator[Lead]:
    if real != top and below(real, top):
        yield Lead(os.path.relpath(real, top), tree)


def _links(root: int, folder: str) -> list[str]:
    try:
        fd = walk(root, folder or ".", _DIRECTORY)
    except OSError:
        return []
    try:
        with os.scandir(fd) as scan:
            return [entry.name for entry in islice(scan, MAX_ENTRIES) if entry.is_symlink()]
    finally:
        os.close(fd)


def _text(root: int, path: str) -> str:
    with suppress(OSError):
        return read_start(root, path, MAX_TEXT).decode(errors="replace")
    return ""


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
