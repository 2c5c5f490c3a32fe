"""What a confined command sees: a map from paths to hidden, readable or writable.

The nearest entry above a path decides. One map serves every backend: bubblewrap mounts the
entries from the root downwards, Landlock, which can only allow, gets the granted trees with
the hidden ones cut out, seatbelt gets them as rules of which the last one wins.

Secret places are never granted, not by a workspace and not by a writable directory, nor is
anything that contains them: a workspace that holds the user's home would hold its start-up
files too, and what is written there runs outside.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from holdfast.errors import ToolFailed


class Access(IntEnum):
    HIDE = 0
    READ = 1
    WRITE = 2


View = Mapping[str, Access]

_HOMES = ("/home", "/root", "/Users")
_SHARED = ("/run", "/tmp", "/var/tmp")
_KEPT_BY_ROOT = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssl/private",
    "/etc/credstore",
    "/etc/credstore.encrypted",
    "/var/backups",
    "/var/lib/docker",
    "/var/mail",
    "/var/spool",
)
_OWN = ("workspaces", "canary")  # below our home: what belongs to commands
_SECRET = (  # below the user's home
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".netrc",
    ".docker",
    ".kube",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".config/git/credentials",
    ".password-store",
    ".local/share/keyrings",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".mozilla",
    ".config/google-chrome",
    ".config/chromium",
)
_TOOLCHAINS = (  # below the user's home: programs and their libraries, no settings
    ".pyenv",
    ".rbenv",
    ".nodenv",
    ".goenv",
    ".nvm/versions",
    ".volta",
    ".asdf",
    ".sdkman",
    ".bun/bin",
    ".deno/bin",
    ".cargo/bin",
    ".rustup",
    ".fnm",
    ".pixi",
    ".local/bin",
    ".local/lib",
    ".local/pipx",
    ".local/share/pipx",
    ".local/share/uv",
    ".local/share/mise",
    ".local/share/pnpm",
    "go/bin",
    "miniconda3",
    "miniforge3",
    "anaconda3",
)


def interpreter() -> str:
    """The Python that commands can see too, wherever the one that runs us was found.

    Below every virtual environment, and by its real path: of a link into a home only the place
    that it leads to is seen.
    """
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def system(home: str, user_home: str, exec_path: Sequence[str]) -> dict[str, Access]:
    """What every command on this machine sees, before its workspace. All paths are real."""
    view = {"/": Access.READ}
    for path in (*_HOMES, *_SHARED, user_home, home):
        if path != "/" and os.path.isdir(path):
            view[os.path.realpath(path)] = Access.HIDE
    for path in _KEPT_BY_ROOT:
        if os.access(path, os.R_OK):
            view[os.path.realpath(path)] = Access.HIDE
    for path in _tools(user_home, exec_path):
        real = os.path.realpath(path)
        if os.path.isdir(real) and not _conflict(real, _secrets(home, user_home)):
            view[real] = Access.READ
    return view


def settle(view: View) -> dict[str, Access]:
    """The entries that make a difference, from the root downwards."""
    settled: dict[str, Access] = {}
    for path, access in sorted(view.items(), key=lambda item: item[0].rstrip("/").count("/")):
        if settled.get(_nearest(path, settled)) != access:
            settled[path] = access
    return settled


def grants(view: View) -> Iterator[tuple[str, Access]]:
    """The trees to allow where only allowing is possible: what is below them is all granted."""
    for path, access in view.items():
        if access > Access.HIDE:
            yield from _cut(path, access, view)


def check(path: str, home: str, user_home: str) -> None:
    """Raise `ToolFailed` if granting `path` would grant something secret."""
    secret = _conflict(path, _secrets(home, user_home))
    if below(path, home) and os.path.relpath(path, home).split("/")[0] not in _OWN:
        secret = home
    if secret:
        raise ToolFailed(
            f"No command can run with {path} as its own: it would reach {secret}. "
            "Use a directory that holds only the work."
        )


def below(path: str, parent: str) -> bool:
    """Whether `path` is `parent` or lies in it."""
    return path == parent or path.startswith(parent.rstrip("/") + "/")


def _secrets(home: str, user_home: str) -> list[str]:
    return [home, user_home, *(os.path.join(user_home, name) for name in _SECRET)]


def _conflict(path: str, secrets: Iterable[str]) -> str:
    """A secret that `path` contains, or lies in; the two homes may contain, never be contained."""
    first, second, *others = secrets
    for secret in (first, second, *others):
        if below(secret, path) or (secret in others and below(path, secret)):
            return secret
    return ""


def _tools(user_home: str, exec_path: Sequence[str]) -> Iterator[str]:
    yield from (os.path.join(user_home, name) for name in _TOOLCHAINS)
    yield from (sys.prefix, sys.base_prefix)
    for folder in exec_path:
        if os.path.isabs(folder):
            yield folder
            parent = os.path.dirname(folder)
            if any(os.path.exists(os.path.join(parent, m)) for m in ("pyvenv.cfg", "conda-meta")):
                yield parent


def _nearest(path: str, view: View) -> str:
    while path != "/":
        path = os.path.dirname(path)
        if path in view:
            return path
    return ""


def _cut(path: str, access: Access, view: View) -> Iterator[tuple[str, Access]]:
    if not any(
        less < access and other != path and below(other, path) for other, less in view.items()
    ):
        yield path, access
        return
    try:
        with os.scandir(path) as entries:
            inside = [e.path for e in entries if e.path not in view and not e.is_symlink()]
    except OSError:
        return  # what we cannot list, nobody is granted
    for child in inside:
        yield from _cut(child, access, view)
