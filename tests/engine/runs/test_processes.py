"""Background processes: their end is written down once, and told where that was promised."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
import pytest

from holdfast.core.events import Record
from holdfast.core.intents import DoorCapabilities, Principal, Submit
from holdfast.core.messages import User
from holdfast.core.run import process
from holdfast.core.run.call import OnCrash
from holdfast.core.run.process import ProcessEnd, ProcessEnded, ProcessStarted
from holdfast.core.run.run import CutCause as Cut
from holdfast.core.types import CallId, Fact, ProcessId, SessionId, SessionKey
from holdfast.engine.runs.processes import TIDY_EVERY_S, WATCH_AGAIN_S
from holdfast.engine.service import Service
from holdfast.tools.tool import Background, Context, Done, Effect, Outcome, Tool, free
from tests.engine.workshop import ME, PATIENCE_S, Told, call, finished, serving, submit
from tests.fakes.clock import ManualClock
from tests.fakes.hands import IdleHands

pytestmark = pytest.mark.anyio

NETWORK = Principal(
    ME.owner, DoorCapabilities(platform="api_server", answerable=True, late=False), ME.roles
)
SESSION = SessionId("s")
KEY = SessionKey(ME.owner, SESSION)


class Begin(msgspec.Struct):
    watch: tuple[str, ...] = ()


async def begin(context: Context, asked: Begin) -> Outcome:
    found = process.notice(context.origin, notify=True, watch=asked.watch)
    begun = Background(
        process.id_for(context.run_id, context.turn, context.call_id),
        "make",
        found.notify,
        found.watch,
        False,
    )
    return Done("begun", background=begun)


BEGIN = Tool(
    "begin", "Begin.", Begin, Effect.ACT, OnCrash.UNKNOWN, 10, begin, lambda asked: "begin", free
)


async def session_fact(service: Service, fact: type[Fact]) -> Record:
    """The session's first record of that kind, once it is there."""
    with anyio.fail_after(PATIENCE_S):
        async with service.follow_session(ME, SESSION, 0) as batches:
            async for batch in batches:
                for record in batch:
                    if isinstance(record.fact, fact):
                        return record
    raise AssertionError


async def begun(
    service: Service, model: Told, by: Principal = ME, arguments: str = "{}"
) -> ProcessId:
    """A session whose run has started a process and is over."""
    run_id = (await service.send(Submit(by, "go", SESSION))).run_id
    (await model.asked(1)).answer("", call("begin", arguments))
    (await model.asked(2)).answer("it runs")
    await finished(service, run_id)
    return process.id_for(run_id, 1, CallId("c1"))


@pytest.mark.promise("LATE-05")
@pytest.mark.promise("LATE-06")
async def test_the_end_of_a_process_is_a_new_input_of_its_idle_session(tmp_path: Path) -> None:
    model, hands = Told(), IdleHands()
    async with serving(tmp_path, model, tools=[BEGIN], hands=hands) as service:
        process_id = await begun(service, model)
        hands.end(process_id)
        told = (await model.asked(3)).messages[-1]
        assert isinstance(told, User)
        assert process_id in told.text
        assert "exit code 0" in told.text
        assert "its last words" in told.text
        (record,) = [await session_fact(service, ProcessEnded)]
        assert isinstance(record.fact, ProcessEnded)
        assert record.fact.process_id == process_id


@pytest.mark.promise("LATE-02")
@pytest.mark.promise("LATE-03")
@pytest.mark.promise("LATE-04")
async def test_without_late_delivery_the_end_is_recorded_and_starts_no_run(
    tmp_path: Path,
) -> None:
    model, hands = Told(), IdleHands()
    async with serving(tmp_path, model, tools=[BEGIN], hands=hands) as service:
        process_id = await begun(service, model, NETWORK)
        hands.end(process_id)
        await session_fact(service, ProcessEnded)
        again = await submit(service, "anything?", SESSION)  # by a door that can: not blocked
        asked = await model.asked(3)
        assert asked.messages[-1] == User("anything?")
        asked.answer("no")
        await finished(service, again)


@pytest.mark.promise("LATE-08")
async def test_a_request_that_asks_for_late_events_is_told_late(tmp_path: Path) -> None:
    model, hands = Told(), IdleHands()
    async with serving(tmp_path, model, tools=[BEGIN], hands=hands) as service:
        run_id = (await service.send(Submit(NETWORK, "go", SESSION, late=True))).run_id
        (await model.asked(1)).answer("", call("begin"))
        (await model.asked(2)).answer("it runs")
        await finished(service, run_id)
        hands.end(process.id_for(run_id, 1, CallId("c1")))
        assert "has ended" in (await model.asked(3)).messages[-1].text


@pytest.mark.promise("LATE-05")
async def test_one_that_died_with_the_gateway_is_told_at_the_next_start(tmp_path: Path) -> None:
    model, hands = Told(), IdleHands()
    async with serving(tmp_path, model, tools=[BEGIN], hands=hands) as service:
        process_id = await begun(service, model)
        started = (await session_fact(service, ProcessStarted)).fact
        assert isinstance(started, ProcessStarted)
        assert (started.process_id, started.origin.platform) == (process_id, "cli")
    model, hands = Told(), IdleHands()
    hands.traces = [(KEY, process_id)]
    hands.end(process_id, cause=ProcessEnd.RESTART)
    async with serving(tmp_path, model, tools=[BEGIN], hands=hands) as service:
        told = (await model.asked(1)).messages[-1]
        assert "killed by the restart" in told.text
    model = Told()
    async with serving(tmp_path, model, tools=[BEGIN], hands=hands) as service:
        asked = await model.asked(1)  # the run that was cut goes on; it is told nothing twice
        users = [m.text for m in asked.messages if isinstance(m, User)]
        assert sum("killed by the restart" in text for text in users) == 1


async def test_traces_that_mean_nothing_any_more_are_removed(tmp_path: Path) -> None:
    hands, clock = IdleHands(), ManualClock()
    model = Told()
    async with serving(tmp_path, model, tools=[BEGIN], hands=hands, clock=clock) as service:
        process_id = await begun(service, model)
        hands.end(process_id)
        await session_fact(service, ProcessEnded)
    unknown = SessionKey(ME.owner, SessionId("never"))
    stray = ProcessId("proc_stray")
    hands.traces = [(KEY, process_id), (KEY, stray), (unknown, stray)]
    async with serving(tmp_path, Told(), tools=[BEGIN], hands=hands, clock=clock):
        assert hands.forgotten == [stray, stray]
    clock.advance(25 * 3600)
    hands.forgotten.clear()
    async with serving(tmp_path, Told(), tools=[BEGIN], hands=hands, clock=clock):
        assert hands.forgotten == [process_id, stray, stray]


@pytest.mark.promise("STOP-06")
@pytest.mark.parametrize("busy", [True, False], ids=["the drain ran out", "gracefully"])
async def test_processes_are_killed_before_the_doors_close_only_if_the_drain_ran_out(
    tmp_path: Path, *, busy: bool
) -> None:
    model, hands = Told(), IdleHands()
    async with serving(tmp_path, model, tools=[BEGIN], hands=hands) as service:
        if busy:
            await submit(service, "go")
            await model.asked(1)
        await service.stop(0, Cut.SHUTDOWN)
        before = hands.killed
        await service.end()
        assert (before, hands.killed) == ((1, 2) if busy else (0, 1))


@pytest.mark.promise("STOP-06")
async def test_a_process_killed_by_a_shutdown_is_recorded_as_killed_by_the_restart(
    tmp_path: Path,
) -> None:
    model, hands = Told(), IdleHands()
    async with serving(tmp_path, model, tools=[BEGIN], hands=hands) as service:
        process_id = await begun(service, model)
        await service.stop(0, Cut.SHUTDOWN)
        hands.end(process_id, cause=ProcessEnd.KILLED)
        await service.end()
        record = await session_fact(service, ProcessEnded)
        assert isinstance(record.fact, ProcessEnded)
        assert record.fact.cause is ProcessEnd.RESTART
    model = Told()
    async with serving(tmp_path, model, tools=[BEGIN], hands=IdleHands()):
        assert "killed by the restart" in (await model.asked(1)).messages[-1].text


class FailingHands(IdleHands):
    """Hands that cannot look at first."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = {"ended": 2, "lines": 2, "known": 0}
        self.looked: list[str] = []

    def _look(self, what: str) -> None:
        self.looked.append(what)
        if self.failures[what]:
            self.failures[what] -= 1
            raise OSError(24, "Too many open files")

    def known(self) -> list[tuple[SessionKey, ProcessId]]:  # type: ignore[explicit-override]
        self._look("known")
        return super().known()

    async def ended(self, process_id: ProcessId) -> ProcessEnded:  # type: ignore[explicit-override]
        self._look("ended")
        return await super().ended(process_id)

    async def lines(  # type: ignore[explicit-override]
        self, process_id: ProcessId, after: int, patterns: Sequence[str]
    ) -> tuple[str, int]:
        self._look("lines")
        return ("it is ready", 10) if not after else await super().lines(process_id, after, ())


@pytest.mark.fault("F-29")
@pytest.mark.promise("LATE-05")
async def test_a_look_that_fails_is_tried_again_and_ends_nothing_else(tmp_path: Path) -> None:
    model, hands, clock = Told(), FailingHands(), ManualClock()
    async with serving(tmp_path, model, tools=[BEGIN], hands=hands, clock=clock) as service:
        process_id = await begun(service, model, arguments='{"watch": ["ready"]}')
        for _ in range(2):
            await clock.due_within(WATCH_AGAIN_S)
            await anyio.wait_all_tasks_blocked()
            clock.advance(WATCH_AGAIN_S)
        told = await model.asked(3)
        assert "it is ready" in told.messages[-1].text
        told.answer("good")
        hands.end(process_id)
        assert "has ended" in (await model.asked(4)).messages[-1].text
        assert (hands.looked.count("ended"), hands.looked.count("lines")) == (3, 4)


@pytest.mark.fault("F-29")
async def test_traces_that_cannot_be_looked_through_are_looked_through_later(
    tmp_path: Path,
) -> None:
    hands, clock = FailingHands(), ManualClock()
    async with serving(tmp_path, Told(), tools=[BEGIN], hands=hands, clock=clock):
        hands.failures["known"] = 1
        for times in (2, 3):
            await clock.due_within(TIDY_EVERY_S)
            await anyio.wait_all_tasks_blocked()
            clock.advance(TIDY_EVERY_S)
            await anyio.wait_all_tasks_blocked()
            assert hands.looked.count("known") == times
