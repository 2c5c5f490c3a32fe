"""Ownership of the home: a dead gateway never keeps the next one from serving."""

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from holdfast.cli.exits import Code
from holdfast.host.lock import FILE, is_locked, take_lock
from tests.crash.evidence import count, noted
from tests.fakes.gateway import GatewayProcess, gateway, unstarted
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

RESTARTS = count("HOLDFAST_RESTARTS", 25, 100)
TAKEN_OVER_S = 1.0
TRIES = 3  # a busy machine spoils one, a slow takeover all of them


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
    took: list[float] = []
    async with unstarted(tmp_path, model.base_url) as other:
        first, second = it, other
        while not took or (min(took) > TAKEN_OVER_S and len(took) < TRIES):
            await second.start(wait=False)
            line = await second.said("waiting for it")
            assert f"pid {first.pid}" in line
            assert (await first.get("/health"))[0] == 200
            await first.kill()
            died = time.monotonic()
            await second.ready()
            took.append(time.monotonic() - died)
            first, second = second, first
        record_property("take_over_s", round(min(took), 3))
        assert min(took) <= TAKEN_OVER_S, took
        assert (await first.finished(run_id))["status"] == "completed"


@pytest.mark.promise("STOP-12")
async def test_an_instance_that_waits_can_be_told_to_end(
    it: GatewayProcess, tmp_path: Path, model: ModelServer
) -> None:
    async with unstarted(tmp_path, model.base_url) as second:
        for ending in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            await second.start(wait=False)
            await second.said("waiting for it")
            second.signal(ending)
            assert await second.ended() == 0
    assert (await it.finished(await it.run("hello")))["status"] == "completed"


@pytest.mark.promise("STOP-12")
@pytest.mark.parametrize("removed", ["run/lock", "run"])
async def test_without_the_lock_file_a_second_instance_still_cannot_serve_the_journal(
    it: GatewayProcess, tmp_path: Path, model: ModelServer, removed: str
) -> None:
    path = it.home / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    async with unstarted(tmp_path, model.base_url) as second:
        await second.start(wait=False)
        assert not await second.comes_up()
        assert await second.ended() == Code.TRY_AGAIN
        await second.said(f"pid {it.pid}")
    assert (await it.finished(await it.run("hello")))["status"] == "completed"
    await it.kill()
    await it.start()


OWNER = """
import os, signal, sys
from pathlib import Path
from holdfast.host.lock import take_lock
assert take_lock(Path(sys.argv[1])) is not None
child = os.fork()
if not child:
    signal.pause()  # as a child that is stopped before it calls exec
print(child, flush=True)
signal.pause()
"""


@pytest.mark.promise("STOP-12")
async def test_a_child_that_never_came_to_exec_does_not_keep_the_home(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    async with await anyio.open_process(command, stderr=None) as owner:
        assert owner.stdout is not None
        child = int(await owner.stdout.receive())
        assert take_lock(tmp_path) is None
        owner.kill()
        await owner.wait()
        try:
            lock = take_lock(tmp_path)
            assert lock is not None
            lock.release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_the_owner_itself_cannot_take_the_home_twice(tmp_path: Path) -> None:
    lock = take_lock(tmp_path)
    assert lock is not None
    assert take_lock(tmp_path / "." / "run" / "..") is None
    assert is_locked(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)


def test_the_lock_of_an_older_version_counts(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with open(tmp_path / FILE, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert take_lock(tmp_path) is None
        assert is_locked(tmp_path)
    assert (lock := take_lock(tmp_path)) is not None
    lock.release()


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
async def test_a_corrected_configuration_starts(tmp_path: Path) -> None:
    async with unstarted(tmp_path, config="[gateway]\ndrain = 5\n") as it:
        await it.start(wait=False)
        assert await it.ended() == 78
    async with gateway(tmp_path, config="[gateway]\ndrain_s = 5\n") as it:
        assert (await it.get("/health"))[0] == 200
