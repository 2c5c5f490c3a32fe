"""The SQLite store: the conformance suite, and what only a file can go wrong with."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from holdfast.core.events import MessageDelta, Record
from holdfast.core.run import run as machine
from holdfast.core.run.run import RunResumed, RunStarted
from holdfast.core.types import OPERATOR, SessionId, SessionKey
from holdfast.errors import JournalUnavailable, Misconfigured
from holdfast.journal.batch import Batch
from holdfast.journal.blobs import Blobs
from holdfast.journal.journal import Journal
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.writer import Ballast, SqliteWriter, connect
from tests.fakes.clock import FIRST_BOOT
from tests.journal.conformance import (
    KEY,
    RUN,
    JournalSuite,
    accept,
    admitted,
    beginning,
    everything,
    opened,
    queued,
)
from tests.journal.conformance_approvals import ApprovalSuite
from tests.journal.conformance_chats import ChatSuite, message
from tests.journal.conformance_sessions import SessionSuite

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened_journal(
    directory: Path,
    *,
    boot_id: str = "boot",
    low_water: int = 0,
    ballast: int = 0,
    max_pages: int = 0,
) -> AsyncIterator[SqliteJournal]:
    journal = await SqliteJournal.open(
        directory / "journal.db",
        Blobs(directory),
        now=replace(FIRST_BOOT, boot_id=boot_id),
        low_water=low_water,
        ballast=ballast,
        max_pages=max_pages,
    )
    try:
        yield journal
    finally:
        await journal.aclose()


@asynccontextmanager
async def full_journal(directory: Path) -> AsyncIterator[SqliteJournal]:
    """A file that may not grow: SQLite calls that a full disk."""
    async with opened_journal(directory):
        pass
    path = directory / "journal.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE filler (text TEXT)")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    async with opened_journal(directory, max_pages=pages) as journal:
        yield journal


class _Sqlite:
    def make(self, directory: Path) -> AbstractAsyncContextManager[Journal]:
        return opened_journal(directory)

    def make_full(self, directory: Path) -> AbstractAsyncContextManager[Journal]:
        return full_journal(directory)


class TestSqlite(_Sqlite, JournalSuite):
    pass


class TestSqliteApprovals(_Sqlite, ApprovalSuite):
    pass


class TestSqliteChats(_Sqlite, ChatSuite):
    pass


class TestSqliteSessions(_Sqlite, SessionSuite):
    pass


async def test_after_a_power_cut_open_streams_skip_numbers_that_may_have_been_seen(
    tmp_path: Path,
) -> None:
    async with opened_journal(tmp_path, boot_id="one") as journal:
        row = await accept(journal)
    async with opened_journal(tmp_path, boot_id="two") as journal:
        found = await journal.stream_of(KEY)
        assert found is not None and found.head == 10_003
    async with opened_journal(tmp_path, boot_id="two") as journal:  # and it is not forgotten
        found = await journal.stream_of(KEY)
        assert found is not None and found.head == 10_003
        pending = journal.append(row.stream, 10_003, 2.0, [RunStarted(run_id=RUN)], [])
        await pending.wait()
        assert [r.seq for r in await everything(journal, row.stream)] == [2, 3, 10_004]


async def test_a_big_fact_is_a_file_and_not_a_row(tmp_path: Path) -> None:
    async with opened_journal(tmp_path) as journal:
        row = journal.open_stream(KEY)
        facts = (opened(), admitted(text="x" * 100_000), queued())
        await journal.append(row.stream, 0, 1.0, facts, [machine.queue(queued(), 1.0)]).wait()
    assert len(list((tmp_path / "blobs").iterdir())) == 1
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        biggest = connection.execute("SELECT max(length(data)) FROM events").fetchone()[0]
    assert biggest < 1_000


async def test_every_row_names_its_owner(tmp_path: Path) -> None:
    async with opened_journal(tmp_path) as journal:
        row = await accept(journal)
        journal.delta(row.stream, 1.0, MessageDelta(run_id=RUN, turn=1, text="x"))
        started = (RunStarted(run_id=RUN), message("d"))
        await journal.append(row.stream, 4, 1.0, started, []).wait()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        for table in ("sessions", "events", "deltas", "runs", "outbox"):
            owners = connection.execute(f"SELECT DISTINCT owner FROM {table}").fetchall()
            assert owners == [("me",)]


async def test_the_ballast_is_given_up_so_that_what_was_accepted_can_be_finished(
    tmp_path: Path,
) -> None:
    async with opened_journal(tmp_path, ballast=100_000):
        pass
    assert (tmp_path / "ballast").stat().st_size == 100_000


async def test_a_nearly_full_disk_is_reported_with_its_free_space(tmp_path: Path) -> None:
    async with opened_journal(tmp_path, low_water=2**60) as journal:
        assert "nearly full" in journal.state()
    async with opened_journal(tmp_path) as journal:
        assert journal.state() == "ok"


async def test_a_file_that_is_not_a_journal_is_reported(tmp_path: Path) -> None:
    async with opened_journal(tmp_path) as journal:
        with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
            connection.execute("DROP TABLE runs")
        facts, run = beginning()
        pending = journal.append(journal.open_stream(KEY).stream, 0, 1.0, facts, [run])
        with pytest.raises(JournalUnavailable):
            await pending.wait()
        assert "no such table" in await journal.broken()
        assert "no such table" in journal.state()
        with pytest.raises(JournalUnavailable):
            journal.append(1, 0, 1.0, facts, [run])
        with anyio.fail_after(10):
            assert await journal.prune(deltas_before=1e12, keys_before=1e12) == 0


@pytest.mark.parametrize("nonsense", ["\udce9", object()])
async def test_a_fact_that_cannot_be_encoded_fails_only_its_own_append(
    tmp_path: Path, nonsense: Any
) -> None:
    async with opened_journal(tmp_path) as journal:
        row = await accept(journal)
        facts = (RunStarted(run_id=RUN), RunResumed(run_id=RUN, cause=nonsense))
        journal.delta(row.stream, 2.0, MessageDelta(run_id=RUN, turn=1, text="a"))
        with pytest.raises((UnicodeEncodeError, TypeError)):
            journal.append(row.stream, 4, 2.0, facts, [])
        journal.delta(row.stream, 2.0, MessageDelta(run_id=RUN, turn=1, text="b"))
        await journal.append(row.stream, 4, 2.0, [RunStarted(run_id=RUN)], []).wait()
        assert journal.state() == "ok"
        records = await everything(journal, row.stream)
        assert [r.seq for r in records] == [2, 3, 4, 5]
        assert records[2].fact == MessageDelta(run_id=RUN, turn=1, text="ab")


async def test_lone_surrogates_in_streamed_text_are_replaced(tmp_path: Path) -> None:
    heard: list[Record] = []
    async with opened_journal(tmp_path) as journal:
        row = await accept(journal)
        journal.on_commit(heard.extend)
        journal.delta(row.stream, 1.0, MessageDelta(run_id=RUN, turn=1, text="caf\udce9 ü"))
        await journal.append(row.stream, 4, 1.0, [RunStarted(run_id=RUN)], []).wait()
        mended = MessageDelta(run_id=RUN, turn=1, text="caf\N{REPLACEMENT CHARACTER} ü")
        assert heard[0].fact == mended
        assert (await everything(journal, row.stream))[2].fact == mended


async def test_the_journal_works_without_a_ballast_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "ballast").mkdir()
    with anyio.fail_after(10):
        async with opened_journal(tmp_path, ballast=100_000) as journal:
            await accept(journal)
            assert journal.state() == "ok"


async def test_any_error_in_the_writer_is_reported_and_wakes_all_waiting_tasks(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    async with opened_journal(tmp_path):
        pass
    finished: list[Batch] = []
    broke, done = anyio.Event(), anyio.Event()

    def note(batch: Batch) -> None:
        finished.append(batch)
        done.set()

    def job(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")  # there is nothing to roll back: it fails

    loop = asyncio.get_running_loop()
    ballast = Ballast(tmp_path / "ballast", 0)
    connection, _ = connect(path, FIRST_BOOT, None)
    writer = SqliteWriter(connection, Blobs(tmp_path), ballast, loop, note, broke.set)
    writer.put(job)
    with anyio.fail_after(10):
        await broke.wait()
        assert "no transaction" in writer.broken
        batch = Batch(loop)
        writer.put(batch)
        await done.wait()
    assert finished == [batch]
    assert isinstance(batch.error, JournalUnavailable)
    writer.finish()


async def test_a_failing_listener_leaves_no_task_waiting(tmp_path: Path) -> None:
    heard: list[Record] = []

    def stumble(records: Sequence[Record]) -> None:
        raise LookupError("a bug of the listener's")

    async with opened_journal(tmp_path) as journal:
        journal.on_commit(stumble)
        journal.on_commit(heard.extend)
        with anyio.fail_after(10):
            row = await accept(journal)
            await journal.append(row.stream, 3, 2.0, [RunStarted(run_id=RUN)], []).wait()
        assert [r.seq for r in heard] == [1, 2, 3, 4]


async def test_a_journal_of_a_newer_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with opened_journal(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        connection.execute("PRAGMA user_version = 9999")
    with pytest.raises(Misconfigured, match="newer Holdfast") as refused:
        async with opened_journal(tmp_path):
            pass
    assert "HOLDFAST_HOME" in refused.value.hint


async def test_the_file_is_private_with_a_private_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        async with opened_journal(tmp_path) as journal:
            await accept(journal)
    finally:
        os.umask(before)
    assert (tmp_path / "journal.db").stat().st_mode & 0o077 == 0


async def commit_big_batches(directory: Path) -> None:
    """Commit two batches; the second one changes many pages of the first."""
    async with opened_journal(directory) as journal:
        for batch in range(2):
            names = (sha256(f"{batch} {n}".encode()).hexdigest() for n in range(1_500))
            rows = [journal.open_stream(SessionKey(OPERATOR, SessionId(name))) for name in names]
            waiting = [journal.append(r.stream, 0, 1.0, (opened(r.key),), ()) for r in rows]
            await waiting[-1].wait()


def test_a_big_batch_makes_no_temporary_file(tmp_path: Path) -> None:
    """SQLite would make one in /var/tmp, which may be full when the disk of the home is not."""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    for directory in (home, temporary):
        directory.mkdir()
    before = temporary.stat().st_mtime_ns
    name = f"{__name__}.{commit_big_batches.__name__}"
    code = f"import sys, anyio, pathlib, {__name__}; anyio.run({name}, pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "SQLITE_TMPDIR": str(temporary)}  # read once for each process
    subprocess.run([sys.executable, "-c", code, str(home)], env=environment, check=True)
    assert temporary.stat().st_mtime_ns == before
