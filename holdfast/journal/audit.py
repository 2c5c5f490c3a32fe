"""The audit: who allowed what, in an append-only file. Each line has the hash of the last one.

A line is complete and on disk before `append` returns: a decision that could not be recorded must
have no effect. Beside the file is its head: the number, end position and hash of the last line.
So every acknowledged entry is there, unchanged and in order, or `verify` finds the first line
that was changed, is missing, was moved, or was cut off at the end.

Nothing is ever rewritten, not even after a crash. An incomplete line of a killed process stays;
the next line is a marker with the hash of those bytes, and continues the chain. The writer trusts
the head, never the file: a broken chain stays broken.

There is no secret key: a user who can write to the home can forge a whole chain and its head, but
cannot change a part of it and keep the rest. For more protection, keep the hash that
`holdfast audit verify` prints in another place.
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

from holdfast.core.intents import Principal
from holdfast.core.life.evidence import Mark
from holdfast.core.redaction import Redactor
from holdfast.core.types import Value
from holdfast.errors import JournalUnavailable
from holdfast.journal import mark
from holdfast.journal.blobs import sync_directory

FILE = "audit.jsonl"

# Entries about the audit itself.
TORN = "audit.torn"  # a crash left a part of a line before this one; `result` is its hash
GAP = "audit.gap"  # the file does not match the head: entries follow, but the chain stays broken

GENESIS = "0" * 64

_HASH = re.compile(rb',"hash":"([0-9a-f]{64})"}\n')
_HASH_BYTES = len(b',"hash":""}\n') + 64
_HEAD = re.compile(rb"(\d{20}) (\d{20}) ([0-9a-f]{64})\n")
_HEAD_BYTES = 107
_TAIL = 64 * 1024  # bytes at the end of the file in which the last line is searched first


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision, or its result. Fields that do not apply are empty."""

    kind: str  # like "approval.granted", "call.denied"
    who: str = ""
    platform: str = ""
    run_id: str = ""
    call_id: str = ""
    request_id: str = ""
    execution: str = ""  # sha256 of the exact execution
    what: str = ""  # the execution as text
    rule: str = ""
    choice: str = ""
    posture: str = ""
    result: str = ""


def entry_of(by: Principal, kind: str, **fields: str) -> AuditEntry:
    """Return the entry of an order that a user has given."""
    return AuditEntry(kind=kind, who=by.owner, platform=by.platform, **fields)


class AuditLine(AuditEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An entry with its position in the chain."""

    n: int
    at: float
    prev: str
    journal: int = 0  # synced commits of the journal at that time (core/life/evidence.py)


class ChainPlace(Value):
    """A position in the chain."""

    n: int = 0
    end: int = 0  # position in the file after this line, in bytes
    hash: str = GENESIS


class AuditVerdict(Value):
    """The result of `verify`: the chain is intact if `why` is empty."""

    entries: int
    last: str  # hash of the last good line
    torn: int = 0  # the number of incomplete lines that crashes left
    line: int = 0  # the first line of the file that is wrong
    why: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditLine).decode


class Audit:
    """The only writer of the file, in the process that owns the home.

    Blocks until the data is on disk: call it from a worker thread.
    """

    def __init__(
        self,
        path: Path,
        now: Callable[[], float],
        redactor: Redactor | None = None,
        commits: Callable[[], int] = int,
    ) -> None:
        self._now = now
        self._commits = commits  # returns the number of the journal's synced commits
        self._redactor = redactor or Redactor(())
        self._lock = Lock()
        self._path = path
        self._files: tuple[int, int] | None = None  # the file and its head; opened when needed
        self._place: ChainPlace | None = None

    def append(self, entry: AuditEntry) -> None:
        """Record the entry durably. Raises `JournalUnavailable` if that fails."""
        with self._lock:
            try:
                if self._files is None:
                    self._files = self._open()
                place = self._place or self._go_on()
                self._place = None  # unknown if the write fails
                self._place = self._write(place, self._redactor.cleaned(entry))
            except OSError as error:
                raise JournalUnavailable(
                    f"the audit cannot be written: {error.strerror}"
                ) from error

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._files or ():
            os.close(descriptor)
        self._files = None

    def _open(self) -> tuple[int, int]:
        """Open both files, and create them if needed. Called late, so a full disk stops no start."""
        file = _open(self._path, os.O_APPEND)
        try:
            head = _open(_head_of(self._path))
        except OSError:
            os.close(file)
            raise
        if not os.fstat(file).st_size and not os.fstat(head).st_size:
            os.pwrite(head, _format_head(ChainPlace()), 0)
            os.fsync(head)
        sync_directory(self._path.parent)
        return file, head

    @property
    def _file(self) -> int:
        assert self._files is not None
        return self._files[0]

    @property
    def _head(self) -> int:
        assert self._files is not None
        return self._files[1]

    def _go_on(self) -> ChainPlace:
        """Return the end of the chain, after a marker for bytes that do not belong to it."""
        size = os.fstat(self._file).st_size
        head = _parse_head(os.pread(self._head, _HEAD_BYTES, 0))
        if head is None or head.end > size:
            return self._write(head or ChainPlace(self._count()), AuditEntry(kind=GAP), b"\n")
        tail = os.pread(self._file, size - head.end, head.end)
        chain = _Chain(head)
        for raw in BytesIO(tail):
            chain.take(raw if raw.endswith(b"\n") else raw + b"\n")
        if chain.place.end > size:  # the last line is complete except for its line break
            _write_all(self._file, b"\n")
        if not (rest := tail[chain.place.end - head.end :]):
            return chain.place
        return self._write(
            chain.place, AuditEntry(kind=TORN, result=sha256(rest).hexdigest()), b"\n"
        )

    def _count(self) -> int:
        """Count the lines, valid or not."""
        with open(self._file, "rb", closefd=False) as file:
            return sum(1 for _ in file)

    def _write(self, place: ChainPlace, entry: AuditEntry, before: bytes = b"") -> ChainPlace:
        fields = {name: getattr(entry, name) for name in AuditEntry.__struct_fields__}
        line = AuditLine(
            n=place.n + 1,
            at=round(self._now(), 6),
            prev=place.hash,
            journal=self._commits(),
            **fields,
        )
        body = _encode(line)
        digest = sha256(body).hexdigest()
        _write_all(self._file, before + body[:-1] + f',"hash":"{digest}"}}\n'.encode())
        os.fsync(self._file)
        written = ChainPlace(line.n, os.fstat(self._file).st_size, digest)
        # Not synced: an old head claims less than there is, never more.
        os.pwrite(self._head, _format_head(written), 0)
        mark.advance(self._path.parent, Mark(line.journal, line.n))
        return written


class _Chain:
    """Checks lines one after the other, from a position on."""

    def __init__(self, place: ChainPlace) -> None:
        self.place = place
        self.torn = 0
        self.unfinished = False  # there are bytes after the last valid line that are not a line
        self.why = ""  # not empty: the chain is broken
        self._end = place.end
        self._rest = sha256()  # of those bytes

    def take(self, raw: bytes) -> None:
        """Check one more line of the file."""
        self._end += len(raw)
        if self.why:
            return
        parsed = _parse(raw)
        if parsed is None:
            self._add_invalid(raw)
            return
        line, digest = parsed
        marked = line.result if line.kind == TORN else ""
        if line.prev != self.place.hash or line.n != self.place.n + 1:
            self.why = f"entry {line.n} does not follow entry {self.place.n}"
        elif self.unfinished and self._rest.hexdigest() != marked:
            self.why = "the line was changed, or does not belong there"
        else:
            self.torn += self.unfinished
            self.unfinished = False
            self.place = ChainPlace(line.n, self._end, digest)

    def _add_invalid(self, raw: bytes) -> None:
        # An incomplete line has no line break; the marker is written with one before it.
        if self.unfinished:
            self._rest.update(b"\n")
        else:
            self._rest = sha256()
            self.unfinished = True
        self._rest.update(raw.removesuffix(b"\n"))


def read(path: Path, run_id: str = "") -> Iterator[AuditLine]:
    """Yield all readable lines, oldest first; with `run_id`, only those of that run."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        for parsed in map(_parse, file):
            if parsed is not None and run_id in ("", parsed[0].run_id):
                yield parsed[0]


def last(path: Path) -> AuditLine | None:
    """Return the last readable line; None if there is none, or the file cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        size, back = file.seek(0, os.SEEK_END), _TAIL
        while True:
            file.seek(max(0, size - back))
            found = [parsed[0] for raw in file.readlines() if (parsed := _parse(raw)) is not None]
            if found or back >= size:
                return found[-1] if found else None
            back *= 4
    return None


def verify(path: Path) -> AuditVerdict:
    """Check the whole chain, to its end or to where it is broken."""
    head: ChainPlace | None = None
    with suppress(FileNotFoundError):
        head = _parse_head(_head_of(path).read_bytes())  # read first, because the file may grow
    try:
        with path.open("rb") as file:
            return _walk(file, head)
    except FileNotFoundError:
        return _walk((), head)


def _walk(lines: Iterable[bytes], head: ChainPlace | None) -> AuditVerdict:
    chain = _Chain(ChainPlace())
    good = number = 0  # lines of the file; with torn lines there are more lines than entries
    for number, raw in enumerate(lines, 1):
        chain.take(raw)
        if head is not None and chain.place.n == head.n and chain.place.hash != head.hash:
            chain.why = "the line is not the one that was written there"
        if chain.why:
            break
        if not chain.unfinished:
            good = number
    why, place = chain.why, chain.place
    if not why and head is None and number:
        why = "the head is missing or unreadable, so the end of the chain is unknown"
    if not why and head is not None and place.n < head.n:
        why = f"entry {place.n + 1} of {head.n} was changed, or the file was cut off before it"
    torn = chain.torn + chain.unfinished
    return AuditVerdict(place.n, place.hash, torn, good + 1 if why else 0, why)


def _parse(raw: bytes) -> tuple[AuditLine, str] | None:
    """Return the line and its hash, if it is a valid, unchanged line."""
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


def _format_head(place: ChainPlace) -> bytes:
    return f"{place.n:020d} {place.end:020d} {place.hash}\n".encode()  # of constant length


def _parse_head(data: bytes) -> ChainPlace | None:
    found = _HEAD.fullmatch(data)
    return None if found is None else ChainPlace(int(found[1]), int(found[2]), found[3].decode())


def _open(path: Path, flags: int = 0) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
