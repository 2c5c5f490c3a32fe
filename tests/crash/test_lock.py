"""Who owns the home: nothing a dead gateway left behind keeps the next from serving."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.evidence import count, noted
from tests.fakes.gateway import GatewayProcess, gateway, unstarted
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

RESTARTS = count("HOLDFAST_RESTARTS", 25, 100)


@pytest.mark.fault("F-17")
@pytest.mark.promise("STOP-12")
@pytest.mark.timeout(600)
async def test_kill_and_start_serves_within_five_seconds_every_time(
    it: GatewayProcess, record_property: Callable[[str, object], None]
) -> None:
    worst = 0.0
    for number in range(RESTARTS):
        with noted(f"start {number}"):
            run_id = await it.run("tool:hang {}")
            await it.kill()
            began = time.monotonic()
            await it.start()
            status, health = await it.get("/health")
            took = time.monotonic() - began
            assert (status, health["status"]) == (200, "ok")
            assert took <= 5, took
            assert not any("already running" in line for line in it.lines)
            assert (await it.post(f"/v1/runs/{run_id}/stop"))[0] in (200, 404)
            worst = max(worst, took)
    record_property("worst_start_s", round(worst, 3))


@pytest.mark.fault("F-18")
@pytest.mark.promise("STOP-12")
async def test_a_second_instance_waits_says_so_and_takes_over(
    it: GatewayProcess,
    tmp_path: Path,
    model: ModelServer,
    record_property: Callable[[str, object], None],
) -> None:
    run_id = await it.run("tool:hang {}")
    await it.events(run_id, until="tool.started")
    async with unstarted(tmp_path, model.base_url) as second:
        await second.start(wait=False)
        line = await second.said("waiting for it")
        assert f"pid {it.pid}" in line
        assert (await it.get("/health"))[0] == 200
        it.signal(signal.SIGKILL)
        await it.ended()
        died = time.monotonic()
        await second.ready()
        took = time.monotonic() - died
        record_property("take_over_s", round(took, 3))
        assert took <= 1, took
        assert (await second.finished(run_id))["status"] == "completed"


@pytest.mark.promise("STOP-12")
async def test_an_instance_that_waits_can_be_told_to_end(
    it: GatewayProcess, tmp_path: Path, model: ModelServer
) -> None:
    async with unstarted(tmp_path, model.base_url) as second:
        await second.start(wait=False)
        await second.said("waiting for it")
        await second.stop()
    assert (await it.finished(await it.run("hello")))["status"] == "completed"


@pytest.mark.fault("F-25")
@pytest.mark.parametrize(
    ("config", "names"),
    [
        ("[gateway]\ndrain = 5\n", "did you mean drain_s"),
        ("[limits]\nrunning = 0\n", "limits.running"),
        ("[recovery]\non_start = 'hope'\n", "recovery.on_start"),
        ("[gateway\n", "config.toml"),
        ("[gateway]\nhost = '192.0.2.1'\n", "192.0.2.1"),
    ],
)
async def test_a_wrong_configuration_ends_with_78_and_one_clear_line(
    tmp_path: Path, config: str, names: str
) -> None:
    async with unstarted(tmp_path, config=config) as it:
        await it.start(wait=False)
        assert not await it.comes_up()
        assert await it.ended() == 78
        (line,) = (line for line in it.lines if not line.startswith('{"at"'))  # the log's lines
        assert names in line


@pytest.mark.fault("F-25")
async def test_a_plugin_that_is_not_there_ends_with_78_and_one_clear_line(tmp_path: Path) -> None:
    async with unstarted(tmp_path) as it:
        (it.home / "config.toml").write_text('plugins = ["no_such_tools"]\n')
        await it.start(wait=False)
        assert not await it.comes_up()
        assert await it.ended() == 78
        (line,) = it.lines
        assert "no_such_tools" in line


@pytest.mark.fault("F-25")
async def test_a_configuration_that_is_mended_starts(tmp_path: Path) -> None:
    async with unstarted(tmp_path, config="[gateway]\ndrain = 5\n") as it:
        await it.start(wait=False)
        assert await it.ended() == 78
    async with gateway(tmp_path, config="[gateway]\ndrain_s = 5\n") as it:
        assert (await it.get("/health"))[0] == 200
