"""What a process that will not stay long leaves aside, and who has it taken up."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from holdfast.core.events import Record
from holdfast.core.inbox import Mode
from holdfast.core.intents import Submit
from holdfast.core.run.run import RunCompleted, RunFailed, RunInterrupted, RunPhase
from holdfast.core.session.session import OnStart
from holdfast.core.types import Fact, RunId, SessionId
from holdfast.engine.service import Service
from holdfast.models.model import Model
from tests.engine.workshop import (
    ME,
    PATIENCE_S,
    Told,
    finished,
    follow,
    journaled,
    parts,
    serving,
    submit,
)

pytestmark = pytest.mark.anyio

HERE = SessionId("here")


@asynccontextmanager
async def passing(
    directory: Path, model: Model, on_start: OnStart = OnStart.RESUME
) -> AsyncIterator[Service]:
    """A service that came for nothing that was left unfinished."""
    async with journaled(directory) as journal, anyio.create_task_group() as tasks:
        service = Service(parts(directory, journal, model, on_start=on_start), tasks)
        await service.start(only=frozenset())
        yield service
        tasks.cancel_scope.cancel()


async def cut(directory: Path) -> RunId:
    """A run that was at work when its process ended."""
    model = Told()
    async with serving(directory, model) as service:
        run_id = await submit(service, "hello", HERE)
        await model.asked(1)
    return run_id


async def seen(service: Service, fact: type[Fact]) -> Record:
    """The first such record of the session, once it is there, for somebody who only watches."""
    with anyio.fail_after(PATIENCE_S):
        async with service.follow_session(ME, HERE, 0) as batches:
            async for batch in batches:
                for record in batch:
                    if isinstance(record.fact, fact):
                        return record
    raise AssertionError("the reading ended")


@pytest.mark.parametrize("whole_session", [True, False])
async def test_a_deferred_session_continues_when_it_is_followed(
    tmp_path: Path, *, whole_session: bool
) -> None:
    run_id, model = await cut(tmp_path), Told()
    async with passing(tmp_path, model) as service, anyio.create_task_group() as reading:
        assert (await service.run(ME, run_id)).status is RunPhase.RUNNING, "as it was found"
        if whole_session:
            await seen(service, RunInterrupted)
        else:
            reading.start_soon(follow, service, run_id)
        (await model.asked(1)).answer("back again")
        assert (await finished(service, run_id)).status is RunPhase.COMPLETED


@pytest.mark.parametrize("whole_session", [True, False])
async def test_who_follows_before_the_service_has_started_is_not_forgotten(
    tmp_path: Path, *, whole_session: bool
) -> None:
    run_id, model = await cut(tmp_path), Told()
    async with journaled(tmp_path) as journal, anyio.create_task_group() as tasks:
        service = Service(parts(tmp_path, journal, model), tasks)
        if whole_session:
            tasks.start_soon(seen, service, RunCompleted)
        else:
            tasks.start_soon(follow, service, run_id)
        await anyio.wait_all_tasks_blocked()
        await service.start(only=frozenset())  # its doors are open before that
        (await model.asked(1)).answer("back again")
        assert (await finished(service, run_id)).status is RunPhase.COMPLETED
        tasks.cancel_scope.cancel()


async def test_a_cancelled_caller_does_not_stop_a_recovery(
    tmp_path: Path,
) -> None:
    run_id, model = await cut(tmp_path), Told()
    async with passing(tmp_path, model) as service:
        for turns in range(8):
            async with anyio.create_task_group() as reading:
                reading.start_soon(seen, service, RunFailed)  # there is no such record
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                reading.cancel_scope.cancel()
        await seen(service, RunInterrupted)
        (await model.asked(1)).answer("back again")
        assert (await finished(service, run_id)).status is RunPhase.COMPLETED


@pytest.mark.promise("BACK-09")
async def test_a_run_that_waits_for_the_user_waits_although_it_is_followed(
    tmp_path: Path,
) -> None:
    run_id, model = await cut(tmp_path), Told()
    async with passing(tmp_path, model, OnStart.WAIT) as service:
        await seen(service, RunInterrupted)
        assert (await service.run(ME, run_id)).status is RunPhase.INTERRUPTED
        assert model.requests == []
        await service.send(Submit(ME, "go on", HERE, mode=Mode.STEER))
        (await model.asked(1)).answer("gone on")
        assert (await finished(service, run_id)).status is RunPhase.COMPLETED
