"""What each command changed in its workspace, for the record and for undo.

Promises: `begin` returns only when the content of every file is stored, or it says why not. `finish`
says exactly which files differ, with both versions in the version store. Nothing is written to the
workspace, and no program is run; a repository is files like others. What is left out (`ignore`),
what is too big, and a workspace that is too big are named in words.

All looks at one workspace happen one after the other, in a worker thread.
"""

import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio import from_thread, to_thread

from holdfast.core.types import Value
from holdfast.tools.exec.record import boot_id
from holdfast.tools.fs.workspace import shown
from holdfast.tools.snapshot.scan import LookIncomplete, SnapshotLimits
from holdfast.tools.snapshot.store import DIRECTORY, SnapshotStore, remove
from holdfast.tools.snapshot.watch import Watch, watch_for
from holdfast.tools.snapshot.workspace import CommandChanges, WatchedWorkspace
from holdfast.tools.tool import Context

log = logging.getLogger(__name__)

AT_ONCE = 2  # looks of all workspaces
LOADED = 4  # workspaces in memory; one of 50,000 files takes 20 MB
LEAVE_FREE = 2**30  # bytes of the disk that snapshots do not take
NAMED = 10  # paths in a note

NOT_RECORDED = "The files that this command changed are not known and cannot be restored by undo"
NOT_KEPT = (
    "These changed too, but undo cannot restore them, because snapshots leave them out (ignored, "
    "over 10 MB, or not readable)"
)
BESIDE = (
    "Another command ran in this workspace at the same time; some of the changed files may be its."
)

T = TypeVar("T")


class SnapshotsUsage(Value):
    """The number of snapshot stores and their size in bytes."""

    count: int = 0
    size: int = 0


class Snapshots:
    """The snapshots of all workspaces. The stores are below `home`, which is left out of them."""

    def __init__(
        self,
        home: Path,
        limits: SnapshotLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        watch: Callable[[int], Watch | None] = watch_for,
    ) -> None:
        self._home, self._watch = home, watch
        self._limits = limits or SnapshotLimits()
        self._monotonic = monotonic
        self._loaded: dict[str, WatchedWorkspace] = {}
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._over: dict[str, set[str]] = {}  # settled calls, to be forgotten
        self._at_once = anyio.CapacityLimiter(AT_ONCE)

    async def begin(self, context: Context) -> str:
        """Look before a command starts. Return why its changes will not be known; empty: known."""
        path, call = str(context.workspace), context.process_id
        try:
            await self._in_thread(path, lambda at: at.begin(call, context.blobs))
        except LookIncomplete as gap:
            return str(gap)
        return ""

    async def finish(self, context: Context) -> CommandChanges:
        """Look after a command has ended, and return its changes; none if it never began.

        Until `settled` it can be asked again, also after a crash.
        """
        path, call = str(context.workspace), context.process_id
        try:
            found = await self._in_thread(path, lambda at: at.finish(call, context.blobs))
        except LookIncomplete as gap:
            return CommandChanges(gap=str(gap))
        return found or CommandChanges()

    def settled(self, context: Context) -> None:
        """Forget the command of a call: its changes are in the journal, or do not matter."""
        self._over.setdefault(str(context.workspace), set()).add(context.process_id)

    async def prune(self, older_than: float) -> SnapshotsUsage:
        """Remove the stores of workspaces that were not used since then; return how many."""
        return await to_thread.run_sync(_prune, self._home, older_than)

    async def aclose(self) -> None:
        """Close all stores, each when its look has ended."""
        for path in [*self._loaded, *self._locks]:
            async with self._lock(path):
                self._unload(path)

    async def _in_thread(self, path: str, act: Callable[[WatchedWorkspace], T]) -> T:
        async with self._lock(path):
            return await to_thread.run_sync(self._act, path, act, limiter=self._at_once)

    def _lock(self, path: str) -> anyio.Lock:
        return self._locks.setdefault(path, anyio.Lock())

    def _act(self, path: str, act: Callable[[WatchedWorkspace], T]) -> T:
        """Do it; whatever fails, the next look starts from what is stored."""
        try:
            at = self._load(path)
            for call in self._over.pop(path, ()):
                at.forget(call)
            return act(at)
        except LookIncomplete:
            raise
        except sqlite3.Error as error:
            self._unload(path)
            log.warning("a snapshot store failed", extra={"workspace": path, "why": str(error)})
            raise LookIncomplete(f"the snapshot could not be stored ({error})") from error
        except OSError as error:
            self._unload(path)
            log.warning("a snapshot failed", extra={"workspace": path, "why": str(error)})
            raise LookIncomplete(f"the snapshot could not be stored ({error.strerror})") from error
        except BaseException:
            self._unload(path)
            raise

    def _load(self, path: str) -> WatchedWorkspace:
        at = self._loaded.pop(path, None)
        if at is None:
            if shutil.disk_usage(self._home).free < LEAVE_FREE:
                raise LookIncomplete("less than 1 GB of the disk is free")
            own = self._home.stat()
            store = SnapshotStore(self._home, path, boot_id())
            try:
                at = WatchedWorkspace(
                    path,
                    store,
                    self._limits,
                    (own.st_dev, own.st_ino),
                    self._monotonic,
                    self._watch,
                    from_thread.check_cancelled,
                )
            except BaseException:
                store.close()
                raise
        self._loaded[path] = at  # the last one is the one used last
        self._make_room(path)
        return at

    def _make_room(self, path: str) -> None:
        loaded = list(self._loaded.items())  # at once: other threads load and unload too
        idle = [p for p, at in loaded if p != path and at.running <= self._over.get(p, set())]
        for old in idle[: max(0, len(self._loaded) - LOADED)]:
            if not self._is_busy(old):
                self._unload(old)

    def _is_busy(self, path: str) -> bool:
        lock = self._locks.get(path)
        return lock is not None and lock.locked()

    def _unload(self, path: str) -> None:
        at = self._loaded.pop(path, None)
        if at is not None:
            with suppress(sqlite3.Error):
                for call in self._over.pop(path, ()):
                    at.forget(call)
            with suppress(sqlite3.Error, OSError):
                at.close()


class CommandSnapshot:
    """The looks before and after one command; none, if it is not to be recorded."""

    def __init__(self, snapshots: Snapshots | None, context: Context) -> None:
        self._snapshots, self._context = snapshots, context
        self._gap = ""

    async def begin(self) -> None:
        """Look before it starts."""
        if self._snapshots is not None:
            self._gap = await self._snapshots.begin(self._context)

    async def finish(self) -> CommandChanges:
        """Look after it has ended, and return its changes."""
        if self._snapshots is None or self._gap:
            return CommandChanges(gap=self._gap)
        return await self._snapshots.finish(self._context)


def notes(found: CommandChanges) -> list[str]:
    """Return notes about what undo cannot restore, for the model and the user."""
    if found.gap:
        return [gap_note(found.gap)]
    said = []
    if found.lost:
        names = [shown(path) for path in found.lost]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        said.append(f"{NOT_KEPT}: {', '.join(names[:NAMED])}{more}.")
    if found.beside and found.changes:
        said.append(BESIDE)
    return said


def gap_note(reason: str) -> str:
    """Return the note for a command whose changes are not known."""
    return f"{NOT_RECORDED}: {reason}."


def _prune(home: Path, older_than: float) -> SnapshotsUsage:
    count = size = 0
    for path, info in _stores(home):
        if info.st_mtime <= older_than:
            remove(path)
            count, size = count + 1, size + info.st_size
    return SnapshotsUsage(count, size)


def usage(home: Path) -> SnapshotsUsage:
    """Return the number of stores and their size. Works also while a gateway is running."""
    sizes = [info.st_size for _, info in _stores(home)]
    return SnapshotsUsage(len(sizes), sum(sizes))


def _stores(home: Path) -> list[tuple[Path, os.stat_result]]:
    found: list[tuple[Path, os.stat_result]] = []
    with suppress(FileNotFoundError), os.scandir(home / DIRECTORY) as scan:
        for entry in scan:
            with suppress(FileNotFoundError):
                if entry.name.endswith(".db") and entry.is_file(follow_symlinks=False):
                    found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
    return found
