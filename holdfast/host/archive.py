"""Backups: a home in one file, a gzipped tar whose last member is a manifest of the others.

SQLite itself copies the journal, over a read-only connection, so a gateway may be running. All
other files are copied after the journal, so that the files it refers to are there. Files that can
be made again (the index, caches) or belong to one process are left out.

An archive is used only as a whole: before the home is changed, each file is compared with its hash
in the manifest. A restored journal is marked, so that its first start knows that it was restored.
"""

import errno
import gzip
import os
import shutil
import sqlite3
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from holdfast import __version__
from holdfast.core.life.evidence import Doubt
from holdfast.errors import HoldfastError
from holdfast.journal import mark
from holdfast.journal.blobs import sync_directory
from holdfast.journal.sqlite.migrate import newest

JOURNAL = "journal.db"
MANIFEST = "manifest.json"
FORMAT = 1
LEFT_OUT = frozenset(
    "journal.db-wal journal.db-shm search.db search.db-wal search.db-shm ballast run log calls "
    "calls.pyc caches programs canary snapshots".split()
)
KEPT = "before-restore"  # the former content of the home, after a restore with --force
STAGING = "restoring"
_CHUNK = 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# A running command removed the file, or replaced it by a link or a socket: it is left out.
_NOTHING = (errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.ENXIO)

Progress = Callable[[str], None]


class BadArchive(HoldfastError):
    """The archive is damaged, or this version cannot read it. Nothing was changed."""


class Member(msgspec.Struct, frozen=True):
    name: str
    size: int
    sha256: str
    mode: int
    link: str = ""  # the target of a symbolic link


class Manifest(msgspec.Struct, frozen=True):
    format: int
    version: str
    schema: int
    members: tuple[Member, ...]


class _Hashing:
    """A file that hashes and counts what is read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = sha256()
        self.size = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        self.size += len(data)
        return data


def write(home: Path, target: Path, say: Progress) -> Manifest:
    """Write the home into `target`, completely or not at all."""
    part = target.with_name(f".{target.name}.part")
    copy = target.with_name(f".{target.name}.journal")
    try:
        say("copying the journal")
        schema = _copy_journal(home / JOURNAL, copy)
        with open(part, "wb", opener=_private) as file:
            with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0) as packed:
                with tarfile.open(fileobj=packed, mode="w|") as tar:
                    manifest = Manifest(FORMAT, __version__, schema, _add_all(tar, home, copy, say))
                    _add_bytes(tar, MANIFEST, msgspec.json.encode(manifest))
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        sync_directory(target.parent)
        return manifest
    finally:
        part.unlink(missing_ok=True)
        for name in (copy.name, f"{copy.name}-wal", f"{copy.name}-shm", f"{copy.name}-journal"):
            copy.with_name(name).unlink(missing_ok=True)


def _copy_journal(journal: Path, copy: Path) -> int:
    """Let SQLite copy the journal, which may be in use, and return its schema number."""
    copy.unlink(missing_ok=True)
    os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)) as source:
        source.execute("VACUUM INTO ?", (str(copy),))
    with closing(sqlite3.connect(copy)) as copied:
        return int(copied.execute("PRAGMA user_version").fetchone()[0])


def _add_all(tar: tarfile.TarFile, home: Path, copy: Path, say: Progress) -> tuple[Member, ...]:
    members = [_add_file(tar, os.open(copy, _READ), JOURNAL)]
    for number, (name, directory, last) in enumerate(_files(home), 1):
        try:
            if stat.S_ISLNK(os.lstat(last, dir_fd=directory).st_mode):
                members.append(_add_link(tar, os.readlink(last, dir_fd=directory), name))
            else:
                members.append(_add_file(tar, os.open(last, _READ, dir_fd=directory), name))
        except OSError as error:
            if error.errno not in _NOTHING:
                raise
        if number % 1000 == 0:
            say(f"{number} files")
    return tuple(members)


def _files(home: Path) -> Iterator[tuple[str, int, str]]:
    """Yield all files and links of the archive except the journal: (name, directory fd, last part).

    Running commands may write to workspaces in the home, so no link is followed.
    """
    for directory, folders, names, fd in os.fwalk(home):
        inside = Path(directory).relative_to(home)
        if inside == Path():
            folders[:], names = ([n for n in some if _belongs(n)] for some in (folders, names))
        folders.sort()
        links = [f for f in folders if stat.S_ISLNK(os.lstat(f, dir_fd=fd).st_mode)]
        yield from ((inside.joinpath(n).as_posix(), fd, n) for n in sorted([*links, *names]))


def _belongs(name: str) -> bool:
    # A mark is of the home that it is in: with the archive, the journal is told that it was restored.
    return name not in (*LEFT_OUT, JOURNAL) and not name.startswith((KEPT, STAGING, mark.PREFIX))


def _add_file(tar: tarfile.TarFile, descriptor: int, name: str) -> Member:
    with open(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, name)  # a pipe: it is left out
        info = tarfile.TarInfo(name)
        info.size, info.mode = found.st_size, stat.S_IMODE(found.st_mode)
        reading = _Hashing(file)
        tar.addfile(info, reading)
    return Member(plain(name), reading.size, reading.digest.hexdigest(), info.mode)


def _add_link(tar: tarfile.TarFile, target: str, name: str) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)
    return Member(plain(name), 0, "", 0o777, plain(target))


def plain(name: str) -> str:
    """Escape a file name for the manifest: a name may be any bytes, the manifest is text."""
    escaped = name.replace("\\", "\\\\")
    return os.fsencode(escaped).decode("utf-8", "backslashreplace")


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o600
    tar.addfile(info, BytesIO(data))


def unpack(archive: Path, staging: Path, say: Progress) -> Manifest:
    """Unpack the archive into the new directory `staging`, and check all of it."""
    staging.mkdir(mode=0o700)
    found: dict[str, Member] = {}
    links: dict[str, str] = {}
    manifest: Manifest | None = None
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for info in tar:
                if info.name == MANIFEST:
                    data = tar.extractfile(info)
                    assert data is not None
                    manifest = _read_manifest(data.read())
                else:
                    found[plain(info.name)] = _take(tar, info, staging)
                    if info.issym():
                        links[info.name] = info.linkname
                    if len(found) % 1000 == 0:
                        say(f"{len(found)} files")
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise BadArchive(f"{archive} is damaged or incomplete: {error}") from None
    if manifest is None:
        raise BadArchive(f"{archive} is incomplete: its manifest is missing")
    _compare(archive, manifest, found)
    for name, target in links.items():  # last, so that no file was written through a link
        (staging / name).symlink_to(target)
    _check_journal(staging / JOURNAL)
    return manifest


def _read_manifest(data: bytes) -> Manifest:
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise BadArchive(f"its manifest cannot be read: {error}") from None
    if manifest.format != FORMAT or manifest.schema > newest():
        raise BadArchive(
            f"it was written by Holdfast {manifest.version} (schema {manifest.schema}), which is "
            f"newer than this one ({__version__}); install that version to restore it"
        )
    return manifest


def _take(tar: tarfile.TarFile, info: tarfile.TarInfo, staging: Path) -> Member:
    name = PurePosixPath(info.name)
    if name.is_absolute() or ".." in name.parts or not name.parts:
        raise BadArchive(f"it has a file outside the home: {info.name}")
    path = staging / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if info.issym():
        return Member(plain(info.name), 0, "", 0o777, plain(info.linkname))
    if not info.isreg():
        raise BadArchive(f"it has an entry that is not a file: {info.name}")
    source = tar.extractfile(info)
    assert source is not None
    reading = _Hashing(source)
    with open(path, "xb", opener=_private) as file:
        while data := reading.read(_CHUNK):
            file.write(data)
        os.fchmod(file.fileno(), info.mode & 0o777)
        os.fsync(file.fileno())
    return Member(plain(info.name), reading.size, reading.digest.hexdigest(), info.mode)


def _compare(archive: Path, manifest: Manifest, found: dict[str, Member]) -> None:
    for member in manifest.members:
        if found.pop(member.name, None) != member:
            raise BadArchive(f"{archive} is damaged: {member.name} is not what was backed up")
    if found:
        raise BadArchive(f"{archive} is damaged: {min(found)} is not in its manifest")


def _check_journal(journal: Path) -> None:
    try:
        with closing(sqlite3.connect(journal)) as opened:
            verdict = opened.execute("PRAGMA quick_check").fetchone()[0]
            if verdict != "ok":
                raise BadArchive(f"its journal is damaged: {verdict}")
            _mark(opened)
    except sqlite3.DatabaseError as error:
        raise BadArchive(f"its journal is damaged: {error}") from None


def _mark(journal: sqlite3.Connection) -> None:
    """Mark the journal as restored, for its first start, and forget its inode number."""
    columns = {row[1] for row in journal.execute("PRAGMA table_info(machine)")}
    if "doubt" in columns:  # an older schema is noticed because the audit is newer
        journal.execute("UPDATE machine SET doubt = ?, file = 0", (Doubt.RESTORED,))
        journal.commit()


def put_in_place(staging: Path, home: Path, kept: Path | None) -> None:
    """Move the content of the home to `kept`, and the unpacked files into the home, journal last.

    If this is interrupted, the home has no journal, and another restore completes it.
    """
    old = [p for p in sorted(home.iterdir(), key=_journal_first) if _is_replaced(p)]
    if kept is not None and old:
        kept.mkdir(mode=0o700)
        for path in old:
            path.rename(kept / path.name)
    for path in sorted(staging.iterdir(), key=_journal_first, reverse=True):
        path.rename(home / path.name)
    staging.rmdir()
    sync_directory(home)


def is_empty(home: Path) -> bool:
    """Tell if a restore would replace nothing in the home."""
    return not home.exists() or not any(map(_is_replaced, home.iterdir()))


def discard(staging: Path) -> None:
    """Remove unpacked files that will not be used."""
    shutil.rmtree(staging, ignore_errors=True)


def _is_replaced(path: Path) -> bool:
    return path.name != "run" and not path.name.startswith((KEPT, STAGING))


def _journal_first(path: Path) -> bool:
    return path.name != JOURNAL


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
