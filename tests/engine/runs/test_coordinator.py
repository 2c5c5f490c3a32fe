"""The coordinator: one drive a session, so many places, and nothing that was said is missed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from holdfast.core.types import Owner, RunId, SessionId, SessionKey
from holdfast.engine.runs.coordinator import LET_GO_S, Coordinator, Drive
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Conflict
from tests.engine.loop import VirtualLoop

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


def key(name: str) -> SessionKey:
    return SessionKey(Owner("me"), SessionId(name))


A, B, C, D = map(key, "abcd")
RUN, OTHER = RunId("run_1"), RunId("run_2")


class Look:
    """One look at a session, which lasts until the test ends it."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.key = drive.key
        self.cancelled = False
        self._end = anyio.Event()
        self._raises: Exception | None = None
        self._cleanup: anyio.Event | None = None

    def end(self, error: Exception | None = None) -> None:
        self._raises = error
        self._end.set()

    def hold_cleanup(self) -> anyio.Event:
        """When it is cancelled, it takes until this is set to let go."""
        self._cleanup = anyio.Event()
        return self._cleanup

    async def last(self) -> None:
        try:
            await self._end.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled = True
            with anyio.CancelScope(shield=True):
                if self._cleanup is not None:
                    await self._cleanup.wait()
            raise
        if self._raises is not None:
            raise self._raises


class Stage:
    """Every look so far, in the order they began, and what was reported."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self.active = 0
        self.most = 0
        self.broken: list[tuple[SessionKey, Exception]] = []
        self.orphans: list[SessionKey] = []
        self.refuse: Exception | None = None
        self._begun = anyio.Event()

    def begin(self, drive: Drive) -> Look:
        """A look begins, at `RUN`."""
        drive.run_id = RUN
        self.looks.append(Look(drive))
        self._begun.set()
        self._begun = anyio.Event()
        return self.looks[-1]

    async def drive(self, drive: Drive) -> None:
        look = self.begin(drive)
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            await look.last()
        finally:
            self.active -= 1

    async def mend(self, broken: SessionKey, run_id: RunId | None, error: Exception) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.broken.append((broken, error))

    @property
    def order(self) -> str:
        return "".join(look.key.session_id for look in self.looks)

    async def looked(self, times: int) -> Look:
        """The look with that number, once it is there; nobody has looked more often."""
        with anyio.fail_after(60):
            while len(self.looks) < times:
                await self._begun.wait()
        await self.settle()
        assert len(self.looks) == times
        return self.looks[-1]

    async def settle(self) -> None:
        """Return when nothing moves any more without the test."""
        await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def staged(places: int = 8) -> AsyncIterator[tuple[Stage, Coordinator]]:
    stage = Stage()
    async with anyio.create_task_group() as tasks:
        coordinator = Coordinator(tasks, stage.drive, stage.mend, stage.orphans.append, places)
        coordinator.begin()
        yield stage, coordinator
        tasks.cancel_scope.cancel()


async def test_a_session_is_driven_once_at_a_time() -> None:
    async with staged() as (stage, coordinator):
        for _ in range(3):
            coordinator.wake(A)
        first = await stage.looked(1)
        coordinator.wake(A)
        await stage.settle()
        assert (len(stage.looks), stage.active) == (1, 1)
        first.end()
        (await stage.looked(2)).end()
        await coordinator.drained()
        assert stage.most == 1


async def test_wakes_during_a_drive_are_one_more_look() -> None:
    async with staged() as (stage, coordinator):
        coordinator.wake(A)
        first = await stage.looked(1)
        for _ in range(5):
            coordinator.wake(A)
        first.end()
        (await stage.looked(2)).end()
        await coordinator.drained()
        assert len(stage.looks) == 2


async def test_sessions_are_driven_side_by_side() -> None:
    async with staged() as (stage, coordinator):
        for session in (A, B, C):
            coordinator.wake(session)
        await stage.looked(3)
        assert stage.active == 3


async def test_an_interrupted_drive_is_cancelled_and_the_session_looked_at_again() -> None:
    async with staged() as (stage, coordinator):
        coordinator.wake(A)
        first = await stage.looked(1)
        coordinator.interrupt(A, RUN)
        second = await stage.looked(2)
        assert (first.cancelled, second.cancelled) == (True, False)
        second.end()
        await coordinator.drained()
        assert len(stage.looks) == 2


async def test_a_wake_during_an_interruption_is_not_lost_and_waits_for_the_cleanup() -> None:
    async with staged() as (stage, coordinator):
        coordinator.wake(A)
        first = await stage.looked(1)
        cleaned = first.hold_cleanup()
        coordinator.interrupt(A, RUN)
        await stage.settle()
        coordinator.wake(A)
        coordinator.wake(A)
        await stage.settle()
        assert (first.cancelled, len(stage.looks)) == (True, 1)
        cleaned.set()
        (await stage.looked(2)).end()
        await coordinator.drained()
        assert (len(stage.looks), stage.most) == (2, 1)


@pytest.mark.fault("F-12")
async def test_an_interrupt_does_nothing_to_another_run_but_look_again() -> None:
    async with staged() as (stage, coordinator):
        coordinator.wake(A)
        first = await stage.looked(1)
        coordinator.interrupt(A, OTHER)
        await stage.settle()
        assert not first.cancelled
        first.end()
        (await stage.looked(2)).end()
        await coordinator.drained()
        assert [look.cancelled for look in stage.looks] == [False, False]


async def test_an_interrupt_of_a_session_that_is_not_driven_looks_at_it() -> None:
    async with staged() as (stage, coordinator):
        coordinator.interrupt(A, RUN)
        assert not (await stage.looked(1)).cancelled


async def test_a_drive_that_does_not_let_go_is_left_behind_and_the_session_goes_on() -> None:
    async with staged() as (stage, coordinator):
        coordinator.wake(A)
        stuck = await stage.looked(1)
        cleaned = stuck.hold_cleanup()
        asked_at = anyio.current_time()
        coordinator.interrupt(A, RUN)
        second = await stage.looked(2)
        assert LET_GO_S <= anyio.current_time() - asked_at < 2 * LET_GO_S
        assert coordinator.active == (second.drive,)
        cleaned.set()
        await stage.settle()
        coordinator.wake(A)  # the late end of the first is no business of the second
        await stage.settle()
        assert (len(stage.looks), stage.active) == (2, 1)
        second.end()
        (await stage.looked(3)).end()
        await coordinator.drained()


async def test_one_that_was_left_behind_reports_nothing_any_more() -> None:
    async with staged() as (stage, coordinator):
        released = anyio.Event()

        async def stubborn(drive: Drive) -> None:
            if stage.looks:
                await stage.drive(drive)
                return
            stage.begin(drive)
            with anyio.CancelScope(shield=True):
                await released.wait()
            raise JournalUnavailable("too late")

        async with anyio.create_task_group() as tasks:
            again = Coordinator(tasks, stubborn, stage.mend, stage.orphans.append, 1)
            again.begin()
            again.wake(A)
            await stage.looked(1)
            again.interrupt(A, RUN)
            await stage.looked(2)
            released.set()
            await stage.settle()
            assert stage.orphans == []
            again.wake(A)  # its session is not one that must be left alone
            stage.looks[1].end()
            (await stage.looked(3)).end()
        assert coordinator.active == ()


async def test_there_are_no_more_drives_than_places_and_the_rest_come_in_order() -> None:
    async with staged(places=2) as (stage, coordinator):
        for session in (A, B, C, D, C):
            coordinator.wake(session)
        await stage.settle()
        assert stage.order == "ab"
        for number in range(4):
            stage.looks[number].end()
            await stage.settle()
        await coordinator.drained()
        assert (stage.order, stage.most) == ("abcd", 2)


async def test_those_that_are_woken_go_before_those_that_have_not_begun() -> None:
    async with staged(places=1) as (stage, coordinator):
        coordinator.wake(A)
        coordinator.wake(B)
        coordinator.wake(C)
        coordinator.wake(D, first=True)
        coordinator.wake(C, first=True)  # it has moved up; its old place is gone
        coordinator.wake(C)
        for number in range(4):
            (await stage.looked(number + 1)).end()
        await coordinator.drained()
        assert stage.order == "adcb"


async def test_one_that_is_looked_at_again_does_not_give_up_its_place() -> None:
    async with staged(places=1) as (stage, coordinator):
        coordinator.wake(A)
        first = await stage.looked(1)
        coordinator.wake(B)
        coordinator.interrupt(A, RUN)
        (await stage.looked(2)).end()
        (await stage.looked(3)).end()
        await coordinator.drained()
        assert (stage.order, first.cancelled) == ("aab", True)


async def test_closed_it_starts_nothing_and_lets_run_out_what_runs() -> None:
    async with staged(places=2) as (stage, coordinator):
        for session in (A, B, C):
            coordinator.wake(session)
        await stage.looked(2)
        assert coordinator.admitting
        coordinator.close()
        assert not coordinator.admitting
        coordinator.wake(D)
        coordinator.wake(D, first=True)
        drained = anyio.Event()

        async def drain() -> None:
            await coordinator.drained()
            drained.set()

        async with anyio.create_task_group() as waiting:
            waiting.start_soon(drain)
            stage.looks[0].end()
            await stage.settle()
            assert not drained.is_set()
            coordinator.interrupt(B, RUN)  # cut, and not begun again
            await stage.settle()
            assert drained.is_set()
        assert (stage.order, coordinator.active) == ("ab", ())


async def test_an_error_of_a_drive_is_reported_and_its_session_driven_again() -> None:
    async with staged() as (stage, coordinator):
        error = ValueError("no")
        coordinator.wake(A)
        (await stage.looked(1)).end(error)
        (await stage.looked(2)).end()  # what stands behind the run that broke must not wait
        await coordinator.drained()
        assert (stage.broken, stage.orphans) == ([(A, error)], [])


@pytest.mark.parametrize("error", [JournalUnavailable("full"), Conflict("moved")])
async def test_a_drive_that_cannot_write_leaves_an_orphan_that_no_wake_reaches(
    error: Exception,
) -> None:
    async with staged() as (stage, coordinator):
        coordinator.wake(A)
        first = await stage.looked(1)
        coordinator.wake(A)
        first.end(error)
        await coordinator.drained()
        coordinator.wake(A, first=True)
        await stage.settle()
        assert (stage.order, stage.broken, stage.orphans) == ("a", [], [A])
        coordinator.adopt(A)
        (await stage.looked(2)).end()
        await coordinator.drained()


async def test_a_report_that_cannot_be_written_leaves_an_orphan() -> None:
    async with staged() as (stage, coordinator):
        stage.refuse = JournalUnavailable("full")
        coordinator.wake(A)
        (await stage.looked(1)).end(ValueError("no"))
        await coordinator.drained()
        assert (len(stage.looks), stage.broken, stage.orphans) == (1, [], [A])


async def test_before_it_begins_nothing_is_driven_and_no_wake_is_lost() -> None:
    stage = Stage()
    async with anyio.create_task_group() as tasks:
        coordinator = Coordinator(tasks, stage.drive, stage.mend, stage.orphans.append, 1)
        coordinator.wake(A)
        coordinator.wake(B, first=True)
        await stage.settle()
        assert coordinator.active == ()
        coordinator.begin()
        (await stage.looked(1)).end()
        await stage.looked(2)
        tasks.cancel_scope.cancel()
    assert [look.key for look in stage.looks] == [B, A]
