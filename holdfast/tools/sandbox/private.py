"""Find files outside of all homes that only their owner may read, if the gateway runs as root.

A command of a root gateway has none of root's capabilities, but it owns what root owns: keys,
password hashes, logs, private data of services. So such a command sees no more than any other user
would: files that others cannot read are hidden. The list comes from a scan, which is repeated
after a while. A scan is limited and goes breadth first. Parts that it does not reach are hidden
too, as whole directories near the root. Programs (`/usr`) are not scanned, nor are homes, which
are hidden anyway.
"""

import os
import pwd
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

MAX_ENTRIES = 10_000  # scanned below each root
ROOTS = ("/etc", "/var", "/usr/local/etc", "/")
MANY = 20  # more private entries in one directory than this: hide the whole directory
AGAIN_S = 300.0

_PASSED = frozenset(
    "/proc /sys /dev /usr /bin /sbin /lib /lib64 /home /root /Users /run /tmp /var/tmp".split()
)
_KEPT = frozenset(("/", "/etc", "/var", "/var/lib", "/opt"))  # never hidden as a whole
_USERS = range(1000, 65_000)


class Private:
    """Finds private paths and caches them for a while. Blocks; use it in a worker thread."""

    def __init__(
        self, roots: tuple[str, ...] = ROOTS, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._roots = roots
        self._now = now
        self._found: tuple[str, ...] = ()
        self._until = -1.0

    def paths(self) -> tuple[str, ...]:
        """Return every path to hide that still exists; none unless we are root.

        A path that was deleted since the scan cannot be covered, and bubblewrap would fail on it.
        """
        if os.geteuid() != 0:
            return ()
        if self._now() >= self._until:
            self._found = tuple(
                dict.fromkeys((*_homes(), *(p for root in self._roots for p in _look(root))))
            )
            self._until = self._now() + AGAIN_S
        return tuple(filter(os.path.lexists, self._found))


def _homes() -> Iterator[str]:
    """Yield the homes of human users, wherever they are."""
    for entry in pwd.getpwall():
        if entry.pw_uid in _USERS and entry.pw_dir.count("/") > 1 and os.path.isdir(entry.pw_dir):
            yield os.path.realpath(entry.pw_dir)


def _look(root: str) -> Iterator[str]:
    queue, left = deque([root]), MAX_ENTRIES
    while queue and left > 0:
        path = queue.popleft()
        private: list[str] = []
        inside: list[str] = []
        for entry, mode in _entries(path):
            left -= 1
            if _is_private(mode):
                private.append(entry)
            elif stat.S_ISDIR(mode):
                inside.append(entry)
        if len(private) > MANY and path not in (*_KEPT, root):
            yield path
        else:
            yield from private
            queue.extend(inside)
    yield from dict.fromkeys(map(_near_the_root, queue))


def _near_the_root(path: str) -> str:
    parts = path.split("/")
    return "/".join(parts[: 4 if f"/{parts[1]}" in _KEPT else 3])


def _entries(path: str) -> Iterator[tuple[str, int]]:
    with suppress(OSError), os.scandir(path) as scan:
        for entry in scan:
            if entry.path not in _PASSED and entry.path not in ROOTS:
                with suppress(OSError):  # deleted since it was listed
                    yield entry.path, entry.stat(follow_symlinks=False).st_mode


def _is_private(mode: int) -> bool:
    """Return whether only its owner and its group can read it."""
    if stat.S_ISDIR(mode):
        return mode & 0o005 != 0o005
    return stat.S_ISREG(mode) and not mode & 0o004


HERE = Private()
"""The private paths of this machine: one scan for all callers."""
