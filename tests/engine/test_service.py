"""The engine as a whole, over a real journal: what happens when things happen at once."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.approval.approval import Choice, Level, Posture, Role
from holdfast.core.events import MessageDelta, Record
from holdfast.core.inbox import InputAdmitted, InputPromoted
from holdfast.core.intents import RequestKey, Steer, Submit, Submitted
from holdfast.core.messages import ToolResult, User
from holdfast.core.run.call import CallSettled, OnCrash, Outcome
from holdfast.core.run.limits import Limits
from holdfast.core.run.run import (
    CutCause,
    MessageVoided,
    ModelAnswered,
    ModelFailed,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    RunPhase,
    RunQueued,
    RunResumed,
    RunStarted,
)
from holdfast.core.types import Fact, RunId, SessionId
from holdfast.engine.life.posture import PROBE_AGAIN_S
from holdfast.engine.life.recover import TRY_AGAIN_S
from holdfast.engine.runs.compactor import TOO_LONG
from holdfast.engine.service import Service
from holdfast.errors import Overflow, Refused, Rejected, ToolFailed, Transient
from holdfast.models.model import Answer, Piece, Request, Text
from holdfast.tools.tool import Context, Done, Effect, Permission, Question, Tool, free
from tests.engine import workshop
from tests.engine.loop import ShuffledLoop
from tests.engine.workshop import (
    ME,
    PATIENCE_S,
    Played,
    Told,
    call,
    finished,
    follow,
    reach,
    serving,
    stop,
    submit,
    turn,
)
from tests.fakes.clock import ManualClock
from tests.fakes.hands import IdleHands
from tests.fakes.memory_disk import Disk
from tests.fakes.memory_journal import MemoryJournal

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": ShuffledLoop}


def the_loop() -> ShuffledLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ShuffledLoop)
    return loop


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The loop's order from `seed` on; a failure says which it was."""
    the_loop().random.seed(seed)
    try:
        yield
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def kinds(records: list[Record]) -> list[type[Fact]]:
    """What happened, with neighbouring deltas as one."""
    found: list[type[Fact]] = []
    for record in records:
        if not (found and found[-1] is type(record.fact) is MessageDelta):
            found.append(type(record.fact))
    return found


def said(records: list[Record]) -> str:
    return "".join(r.fact.text for r in records if isinstance(r.fact, MessageDelta))


UNDISTURBED = [
    InputAdmitted,
    RunQueued,
    RunStarted,
    InputPromoted,
    MessageDelta,
    ModelAnswered,
    RunCompleted,
]


class Nothing(msgspec.Struct):
    pass


async def _act(context: Context, asked: Nothing) -> Done:
    await turn(the_loop().random.randrange(5))
    return Done("acted")


ACT = Tool("act", "Act.", Nothing, Effect.ACT, OnCrash.UNKNOWN, 60, _act, lambda _: "", free)


class Race:
    """Run A ends while somebody stops it, and run B stands behind it."""

    def __init__(self) -> None:
        self.model = Played(self._play, lambda: the_loop().random.randrange(4))
        self.answering = anyio.Event()
        self.outcomes: set[RunPhase] = set()

    def _play(self, request: Request) -> Iterator[Piece]:
        last = request.messages[-1]
        if isinstance(last, User) and last.text == "A" and the_loop().random.randrange(2):
            yield Answer("", calls=(call("act"),))
            return
        yield Text("one ")
        yield Text("two")
        if not isinstance(last, User) or last.text == "A":
            self.answering.set()
        yield Answer("one two")

    async def moment(self, service: Service, run_id: RunId) -> None:
        """Return at some moment of run A: seldom early, mostly close to its end."""
        random = the_loop().random
        match random.randrange(6):
            case 0:
                pass
            case 1:
                await reach(service, run_id, RunStarted)
            case 2 | 3:
                await reach(service, run_id, ModelAnswered)
            case _:
                await self.answering.wait()
        await turn(random.randrange(random.choice((1, 8, 60, 400))))

    async def run(self, service: Service, seed: int) -> None:
        self.answering = anyio.Event()
        asked = len(self.model.requests)
        first = await submit(service, "A", f"s{seed}")
        second = await submit(service, "B", f"s{seed}")
        accepted = True

        async def stop_first() -> None:
            nonlocal accepted
            await self.moment(service, first)
            try:
                await stop(service, first)
            except Refused as refused:
                assert refused.code in ("run_ended", "run_not_found")
                accepted = False

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_first)
            records = await follow(service, second)
        one, two = await service.run(ME, first), await service.run(ME, second)
        self.outcomes.add(one.status)
        assert one.status is (RunPhase.CANCELLED if accepted else RunPhase.COMPLETED)
        assert two.status is RunPhase.COMPLETED
        assert (kinds(records), said(records)) == (UNDISTURBED, "one two")
        words = [r.messages[-1] for r in self.model.requests[asked:]]
        assert [w.text.rpartition("\n\n")[2] for w in words].count("B") == 1  # a note may precede


@pytest.mark.fault("F-12")
@pytest.mark.promise("RUN-14")
@pytest.mark.parametrize("seeds", [range(n, n + 100) for n in range(0, 400, 100)], ids=str)
async def test_a_stop_around_the_end_of_a_run_never_touches_the_next(
    tmp_path: Path, seeds: range
) -> None:
    race = Race()
    async with serving(tmp_path, race.model, tools=[ACT]) as service:
        for seed in seeds:
            with seeded(seed):
                await race.run(service, seed)
    assert race.outcomes == {RunPhase.CANCELLED, RunPhase.COMPLETED}  # it was around the end


async def test_an_answer_that_comes_while_a_stop_is_written_down_was_never_given(
    tmp_path: Path,
) -> None:
    """Nobody is shown it: so the model must not believe that it has said that."""
    model = Told()
    async with serving(tmp_path, model) as service:
        first = await submit(service, "A", "s")
        asked = await model.asked(1)
        async with anyio.create_task_group() as tasks:
            with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")  # until it is closed nothing can be written
                tasks.start_soon(stop, service, first)
                await turn(20)
                assert not (await service.run(ME, first)).stopping, "it is not committed"
                asked.answer("too late")
                await turn(20)
        assert (await finished(service, first)).status is RunPhase.CANCELLED
        second = await submit(service, "B", "s")
        again = await model.asked(2)
        assert again.messages == [User("A"), User("B")]
        again.answer("both")
        assert (await finished(service, second)).status is RunPhase.COMPLETED


async def _ask_first(context: Context, arguments: Nothing) -> Permission:
    return Question("act", "acts", "hash", (Choice.ONCE, Choice.DENY))


@pytest.mark.fault("F-30")
async def test_a_run_whose_question_could_not_be_written_down_goes_on_by_itself(
    tmp_path: Path,
) -> None:
    """Nothing is left to do but wait for an answer, and nobody was ever asked."""
    disk, clock, model = Disk(), ManualClock(), Told()
    journal, failed = MemoryJournal(disk), anyio.Event()
    journal.on_failure(failed.set)
    asking = Tool(
        "act", "Act.", Nothing, Effect.ACT, OnCrash.UNKNOWN, 60, _act, lambda _: "", _ask_first
    )
    made_of = workshop.parts(tmp_path, journal, model, [asking], clock)
    async with workshop.running(made_of) as service:
        await submit(service, "A", "s")
        asked = await model.asked(1)
        disk.full = True
        asked.answer("", call("act"))
        with anyio.fail_after(PATIENCE_S):
            await failed.wait()
            disk.full = False
            await clock.due_within(TRY_AGAIN_S)
        clock.advance(TRY_AGAIN_S)
        again = await model.asked(2)
        assert isinstance(again.messages[-1], User)
        await journal.aclose()


@pytest.mark.promise("RUN-23")
async def test_runs_of_one_session_go_one_after_another_however_they_are_scheduled(
    tmp_path: Path,
) -> None:
    def play(request: Request) -> Iterator[Piece]:
        last = request.messages[-1]
        assert isinstance(last, User)
        yield Text(last.text)
        yield Answer(last.text)

    model = Played(play, lambda: the_loop().random.randrange(4))
    async with serving(tmp_path, model) as service:
        for seed in range(50):
            with seeded(seed):
                runs = [await submit(service, f"no {n}", f"s{seed}") for n in range(4)]
                records = [await follow(service, run_id) for run_id in runs]
                assert [kinds(r) for r in records] == [UNDISTURBED] * 4
                ends = [(r[0].seq if n else 0, r[2].seq, r[-1].seq) for n, r in enumerate(records)]
                begun = [number for _, number, _ in ends]
                assert all(e < b for (_, _, e), b in zip(ends, begun[1:], strict=False))
                messages = await service.messages(ME, SessionId(f"s{seed}"))
                assert [m.text for m in messages] == [f"no {n // 2}" for n in range(8)]


@pytest.mark.fault("F-04")
async def test_twins_under_one_key_are_one_run_however_they_are_scheduled(tmp_path: Path) -> None:
    model = Played(lambda request: (Answer("done"),))
    async with serving(tmp_path, model) as service:
        for seed in range(100):
            named = RequestKey("runs", f"key {seed}", "same")
            got: list[Submitted] = []

            async def post(named: RequestKey = named, got: list[Submitted] = got) -> None:
                await turn(the_loop().random.randrange(3))
                got.append(await service.send(Submit(ME, "hello", request_key=named)))

            with seeded(seed):
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(post)
                assert len({s.run_id for s in got}) == 1
                assert sorted(s.replayed for s in got) == [False, True, True]
                await finished(service, got[0].run_id)
    assert len(model.requests) == 100


async def test_a_run_that_breaks_fails_aloud_and_the_next_of_its_session_goes_on(
    tmp_path: Path,
) -> None:
    model = Told()
    async with serving(tmp_path, model) as service:
        first = await submit(service, "break", "s")
        second = await submit(service, "go on", "s")
        (await model.asked(1)).fail(KeyError("a bug of ours"))
        view = await finished(service, first)
        assert isinstance(view.ending, RunFailed)
        assert view.ending.code == "internal_error"
        assert "a bug of ours" not in view.ending.error
        (await model.asked(2)).answer("here I am")
        assert (await finished(service, second)).status is RunPhase.COMPLETED


@pytest.mark.promise("RUN-20", "SUITE-04")
async def test_a_model_that_breaks_off_is_asked_again_after_a_while_and_readers_are_told(
    tmp_path: Path,
) -> None:
    model, clock = Told(), ManualClock()
    async with serving(tmp_path, model, clock=clock) as service:
        run_id = await submit(service, "hello")
        asked = await model.asked(1)
        asked.say("half a")
        await reach(service, run_id, MessageDelta)
        asked.fail(Transient("reset"))
        await clock.due_within(0.5)
        assert len(model.requests) == 1
        clock.advance(0.5)
        again = await model.asked(2)
        assert again.messages == asked.messages
        again.say("all of it")
        again.answer("all of it")
        records = await follow(service, run_id)
        assert kinds(records)[4:] == [
            MessageDelta,
            MessageVoided,
            ModelFailed,
            MessageDelta,
            ModelAnswered,
            RunCompleted,
        ]


@pytest.mark.parametrize(
    ("error", "code", "requests"),
    [
        (Transient("busy", retry_after_s=0.1), "model_unavailable", 2),
        (Transient("busy", retry_after_s=999), "model_unavailable", 1),
        (Overflow("too long"), "context_overflow", 1),
        (Rejected("wrong key"), "model_rejected", 1),
    ],
)
async def test_a_model_that_does_not_answer_ends_the_run_with_its_reason(
    tmp_path: Path, error: Exception, code: str, requests: int
) -> None:
    model, clock = Told(), ManualClock()
    async with serving(tmp_path, model, clock=clock, limits=Limits(model_attempts=2)) as service:
        run_id = await submit(service, "hello")
        for number in range(1, requests + 1):
            (await model.asked(number)).fail(error)
            if number < requests:
                await clock.due_within(0.9)
                clock.advance(0.9)
        ending = (await finished(service, run_id)).ending
        assert isinstance(ending, RunFailed)
        assert ending.code == code
        assert str(error) in ending.error or ending.error == TOO_LONG
        assert len(model.requests) == requests


async def test_a_run_that_does_not_come_to_an_end_is_ended(tmp_path: Path) -> None:
    model = Played(lambda request: (Answer("", calls=(call("act"),)),))
    limits = Limits(turns=3)
    async with serving(tmp_path, model, tools=[ACT], limits=limits) as service:
        ending = (await finished(service, await submit(service, "go"))).ending
        assert isinstance(ending, RunFailed) and ending.code == "turns_exhausted"
        assert len(model.requests) == 3


@pytest.mark.promise("BACK-03", "BACK-10", "STOP-03")
async def test_a_run_that_was_interrupted_goes_on_where_it_stood(tmp_path: Path) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=[ACT]) as service:
        run_id = await submit(service, "hello", "s")
        (await model.asked(1)).answer("first this", call("act"))
        asked = await model.asked(2)
        asked.say("half a")
        await reach(service, run_id, MessageDelta)
        await service.stop(0, CutCause.SHUTDOWN)
        assert asked.cut
        assert (await service.run(ME, run_id)).status is RunPhase.INTERRUPTED
        with pytest.raises(Refused, match="shutting down"):
            await submit(service, "more", "s")
    async with serving(tmp_path, model, tools=[ACT]) as service:
        again = await model.asked(3)
        note = again.messages[-1]
        assert isinstance(note, User) and "gateway shutdown" in note.text
        assert list(again.messages[:-1]) == list(asked.messages)
        again.answer("done")
        records = await follow(service, run_id)
        assert isinstance(records[-1].fact, RunCompleted)
        happened = kinds(records)
        assert happened.count(CallSettled) == 1
        after_cut = happened[happened.index(RunInterrupted) :]
        assert [k for k in after_cut if k in (RunResumed, MessageVoided)] == [
            RunResumed,
            MessageVoided,
        ]


@pytest.mark.promise("RUN-22")
async def test_guidance_at_any_moment_is_read_or_refused(tmp_path: Path) -> None:
    def play(request: Request) -> Iterator[Piece]:
        yield Text("hm ")
        yield Answer("hm ")

    model = Played(play, lambda: the_loop().random.randrange(4))
    outcomes: set[bool] = set()
    async with serving(tmp_path, model) as service:
        for seed in range(100):
            with seeded(seed):
                run_id = await submit(service, "go", f"s{seed}")
                await turn(the_loop().random.randrange(the_loop().random.choice((1, 60, 600))))
                try:
                    await service.send(Steer(ME, run_id, "left"))
                    accepted = True
                except Refused as refused:
                    assert refused.code == "run_not_accepting_steer"
                    accepted = False
                assert (await finished(service, run_id)).status is RunPhase.COMPLETED
                messages = await service.messages(ME, SessionId(f"s{seed}"))
                assert (User("left") in messages) is accepted
                outcomes.add(accepted)
    assert outcomes == {True, False}


async def test_a_call_cut_by_a_crash_is_not_run_again_and_the_model_is_told(tmp_path: Path) -> None:
    begun = anyio.Event()
    times = 0

    async def once(context: Context, asked: Nothing) -> Done:
        nonlocal times
        times += 1
        begun.set()
        await anyio.sleep_forever()
        return Done("never")

    tool = Tool("once", "Act.", Nothing, Effect.ACT, OnCrash.UNKNOWN, 60, once, lambda _: "", free)
    model = Told()
    async with serving(tmp_path, model, tools=[tool]) as service:
        run_id = await submit(service, "go")
        (await model.asked(1)).answer("", call("once"))
        await begun.wait()
    async with serving(tmp_path, model, tools=[tool]) as service:
        second = await model.asked(2)
        (result,) = (m for m in second.messages if isinstance(m, ToolResult))
        assert "Outcome unknown" in result.text
        second.answer("I will look")
        records = await follow(service, run_id)
        outcomes = [r.fact.outcome for r in records if isinstance(r.fact, CallSettled)]
        assert (outcomes, times) == ([Outcome.UNKNOWN], 1)


@pytest.mark.parametrize(
    ("before", "now", "paused"),
    [(Level.L2, Level.L1, True), (Level.L2, Level.L2, False), (Level.L1, Level.L2, False)],
)
async def test_work_waits_for_the_operator_where_commands_are_confined_worse_than_before(
    tmp_path: Path, before: Level, now: Level, *, paused: bool
) -> None:
    hands = IdleHands()
    hands.level = before
    model = Told()
    async with serving(tmp_path, model, hands=hands) as service:
        run_id = await submit(service, "first")
        (await model.asked(1)).answer("done")
        await finished(service, run_id)
    hands.level = now
    model = Told()
    async with serving(tmp_path, model, hands=hands) as service:
        run_id = await submit(service, "go")
        await until(lambda: service.health().sandbox == now.name)
        if paused:
            await anyio.wait_all_tasks_blocked()
            assert "holdfast sandbox accept" in service.health().paused
            assert (await service.run(ME, run_id)).status is RunPhase.QUEUED
            with pytest.raises(Refused, match="operator"):
                await service.accept_posture(replace(ME, roles=frozenset({Role.RUN})))
            await service.accept_posture(ME)
        (await model.asked(1)).answer("went on")
        await finished(service, run_id)
        assert not service.health().paused
    async with serving(tmp_path, Told(), hands=hands) as service:
        await until(lambda: service.health().sandbox == now.name)
        await anyio.wait_all_tasks_blocked()
        assert not service.health().paused  # accepted once is accepted


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not holds():
            await anyio.lowlevel.checkpoint()


class UnsureHands(IdleHands):
    """Hands that cannot find out how well commands are confined, until there is room."""

    def __init__(self) -> None:
        super().__init__()
        self.room = False
        self.tried = 0

    async def posture(self) -> Posture:  # type: ignore[explicit-override]
        self.tried += 1
        if not self.room:
            raise ToolFailed("it could not be tried: no space")
        return await super().posture()


@pytest.mark.fault("F-30")
async def test_work_is_held_and_asked_about_again_until_the_posture_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, hands, clock = Told(), UnsureHands(), ManualClock()
    async with serving(tmp_path, model, hands=hands, clock=clock) as service:
        run_id = await submit(service, "go")
        for times in (1, 2, 3):
            await until(lambda times=times: hands.tried == times)  # type: ignore[misc]
            await clock.due_within(PROBE_AGAIN_S)
            await anyio.wait_all_tasks_blocked()
            health = service.health()
            assert (health.sandbox, "no space" in health.paused) == ("", True)
            assert (await service.run(ME, run_id)).status is RunPhase.QUEUED
            hands.room = times == 3
            clock.advance(PROBE_AGAIN_S)
        (await model.asked(1)).answer("went on")
        await finished(service, run_id)
        health = service.health()
        assert (health.sandbox, health.paused) == ("L2", "")
        assert [r.getMessage() for r in caplog.records].count("work is held") == 1


async def test_an_untested_sandbox_cannot_be_accepted(tmp_path: Path) -> None:
    hands, model = UnsureHands(), Told()
    async with serving(tmp_path, model, hands=hands) as service:
        with pytest.raises(Refused, match="no space") as refused:
            await service.accept_posture(ME)
        assert refused.value.code == "gateway_starting"
        hands.room = True
        await service.accept_posture(ME)
        run_id = await submit(service, "go")
        (await model.asked(1)).answer("went on")
        await finished(service, run_id)
