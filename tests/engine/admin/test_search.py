"""Finding sessions: the index keeps up with the journal, whatever becomes of its file."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from typing_extensions import override

from holdfast.core.approval.approval import Role
from holdfast.core.events import Record
from holdfast.core.inbox import InputAdmitted
from holdfast.core.intents import DoorCapabilities, Principal
from holdfast.core.run.run import ModelAnswered
from holdfast.core.session.session import SessionOpened, SessionTitled
from holdfast.core.types import OPERATOR, Fact, InputId, Owner, RunId, SessionId, SessionKey
from holdfast.engine.admin.search import BATCH, SessionSearch
from holdfast.errors import JournalUnavailable, Refused
from holdfast.journal.journal import LAST, Journal
from holdfast.journal.search import FILE, Index
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import Disk
from tests.fakes.memory_journal import MemoryJournal
from tests.journal.sqlite.test_sqlite import opened_journal

pytestmark = pytest.mark.anyio

_DOOR = DoorCapabilities(platform="cli", answerable=True, late=True)
ME = Principal(OPERATOR, _DOOR, frozenset(Role))
RUN = RunId("run_1")


def said(text: str) -> InputAdmitted:
    return InputAdmitted(input_id=InputId(f"in {text}"), run_id=RUN, text=text)


class Talk:
    """Sessions in a journal, each fact a second after the last."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.now = 1_700_000_000.0

    async def say(self, name: str, *facts: Fact, owner: Owner = OPERATOR) -> None:
        key = SessionKey(owner, SessionId(name))
        self.now += 1
        row = await self.journal.stream_of(key)
        if row is None:
            row = self.journal.open_stream(key)
            facts = (SessionOpened(session_id=name, workspace="/w", platform="cli"), *facts)
        await self.journal.append(row.stream, row.head, self.now, facts, []).wait()


class Home:
    """A journal, a finder over it, and the file between them."""

    def __init__(self, directory: Path, journal: Journal) -> None:
        self.file = directory / FILE
        self.talk = Talk(journal)
        self.finder = SessionSearch(journal, Index(self.file), ManualClock())

    async def find(self, words: str) -> list[str]:
        found = await self.finder.search(ME, words, 20)
        assert found.complete
        return [hit.session_id for hit in found.hits]


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with opened_journal(tmp_path) as journal:
        yield Home(tmp_path, journal)


async def test_new_messages_are_found_by_the_next_search(home: Home) -> None:
    assert await home.find("walrus") == []
    await home.talk.say("s", said("about the walrus"))
    assert await home.find("walrus") == ["s"]
    await home.talk.say("s", ModelAnswered(run_id=RUN, turn=1, text="It has tusks."), said("And?"))
    await home.talk.say("t", said("other tusks"), SessionTitled(title="Ivory", by=OPERATOR))
    assert sorted(await home.find("tusks")) == ["s", "t"]
    await home.talk.say("s", SessionTitled(title="Sea mammals", by=OPERATOR))
    assert await home.find("mammals") == ["s"]


async def test_an_index_that_is_gone_damaged_or_old_costs_nothing_but_time(home: Home) -> None:
    await home.talk.say("s", said("the heron waits"))
    assert await home.find("heron") == ["s"]
    home.file.unlink()
    assert await home.find("heron") == ["s"]
    home.file.write_bytes(b"this was an index once" * 1000)
    assert await home.find("heron") == ["s"]
    home.file.write_bytes(home.file.read_bytes()[:9000])
    assert await home.find("heron") == ["s"]
    await home.talk.say("t", said("another heron"))
    assert sorted(await home.find("heron")) == ["s", "t"]


async def test_only_the_operator_searches_and_only_in_sessions_of_their_own(home: Home) -> None:
    await home.talk.say("s", said("in confidence"), owner=Owner("telegram:7"))
    await home.talk.say("t", said("with confidence"))
    assert await home.find("confidence") == ["t"]
    guest = Principal(OPERATOR, _DOOR, frozenset(Role) - {Role.ADMIN})
    with pytest.raises(Refused, match="Only the operator"):
        await home.finder.search(guest, "confidence", 20)


async def test_several_at_once_all_find(home: Home) -> None:
    for n in range(3 * BATCH):
        await home.talk.say(f"s{n}", said(f"word{n}x and all"))
    found: dict[int, list[str]] = {}

    async def find(n: int) -> None:
        found[n] = await home.find(f"word{n}x")

    async with anyio.create_task_group() as tasks:
        for n in range(5):
            tasks.start_soon(find, n)
    assert found == {n: [f"s{n}"] for n in range(5)}


class Stuck(MemoryJournal):
    """A journal that does not get past some stream, for as long as there is one."""

    stream = 0

    @override
    async def facts(
        self,
        stream: int,
        kinds: Sequence[type[Fact]],
        runs: Sequence[RunId],
        after: int = 0,
        upto: int = LAST,
    ) -> list[Record]:
        if stream == self.stream:
            await anyio.sleep_forever()
        return await super().facts(stream, kinds, runs, after, upto)


async def test_an_incomplete_search_says_so_and_the_next_one_continues(
    tmp_path: Path,
) -> None:
    journal = Stuck(Disk())
    home = Home(tmp_path, journal)
    for n in range(BATCH + 3):
        await home.talk.say(f"s{n}", said("everywhere the same"))
    row = await journal.stream_of(SessionKey(OPERATOR, SessionId("s1")))
    assert row is not None
    journal.stream = row.stream  # among the oldest, so in the last batch
    hasty = SessionSearch(journal, Index(home.file), ManualClock(), catch_up_s=0.2)
    found = await hasty.search(ME, "everywhere", 100)
    assert not found.complete
    assert 1 <= len(found.hits) <= BATCH + 1
    journal.stream = 0
    found = await home.finder.search(ME, "everywhere", 100)
    assert found.complete
    assert len(found.hits) == BATCH + 3
    await journal.aclose()


class Busy(MemoryJournal):
    """A journal that lets others go first."""

    @override
    async def facts(
        self,
        stream: int,
        kinds: Sequence[type[Fact]],
        runs: Sequence[RunId],
        after: int = 0,
        upto: int = LAST,
    ) -> list[Record]:
        await anyio.lowlevel.checkpoint()
        return await super().facts(stream, kinds, runs, after, upto)


async def test_every_search_gets_further_however_little_time_there_is(tmp_path: Path) -> None:
    journal = Busy(Disk())
    home = Home(tmp_path, journal)
    for n in range(4):
        await home.talk.say(f"s{n}", said("everywhere the same"))
    hasty = SessionSearch(journal, Index(home.file), ManualClock(), catch_up_s=0.0)
    searches = [await hasty.search(ME, "everywhere", 100) for _ in range(4)]
    assert [len(found.hits) for found in searches] == [1, 2, 3, 4]
    assert [found.complete for found in searches] == [False, False, False, True]
    await journal.aclose()


async def test_an_index_that_cannot_be_stored_is_reported(tmp_path: Path) -> None:
    async with opened_journal(tmp_path) as journal:
        finder = SessionSearch(journal, Index(tmp_path / "nowhere" / FILE), ManualClock())
        with pytest.raises(JournalUnavailable, match="search index"):
            await finder.search(ME, "anything", 20)
