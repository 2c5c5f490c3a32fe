"""Who is held goes on: after those before it have had their time, or when it has been too long."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from holdfast.core.run.quarantine import HOLD_S
from holdfast.core.run.run import RunPhase
from holdfast.core.session.session import OnStart
from holdfast.core.types import RunId
from holdfast.engine.service import Service
from tests.engine.workshop import ME, Asked, Told, finished, serving, stop, submit, turn
from tests.fakes.clock import ManualClock

pytestmark = [pytest.mark.anyio, pytest.mark.promise("BACK-07")]


class Crashes:
    """Two runs that three crashes have cut; `back` is the life after that."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock, self.model = ManualClock(), Told()
        self.runs: list[RunId] = []

    @asynccontextmanager
    async def back(self, policy: OnStart = OnStart.RESUME) -> AsyncIterator[Service]:
        for life in range(3):
            async with serving(self.directory, self.model, clock=self.clock) as service:
                if not life:
                    self.runs = [await submit(service, name, name) for name in ("one", "two")]
                await self.model.asked(2 * life + 2)
        async with serving(
            self.directory, self.model, clock=self.clock, on_start=policy
        ) as service:
            yield service

    async def pass_by(self, seconds: float) -> None:
        """Time goes by, and the search has a look."""
        await self.clock.due_within(1.0)
        self.clock.advance(seconds)


async def nothing_is_held(service: Service) -> None:
    """The search has seen that nobody is left."""
    with anyio.fail_after(10):
        while service.health().held:
            await turn(1)


def _words(asked: Asked) -> str:
    return asked.messages[-1].text.rpartition("\n\n")[2]


async def test_of_two_suspects_the_second_follows_the_first(tmp_path: Path) -> None:
    crashes = Crashes(tmp_path)
    async with crashes.back() as service:
        first = await crashes.model.asked(7)
        assert service.health().held.startswith("1 of the runs")
        assert len(crashes.model.requests) == 7
        first.answer("done")
        await crashes.pass_by(1.0)
        second = await crashes.model.asked(8)
        assert {_words(first), _words(second)} == {"one", "two"}
        second.answer("done")
        for run_id in crashes.runs:
            assert (await finished(service, run_id)).status is RunPhase.COMPLETED
        await nothing_is_held(service)


async def test_no_run_is_held_for_longer_than_ten_minutes(tmp_path: Path) -> None:
    crashes = Crashes(tmp_path)
    async with crashes.back() as service:
        await crashes.model.asked(7)
        await crashes.pass_by(HOLD_S)
        await crashes.model.asked(8)
        await nothing_is_held(service)


async def test_the_operator_ends_it_and_earlier_cuts_count_no_more(tmp_path: Path) -> None:
    crashes = Crashes(tmp_path)
    async with crashes.back() as service:
        await crashes.model.asked(7)
        assert await service.session_admin.release(ME) == 1
        await crashes.model.asked(8)
        assert await service.session_admin.release(ME) == 0
    for asked in (10, 12):  # it takes three crashes again
        async with serving(tmp_path, crashes.model, clock=crashes.clock) as service:
            await crashes.model.asked(asked)
            assert service.health().held == ""


async def test_a_held_run_can_be_stopped(tmp_path: Path) -> None:
    crashes = Crashes(tmp_path)
    async with crashes.back() as service:
        at_work = _words(await crashes.model.asked(7))
        held = crashes.runs[("two", "one").index(at_work)]
        await stop(service, held)
        assert (await finished(service, held)).status is RunPhase.CANCELLED
        await crashes.pass_by(1.0)
        await nothing_is_held(service)


async def test_held_runs_wait_for_their_users_too(tmp_path: Path) -> None:
    crashes = Crashes(tmp_path)
    async with crashes.back(OnStart.WAIT) as service:
        assert service.health().held.startswith("1 of the runs")
        assert await service.session_admin.release(ME) == 1
        for run_id in crashes.runs:
            assert (await service.run(ME, run_id)).status is RunPhase.INTERRUPTED
        await submit(service, "go on", "one")
        await crashes.model.asked(7)
