"""Where a session may work: not in the Holdfast home, but for a directory of its own.

The home holds the keys and everybody's words, and file tools reach all that is in a
workspace. So a directory that holds the home is one only if whoever sits at the operator's
own door insists. Every path here is absolute, with its links resolved.
"""

from hashlib import sha256

from holdfast.core.types import SessionKey


def own(home: str, key: SessionKey) -> str:
    """The directory of a session that names no other."""
    return f"{home}/workspaces/{sha256(chr(0).join(key).encode()).hexdigest()[:32]}"


def inside(path: str, home: str) -> bool:
    """Whether `path` is the home, or lies in it."""
    return _within(path, home)


def holds(path: str, home: str) -> bool:
    """Whether `path` is the home, or the home lies in it."""
    return _within(home, path)


def _within(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")
