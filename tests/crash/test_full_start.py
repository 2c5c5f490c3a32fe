"""A start on a full disk: it serves, reports no sandbox level, and continues when there is room."""

from pathlib import Path

import anyio
import pytest

from tests.crash.evidence import begun
from tests.crash.test_disk import Disk, journal, small_disk
from tests.fakes.gateway import GatewayProcess
from tests.fakes.model_server import ModelServer, Wait, stream, token

pytestmark = pytest.mark.anyio

INODES = 300


def _use_up_inodes(disk: Disk) -> None:
    number = 0
    try:
        while True:
            (disk.inside / f"filler{number}").touch()
            number += 1
    except OSError:
        pass


def _free(disk: Disk) -> None:
    for path in disk.inside.glob("filler*"):
        path.unlink()


async def _known(it: GatewayProcess) -> str:
    """How well commands are confined, once it knows."""
    with anyio.fail_after(20):
        while True:
            _, health = await it.get("/health/detailed")
            if health["sandbox"]["level"]:
                assert not health["paused"], health
                return str(health["sandbox"]["level"])
            await anyio.sleep(0.05)  # sleep: there is no event for it


@pytest.mark.fault("F-30")
@pytest.mark.parametrize("what", ["bytes", "inodes"])
async def test_a_start_on_a_full_disk_pauses_nothing_for_good_and_claims_nothing(
    tmp_path: Path, model: ModelServer, what: str
) -> None:
    model.then(stream(token("half"), Wait()))
    async with small_disk(tmp_path, model, journal(0, 0), f"4m,nr_inodes={INODES}") as disk:
        it = disk.it
        before = await _known(it)
        run_id = await it.run("say:whole")
        await begun(it, run_id, "message.delta")
        disk.fill() if what == "bytes" else _use_up_inodes(disk)
        await it.kill()
        await disk.start()
        held = await it.said("work is held")
        assert "No space left" in held
        _, health = await it.get("/health/detailed")
        assert health["sandbox"]["level"] == ""
        assert "No space left" in health["paused"]
        assert (await it.status(run_id))["status"] in ("queued", "running")
        _free(disk)
        assert (await it.finished(run_id))["output"] == "whole"
        assert await _known(it) == before
        assert sum("work is held" in line for line in it.lines) == 1
