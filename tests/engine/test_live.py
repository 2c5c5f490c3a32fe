"""Readers: everybody gets every record once, in order; the slow are cut and hold up nobody."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core.approval.approval import ApprovalRequested, Choice
from holdfast.core.events import TERMINAL, MessageDelta, Record
from holdfast.core.inbox import InputAdmitted, Mode
from holdfast.core.intents import Principal
from holdfast.core.messages import User
from holdfast.core.run.call import CallStarted
from holdfast.core.run.run import ModelAnswered, RunCompleted, RunFailed, RunStarted
from holdfast.core.types import CallId, Fact, InputId, Owner, RequestId, RunId, Usage, kind
from holdfast.engine.live import BUFFER, ENDED, TAIL, Live
from holdfast.engine.service import Service
from holdfast.errors import Refused
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.models.model import Answer, Piece, Request, Text
from tests.engine.loop import ShuffledLoop
from tests.engine.workshop import (
    CLI,
    ME,
    Played,
    Told,
    call,
    finished,
    follow,
    journaled,
    parts,
    reach,
    running,
    serving,
    submit,
    turn,
)

pytestmark = pytest.mark.anyio

RUN, OTHER = RunId("run_1"), RunId("run_2")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": ShuffledLoop}


def admitted(run_id: RunId = RUN) -> Fact:
    return InputAdmitted(run_id=run_id, input_id=InputId("in_1"), text="hello")


def completed(run_id: RunId = RUN) -> Fact:
    return RunCompleted(run_id=run_id, output="done", usage=Usage())


def delta(text: str, run_id: RunId = RUN) -> Fact:
    return MessageDelta(run_id=run_id, turn=1, text=text)


def numbered(*facts: Fact, first: int = 1) -> list[Record]:
    return [Record(1, seq, 1.0, fact) for seq, fact in enumerate(facts, first)]


async def test_every_follower_of_a_run_gets_its_records_and_no_others() -> None:
    live = Live()
    one, two, other = live.join(RUN), live.join(RUN), live.join(OTHER)
    mine = numbered(admitted(), RunStarted(run_id=RUN))
    live.publish([*mine, *numbered(admitted(OTHER), first=3)])
    assert await one.take() == mine
    assert await two.take() == mine
    assert await other.take() == numbered(admitted(OTHER), first=3)


@asynccontextmanager
async def taking(live: Live) -> AsyncIterator[list[Any]]:
    """A follower that waits for a batch during the block; what it takes is in the list then."""
    follower = live.join(RUN)
    taken: list[Any] = []

    async def take() -> None:
        taken.append(await follower.take())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        await anyio.wait_all_tasks_blocked()
        yield taken


async def test_a_follower_waits_for_the_next_record_and_takes_all_there_is() -> None:
    live = Live()
    async with taking(live) as taken:
        assert taken == []
        live.publish(numbered(admitted()))
        live.publish(numbered(delta("x"), first=2))
    assert taken == [numbered(admitted(), delta("x"))]


async def test_one_that_left_is_told_nothing_any_more() -> None:
    live = Live()
    gone, stays = live.join(RUN), live.join(RUN)
    live.leave(gone)
    live.leave(gone)
    live.publish(numbered(admitted()))
    gone.close()
    assert await gone.take() is None
    assert await stays.take() == numbered(admitted())


async def test_a_slow_follower_is_cut_at_its_bound_while_others_go_on() -> None:
    live = Live()
    slow, quick = live.join(RUN), live.join(RUN)
    text = "x" * 16_000
    got = 0
    for seq in range(1, 3 * BUFFER // len(text)):
        live.publish([Record(1, seq, 1.0, delta(text))])
        got += len(await quick.take() or ())
    assert await slow.take() is None
    assert got == 3 * BUFFER // len(text) - 1


async def test_a_follower_that_keeps_up_is_not_cut_by_how_much_there_is() -> None:
    live = Live()
    follower = live.join(RUN)
    huge = numbered(admitted(), delta("x" * 2 * BUFFER))
    live.publish(huge)
    assert await follower.take() == huge
    live.publish(numbered(completed(), first=3))
    assert await follower.take() == numbered(completed(), first=3)


async def test_a_sign_of_life_is_an_empty_batch() -> None:
    live = Live()
    async with taking(live) as taken:
        live.nudge()
    assert taken == [[]]


async def test_the_end_of_the_process_ends_every_reader_after_what_it_was_given() -> None:
    live = Live()
    follower = live.join(RUN)
    live.publish(numbered(admitted()))
    live.close()
    live.publish(numbered(delta("x"), first=2))
    assert await follower.take() == numbered(admitted())
    assert await follower.take() is None


async def test_the_tail_is_the_whole_run_or_nothing() -> None:
    live = Live()
    live.publish(numbered(delta("began before this process")))
    assert live.tail(RUN) is None
    live.publish(numbered(admitted(OTHER), delta("x", OTHER)))
    assert live.tail(OTHER) == numbered(admitted(OTHER), delta("x", OTHER))
    live.publish(numbered(delta("x" * TAIL, OTHER), first=3))
    assert live.tail(OTHER) is None
    steered = InputAdmitted(run_id=OTHER, input_id=InputId("in_2"), text="left", mode=Mode.STEER)
    live.publish(numbered(delta("y", OTHER), steered, first=4))
    assert live.tail(OTHER) is None


async def test_of_runs_that_have_ended_the_last_ones_are_kept() -> None:
    live = Live()
    ids = [RunId(f"run_{n:04}") for n in range(ENDED + 3)]
    for run_id in ids:
        live.publish(numbered(admitted(run_id), completed(run_id)))
    assert [run_id for run_id in ids if live.tail(run_id) is None] == ids[:3]


LONG = "x" * TAIL


@pytest.mark.parametrize(
    "fact",
    [
        InputAdmitted(run_id=RUN, input_id=InputId("in_1"), text="", history=(User(LONG),)),
        InputAdmitted(run_id=RUN, input_id=InputId("in_1"), text="", instructions=LONG),
        InputAdmitted(run_id=RUN, input_id=InputId("in_1"), text="", metadata={"k": LONG}),
        ModelAnswered(run_id=RUN, turn=1, text="", reasoning=LONG),
        ModelAnswered(run_id=RUN, turn=1, text="", calls=(call("t", LONG),)),
        CallStarted(run_id=RUN, call_id=CallId("c1"), tool="t", preview=LONG),
        RunCompleted(run_id=RUN, output=LONG, usage=Usage()),
        RunFailed(run_id=RUN, code="c", error=LONG, usage=Usage()),
        ApprovalRequested(
            run_id=RUN,
            call_id=CallId("c1"),
            request_id=RequestId("r1"),
            command=LONG,
            description="",
            execution="",
            choices=(Choice.ONCE,),
            expires_at=1.0,
        ),
    ],
    ids=lambda fact: kind(fact),
)
async def test_every_long_field_of_a_record_counts(fact: Fact) -> None:
    live = Live()
    slow = live.join(RUN)
    live.publish(numbered(admitted()))
    assert live.tail(RUN) is not None
    live.publish(numbered(fact, first=2))
    assert live.tail(RUN) is None
    for seq in range(3, 4 + BUFFER // TAIL):
        live.publish(numbered(fact, first=seq))
    assert await slow.take() is None


PIECE = "x" * 4_096
PIECES = 12  # of which the tail holds seven


@pytest.mark.promise("RUN-11")
@pytest.mark.parametrize("seeds", [range(n, n + 25) for n in range(0, 100, 25)])
async def test_who_joins_at_any_moment_gets_every_record_once_and_in_order(
    tmp_path: Path, seeds: range
) -> None:
    """Also where the run has said more than is kept: it reads the journal, then takes over."""

    def play(request: Request) -> Iterator[Piece]:
        for _ in range(PIECES):
            yield Text(PIECE)
        yield Answer(PIECE * PIECES)

    loop = asyncio.get_running_loop()
    assert isinstance(loop, ShuffledLoop)
    async with journaled(tmp_path) as journal:
        model = Played(play, lambda: loop.random.choice((0, 1, 5, 60)))
        async with running(parts(tmp_path, journal, model)) as service:
            for seed in seeds:
                loop.random.seed(seed)
                await _join_at_random(service, journal, loop, seed)


async def _join_at_random(
    service: Service, journal: SqliteJournal, loop: ShuffledLoop, seed: int
) -> None:
    got: list[tuple[int, list[Record]]] = []
    run_id = await submit(service, f"seed {seed}")

    async def read(after: int, wait: int) -> None:
        await turn(wait)
        got.append((after, await follow(service, run_id, after)))

    async with anyio.create_task_group() as tasks:
        for _ in range(12):
            after = loop.random.choice((0, 0, 3, 5, 8))
            tasks.start_soon(read, after, loop.random.randrange(500))
    row = await journal.run(run_id)
    assert row is not None
    whole = await journal.records(row.stream, run_id, 0, 10_000)
    assert isinstance(whole[-1].fact, TERMINAL)
    for after, records in got:
        assert records == [r for r in whole if r.seq > after], f"seed {seed}, after {after}"


@pytest.mark.promise("RUN-11")
async def test_who_joins_between_any_two_pieces_gets_every_record_once(tmp_path: Path) -> None:
    model = Told()
    got: list[list[Record]] = []
    async with serving(tmp_path, model) as service, anyio.create_task_group() as tasks:
        run_id = await submit(service, "go on")
        asked = await model.asked(1)

        async def read() -> None:
            got.append(await follow(service, run_id))

        for number in range(PIECES):
            tasks.start_soon(read)
            asked.say(f"{number:04}" + PIECE)
            await _said(service, run_id, f"{number:04}")
        tasks.start_soon(read)
        asked.answer("done")
        await finished(service, run_id)
        tasks.start_soon(read)
    assert len(got) == PIECES + 2
    assert all(records == got[0] for records in got)
    texts = "".join(r.fact.text for r in got[0] if isinstance(r.fact, MessageDelta))
    assert texts == "".join(f"{number:04}" + PIECE for number in range(PIECES))
    assert [r.seq for r in got[0]] == sorted({r.seq for r in got[0]})


async def _said(service: Service, run_id: RunId, text: str) -> None:
    """Return when a reader has been given that text."""
    async with service.follow(ME, run_id, 0) as batches:
        assert batches is not None
        async for batch in batches:
            if any(isinstance(r.fact, MessageDelta) and text in r.fact.text for r in batch):
                return


@pytest.mark.promise("RUN-11")
async def test_a_reader_comes_back_with_its_cursor_to_nothing_or_to_the_rest(
    tmp_path: Path,
) -> None:
    model = Told()
    async with serving(tmp_path, model) as service:
        run_id = await submit(service, "hello")
        asked = await model.asked(1)
        asked.say("a")
        seen = await reach(service, run_id, MessageDelta)
        asked.answer("a")
        whole = await follow(service, run_id)
        assert await follow(service, run_id, seen.seq) == [r for r in whole if r.seq > seen.seq]
        assert await follow(service, run_id, whole[-1].seq) == []
        assert await follow(service, run_id, whole[-1].seq + 99) == []
    async with serving(tmp_path, model) as again:  # and after a restart
        assert await follow(again, run_id) == whole
        assert await follow(again, run_id, seen.seq) == [r for r in whole if r.seq > seen.seq]


async def test_no_caller_reads_a_run_of_another_owner(tmp_path: Path) -> None:
    model = Told()
    async with serving(tmp_path, model) as service:
        run_id = await submit(service, "mine")
        stranger = Principal(Owner("you"), CLI, frozenset())
        with pytest.raises(Refused, match="There is no run"):
            async with service.follow(stranger, run_id, 0):
                pass
        with pytest.raises(Refused, match="There is no run"):
            await service.run(stranger, run_id)
