"""A compacted session is loaded from its last compaction on, and nothing is lost to people."""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from typing_extensions import override

from holdfast.core.events import Record
from holdfast.core.intents import Submit
from holdfast.core.messages import Message, ToolResult, User
from holdfast.core.run.context import HistoryCompacted
from holdfast.core.run.run import RunCompleted
from holdfast.core.session.compaction import INSTRUCTION, Filling, estimate_all, tokens
from holdfast.core.session.session import Session, SessionTitled, Undone
from holdfast.core.types import Fact, Owner, RunId, SessionId, SessionKey, Usage
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.journal.blobs import Blobs
from holdfast.journal.journal import LAST
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.models.model import Answer, Piece, Request
from holdfast.tools import recall
from tests.engine.test_sessions import KEY, LIFE
from tests.engine.workshop import ME, Played, call, finished, journaled, parts, running, submit
from tests.fakes.clock import FIRST_BOOT, ManualClock

pytestmark = pytest.mark.anyio

WINDOW = 3_000


class CountingJournal(SqliteJournal):
    """A journal that counts the facts that are read of it."""

    facts_read = 0

    @override
    async def facts(
        self,
        stream: int,
        kinds: Sequence[type[Fact]],
        runs: Sequence[RunId],
        after: int = 0,
        upto: int = LAST,
    ) -> list[Record]:
        found = await super().facts(stream, kinds, runs, after, upto)
        self.facts_read += len(found)
        return found


async def counting(home: Path) -> CountingJournal:
    opened = await CountingJournal.open(home / "journal.db", Blobs(home), now=FIRST_BOOT)
    assert isinstance(opened, CountingJournal)
    return opened


def answer(request: Request) -> Iterable[Piece]:
    """Notes when notes are wanted; a long word otherwise."""
    used = estimate_all(request.messages) + tokens(request.system)
    if request.system.startswith(INSTRUCTION[:40]):
        return (Answer("notes", usage=Usage(used, 5)),)
    return (Answer("word " * 60, usage=Usage(used, 5)),)


async def talk(home: Path, turns: int) -> None:
    """A session `s` of so many turns, with many compactions."""
    async with journaled(home) as journal:
        async with running(parts(home, journal, Played(answer), window=WINDOW)) as service:
            for number in range(turns):
                await finished(service, await submit(service, f"message {number}", "s"))


def known(held: LoadedSession) -> tuple[Session, list[Message], Filling, dict[RunId, str], int]:
    """All that the engine knows of it for the model."""
    transcript = held.transcript
    return (
        replace(held.session, ended=None),
        transcript.for_model(),
        transcript.filling(WINDOW, 10),
        dict(transcript.instructions),
        held.head,
    )


def compaction_of(held: LoadedSession) -> HistoryCompacted:
    """One that leaves the last exchange."""
    messages = held.transcript.messages
    upto = len(messages)
    while upto and (upto == len(messages) or isinstance(messages[upto], ToolResult)):
        upto -= 1
    return HistoryCompacted(upto=upto, summary=f"notes on {upto}", reason="asked")


@pytest.mark.promise("CTX-06")
@pytest.mark.parametrize("when", range(2, len(LIFE), 3))
async def test_what_is_loaded_from_a_checkpoint_is_what_was_in_memory(
    tmp_path: Path, when: int
) -> None:
    clock = ManualClock()
    async with journaled(tmp_path) as journal:
        live = Sessions(journal, clock)
        held = live.create(KEY)
        for number, facts in enumerate(LIFE):
            clock.advance(1)
            await live.append(held, *facts).wait()
            if number == when:
                await live.append(held, compaction_of(held)).wait()
            cold = Sessions(journal, clock)
            async with cold.load(KEY) as loaded:
                assert loaded is not None
                assert (loaded.begins_at > 0) == (number >= when)
                assert known(loaded) == known(held), facts
                whole = await cold.whole(loaded)
                assert whole.whole() == held.transcript.whole()
                assert whole.for_model() == held.transcript.for_model()


@pytest.mark.promise("CTX-06")
async def test_loading_reads_no_more_facts_after_many_turns_than_after_few(tmp_path: Path) -> None:
    read: dict[int, int] = {}
    for turns in (40, 400):
        home = tmp_path / str(turns)
        home.mkdir()
        await talk(home, turns)
        journal = await counting(home)
        try:
            async with Sessions(journal, ManualClock()).load(KEY) as loaded:
                assert loaded is not None and loaded.begins_at
            read[turns] = journal.facts_read
            async with Sessions(journal, ManualClock()).load_whole(KEY) as loaded:
                assert loaded is not None and len(loaded.transcript.whole()) == 2 * turns
        finally:
            await journal.aclose()
    most = 12 * 4  # exchanges that a window of that size takes, and the facts of one
    assert max(read.values()) <= most, read


@pytest.mark.promise("CTX-06")
async def test_people_read_undo_and_fork_what_a_cold_session_has_left_out(tmp_path: Path) -> None:
    await talk(tmp_path, 40)
    async with journaled(tmp_path) as journal:
        async with running(parts(tmp_path, journal, Played(answer), window=WINDOW)) as service:
            asked = [f"message {n}" for n in range(40)]
            said = await service.messages(ME, SessionId("s"))
            assert [m.text for m in said if isinstance(m, User)] == asked
            settled = await service.library.settled(ME, SessionId("s"))
            assert settled.messages == tuple(said)
            forked = await service.library.fork(ME, SessionId("s"), "", None)
            copied = await service.messages(ME, forked.session_id)
            assert [m.text for m in copied if isinstance(m, User)] == asked
            key = SessionKey(ME.owner, SessionId("s"))
    for left in range(39, 0, -1):  # each time from the file
        async with journaled(tmp_path) as journal:
            sessions = Sessions(journal, ManualClock())
            await sessions.change_whole(key, lambda loaded: (Undone(by=ME.owner),))
            async with (
                sessions.load(key) as held,
                Sessions(journal, ManualClock()).load(key) as cold,
            ):
                assert held is not None and cold is not None
                assert known(cold) == known(held)
                model = [m.text for m in cold.transcript.for_model() if isinstance(m, User)]
                assert model[-1] == f"message {left - 1}" or model[-1].startswith("[System note")


async def test_a_message_can_replace_one_that_a_cold_session_has_left_out(tmp_path: Path) -> None:
    await talk(tmp_path, 40)
    async with journaled(tmp_path) as journal:
        played = Played(answer)
        async with running(parts(tmp_path, journal, played, window=WINDOW)) as service:
            again = Submit(ME, "message 39, again", SessionId("s"), instead=True)
            view = await finished(service, (await service.send(again)).run_id)
            assert isinstance(view.ending, RunCompleted)
            texts = [m.text for m in played.requests[-1].messages]
            assert texts[-1] == "message 39, again" and "message 39" not in texts


async def test_a_result_from_before_the_last_compaction_can_be_recalled_after_a_restart(
    tmp_path: Path,
) -> None:
    def play(request: Request) -> Iterable[Piece]:
        last = request.messages[-1]
        if isinstance(last, User) and last.text == "recall":
            return (Answer("", calls=(call(recall.NAME, '{"call": "c1"}', "c9"),)),)
        if isinstance(last, User) and last.text == "first":
            return (Answer("", calls=(call(recall.NAME, '{"call": "none"}', "c1"),)),)
        return answer(request)

    model, key = Played(play), SessionKey(ME.owner, SessionId("s"))
    for texts in (["first", *(f"message {n}" for n in range(40))], ["recall"]):
        async with journaled(tmp_path) as journal:
            made = parts(tmp_path, journal, model, recall.TOOLS, window=WINDOW)
            async with running(made) as service:
                for text in texts:
                    await finished(service, await submit(service, text, "s"))
    result = model.requests[-1].messages[-1]
    assert isinstance(result, ToolResult)
    assert result.text == recall.NO_RESULT.format(call="none"), "as the first call had it"
    async with journaled(tmp_path) as journal:
        async with Sessions(journal, ManualClock()).load(key) as loaded:
            assert loaded is not None and loaded.transcript.left_out


async def test_a_checkpoint_that_is_lost_or_unreadable_is_made_again(tmp_path: Path) -> None:
    await talk(tmp_path, 40)
    for change in ("DELETE FROM checkpoints", "UPDATE checkpoints SET data = x'00'"):
        with closing(sqlite3.connect(tmp_path / "journal.db")) as connection, connection:
            connection.execute(change)
        async with journaled(tmp_path) as journal:
            sessions = Sessions(journal, ManualClock())
            async with sessions.load(KEY) as loaded:
                assert loaded is not None and not loaded.begins_at
                before = known(loaded)
                await sessions.append(loaded, SessionTitled(title="t", by=Owner("me"))).wait()
            async with Sessions(journal, ManualClock()).load(KEY) as loaded:
                assert loaded is not None and loaded.begins_at
                assert known(loaded)[1:4] == before[1:4]
