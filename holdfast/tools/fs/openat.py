"""Open a path below a directory, whatever links and renames happen meanwhile.

`openat2` lets the kernel keep the whole resolution below the directory. Where the system does
not have it or forbids it, `walk` opens one component after the other and follows no link.
"""

import ctypes
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PASSED = _DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", 0)  # needs no permission to list

Resolver = Callable[[int, str, int], int]
"""From (directory fd, relative path, open flags) to an fd below the directory, or OSError."""


@contextmanager
def descriptor(fd: int) -> Iterator[int]:
    """Close `fd` at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


class _OpenHow(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("flags", "mode", "resolve"))


_OPENAT2 = 437  # the same number on all architectures
_RESOLVE = 0x08 | 0x02  # BENEATH | NO_MAGICLINKS
_NO_LINKS = 0x04 | 0x02  # NO_SYMLINKS | NO_MAGICLINKS
_HERE = -100  # AT_FDCWD
_GETPATH = 50  # F_GETPATH, on macOS
_ATTEMPTS = 64  # the kernel returns EAGAIN if a rename happens while it resolves a `..`
_libc = ctypes.CDLL(None, use_errno=True)


def openat2(root: int, path: str, flags: int, resolve: int = _RESOLVE) -> int:
    """Open `path`; the kernel keeps the whole resolution below `root`."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    how = _OpenHow(flags, 0, resolve)
    name = os.fsencode(path)
    code = errno.EAGAIN
    for _ in range(_ATTEMPTS):
        fd: int = _libc.syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(root),
            ctypes.c_char_p(name),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code))


def walk(root: int, path: str, flags: int) -> int:
    """Open one component after the other, and follow no link."""
    above: list[int] = [root]  # `..` returns to the fd we came from, not to the parent on disk
    *parents, last = path.split("/")
    if last == "..":
        parents, last = [*parents, last], "."
    returns = ".." in parents
    try:
        for part in parents:
            if part != "..":
                above.append(os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above[-1]))
                if len(above) > 2 and not returns:  # a deep path must not use up our descriptors
                    os.close(above.pop(1))
            elif len(above) == 1:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            else:
                os.close(above.pop())
        return os.open(last, flags | os.O_NOFOLLOW, dir_fd=above[-1])
    finally:
        for fd in above[1:]:
            os.close(fd)


def beneath(root: int, path: str, flags: int) -> int:
    """Open with `openat2` if the system has it and allows it, otherwise with `walk`."""
    try:
        return openat2(root, path, flags)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    return walk(root, path, flags)


def read_start(root: int, path: str, most: int) -> bytes:
    """Read the first `most` bytes of a regular file by `walk`; `OSError` if it is anything else."""
    fd = walk(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(fd)


def open_root(root: str) -> int:
    """Open a workspace's root and follow no link.

    If the workspace is inside another one, a command of the outer workspace could have put a link
    in the path.
    """
    try:
        return openat2(_HERE, os.path.abspath(root), _DIRECTORY, _NO_LINKS)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    above = os.open("/", _DIRECTORY)
    *parents, last = [part for part in os.path.abspath(root).split("/") if part] or ["."]
    for part in parents:
        with descriptor(above):
            above = os.open(part, _PASSED, dir_fd=above)
    with descriptor(above):
        return os.open(last, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)


def path_of(fd: int) -> str:
    """Return the current path of an open directory."""
    if sys.platform == "darwin":
        return os.fsdecode(fcntl.fcntl(fd, _GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{fd}")
