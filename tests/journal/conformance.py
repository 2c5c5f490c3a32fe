"""What every journal must do. A store is run through this by subclassing `JournalSuite`.

The subclass says how to make one over a directory, and how to make one whose next commit
fails. The tests speak the protocol of holdfast.journal.journal and nothing else.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core.events import MessageDelta, ReasoningDelta, Record
from holdfast.core.inbox import Idempotency, InputAdmitted, InputPromoted
from holdfast.core.run import run as machine
from holdfast.core.run.child import ChildBegun, ChildEnded
from holdfast.core.run.run import ModelAnswered, Run, RunCompleted, RunPhase, RunQueued, RunStarted
from holdfast.core.session.rewound import RewindPlanned, Rewound
from holdfast.core.session.session import SessionOpened
from holdfast.core.types import (
    CallId,
    Fact,
    InputId,
    Owner,
    RewindId,
    RunId,
    SessionId,
    SessionKey,
    Usage,
)
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Conflict, Journal, RunFilter, StreamRow

ME = Owner("me")
KEY = SessionKey(ME, SessionId("s"))
RUN = RunId("run_1")


def opened(key: SessionKey = KEY) -> SessionOpened:
    return SessionOpened(session_id=key.session_id, workspace="/w", platform="test")


def admitted(run_id: RunId = RUN, text: str = "hi", name: str = "") -> InputAdmitted:
    asked = Idempotency(route="r", key=name, fingerprint=f"of {name}") if name else None
    return InputAdmitted(
        input_id=InputId(f"in {run_id}"), run_id=run_id, text=text, idempotency=asked
    )


def queued(run_id: RunId = RUN) -> RunQueued:
    return RunQueued(run_id=run_id, input_id=InputId(f"in {run_id}"), model="m")


def beginning(run_id: RunId = RUN, at: float = 1.0) -> tuple[tuple[Fact, ...], Run]:
    """The facts that accept a run, and the run they lead to."""
    return (opened(), admitted(run_id), queued(run_id)), machine.queue(queued(run_id), at)


def completed(run_id: RunId = RUN) -> RunCompleted:
    return RunCompleted(run_id=run_id, output="done", usage=Usage(1, 2))


def finished(run: Run, at: float) -> tuple[tuple[Fact, ...], Run]:
    """The facts that take a fresh run to its end, and the run they lead to."""
    facts: tuple[Any, ...] = (
        RunStarted(run_id=run.id),
        InputPromoted(input_id=run.input_id, run_id=run.id),
        ModelAnswered(run_id=run.id, turn=1, text="done"),
        completed(run.id),
    )
    for fact in facts:
        run = machine.evolve(run, fact, at)
    return facts, run


async def accept(journal: Journal, key: SessionKey = KEY, run_id: RunId = RUN) -> StreamRow:
    """One accepted run in a new session."""
    row = journal.open_stream(key)
    facts = (opened(key), admitted(run_id), queued(run_id))
    run = machine.queue(queued(run_id), 1.0)
    await journal.append(row.stream, 0, 1.0, facts, [run]).wait()
    return row


async def everything(journal: Journal, stream: int, run_id: RunId = RUN) -> list[Record]:
    return await journal.records(stream, run_id, 0, 10_000)


class JournalSuite:
    """The promises, one test each."""

    def make(self, directory: Path) -> AbstractAsyncContextManager[Journal]:
        """A journal over `directory`, which may hold one already."""
        raise NotImplementedError

    def make_full(self, directory: Path) -> AbstractAsyncContextManager[Journal]:
        """A journal whose commits fail for lack of space."""
        raise NotImplementedError

    @pytest.fixture
    async def journal(self, tmp_path: Path) -> AsyncIterator[Journal]:
        async with self.make(tmp_path) as made:
            yield made

    async def test_facts_are_numbered_from_one_in_the_order_they_were_given(
        self, journal: Journal
    ) -> None:
        row = await accept(journal)
        records = await everything(journal, row.stream)
        assert [(r.seq, type(r.fact)) for r in records] == [(2, InputAdmitted), (3, RunQueued)]
        first = await journal.facts(row.stream, [SessionOpened], [])
        assert [r.seq for r in first] == [1]
        assert first[0].fact == opened()

    async def test_what_was_waited_for_is_there_after_opening_again(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as before:
            row = await accept(before)
        async with self.make(tmp_path) as after:
            assert await after.stream_of(KEY) == StreamRow(KEY, row.stream, 3, 1.0)
            assert [r.run_id for r in await after.unfinished()] == [RUN]

    async def test_what_was_enqueued_is_committed_before_closing(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as before:
            facts, run = beginning()
            before.append(before.open_stream(KEY).stream, 0, 1.0, facts, [run])
        async with self.make(tmp_path) as after:
            assert await after.run(RUN) is not None

    async def test_an_append_that_does_not_know_the_head_is_a_conflict(
        self, journal: Journal
    ) -> None:
        row = await accept(journal)
        with pytest.raises(Conflict):
            journal.append(row.stream, 2, 2.0, [RunStarted(run_id=RUN)], [])
        journal.append(row.stream, 3, 2.0, [RunStarted(run_id=RUN)], [])

    async def test_a_stream_nobody_opened_is_a_conflict(self, journal: Journal) -> None:
        with pytest.raises(Conflict):
            journal.append(4711, 0, 1.0, [opened()], [])

    async def test_two_owners_of_one_session_id_have_two_sessions(self, journal: Journal) -> None:
        other = SessionKey(Owner("other"), KEY.session_id)
        mine = await accept(journal)
        theirs = await accept(journal, other, RunId("run_2"))
        assert mine.stream != theirs.stream
        assert await journal.stream_of(other) == StreamRow(other, theirs.stream, 3, 1.0)
        everyone = RunFilter(ME, frozenset(), None, 10, None)
        assert [r.run_id for r in await journal.runs(everyone)] == [RUN]

    async def test_deltas_that_wait_for_the_same_commit_are_one_record(
        self, journal: Journal
    ) -> None:
        row = await accept(journal)
        heads = [
            journal.delta(row.stream, 2.0, MessageDelta(run_id=RUN, turn=1, text=t)) for t in "abc"
        ]
        assert heads == [4, 4, 4]
        await journal.append(row.stream, 4, 2.0, [RunStarted(run_id=RUN)], []).wait()
        deltas = [r for r in await everything(journal, row.stream) if r.seq == 4]
        assert [r.fact for r in deltas] == [MessageDelta(run_id=RUN, turn=1, text="abc")]

    async def test_deltas_are_merged_only_with_their_neighbours_of_one_run_turn_and_kind(
        self, journal: Journal
    ) -> None:
        row = await accept(journal)
        other = RunId("run_2")
        said: list[MessageDelta | ReasoningDelta] = [
            MessageDelta(run_id=RUN, turn=1, text="a"),
            ReasoningDelta(run_id=RUN, turn=1, text="b"),
            MessageDelta(run_id=RUN, turn=1, text="c"),
            MessageDelta(run_id=RUN, turn=2, text="d"),
            MessageDelta(run_id=other, turn=2, text="e"),
        ]
        heads = [journal.delta(row.stream, 2.0, d) for d in said]
        assert heads == [4, 5, 6, 7, 8]
        last = journal.append(row.stream, 8, 2.0, [RunStarted(run_id=RUN)], [])
        after = journal.delta(row.stream, 2.0, said[-1])
        assert (last.seq, after) == (9, 10)
        await last.wait()
        mine = await everything(journal, row.stream)
        assert [r.fact for r in mine if 3 < r.seq < 9] == said[:4]

    async def test_listeners_hear_every_record_once_in_order_after_its_commit(
        self, journal: Journal
    ) -> None:
        heard: list[Record] = []
        journal.on_commit(heard.extend)
        row = await accept(journal)
        for n in range(20):
            journal.delta(row.stream, 2.0, MessageDelta(run_id=RUN, turn=n, text="x"))
        await journal.append(row.stream, 23, 2.0, [RunStarted(run_id=RUN)], []).wait()
        assert [r.seq for r in heard] == list(range(1, 25))
        assert heard[1:] == await everything(journal, row.stream)

    async def test_who_waits_is_woken_after_the_listeners(self, journal: Journal) -> None:
        heard: list[int] = []
        journal.on_commit(lambda records: heard.extend(r.seq for r in records))
        facts, run = beginning()
        await journal.append(journal.open_stream(KEY).stream, 0, 1.0, facts, [run]).wait()
        assert heard == [1, 2, 3]

    async def test_a_waiter_that_gives_up_takes_nothing_with_it(self, journal: Journal) -> None:
        facts, run = beginning()
        row = journal.open_stream(KEY)
        pending = journal.append(row.stream, 0, 1.0, facts, [run])
        with anyio.CancelScope() as given_up:
            given_up.cancel()
            await pending.wait()
        await pending.wait()
        assert await journal.run(RUN) is not None

    async def test_many_streams_at_once_keep_their_own_order(self, journal: Journal) -> None:
        rows = [
            await accept(journal, SessionKey(ME, SessionId(f"s{n}")), RunId(f"run_{n}"))
            for n in range(20)
        ]

        async def talk(row: StreamRow, run_id: RunId) -> None:
            for turn in range(10):
                head = journal.delta(
                    row.stream, 2.0, MessageDelta(run_id=run_id, turn=turn, text=str(turn))
                )
                fact = ModelAnswered(run_id=run_id, turn=turn, text=str(turn))
                await journal.append(row.stream, head, 2.0, [fact], []).wait()

        async with anyio.create_task_group() as together:
            for n, row in enumerate(rows):
                together.start_soon(talk, row, RunId(f"run_{n}"))
        for n, row in enumerate(rows):
            records = await everything(journal, row.stream, RunId(f"run_{n}"))
            assert [r.seq for r in records] == list(range(2, 24))
            said = [r.fact.text for r in records if isinstance(r.fact, ModelAnswered)]
            assert said == [str(t) for t in range(10)]

    async def test_a_page_begins_after_the_cursor_and_ends_at_the_limit(
        self, journal: Journal
    ) -> None:
        row = await accept(journal)
        for turn in range(10):
            journal.delta(row.stream, 2.0, MessageDelta(run_id=RUN, turn=turn, text="x"))
        await journal.append(row.stream, 13, 2.0, [RunStarted(run_id=RUN)], []).wait()
        assert [r.seq for r in await journal.records(row.stream, RUN, 5, 3)] == [6, 7, 8]
        assert await journal.records(row.stream, RUN, 14, 3) == []
        assert await journal.has_deltas(row.stream, RUN, 9)
        assert not await journal.has_deltas(row.stream, RUN, 10)

    async def test_facts_are_found_by_kind_or_by_run_and_never_deltas(
        self, journal: Journal
    ) -> None:
        row = await accept(journal)
        journal.delta(row.stream, 2.0, MessageDelta(run_id=RUN, turn=1, text="x"))
        await journal.append(row.stream, 4, 2.0, [RunStarted(run_id=RUN)], []).wait()
        by_kind = await journal.facts(row.stream, [RunQueued, RunStarted], [])
        assert [r.seq for r in by_kind] == [3, 5]
        by_run = await journal.facts(row.stream, [SessionOpened], [RUN])
        assert [r.seq for r in by_run] == [1, 2, 3, 5]
        between = await journal.facts(row.stream, [SessionOpened], [RUN], after=1, upto=3)
        assert [r.seq for r in between] == [2, 3]

    async def test_the_last_checkpoint_is_kept_with_the_facts_that_follow(
        self, tmp_path: Path
    ) -> None:
        async with self.make(tmp_path) as before:
            row = await accept(before)
            assert await before.checkpoint(row.stream) is None
            before.keep_checkpoint(row.stream, 3, b"first")
            await before.append(row.stream, 3, 2.0, [RunStarted(run_id=RUN)], []).wait()
            assert await before.checkpoint(row.stream) == (3, b"first")
            before.append(row.stream, 4, 2.0, [RunStarted(run_id=RUN)], [])
            before.keep_checkpoint(row.stream, 5, b"last")
        async with self.make(tmp_path) as after:
            assert await after.checkpoint(row.stream) == (5, b"last")

    async def test_facts_are_found_by_any_number_of_runs(self, journal: Journal) -> None:
        row = await accept(journal)
        many = [RunId(f"run_{n}") for n in range(300_000)]
        found = await journal.facts(row.stream, [SessionOpened], many)
        assert [r.seq for r in found] == [1, 2, 3]

    async def test_a_stream_forgotten_on_its_way_to_the_disk_is_found_whole(
        self, journal: Journal
    ) -> None:
        row = journal.open_stream(KEY)
        facts, run = beginning()
        journal.append(row.stream, 0, 1.0, facts, [run])
        journal.forget(row.stream)
        found = await journal.stream_of(KEY)
        assert found == StreamRow(KEY, row.stream, 3, 1.0)
        assert len(await everything(journal, row.stream)) == 2
        last = journal.append(row.stream, 3, 2.0, [RunStarted(run_id=RUN)], [])
        journal.delta(row.stream, 2.0, MessageDelta(run_id=RUN, turn=1, text="x"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(last.wait)
            await anyio.wait_all_tasks_blocked()  # now it is on its way
            journal.forget(row.stream)
            found = await journal.stream_of(KEY)
        assert found == StreamRow(KEY, row.stream, 5, 2.0)
        await journal.append(row.stream, 5, 3.0, [completed()], []).wait()
        assert [r.seq for r in await everything(journal, row.stream)] == [2, 3, 4, 5, 6]
        assert journal.state() == "ok"

    async def test_the_projection_of_a_run_follows_its_fold(self, journal: Journal) -> None:
        row = await accept(journal)
        found = await journal.run(RUN)
        assert found is not None
        assert (found.status, found.ended_seq, found.first_seq) == (RunPhase.QUEUED, None, 2)
        facts, run = finished(machine.queue(queued(), 1.0), 2.0)
        await journal.append(row.stream, 3, 2.0, facts, [run]).wait()
        found = await journal.run(RUN)
        assert found is not None
        assert (found.status, found.ended_seq, found.last_event, found.updated_at) == (
            RunPhase.COMPLETED,
            7,
            "run.completed",
            2.0,
        )
        assert await journal.open_runs(row.stream) == []
        assert await journal.unfinished() == []

    async def test_of_runs_that_end_together_each_has_its_own_end(self, journal: Journal) -> None:
        row = await accept(journal)
        other = RunId("run_2")
        facts, run = finished(machine.queue(queued(), 1.0), 2.0)
        more, second = finished(machine.queue(queued(other), 1.0), 2.0)
        both = (*facts, admitted(other), queued(other), *more)
        await journal.append(row.stream, 3, 2.0, both, [run, second]).wait()
        found = [await journal.run(RUN), await journal.run(other)]
        assert [(f.first_seq, f.ended_seq) for f in found if f] == [(2, 7), (8, 13)]
        assert await journal.unfinished() == []

    async def test_sessions_with_open_children_are_found_also_when_idle(
        self, journal: Journal
    ) -> None:
        assert await journal.with_children() == []
        row = await accept(journal)
        call_id, children = CallId("c"), (RunId("run_2"), RunId("run_3"))
        begun = [ChildBegun(run_id=RUN, call_id=call_id, child=c, task="t") for c in children]
        ended = [ChildEnded(child=c, call_id=call_id, status=RunPhase.COMPLETED) for c in children]
        await journal.append(row.stream, 3, 2.0, begun, []).wait()
        assert await journal.with_children() == [KEY]
        await journal.append(row.stream, 5, 3.0, ended[:1], []).wait()
        assert await journal.with_children() == [KEY]
        await journal.append(row.stream, 6, 4.0, ended[1:], []).wait()
        assert await journal.with_children() == []

    async def test_sessions_with_an_unfinished_rewind_are_found(self, journal: Journal) -> None:
        assert await journal.with_rewinds() == []
        row = await accept(journal)
        what: dict[str, Any] = {"rewind_id": RewindId("rew_1"), "point": RUN, "by": ME}
        await journal.append(row.stream, 3, 2.0, (Rewound(**what),), []).wait()
        assert await journal.with_rewinds() == []
        await journal.append(row.stream, 4, 3.0, (RewindPlanned(**what),), []).wait()
        assert await journal.with_rewinds() == [KEY]
        await journal.append(row.stream, 5, 4.0, (Rewound(**what),), []).wait()
        assert await journal.with_rewinds() == []

    async def test_runs_are_listed_newest_first_by_page_session_and_status(
        self, journal: Journal
    ) -> None:
        for n in range(5):
            key = SessionKey(ME, SessionId(f"s{n % 2}n{n}"))
            await accept(journal, key, RunId(f"run_{n}"))

        async def ids(**wanted: Any) -> list[str]:
            chosen: dict[str, Any] = {
                "owner": ME,
                "status": frozenset(),
                "session_id": None,
                "limit": 10,
                "after": None,
            } | wanted
            return [r.run_id for r in await journal.runs(RunFilter(**chosen))]

        assert await ids() == ["run_4", "run_3", "run_2", "run_1", "run_0"]
        assert await ids(limit=2) == ["run_4", "run_3"]
        await accept(journal, SessionKey(Owner("other"), SessionId("s")), RunId("run_5"))
        assert await ids(limit=2) == ["run_4", "run_3"]
        assert await ids(limit=2, owner=None) == ["run_5", "run_4"]
        assert await ids(after=RunId("run_3"), limit=2) == ["run_2", "run_1"]
        assert await ids(session_id=SessionId("s1n3")) == ["run_3"]
        assert await ids(status=frozenset({RunPhase.COMPLETED})) == []
        assert len(await ids(status=frozenset({RunPhase.QUEUED, RunPhase.RUNNING}))) == 5

    async def test_a_request_key_is_remembered_with_its_run(self, journal: Journal) -> None:
        row = journal.open_stream(KEY)
        facts = (opened(), admitted(name="k"), queued())
        await journal.append(row.stream, 0, 1.0, facts, [machine.queue(queued(), 1.0)]).wait()
        found = await journal.replay(ME, "r", "k")
        assert found is not None
        assert (found.run_id, found.session_id, found.fingerprint) == (RUN, "s", "of k")
        assert await journal.replay(ME, "other", "k") is None
        assert await journal.replay(Owner("other"), "r", "k") is None

    async def test_pruning_forgets_deltas_of_ended_runs_and_old_keys_and_renumbers_nothing(
        self, journal: Journal
    ) -> None:
        rows = {}
        for n in (1, 2):
            run_id, key = RunId(f"run_{n}"), SessionKey(ME, SessionId(f"s{n}"))
            row = rows[n] = journal.open_stream(key)
            facts = (opened(key), admitted(run_id, name=f"k{n}"), queued(run_id))
            run = machine.queue(queued(run_id), 1.0)
            journal.append(row.stream, 0, float(n), facts, [run])
            journal.delta(row.stream, 1.0, MessageDelta(run_id=run_id, turn=1, text="x"))
            more, run = finished(run, 10.0 if n == 1 else 20.0)
            await journal.append(row.stream, 4, 1.0, more, [run]).wait()
        assert await journal.prune(deltas_before=15.0, keys_before=1.5) == 1
        first = await everything(journal, rows[1].stream, RunId("run_1"))
        assert [r.seq for r in first] == [2, 3, 5, 6, 7, 8]
        second = await everything(journal, rows[2].stream, RunId("run_2"))
        assert [r.seq for r in second] == [2, 3, 4, 5, 6, 7, 8]
        assert await journal.replay(ME, "r", "k1") is None
        assert await journal.replay(ME, "r", "k2") is not None
        assert await journal.prune(deltas_before=15.0, keys_before=1.5) == 0

    async def test_an_unfinished_run_keeps_its_deltas_however_old(self, journal: Journal) -> None:
        row = await accept(journal)
        journal.delta(row.stream, 1.0, MessageDelta(run_id=RUN, turn=1, text="x"))
        await journal.append(row.stream, 4, 1.0, [RunStarted(run_id=RUN)], []).wait()
        assert await journal.prune(deltas_before=1e12, keys_before=0) == 0
        assert 4 in [r.seq for r in await everything(journal, row.stream)]

    async def test_big_facts_come_back_whole(self, journal: Journal) -> None:
        row = journal.open_stream(KEY)
        big = admitted(text="ü" * 300_000)
        facts = (opened(), big, queued())
        await journal.append(row.stream, 0, 1.0, facts, [machine.queue(queued(), 1.0)]).wait()
        assert (await everything(journal, row.stream))[0].fact == big

    async def test_a_failed_commit_fails_all_that_was_enqueued_and_voids_every_fold(
        self, tmp_path: Path
    ) -> None:
        async with self.make_full(tmp_path) as journal:
            voided: list[bool] = []
            journal.on_failure(lambda: voided.append(True))
            row = journal.open_stream(KEY)
            facts = (opened(), admitted(text="x" * 50_000), queued())
            pending = [journal.append(row.stream, 0, 1.0, facts, [machine.queue(queued(), 1.0)])]
            pending.append(journal.append(row.stream, 3, 1.0, [RunStarted(run_id=RUN)], []))
            for one in pending:
                with pytest.raises(JournalUnavailable):
                    await one.wait()
            assert voided == [True]
            with pytest.raises(Conflict):  # whoever held the fold must load it again
                journal.append(row.stream, 4, 1.0, [completed()], [])
            assert await journal.stream_of(KEY) is None
