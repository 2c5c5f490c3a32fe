"""The journal of simulations: the conformance suite, and what a cut leaves on its disk."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core.events import Record
from holdfast.core.run import run as machine
from holdfast.core.run.run import RunResumed, RunStarted
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Journal
from tests.fakes.memory_disk import Disk
from tests.fakes.memory_journal import MemoryJournal
from tests.journal.conformance import (
    KEY,
    RUN,
    JournalSuite,
    accept,
    beginning,
    everything,
    queued,
)
from tests.journal.conformance_approvals import ApprovalSuite
from tests.journal.conformance_chats import ChatSuite
from tests.journal.conformance_sessions import SessionSuite

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened_journal(disk: Disk) -> AsyncIterator[MemoryJournal]:
    journal = MemoryJournal(disk)
    try:
        yield journal
    finally:
        with anyio.CancelScope(shield=True):
            await journal.aclose()


class _Memory:
    @pytest.fixture(autouse=True)
    def disks(self) -> None:
        self._disks: dict[Path, Disk] = {}

    def make(self, directory: Path) -> AbstractAsyncContextManager[Journal]:
        return opened_journal(self._disks.setdefault(directory, Disk()))

    def make_full(self, directory: Path) -> AbstractAsyncContextManager[Journal]:
        disk = self._disks[directory] = Disk()
        disk.full = True
        return opened_journal(disk)


class TestMemory(_Memory, JournalSuite):
    pass


class TestMemoryApprovals(_Memory, ApprovalSuite):
    pass


class TestMemoryChats(_Memory, ChatSuite):
    pass


class TestMemorySessions(_Memory, SessionSuite):
    pass


async def test_a_cut_leaves_what_was_written_and_nothing_else() -> None:
    disk = Disk()
    journal = MemoryJournal(disk)
    row = await accept(journal)
    heard: list[Record] = []
    journal.on_commit(heard.extend)
    pending = journal.append(row.stream, 3, 2.0, [RunStarted(run_id=RUN)], [])
    journal.cut()
    with pytest.raises(JournalUnavailable):
        await pending.wait()
    with pytest.raises(JournalUnavailable):
        journal.append(row.stream, 4, 2.0, [RunStarted(run_id=RUN)], [])
    async with opened_journal(disk) as after:
        assert len(await everything(after, row.stream)) == 2
        assert [r.run_id for r in await after.unfinished()] == [RUN]
        found = await after.stream_of(KEY)
        assert found is not None and found.head == 3
    assert heard == []


async def test_a_cut_after_the_write_leaves_facts_that_were_not_acknowledged() -> None:
    disk = Disk()
    journal = MemoryJournal(disk)
    heard: list[Record] = []
    journal.on_commit(heard.extend)
    disk.on_write = lambda _: journal.cut()
    facts, run = beginning()
    pending = journal.append(journal.open_stream(KEY).stream, 0, 1.0, facts, [run])
    with pytest.raises(JournalUnavailable):
        await pending.wait()
    assert heard == []
    async with opened_journal(disk) as after:
        assert await after.run(RUN) is not None


async def test_after_a_full_disk_it_goes_on() -> None:
    disk = Disk()
    async with opened_journal(disk) as journal:
        row = await accept(journal)
        disk.full = True
        lost = journal.append(row.stream, 3, 2.0, [RunStarted(run_id=RUN)], [])
        with pytest.raises(JournalUnavailable):
            await lost.wait()
        assert journal.state() != "ok"
        disk.full = False
        found = await journal.stream_of(KEY)
        assert found is not None and found.head == 3
        run = machine.evolve(machine.queue(queued(), 1.0), RunStarted(run_id=RUN), 3.0)
        await journal.append(row.stream, 3, 3.0, [RunStarted(run_id=RUN)], [run]).wait()
        assert [r.seq for r in await everything(journal, row.stream)] == [2, 3, 4]


@pytest.mark.parametrize("nonsense", ["\udce9", object()])
async def test_a_fact_that_has_no_written_form_is_the_error_of_who_says_it(nonsense: Any) -> None:
    async with opened_journal(Disk()) as journal:
        row = await accept(journal)
        with pytest.raises((UnicodeEncodeError, TypeError)):
            journal.append(row.stream, 3, 2.0, [RunResumed(run_id=RUN, cause=nonsense)], [])
        await journal.append(row.stream, 3, 2.0, [RunStarted(run_id=RUN)], []).wait()
