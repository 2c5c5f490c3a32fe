"""Rules for workspaces: not the Holdfast home, except a session's own directory in it.

The home contains the keys and all users' messages, and file tools reach everything in a
workspace. So a directory that contains the home can be a workspace only if the operator confirms
it at a terminal. Every path here is absolute, with its links resolved.
"""

from hashlib import sha256

from holdfast.core.types import SessionKey


def own(home: str, key: SessionKey) -> str:
    """Return the default directory of a session, below the home."""
    return f"{home}/workspaces/{sha256(chr(0).join(key).encode()).hexdigest()[:32]}"


def inside(path: str, home: str) -> bool:
    """Tell if `path` is the home or is in it."""
    return _within(path, home)


def holds(path: str, home: str) -> bool:
    """Tell if `path` is the home or contains it."""
    return _within(home, path)


def _within(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")
