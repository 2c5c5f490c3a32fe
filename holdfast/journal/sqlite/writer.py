"""Write the SQLite file: one thread, one connection, one transaction per batch.

`synchronous` is FULL for a batch that must survive a power failure, NORMAL for any other: a FULL
commit flushes the whole WAL, and so everything before it. This connection is the only one that
writes or makes checkpoints, because SQLite before 3.51.3 can lose data otherwise.

A full disk fails the batch. Before that, a ballast file is deleted, so that accepted work can
still be finished. After an I/O error of the disk, the journal takes no more writes.
"""

import errno
import fcntl
import logging
import os
import queue
import sqlite3
import struct
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path

from holdfast.core.approval.approval import ApprovalRequested
from holdfast.core.events import TERMINAL, MessageDelta, ReasoningDelta, Record, ToolProgress
from holdfast.core.inbox import InputAdmitted
from holdfast.core.life.evidence import Mark, Outside
from holdfast.core.life.timeline import Begun, Reading
from holdfast.core.session.session import SessionOpened
from holdfast.core.types import Fact, RunId, kind_of
from holdfast.errors import JournalUnavailable
from holdfast.journal import audit, codec, mark
from holdfast.journal.batch import Batch, Row, call_of
from holdfast.journal.blobs import Blobs
from holdfast.journal.sqlite import approvals, boots, outbox, projections
from holdfast.journal.sqlite.migrate import migrate
from holdfast.journal.sqlite.projections import Listing, key_row, write

log = logging.getLogger(__name__)

BLOB_FROM = 64 * 1024  # a bigger fact is stored as a file
_CLAIM = 2**62  # the byte that the writing process locks; SQLite uses those around 2**30
_DELTAS = (MessageDelta, ReasoningDelta, ToolProgress)
LOCKED_S = 30.0  # how long to wait for another program's lock on the file
PRUNE_RUNS = 200  # per transaction, so that pruning never delays a commit for long

Job = Callable[[sqlite3.Connection], None]

_UPDATE_RUN = """
ON CONFLICT (run_id) DO UPDATE SET
    ended_seq = excluded.ended_seq, status = excluded.status, stopping = excluded.stopping,
    updated_at = excluded.updated_at, model = excluded.model, last_event = excluded.last_event
"""


class WritingConnection(sqlite3.Connection):
    """A connection that excludes all other writing processes while it is open.

    It locks one byte of the file, far from those that SQLite locks. When SQLite releases its last
    lock on a file, the process loses all its locks on that file. In WAL mode, a connection that
    has read once keeps a lock until it is closed, so the byte is locked after a first read.
    """

    _descriptor = -1

    def claim(self, path: Path) -> None:
        """Exclude other writing processes; raise if there is one."""
        self.execute("SELECT count(*) FROM sqlite_master").fetchone()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _CLAIM)
        except (BlockingIOError, PermissionError):
            raise JournalUnavailable(
                f"another Holdfast ({self._claimed_by()}) uses the journal {path}, although its "
                "lock file was removed; stop that process, then start again"
            ) from None

    def _claimed_by(self) -> str:
        if sys.platform != "linux":  # on other systems the structure has another order
            return "pid unknown"
        query = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _CLAIM, 1, 0)
        holder = fcntl.fcntl(self._descriptor, fcntl.F_GETLK, query)
        return f"pid {struct.unpack('hhqqi', holder)[4]}"

    def end(self) -> None:
        """Close it, then unlock the byte. The other order would release SQLite's locks too early."""
        self.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SqliteWriter:
    """The writer thread. It calls, on the loop, `done` after each batch and `broke` once."""

    def __init__(
        self,
        connection: WritingConnection,
        blobs: Blobs,
        ballast: "Ballast",
        loop: AbstractEventLoop,
        done: Callable[[Batch], None],
        broke: Callable[[], object],
    ) -> None:
        self._connection = connection
        self._blobs = blobs
        self._ballast = ballast
        self._loop = loop
        self._done = done
        self._broke = broke
        self._work: queue.SimpleQueue[Batch | Job | None] = queue.SimpleQueue()
        self._full = True  # as `connect` left it
        self.commits: int = connection.execute("SELECT commits FROM machine").fetchone()[0]
        self._asking = approvals.asking(connection)  # runs with requests, and perhaps ended ones
        self.broken = ""  # not empty: the file can no longer be trusted
        self.short = False  # of space: the ballast was deleted
        self._thread = threading.Thread(target=self._write, name="journal")
        self._thread.daemon = True  # a stuck disk must not block the exit
        self._thread.start()

    def count_start(self, home: Path) -> None:
        """Count the start as a synced commit, before any other, so that no older copy is as far."""

        def count(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE machine SET commits = commits + 1")
            self.commits += 1
            mark.advance(home, Mark(self.commits))

        self._work.put(count)

    def put(self, work: Batch | Job) -> None:
        """Queue a batch to commit, or a job to do."""
        self._work.put(work)

    def finish(self) -> None:
        """Do all queued work, close the file and return. Blocks."""
        self._work.put(None)
        self._thread.join()

    def _write(self) -> None:
        self._ballast.fill()
        while (work := self._work.get()) is not None:
            was_broken = self.broken
            self._do(work)
            try:
                if self.broken != was_broken:
                    self._loop.call_soon_threadsafe(self._broke)
                if isinstance(work, Batch):
                    self._loop.call_soon_threadsafe(self._done, work)
            except RuntimeError:  # the loop is closed
                break
        self._connection.end()

    def _do(self, work: Batch | Job) -> None:
        """Do the work, or record why it failed; any exception would silently end this thread."""
        reason = self.broken
        try:
            if not isinstance(work, Batch):
                work(self._connection)
            elif not reason:
                self._commit(work)
        except Exception as error:  # noqa: BLE001  see above
            reason = f"the journal cannot be written: {error}"
            if not isinstance(error, OSError) and not _is_full(error) and not is_locked(error):
                self.broken = self.broken or reason
        if reason and isinstance(work, Batch):
            work.error = JournalUnavailable(reason, retry_after_s=5)

    def _commit(self, batch: Batch) -> None:
        try:
            self._transact(batch)
        except (sqlite3.OperationalError, OSError) as error:
            if not _is_full(error) or not self._ballast.release():
                raise
            self.short = True
            self._transact(batch)

    def _transact(self, batch: Batch) -> None:
        execute = self._connection.execute
        if batch.full is not self._full:
            execute("PRAGMA synchronous = FULL" if batch.full else "PRAGMA synchronous = NORMAL")
            self._full = batch.full
        execute("BEGIN IMMEDIATE")
        try:
            over = self._insert(batch)
            if batch.full:
                execute("UPDATE machine SET commits = commits + 1")
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise
        self.commits += batch.full
        self._asking.difference_update(over)

    def _insert(self, batch: Batch) -> list[RunId]:
        """Write the batch; return the ended runs that had asked for an approval."""
        rows, connection = self._rows(batch), self._connection
        sessions = [
            rows.listed.pop(stream).row(fact, batch.keys[stream].owner, stream)
            for fact, stream in rows.opened
        ]
        write(connection, "INSERT INTO sessions", sessions)
        projections.apply(connection, rows.listed)
        write(connection, "INSERT INTO events", rows.events)
        write(connection, "INSERT INTO deltas", rows.deltas)
        write(connection, "INSERT OR REPLACE INTO request_keys", rows.named)
        write(connection, "INSERT INTO runs", list(batch.runs.values()), _UPDATE_RUN)
        write(connection, "INSERT OR REPLACE INTO checkpoints", list(batch.checkpoints.values()))
        for record in rows.chatted:
            outbox.apply(connection, outbox.changes(record, batch.keys[record.stream].owner))
        for record in rows.asked:
            owner = batch.keys[record.stream].owner
            approvals.apply(connection, approvals.changes(record, owner))
        return [r.fact.run_id for r in rows.asked if isinstance(r.fact, TERMINAL)]

    def _kept(self, data: bytes) -> tuple[bytes, str | None]:
        """Return the data for the row of a fact, and the name of its blob, if it is big.

        If no file can be created (for example, no inodes are left), the row gets all the data:
        one big fact must not fail the other facts of its batch.
        """
        if len(data) <= BLOB_FROM:
            return data, None
        try:
            return b"", self._blobs.put(data)
        except OSError as error:
            log.warning("a big fact is stored in the journal itself", extra={"reason": str(error)})
            return data, None

    def _rows(self, batch: Batch) -> "_Rows":
        rows = _Rows()
        for record, data in zip(batch.records, batch.data, strict=True):
            stream, seq, at, fact = record
            key = batch.keys[stream]
            owner, name = key.owner, kind_of(type(fact))
            if isinstance(fact, _DELTAS):
                source = (fact.turn, fact.text, call_of(fact))
                rows.deltas.append((stream, seq, owner, fact.run_id, at, name, *source))
                continue
            run_id: RunId | None = getattr(fact, "run_id", None)
            row, blob = self._kept(data)
            rows.events.append((stream, seq, owner, run_id, at, name, codec.VERSION, row, blob))
            if type(fact) in projections.CHANGING:
                if (shown := rows.listed.get(stream)) is None:
                    shown = rows.listed[stream] = Listing()
                shown.add(fact, at)
            if type(fact) is SessionOpened:
                rows.opened.append((fact, stream))
            elif type(fact) is InputAdmitted and (asked := fact.idempotency) is not None:
                rows.named.append(key_row(asked, owner, fact.run_id, at))
            if type(fact) in outbox.CHANGING and getattr(fact, "came", fact) is not None:
                rows.chatted.append(record)
            if type(fact) in approvals.CHANGING and self._has_asked(fact, run_id):
                rows.asked.append(record)
        return rows

    def _has_asked(self, fact: Fact, run_id: RunId | None) -> bool:
        """Tell if a run has asked for an approval. Few have, and the others need no statement."""
        if type(fact) is ApprovalRequested:
            self._asking.add(fact.run_id)
        return run_id in self._asking


class _Rows:
    """The rows of a batch, and the records that change rows."""

    __slots__ = ("asked", "chatted", "deltas", "events", "listed", "named", "opened")

    def __init__(self) -> None:
        self.events: list[Row] = []
        self.deltas: list[Row] = []
        self.named: list[Row] = []
        self.opened: list[tuple[SessionOpened, int]] = []
        self.listed: dict[int, Listing] = {}
        self.chatted: list[Record] = []
        self.asked: list[Record] = []


class Ballast:
    """Reserved disk space, to be released when the disk is full."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def fill(self) -> None:
        """Reserve the space, unless little is left or it is not possible."""
        try:
            if self._size == 0 or disk_free(self._path.parent) < 4 * self._size:
                return
            with self._path.open("ab") as file:
                if file.tell() < self._size:
                    try:
                        os.posix_fallocate(file.fileno(), 0, self._size)
                    except OSError:  # this file system cannot: then there is no reserve
                        file.truncate(0)
        except OSError as error:
            log.warning("no space is reserved for a full disk", extra={"reason": str(error)})

    def release(self) -> bool:
        """Release the space; tell if there was any."""
        try:
            had_space = self._path.stat().st_size > 0
            self._path.unlink()
        except OSError:  # there is no ballast file
            return False
        return had_space


def disk_free(directory: Path) -> int:
    """Return the bytes that an ordinary user can still write below `directory`."""
    figures = os.statvfs(directory)
    return figures.f_bavail * figures.f_frsize


def _is_full(error: Exception) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_locked(error: Exception) -> bool:
    """Tell if another program had the file locked during the whole wait."""
    if not isinstance(error, sqlite3.OperationalError):
        return False
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def connect(path: Path, now: Reading, ledger: Path | None) -> tuple[WritingConnection, Begun]:
    """Open the writing connection, update the schema and continue journal time. Blocks.

    `ledger` is the audit to compare the journal with.
    """
    connection = sqlite3.connect(
        path,
        timeout=LOCKED_S,
        isolation_level=None,
        check_same_thread=False,
        factory=WritingConnection,
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.claim(path)
        connection.execute("PRAGMA journal_size_limit = 16777216")
        connection.execute("PRAGMA temp_store = MEMORY")  # else big batches spill to /var/tmp
        connection.execute("PRAGMA synchronous = FULL")
        blobs = Blobs(path.parent)
        migrate(connection, blobs)
        projections.fill(connection, blobs)
        begun = boots.begin(connection, now)
        if ledger is not None:
            found = audit.last(ledger)
            commits, audited = (found.journal, found.n) if found else (0, 0)
            found_mark = mark.read(path.parent)
            outside = Outside(commits, boots.file_number(path), audited, found_mark)
            boots.identify(connection, outside, begun.anchor.time(now.boot_s))
            commits = connection.execute("SELECT commits FROM machine").fetchone()[0]
            mark.replace(path.parent, Mark(commits, audited))
        return connection, begun
    except BaseException:
        connection.end()
        raise


def prune(connection: sqlite3.Connection, deltas_before: float, keys_before: float) -> int:
    """Delete some of the old data; return the number of pruned runs."""
    connection.execute("BEGIN IMMEDIATE")
    deltas_before = boots.measured_before(connection, deltas_before)
    keys_before = boots.measured_before(connection, keys_before)
    ended = connection.execute(
        "SELECT run_id, stream, first_seq, ended_seq FROM runs "
        "WHERE ended_seq IS NOT NULL AND pruned = 0 AND updated_at < ? LIMIT ?",
        (deltas_before, PRUNE_RUNS),
    ).fetchall()
    connection.executemany(
        "DELETE FROM deltas WHERE run_id = ? AND stream = ? AND seq BETWEEN ? AND ?", ended
    )
    connection.executemany(
        "UPDATE runs SET pruned = 1 WHERE run_id = ?", [(row[0],) for row in ended]
    )
    connection.execute("DELETE FROM request_keys WHERE at < ?", (keys_before,))
    outbox.prune(connection, keys_before)
    connection.execute("COMMIT")
    return len(ended)
