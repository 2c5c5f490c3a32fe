"""The audit: who allowed what, in a file that only grows. Each line carries the hash of the last.

A line is there, whole and on disk, before `append` returns: a decision that could not be
written down must not be acted upon. Beside the file stands its head, the number, place
and hash of the last such line. So every entry that was ever acknowledged is there,
unchanged and in its order, or `verify` says where that ends: at a line that was changed,
is missing, was moved, or was cut off the end.

Nothing is ever rewritten, also not after a crash. What a killed process left of a line
stays; the next line is a marker that names the hash of those bytes and goes on with the
chain. The writer trusts the head, never the file: a chain that was broken stays broken.

There is no key in it: whoever may write the home may forge a chain from end to end, and
its head. What one cannot is to change a part and keep the rest. Who wants more keeps the
hash that `holdfast audit verify` tells somewhere else.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from threading import Lock  # noqa: TID251  appends come from worker threads, one at a time

import msgspec

from holdfast.core.redaction import Redactor
from holdfast.core.types import Value
from holdfast.errors import JournalUnavailable

FILE = "audit.jsonl"

# What the audit says about itself.
TORN = "audit.torn"  # a crash left part of a line before this one; `result` is its hash
GAP = "audit.gap"  # the file is not what the head says: it goes on, and stays broken

GENESIS = "0" * 64

_HASH = re.compile(rb',"hash":"([0-9a-f]{64})"}\n')
_HASH_BYTES = len(b',"hash":""}\n') + 64
_HEAD = re.compile(rb"(\d{20}) (\d{20}) ([0-9a-f]{64})\n")
_HEAD_BYTES = 107


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision, or what came of it. What does not apply stays empty."""

    kind: str  # like "approval.granted", "call.denied"
    who: str = ""
    platform: str = ""
    run_id: str = ""
    call_id: str = ""
    request_id: str = ""
    execution: str = ""  # sha256 of the exact execution
    what: str = ""  # and what that is, in words
    rule: str = ""
    choice: str = ""
    posture: str = ""
    result: str = ""


class Line(Entry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry, and its place in the chain."""

    n: int
    at: float
    prev: str


class Place(Value):
    """How far the chain has come."""

    n: int = 0
    end: int = 0  # bytes of the file up to there
    hash: str = GENESIS


class Verdict(Value):
    """What `verify` found: a whole chain if `why` is empty."""

    entries: int
    last: str  # hash of the last good line
    torn: int = 0  # how often a crash left part of a line
    line: int = 0  # the first line of the file that is wrong
    why: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class Audit:
    """The one writer of the file, made by whoever owns the home.

    Blocks for as long as the disk takes: call it from a worker thread.
    """

    def __init__(
        self, path: Path, now: Callable[[], float], redactor: Redactor | None = None
    ) -> None:
        self._now = now
        self._redactor = redactor or Redactor(())
        self._lock = Lock()
        self._path = path
        self._files: tuple[int, int] | None = None  # the file and its head, from the first need on
        self._place: Place | None = None

    def append(self, entry: Entry) -> None:
        """Write it down, for good. Raises `JournalUnavailable` if that cannot be."""
        with self._lock:
            try:
                if self._files is None:
                    self._files = self._open()
                place = self._place or self._go_on()
                self._place = None  # until it is known how this ends
                self._place = self._write(place, self._redactor.cleaned(entry))
            except OSError as error:
                raise JournalUnavailable(
                    f"the audit cannot be written: {error.strerror}"
                ) from error

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._files or ():
            os.close(descriptor)
        self._files = None

    def _open(self) -> tuple[int, int]:
        """Both files, made if they are not there. A full disk is no reason not to start."""
        file = _open(self._path, os.O_APPEND)
        try:
            head = _open(_head_of(self._path))
        except OSError:
            os.close(file)
            raise
        if not os.fstat(file).st_size and not os.fstat(head).st_size:
            os.pwrite(head, _format_head(Place()), 0)
            os.fsync(head)
        _sync_directory(self._path.parent)
        return file, head

    @property
    def _file(self) -> int:
        assert self._files is not None
        return self._files[0]

    @property
    def _head(self) -> int:
        assert self._files is not None
        return self._files[1]

    def _go_on(self) -> Place:
        """Where the chain ends, after a word about what stands there and does not belong."""
        size = os.fstat(self._file).st_size
        head = _parse_head(os.pread(self._head, _HEAD_BYTES, 0))
        if head is None or head.end > size:
            return self._write(head or Place(self._count()), Entry(kind=GAP), b"\n")
        tail = os.pread(self._file, size - head.end, head.end)
        chain = _Chain(head)
        for raw in BytesIO(tail):
            chain.take(raw if raw.endswith(b"\n") else raw + b"\n")
        if chain.place.end > size:  # all of the last line is there but its end
            _write_all(self._file, b"\n")
        if not (rest := tail[chain.place.end - head.end :]):
            return chain.place
        return self._write(chain.place, Entry(kind=TORN, result=sha256(rest).hexdigest()), b"\n")

    def _count(self) -> int:
        """How many lines there are, good or bad."""
        with open(self._file, "rb", closefd=False) as file:
            return sum(1 for _ in file)

    def _write(self, place: Place, entry: Entry, before: bytes = b"") -> Place:
        fields = {name: getattr(entry, name) for name in Entry.__struct_fields__}
        line = Line(n=place.n + 1, at=round(self._now(), 6), prev=place.hash, **fields)
        body = _encode(line)
        digest = sha256(body).hexdigest()
        _write_all(self._file, before + body[:-1] + f',"hash":"{digest}"}}\n'.encode())
        os.fsync(self._file)
        written = Place(line.n, os.fstat(self._file).st_size, digest)
        # Not synced: a head that is late says less than there is, never more.
        os.pwrite(self._head, _format_head(written), 0)
        return written


class _Chain:
    """Goes along lines, from a place on."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.torn = 0
        self.unfinished = False  # something stands behind the last good line that is none
        self.why = ""  # it is broken
        self._end = place.end
        self._rest = sha256()  # of that

    def take(self, raw: bytes) -> None:
        """One more line of the file."""
        self._end += len(raw)
        if self.why:
            return
        parsed = _parse(raw)
        if parsed is None:
            self._set_aside(raw)
            return
        line, digest = parsed
        marked = line.result if line.kind == TORN else ""
        if line.prev != self.place.hash or line.n != self.place.n + 1:
            self.why = f"entry {line.n} does not follow entry {self.place.n}"
        elif self.unfinished and self._rest.hexdigest() != marked:
            self.why = "it was changed, or does not belong there"
        else:
            self.torn += self.unfinished
            self.unfinished = False
            self.place = Place(line.n, self._end, digest)

    def _set_aside(self, raw: bytes) -> None:
        # The marker's own line begins with the line break that this one lacked.
        if self.unfinished:
            self._rest.update(b"\n")
        else:
            self._rest = sha256()
            self.unfinished = True
        self._rest.update(raw.removesuffix(b"\n"))


def read(path: Path, run_id: str = "") -> Iterator[Line]:
    """Every line that can be read, oldest first; of one run, if it is named."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        for parsed in map(_parse, file):
            if parsed is not None and run_id in ("", parsed[0].run_id):
                yield parsed[0]


def verify(path: Path) -> Verdict:
    """Go along the whole chain, to its end or to where it breaks."""
    head: Place | None = None
    with suppress(FileNotFoundError):
        head = _parse_head(_head_of(path).read_bytes())  # first: the file goes on growing
    try:
        with path.open("rb") as file:
            return _walk(file, head)
    except FileNotFoundError:
        return _walk((), head)


def _walk(lines: Iterable[bytes], head: Place | None) -> Verdict:
    chain = _Chain(Place())
    good = number = 0  # lines of the file, which is more than entries where some are torn
    for number, raw in enumerate(lines, 1):
        chain.take(raw)
        if head is not None and chain.place.n == head.n and chain.place.hash != head.hash:
            chain.why = "it is not the line that was written there"
        if chain.why:
            break
        if not chain.unfinished:
            good = number
    why, place = chain.why, chain.place
    if not why and head is None and number:
        why = "the head is missing or unreadable, so nobody knows where the end was"
    if not why and head is not None and place.n < head.n:
        why = f"entry {place.n + 1} of {head.n} was changed, or it and what follows was cut off"
    torn = chain.torn + chain.unfinished
    return Verdict(place.n, place.hash, torn, good + 1 if why else 0, why)


def _parse(raw: bytes) -> tuple[Line, str] | None:
    """The line and its hash, if it is one and has not been changed since."""
    found = _HASH.fullmatch(raw[-_HASH_BYTES:])
    body = raw[:-_HASH_BYTES] + b"}"
    if found is None or sha256(body).hexdigest().encode() != found[1]:
        return None
    try:
        return _decode(body), found[1].decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _head_of(path: Path) -> Path:
    return path.with_suffix(".head")


def _format_head(place: Place) -> bytes:
    return f"{place.n:020d} {place.end:020d} {place.hash}\n".encode()  # always as long


def _parse_head(data: bytes) -> Place | None:
    found = _HEAD.fullmatch(data)
    return None if found is None else Place(int(found[1]), int(found[2]), found[3].decode())


def _open(path: Path, flags: int = 0) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
