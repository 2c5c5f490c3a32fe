"""Old versions of files that tools replaced, kept for a while so that a write can be undone.

They are blobs in a separate directory, so that pruning cannot delete a blob that the journal
needs. A version that is put again counts as new. Only the gateway that owns the home puts and
prunes.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.core.types import Value
from holdfast.journal.blobs import Blobs

DIRECTORY = "versions"
DAY_S = 86_400.0


class VersionsUsage(Value):
    """The number of versions and their total size in bytes."""

    count: int = 0
    size: int = 0


class Versions:
    """The versions below `home`, each kept for `keep_s`. Blocks; use it in a worker thread."""

    def __init__(self, home: Path, keep_s: float, now: Callable[[], float]) -> None:
        self._blobs = Blobs(home, DIRECTORY)
        self._folder = home / DIRECTORY
        self._keep_s = keep_s
        self._now = now

    def put(self, data: bytes) -> str:
        """Store `data` durably, and return its name."""
        with self._alone():
            name = self._blobs.put(data)
            os.utime(self._blobs.path(name), (self._now(), self._now()))
            return name

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the directory, so that a version is not removed while it is put again."""
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def get(self, name: str) -> bytes:
        """Return the content of `name`; `KeyError` if there is none, or no longer."""
        return self._blobs.get(name)

    def prune(self) -> VersionsUsage:
        """Remove the old versions; return how many, and their size."""
        count = size = 0
        with self._alone():
            for path, state in _files(self._folder):
                if state.st_mtime <= self._now() - self._keep_s:
                    with suppress(FileNotFoundError):
                        path.unlink()
                    count, size = count + 1, size + state.st_size
        return VersionsUsage(count, size)


def usage(home: Path) -> VersionsUsage:
    """Return the present usage. Works also while a gateway is running."""
    sizes = [state.st_size for _, state in _files(home / DIRECTORY)]
    return VersionsUsage(len(sizes), sum(sizes))


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    found: list[tuple[Path, os.stat_result]] = []
    with suppress(FileNotFoundError), os.scandir(folder) as scan:
        for entry in scan:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
    return found
