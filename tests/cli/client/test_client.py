"""The client of the front door, where there is a lock but nobody to talk to."""

from pathlib import Path

import pytest

from holdfast.api.schema.runs import RunRequest
from holdfast.cli.client.client import WAITING, connect
from holdfast.cli.exits import Code, Exit
from holdfast.config.load import load
from holdfast.host.lock import take_lock

pytestmark = pytest.mark.anyio


async def test_an_owner_that_does_not_answer_is_given_up_on_aloud(tmp_path: Path) -> None:
    config = load({"HOME": str(tmp_path), "HOLDFAST_HOME": str(tmp_path / "home")}, {})
    lock = take_lock(config.home)
    assert lock is not None
    notes: list[str] = []
    try:
        with pytest.raises(ExceptionGroup) as caught:
            async with connect(config, notes.append, patience_s=0.05) as client:
                await client.submit(RunRequest(input="hi"))
    finally:
        lock.release()
    (error,) = caught.value.exceptions
    assert isinstance(error, Exit)
    assert error.code is Code.TRY_AGAIN
    assert "does not answer" in str(error)
    assert notes == [WAITING]


async def test_without_an_owner_the_client_is_its_own_and_leaves_the_home_free(
    tmp_path: Path,
) -> None:
    config = load({"HOME": str(tmp_path), "HOLDFAST_HOME": str(tmp_path / "home")}, {})
    notes: list[str] = []
    work = tmp_path / "work"
    work.mkdir()
    async with connect(config, notes.append) as client:
        run_id = await client.submit(RunRequest(input="hi", workspace=str(work)))
        events = [frame.event.event async for frame in client.follow(run_id)]
        again = [frame.event.event async for frame in client.follow(run_id)]
        assert (await client.status(run_id)).status == "completed"
        assert [run.run_id for run in await client.runs()] == [run_id]
    assert events[0] == "run.started"
    assert events[-1] == "run.completed"
    assert again == events
    assert notes == []
    lock = take_lock(config.home)
    assert lock is not None
    lock.release()
