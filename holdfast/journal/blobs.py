"""Blobs: large contents and old file versions, each a file named by the hash of its content.

A blob is durable before its name is returned, so a recorded name always has its blob. A blob
never changes; putting the same content again writes nothing.
"""

import hashlib
import os
import re
import secrets
from pathlib import Path

_NAME = re.compile(r"[0-9a-f]{64}")


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Blobs:
    """The blobs below `root`, in its directory `name`. Blocks; use it in a worker thread."""

    def __init__(self, root: Path, name: str = "blobs") -> None:
        self._directory = root / name
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.chmod(0o700)

    def put(self, data: bytes) -> str:
        """Store `data` durably, and return its name."""
        name = hashlib.sha256(data).hexdigest()
        path = self.path(name)
        if not path.exists():
            self._write(path, data)
        # Also if it existed: the writer that created it may not have synced the directory yet.
        sync_directory(self._directory)
        return name

    def _write(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def get(self, name: str) -> bytes:
        """Return the content of `name`; `KeyError` if there is no such blob."""
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            raise KeyError(name) from None

    def path(self, name: str) -> Path:
        """Return the path of `name`; `KeyError` if it is not a valid name."""
        if not _NAME.fullmatch(name):
            raise KeyError(name)
        return self._directory / name
