"""The contents of a workspace's files at the last look, and what commands have changed since.

One SQLite file for each workspace, in the gateway's home. It is a cache: if it is lost, the next
look fills it again. It survives the death of the gateway at any moment (a transaction is whole or
not there), and is not synced, so it does not count after a restart of the machine: the name of
the file has the number of the boot. What must last is put into the version store before.
"""

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

DIRECTORY = "snapshots"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    path BLOB PRIMARY KEY, ino INTEGER, ctime INTEGER, size INTEGER, mode INTEGER, data BLOB
);
CREATE TABLE IF NOT EXISTS skipped (path BLOB PRIMARY KEY);
CREATE TABLE IF NOT EXISTS calls (id TEXT PRIMARY KEY, began_ns INTEGER, found BLOB);
"""


class FileState(NamedTuple):
    """A file as it was seen. `kept`: its content is in the store."""

    ino: int
    ctime_ns: int  # 0: it may have changed within the same tick, so it is read again
    size: int
    mode: int
    kept: bool


class SnapshotStore:
    """The store of one workspace. Blocks; one thread at a time."""

    def __init__(self, home: Path, workspace: str, boot: str) -> None:
        folder = home / DIRECTORY
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]
        self.path = folder / f"{name}-{hashlib.sha256(boot.encode()).hexdigest()[:12]}.db"
        for old in folder.glob(f"{name}-*"):
            if not old.name.startswith(self.path.name):
                old.unlink(missing_ok=True)
        try:
            self._db = self._open()
        except sqlite3.DatabaseError:
            remove(self.path)
            self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            self.path.chmod(0o600)
            db.execute("PRAGMA journal_mode = TRUNCATE")
            db.execute("PRAGMA synchronous = OFF")
            db.executescript(_SCHEMA)
        except BaseException:
            db.close()
            raise
        return db

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep all writes of the block, or none."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def files(self) -> Iterator[tuple[str, FileState]]:
        """Yield every file with its path."""
        query = "SELECT path, ino, ctime, size, mode, data IS NOT NULL FROM files"
        for path, ino, ctime, size, mode, kept in self._db.execute(query):
            yield os.fsdecode(path), FileState(ino, ctime, size, mode, bool(kept))

    def skipped(self) -> Iterator[str]:
        """Yield the paths that were there and left out."""
        for (path,) in self._db.execute("SELECT path FROM skipped"):
            yield os.fsdecode(path)

    def data(self, path: str) -> bytes | None:
        """Return the content of a file at the last look; None if it is not kept."""
        query = "SELECT data FROM files WHERE path = ?"
        row = self._db.execute(query, (os.fsencode(path),)).fetchone()
        return None if row is None else row[0]

    def put(self, path: str, state: FileState, data: bytes | None) -> None:
        """Store a file with its content."""
        row = (os.fsencode(path), state.ino, state.ctime_ns, state.size, state.mode, data)
        self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", row)

    def touch(self, path: str, state: FileState) -> None:
        """Store a new state for a file with the same content."""
        row = (state.ino, state.ctime_ns, state.mode, os.fsencode(path))
        self._db.execute("UPDATE files SET ino = ?, ctime = ?, mode = ? WHERE path = ?", row)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._db.execute("DELETE FROM files WHERE path = ?", (os.fsencode(path),))

    def skip(self, path: str) -> None:
        """Note that something at `path` is left out."""
        self._db.execute("INSERT OR IGNORE INTO skipped VALUES (?)", (os.fsencode(path),))

    def unskip(self, path: str) -> None:
        """Note that nothing at `path` is left out any more."""
        self._db.execute("DELETE FROM skipped WHERE path = ?", (os.fsencode(path),))

    def calls(self) -> dict[str, tuple[int, bytes]]:
        """Return when each unfinished command began, and what it has changed so far."""
        rows = self._db.execute("SELECT id, began_ns, found FROM calls ORDER BY began_ns")
        return {call: (began_ns, found) for call, began_ns, found in rows}

    def keep_call(self, call: str, began_ns: int, found: bytes) -> None:
        """Store what a command has changed so far."""
        self._db.execute("INSERT OR REPLACE INTO calls VALUES (?, ?, ?)", (call, began_ns, found))

    def drop_call(self, call: str) -> None:
        """Forget a command."""
        self._db.execute("DELETE FROM calls WHERE id = ?", (call,))

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def remove(path: Path) -> None:
    """Remove a store with its journal."""
    for name in (path, path.with_name(path.name + "-journal")):
        with suppress(FileNotFoundError):
            name.unlink()
