"""Which directories of a workspace have changed since the last look, told by the kernel (inotify).

It only saves time: wherever it is missing, full, out of watches, or does not know, everything is
looked at. It is asked before a command only. After a command everything is looked at, because a
write through a second hard link, or to memory that a running process has mapped, is not reported.

A directory is watched by its open descriptor, so that no link is followed. Only local file systems
report all changes.
"""

import ctypes
import errno
import os
import struct
import sys
from contextlib import suppress

_MASK = (
    0x2  # modify
    | 0x4  # attributes
    | 0x8  # closed after writing
    | 0x40  # moved away
    | 0x80  # moved here
    | 0x100  # created
    | 0x200  # deleted
    | 0x01000000  # directories only
)
_LOST = 0x2000 | 0x4000  # unmounted, or the queue was full
_IGNORED = 0x8000  # the directory is gone
_EVENT = struct.Struct("iIII")
_LOCAL = frozenset("ext2 ext3 ext4 xfs btrfs f2fs tmpfs overlay zfs bcachefs".split())
_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Watches the directories that are added to it. Blocks never."""

    def __init__(self) -> None:
        self._folders: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def add(self, fd: int, path: str) -> None:
        """Watch an open directory, under its path in the workspace; `OSError` if it cannot be."""
        watch: int = _libc.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % fd, _MASK)
        if watch < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        self._folders[watch] = path  # the same directory has the same number, also after a move
        self._ids[path] = watch

    def drop(self, path: str) -> None:
        """No longer watch the directory that was at `path`."""
        watch = self._ids.pop(path, None)
        if watch is not None and self._folders.get(watch) == path:
            del self._folders[watch]
            _libc.inotify_rm_watch(self._fd, watch)

    def changed(self) -> set[str] | None:
        """Return the paths of directories that changed since the last call; None: not known."""
        found: set[str] = set()
        known = True
        while events := self._read():
            at = 0
            while at < len(events):
                watch, mask, _, length = _EVENT.unpack_from(events, at)
                at += _EVENT.size + length
                if mask & _LOST:
                    known = False
                elif mask & _IGNORED:
                    self._folders.pop(watch, None)
                elif (path := self._folders.get(watch)) is not None:
                    found.add(path)
        return found if known else None

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, 64 * 1024)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
        return b""

    def close(self) -> None:
        """End it."""
        os.close(self._fd)


def watch_for(root: int) -> Watch | None:
    """Return a watch for the file system of an open directory; None if none can be relied on."""
    if sys.platform != "linux" or not os.path.isdir("/proc/self/fd"):
        return None
    with suppress(OSError, AttributeError):  # no instances left; a libc without it
        if _file_system(os.fstat(root).st_dev) in _LOCAL:
            return Watch()
    return None


def _file_system(device: int) -> str:
    """Return the type of the file system with this device number; empty if it is not listed."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields, _, types = line.partition(" - ")
            if fields.split()[2] == wanted:
                return types.split()[0]
    return ""
