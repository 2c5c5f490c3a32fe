"""Writing the SQLite file: one thread, one connection, one transaction per batch.

`synchronous` is FULL for a batch that holds something one acts upon, NORMAL for any
other: a FULL commit flushes the whole WAL, and so everything before it. This connection
is the only one that writes or checkpoints: SQLite before 3.51.3 can lose data otherwise.

A disk that is full fails the batch. A ballast file is given up first, so that what was
accepted can still be finished. An error of the disk itself is not survivable here.
"""

import errno
import logging
import os
import queue
import sqlite3
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path

from holdfast.core.events import MessageDelta, ReasoningDelta, Record, ToolProgress
from holdfast.core.inbox import InputAdmitted
from holdfast.core.session import SessionOpened
from holdfast.core.types import RunId, kind
from holdfast.errors import JournalUnavailable
from holdfast.journal import chats, codec, listing
from holdfast.journal.batch import Batch, call_of
from holdfast.journal.blobs import Blobs
from holdfast.journal.listing import Listing
from holdfast.journal.migrate import migrate
from holdfast.journal.projections import Row, key_row, session_row

log = logging.getLogger(__name__)

BLOB_FROM = 64 * 1024  # a fact bigger than this is a file
SKIP_AFTER_POWER_CUT = 10_000
_DELTAS = (MessageDelta, ReasoningDelta, ToolProgress)
PRUNE_RUNS = 200  # per transaction, so that pruning never holds up a commit for long

Job = Callable[[sqlite3.Connection], None]

_UPDATE_RUN = """
ON CONFLICT (run_id) DO UPDATE SET
    ended_seq = excluded.ended_seq, status = excluded.status, stopping = excluded.stopping,
    updated_at = excluded.updated_at, model = excluded.model, last_event = excluded.last_event
"""
_CHUNKS = (256, 64, 16, 4, 1)  # rows per statement: few statements, and few kinds of them


class SqliteWriter:
    """The writer thread. It tells the loop: `done` after each batch, in order, and `broke` once."""

    def __init__(
        self,
        connection: sqlite3.Connection,
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
        self.broken = ""  # not empty: the file cannot be trusted any more
        self.short = False  # of space: the ballast has been given up
        self._thread = threading.Thread(target=self._write, name="journal")
        self._thread.daemon = True  # a stuck disk must not hold the exit
        self._thread.start()

    def put(self, work: Batch | Job) -> None:
        """Have it committed, or done, after what was put before."""
        self._work.put(work)

    def finish(self) -> None:
        """Do what was put, close the file and return. Blocks."""
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
            except RuntimeError:  # the loop is gone, and with it whoever could be told
                break
        self._connection.close()

    def _do(self, work: Batch | Job) -> None:
        """Do it or note why not, whatever is raised: nobody would notice the end of this thread."""
        reason = self.broken
        try:
            if not isinstance(work, Batch):
                work(self._connection)
            elif not reason:
                self._commit(work)
        except Exception as error:  # noqa: BLE001  see above
            reason = f"the journal cannot be written: {error}"
            if not isinstance(error, OSError) and not _is_full(error):
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
            self._insert(batch)
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise

    def _insert(self, batch: Batch) -> None:
        events: list[Row] = []
        deltas: list[Row] = []
        opened: list[tuple[SessionOpened, int]] = []
        listed: dict[int, Listing] = {}
        named: list[Row] = []
        chatted: list[Record] = []
        for record, data in zip(batch.records, batch.data, strict=True):
            stream, seq, at, fact = record
            key = batch.keys[stream]
            owner, name = key.owner, kind(fact)
            if isinstance(fact, _DELTAS):
                whose = (fact.turn, fact.text, call_of(fact))
                deltas.append((stream, seq, owner, fact.run_id, at, name, *whose))
                continue
            run_id: RunId | None = getattr(fact, "run_id", None)
            row, blob = data, None
            if len(data) > BLOB_FROM:
                row, blob = b"", self._blobs.put(data)
            events.append((stream, seq, owner, run_id, at, name, codec.VERSION, row, blob))
            if type(fact) in listing.CHANGING:
                if (shown := listed.get(stream)) is None:
                    shown = listed[stream] = Listing()
                shown.add(fact, at)
            if type(fact) is SessionOpened:
                opened.append((fact, stream))
            elif type(fact) is InputAdmitted and (asked := fact.idempotency) is not None:
                named.append(key_row(asked, owner, fact.run_id, at))
            if type(fact) in chats.CHANGING:
                chatted.append(record)
        sessions = [
            session_row(fact, batch.keys[stream].owner, stream, listed.pop(stream))
            for fact, stream in opened
        ]
        self._insert_rows("INSERT INTO sessions", sessions)
        listing.apply(self._connection, listed)
        self._insert_rows("INSERT INTO events", events)
        self._insert_rows("INSERT INTO deltas", deltas)
        self._insert_rows("INSERT OR REPLACE INTO request_keys", named)
        self._insert_rows("INSERT INTO runs", list(batch.runs.values()), _UPDATE_RUN)
        for record in chatted:
            chats.apply(self._connection, chats.changes(record, batch.keys[record.stream].owner))

    def _insert_rows(self, verb: str, rows: list[Row], suffix: str = "") -> None:
        """Many rows a statement: each statement makes the loop and this thread trade the GIL."""
        done = 0
        while left := len(rows) - done:
            size = next(c for c in _CHUNKS if c <= left)
            sql = _statement(verb, len(rows[0]), size, suffix)
            self._connection.execute(sql, list(chain.from_iterable(rows[done : done + size])))
            done += size


@cache
def _statement(verb: str, columns: int, rows: int, suffix: str) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"{verb} VALUES {', '.join([row] * rows)} {suffix}"


class Ballast:
    """Space kept back, to be given up when the disk is full."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def fill(self) -> None:
        """Keep the space back, unless there is little left anyway, or it cannot be done."""
        try:
            if self._size == 0 or disk_free(self._path.parent) < 4 * self._size:
                return
            with self._path.open("ab") as file:
                if file.tell() < self._size:
                    try:
                        os.posix_fallocate(file.fileno(), 0, self._size)
                    except OSError:  # not this file system: then there is none to give up
                        file.truncate(0)
        except OSError as error:
            log.warning("no space is kept back for a full disk", extra={"reason": str(error)})

    def release(self) -> bool:
        """Give the space up; whether there was any."""
        try:
            held = self._path.stat().st_size > 0
            self._path.unlink()
        except OSError:  # there is none, or what is there is none
            return False
        return held


def disk_free(directory: Path) -> int:
    """Bytes an ordinary user may still write below `directory`."""
    figures = os.statvfs(directory)
    return figures.f_bavail * figures.f_frsize


def _is_full(error: Exception) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def connect(path: Path, boot_id: str) -> sqlite3.Connection:
    """The writing connection, with the schema up to date. Blocks."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA journal_size_limit = 16777216")
    connection.execute("PRAGMA synchronous = FULL")
    migrate(connection, "sqlite")
    listing.fill(connection, Blobs(path.parent))
    _note_boot(connection, boot_id)
    return connection


def _note_boot(connection: sqlite3.Connection, boot_id: str) -> None:
    """After a power cut, numbers that readers may have seen are not used again."""
    known = connection.execute("SELECT boot_id FROM machine").fetchone()
    if known is not None and known[0] == boot_id:
        return
    connection.execute("BEGIN IMMEDIATE")
    if known is not None:
        connection.execute(
            "UPDATE sessions SET floor = ? + max(floor, "
            "coalesce((SELECT max(seq) FROM events e WHERE e.stream = sessions.stream), 0), "
            "coalesce((SELECT max(seq) FROM deltas d WHERE d.stream = sessions.stream), 0)) "
            "WHERE stream IN (SELECT stream FROM runs WHERE ended_seq IS NULL)",
            (SKIP_AFTER_POWER_CUT,),
        )
    connection.execute("DELETE FROM machine")
    connection.execute("INSERT INTO machine VALUES (?)", (boot_id,))
    connection.execute("COMMIT")


def prune(connection: sqlite3.Connection, deltas_before: float, keys_before: float) -> int:
    """Forget some of what is old enough; of how many runs."""
    connection.execute("BEGIN IMMEDIATE")
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
    chats.prune(connection, keys_before)
    connection.execute("COMMIT")
    return len(ended)
