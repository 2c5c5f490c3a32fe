"""The view of a confined command: a map from paths to hidden, readable or writable.

For every path, the nearest entry at or above it decides. All backends use the same map. Bubblewrap
mounts the entries from the root downwards. Landlock, which can only allow, gets the granted trees
without the hidden ones. Seatbelt gets rules, of which the last one wins.

Secret directories are never granted, neither as a workspace nor as a writable directory, and
neither is a directory that contains one: a workspace that contains the user's home would contain
its start-up files too, and what is written to those runs outside of the sandbox. Our own code is
read-only, even if it is inside a workspace.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from holdfast.errors import ToolFailed
from holdfast.tools.fs.openat import open_root
from holdfast.tools.fs.roots import below, own_code


class Access(IntEnum):
    HIDE = 0
    READ = 1
    WRITE = 2


View = Mapping[str, Access]

REACHES_SECRET = "because they could then access"

_HOMES = ("/home", "/root", "/Users")
_SHARED = ("/run", "/tmp", "/var/tmp")
_OWN = ("workspaces", "canary")  # below Holdfast's home: directories that commands may use
# Below the user's home.
_SECRET = tuple(
    """
    .ssh .gnupg .aws .azure .config/gcloud .config/gh .config/hub .netrc .docker .kube .npmrc
    .pypirc .git-credentials .config/git/credentials .password-store .local/share/keyrings
    .cargo/credentials .cargo/credentials.toml .mozilla .config/google-chrome .config/chromium
    """.split()
)
# Below the user's home: programs and their libraries, no settings.
_TOOLCHAINS = tuple(
    """
    .pyenv .rbenv .nodenv .goenv .nvm/versions .volta .asdf .sdkman .bun/bin .deno/bin
    .cargo/bin .rustup .fnm .pixi .local/bin .local/lib .local/pipx .local/share/pipx
    .local/share/uv .local/share/mise .local/share/pnpm go/bin miniconda3 miniforge3 anaconda3
    """.split()
)


def interpreter() -> str:
    """Return the path of a Python interpreter that confined commands can see too.

    It is the base interpreter of our virtual environment, with links resolved: for a link into a
    home, commands see only its target.
    """
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def system(
    home: str, user_home: str, exec_path: Sequence[str], private: Sequence[str] = ()
) -> dict[str, Access]:
    """Return the view of every command on this machine, without its workspace.

    All paths have their links resolved. `private` paths are hidden too (private.py).
    """
    view = {"/": Access.READ}
    for path in (*_HOMES, *_SHARED, user_home, home):
        if path != "/" and os.path.isdir(path):
            view[os.path.realpath(path)] = Access.HIDE
    for path in private:
        view[path] = Access.HIDE
    hidden = {path: os.path.realpath(path) for path in (*_HOMES, *_SHARED, user_home, home)}
    hidden = {**hidden, **{path: path for path in private}}
    for path in (*_tools(user_home), *_programs(exec_path, hidden)):
        real = os.path.realpath(path)
        if os.path.isdir(real) and not _conflict(real, _secrets(home, user_home)):
            grant(view, real, Access.READ, private)
    return view


def grant(view: dict[str, Access], path: str, access: Access, private: Iterable[str]) -> None:
    """Grant access to `path`, including private paths in it: these belong to the same owner."""
    for inside in private:
        if below(inside, path):
            view.pop(inside, None)
    view[path] = access


def settle(view: View) -> dict[str, Access]:
    """Return the entries without redundant ones, from the root downwards."""
    settled: dict[str, Access] = {}
    for path, access in sorted(view.items(), key=lambda item: item[0].rstrip("/").count("/")):
        if settled.get(_nearest(path, settled)) != access:
            settled[path] = access
    return settled


def pinned(view: View) -> dict[str, Access]:
    """Add the directories between a writable tree and a protected path in it as entries.

    A mount point cannot be renamed. But the directory above it could be renamed, and another one
    put in its place. As an entry, that directory becomes a mount point too.
    """
    ways = {
        above: Access.WRITE
        for path, access in view.items()
        if access < Access.WRITE and view.get(_nearest(path, view)) is Access.WRITE
        for above in _between(path, _nearest(path, view))
    }
    return dict(sorted({**view, **ways}.items(), key=lambda item: item[0].rstrip("/").count("/")))


def grants(view: View) -> Iterator[tuple[str, Access]]:
    """Yield the trees to allow for a backend that can only allow whole trees.

    A writable tree that contains a read-only path can be read and listed as a whole. New files
    can be created in its subdirectories, but not next to them.
    """
    for path, access in view.items():
        if access is Access.WRITE and _holds_less(path, access, view):
            yield from _cut(path, Access.READ, view)
        if access > Access.HIDE:
            yield from _cut(path, access, view)


def check(path: str, home: str, user_home: str) -> None:
    """Raise `ToolFailed` if granting `path` would grant something secret."""
    secret = _conflict(path, _secrets(home, user_home))
    if below(path, home) and os.path.relpath(path, home).split("/")[0] not in _OWN:
        secret = home
    if below(path, own_code()[0]):
        secret = own_code()[0]
    if secret:
        raise ToolFailed(
            f"Commands cannot use {path}, {REACHES_SECRET} {secret}. "
            "Use a directory that contains only the project."
        )


def _secrets(home: str, user_home: str) -> list[str]:
    return [home, user_home, *(os.path.join(user_home, name) for name in _SECRET)]


def _conflict(path: str, secrets: Iterable[str]) -> str:
    """Return a secret path that `path` contains or is inside of.

    The two homes are exceptions: `path` may be inside of them, but must not contain them.
    """
    first, second, *others = secrets
    for secret in (first, second, *others):
        if below(secret, path) or (secret in others and below(path, secret)):
            return secret
    return ""


def _tools(user_home: str) -> Iterator[str]:
    yield from (os.path.join(user_home, name) for name in _TOOLCHAINS)
    yield from (*own_code(), sys.base_prefix)


def _programs(exec_path: Sequence[str], hidden: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders on PATH, and the virtual environments that contain them.

    A folder may be inside a workspace, where a command could replace it by a link. So below a
    `hidden` directory, no link is followed to another hidden place.
    """
    for folder in filter(os.path.isabs, exec_path):
        parent = os.path.dirname(folder)
        marks = (os.path.join(parent, mark) for mark in ("pyvenv.cfg", "conda-meta"))
        around = [parent] if any(map(os.path.exists, marks)) else []
        yield from (path for path in (folder, *around) if _is_itself(path, hidden))


def _is_itself(path: str, hidden: Mapping[str, str]) -> bool:
    """Return whether `path` resolves to a visible place, or is itself there without links."""
    real, path = os.path.realpath(path), os.path.normpath(path)
    around = [(one, there) for one, there in hidden.items() if below(real, there)]
    return not around or any(
        below(path, one) and there.rstrip("/") + path[len(one.rstrip("/")) :] == real
        for one, there in around
    )


def _nearest(path: str, view: View) -> str:
    while path != "/":
        path = os.path.dirname(path)
        if path in view:
            return path
    return ""


def _between(path: str, top: str) -> Iterator[str]:
    """The directories above `path` and below `top`."""
    while (path := os.path.dirname(path)) != top:
        yield path


def _holds_less(path: str, access: Access, view: View) -> bool:
    return any(
        less < access and other != path and below(other, path) for other, less in view.items()
    )


def _cut(path: str, access: Access, view: View) -> Iterator[tuple[str, Access]]:
    if not _holds_less(path, access, view):
        yield path, access
        return
    try:
        with os.scandir(path) as entries:
            inside = [e.path for e in entries if e.path not in view and not e.is_symlink()]
    except OSError:
        return  # a directory that we cannot list is not granted
    for child in inside:
        yield from _cut(child, access, view)


def opened(seen: View) -> dict[str, int]:
    """Open what is writable, and what lies in it, by no link that a command could have made."""
    writable = [path for path, access in seen.items() if access is Access.WRITE]
    found: dict[str, int] = {}
    for path, access in seen.items():
        if access is Access.HIDE or not any(below(path, one) for one in writable):
            continue
        try:
            found[path] = open_root(path)
        except OSError as error:
            for fd in found.values():
                os.close(fd)
            raise ToolFailed(
                f"{path} cannot be given to a command: {error.strerror}. Tell the user."
            ) from error
    return found
