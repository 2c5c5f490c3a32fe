"""One workspace over time: what changed between two looks, and which command did it.

A look before a command brings the store up to date, so the content of every file is there before
the command can change it. A look after the command finds what differs. Both versions of a file are
in the version store, durably, before the store here goes on to the new one.

What a look finds is the work of the command that ends with it. What a look before a command finds
is the work of the command that runs beside it, if there is one; otherwise it was another hand: a
person, or a process in the background. What a command has changed so far is stored with the look,
so it is still known after a crash.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from holdfast.core.run.files import ChangeKind, FileChange, combine
from holdfast.core.text.diff import Version
from holdfast.core.types import Value
from holdfast.tools.fs.change import stored
from holdfast.tools.fs.openat import descriptor, open_root
from holdfast.tools.snapshot.scan import (
    TICK_NS,
    LookIncomplete,
    Scan,
    SeenFolder,
    SeenTree,
    SnapshotLimits,
    TooBig,
)
from holdfast.tools.snapshot.store import FileState, SnapshotStore
from holdfast.tools.snapshot.watch import Watch
from holdfast.tools.tool import BlobStore

AGAIN_S = 600.0  # before a workspace that is too big is looked at again
CACHES = ("__pycache__/",)  # nobody misses them


class Found(msgspec.Struct):
    """What a command has changed so far."""

    changes: list[FileChange] = []
    lost: list[str] = []  # paths that changed, but whose contents are not kept
    gap: str = ""  # why the changes are not known
    watched: bool = False  # the look before it trusted the watch


class CommandChanges(Value):
    """What a command changed: files, other paths that cannot be restored, and a gap, if any."""

    changes: tuple[FileChange, ...] = ()
    lost: tuple[str, ...] = ()
    gap: str = ""
    beside: bool = False  # another command ran in the workspace at the same time


class WatchedWorkspace:
    """Looks at one workspace. Blocks; one thread at a time."""

    def __init__(
        self,
        path: str,
        store: SnapshotStore,
        limits: SnapshotLimits,
        own: tuple[int, int],
        monotonic: Callable[[], float],
        watch_for: Callable[[int], Watch | None],
        tick: Callable[[], None],
    ) -> None:
        self._path, self._store, self._limits, self._own = path, store, limits, own
        self._monotonic, self._watch_for, self._tick = monotonic, watch_for, tick
        self._watch: Watch | None = None
        self._complete = False  # the last look has seen everything
        self._refused: tuple[float, str] = (0.0, "")
        self._calls: dict[str, tuple[int, Found]] = {}
        self._blobs: BlobStore | None = None
        self._taker: tuple[int, Found] | None = None  # the command whose work is found
        self._tree = self._load()

    @property
    def running(self) -> set[str]:
        """The commands that have begun and are not forgotten."""
        return set(self._calls)

    def _load(self) -> SeenTree:
        tree = SeenTree()
        for path, state in self._store.files():
            folder, name = _folder(tree, path)
            folder.files[name] = state
            tree.count, tree.size = tree.count + 1, tree.size + state.size * state.kept
        for path in self._store.skipped():
            folder, name = _folder(tree, path.removesuffix("/"))
            folder.skipped.add(name + "/" * path.endswith("/"))
        for call, (began_ns, found) in self._store.calls().items():
            with suppress(msgspec.DecodeError):
                self._calls[call] = began_ns, msgspec.json.decode(found, type=Found)
        return tree

    def begin(self, call: str, blobs: BlobStore) -> None:
        """Look before a command starts. Raises `LookIncomplete`; then nothing is known of its changes."""
        until, reason = self._refused
        if self._monotonic() < until:
            raise TooBig(reason)
        self._blobs = blobs
        self._taker = list(self._calls.values())[-1] if self._calls else None
        with self._store.transaction():
            watched, gap = self._look(before=True)
            self._keep_taker()
            if gap is None:
                found = Found(changes=[], lost=[], watched=watched)
                self._calls[call] = time.time_ns(), found
                self._store.keep_call(call, self._calls[call][0], msgspec.json.encode(found))
        if isinstance(gap, TooBig):
            self._refused = self._monotonic() + AGAIN_S, str(gap)
        if gap is not None:
            raise gap

    def finish(self, call: str, blobs: BlobStore) -> CommandChanges | None:
        """Look after a command has ended, and return its changes; None if it never began here."""
        taker = self._calls.get(call)
        if taker is None:
            return None
        self._blobs, self._taker = blobs, taker
        found = taker[1]
        with self._store.transaction():
            _, gap = self._look(before=False)
            if gap is not None:
                found.gap = found.gap or str(gap)
            self._keep_taker()
        if found.gap:
            return CommandChanges(gap=found.gap)
        beside = len(self._calls) > 1
        return CommandChanges(tuple(combine(found.changes)), tuple(found.lost), "", beside)

    def forget(self, call: str) -> None:
        """Forget a command: its changes are in the journal, or do not matter any more."""
        if self._calls.pop(call, None) is not None:
            self._store.drop_call(call)

    def _keep_taker(self) -> None:
        for call, taker in self._calls.items():
            if taker is self._taker:
                self._store.keep_call(call, taker[0], msgspec.json.encode(taker[1]))

    def _look(self, *, before: bool) -> tuple[bool, LookIncomplete | None]:
        """Look at what may have changed. Return if the watch was trusted, and why it gave up."""
        watched = False
        try:
            with descriptor(open_root(self._path)) as root:
                first = not self._tree.root.folders and not self._tree.root.files
                if self._watch is None and not self._complete:
                    self._watch = self._watch_for(root)
                known = self._watch.changed() if self._watch is not None else None
                scan = Scan(
                    self._tree,
                    self,
                    self._watch,
                    self._limits,
                    self._own,
                    self._monotonic,
                    self._tick,
                )
                try:
                    watched = before and known is not None and self._complete and not first
                    if watched and known is not None:
                        scan.some(root, known | self._tree.again)
                    else:
                        self._complete = False
                        scan.everything(root)
                        self._complete = True
                finally:
                    self._watch = scan.watch
        except LookIncomplete as gap:
            return watched, gap
        except OSError as error:
            return watched, LookIncomplete(f"the workspace cannot be read ({error.strerror})")
        return watched, None

    def changed(
        self, path: str, old: FileState | None, new: FileState | None, data: bytes | None
    ) -> None:
        """Take a file that is not as it was."""
        before = self._store.data(path) if old is not None and old.kept else None
        if old is not None and new is not None and old.kept and new.kept:
            if before == data and old.mode == new.mode:
                self._store.touch(path, new)
                return
        if self._taker is not None and not self._was_other_hand(old, new):
            self._record(self._taker[1], path, old, new, before, data)
        if new is None:
            self._store.remove(path)
        else:
            self._store.put(path, new, data)

    def _was_other_hand(self, old: FileState | None, new: FileState | None) -> bool:
        """Tell if a file was written to before the command began, unseen by the watch.

        Another file in its place, with another inode, never goes unseen; and it may be older, if
        its directory was moved.
        """
        if self._taker is None or not self._taker[1].watched or old is None or new is None:
            return False
        return old.ino == new.ino and 0 < new.ctime_ns < self._taker[0] - TICK_NS

    def _record(
        self,
        found: Found,
        path: str,
        old: FileState | None,
        new: FileState | None,
        before: bytes | None,
        after: bytes | None,
    ) -> None:
        if found.gap or self._blobs is None:
            return
        if len(found.changes) >= self._limits.changes:
            found.gap = f"it changed more than {self._limits.changes:,} files"
            return
        if (old and not old.kept) or (new and not new.kept) or not _is_text(path):
            found.lost.append(_readable(path))
            return
        kind = ChangeKind.REPLACED
        if old is None or new is None:
            kind = ChangeKind.CREATED if old is None else ChangeKind.DELETED
        versions = Version(before, old.mode if old else 0), Version(after, new.mode if new else 0)
        found.changes.append(stored(self._blobs, path, kind, *versions))

    def appeared(self, path: str, new: FileState, data: bytes | None) -> None:
        """Take a file that was there before, but left out."""
        self._store.put(path, new, data)

    def skipped(self, path: str) -> None:
        """Take note of something that is left out."""
        self._store.skip(path)

    def unskipped(self, path: str, *, gone: bool) -> None:
        """Take note that something is no longer left out."""
        self._store.unskip(path)
        if gone and path.endswith("/") and not path.endswith(CACHES) and self._taker is not None:
            self._taker[1].lost.append(_readable(path))

    def close(self) -> None:
        """Release the watch and the store."""
        if self._watch is not None:
            self._watch.close()
        self._store.close()


def _folder(tree: SeenTree, path: str) -> tuple[SeenFolder, str]:
    *parts, name = path.split("/")
    folder = tree.root
    for part in parts:
        folder = folder.folders.setdefault(part, SeenFolder())
    return folder, name


def _readable(path: str) -> str:
    return os.fsencode(path).decode(errors="replace")


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
