"""If the machine's clock is set, no deadline moves and nothing is repeated or reordered."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from holdfast.host.machine import CLOCK_SET
from tests.behaviour import ledger
from tests.fakes.gateway import GatewayProcess, unstarted
from tests.fakes.model_server import ModelServer
from tests.fakes.stepped import Wall

pytestmark = [pytest.mark.anyio, pytest.mark.promise("TIME-01")]

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
SHORT = "[approval]\nexpiry_s = 2\n"
LONG = "[approval]\nexpiry_s = 300\n"


@pytest.fixture
def wall(tmp_path: Path) -> Wall:
    return Wall(tmp_path / "wall")


@pytest.fixture
def config() -> str:
    return LONG


@pytest.fixture
async def it(
    tmp_path: Path, model: ModelServer, wall: Wall, config: str
) -> AsyncIterator[GatewayProcess]:
    async with unstarted(tmp_path, model.base_url, config) as process:
        await process.start(*wall.wrapper)
        yield process


async def _ask(it: GatewayProcess, effects: Path) -> tuple[str, dict[str, object]]:
    """A run that waits for an approval, and what it asks."""
    run_id = await it.run(f'tool:risky {{"path": "{effects}", "tag": "x"}}')
    stream = await it.events(run_id, until="approval.request")
    return run_id, next(f.data for f in stream.frames if f.event == "approval.request")


async def _answer(it: GatewayProcess, run_id: str) -> int:
    return (await it.post(f"/v1/runs/{run_id}/approval", {"choice": "once"}))[0]


async def _keyed(it: GatewayProcess) -> tuple[str, bool]:
    headers = {"Idempotency-Key": "k"}
    url = it.url + "/v1/runs"
    async with it.http.post(url, json={"input": "once only"}, headers=headers) as response:
        assert response.status == 202
        replayed = response.headers.get("Idempotency-Replayed") == "true"
        return (await response.json())["run_id"], replayed


def _reboot(home: Path) -> None:
    """The next start finds another boot id than the one that was written down."""
    ledger.change(home, lambda journal: journal.execute("UPDATE machine SET boot_id = 'before'"))


@pytest.mark.parametrize("step_s", [26 * HOUR_S, -HOUR_S])
async def test_an_approval_outlives_a_step_of_the_clock(
    it: GatewayProcess, wall: Wall, tmp_path: Path, step_s: float
) -> None:
    run_id, _ = await _ask(it, tmp_path / "effects")
    wall.step(step_s)
    await it.said(CLOCK_SET)
    assert (await it.status(run_id))["status"] == "waiting_for_approval"
    await it.kill()
    await it.start(*wall.wrapper)  # and a restart within the same boot
    assert await _answer(it, run_id) == 200
    assert (await it.finished(run_id))["status"] == "completed"
    assert len((tmp_path / "effects").read_text().splitlines()) == 1


@pytest.mark.parametrize("config", [SHORT])
async def test_an_approval_runs_out_on_time_though_the_clock_goes_back(
    it: GatewayProcess, wall: Wall, tmp_path: Path
) -> None:
    run_id, _ = await _ask(it, tmp_path / "effects")
    wall.step(-HOUR_S)
    with anyio.fail_after(30):
        stream = await it.events(run_id, until="approval.expired")
    asked, expired = (
        next(f.data for f in stream.frames if f.event == name)
        for name in ("approval.request", "approval.expired")
    )
    assert 2 <= expired["timestamp"] - asked["timestamp"] < 20


async def test_a_clock_that_is_set_is_logged_once(it: GatewayProcess, wall: Wall) -> None:
    wall.step(HOUR_S)
    await it.said(CLOCK_SET)
    wall.step(-3 * HOUR_S)
    while len(said := [line for line in it.lines if CLOCK_SET in line]) < 2:
        await it.get("/health")
    await it.finished(await it.run("go on"))
    assert len([line for line in it.lines if CLOCK_SET in line]) == len(said) == 2


async def test_a_request_key_outlives_a_step_of_a_day(it: GatewayProcess, wall: Wall) -> None:
    run_id, _ = await _keyed(it)
    await it.finished(run_id)
    wall.step(26 * HOUR_S)
    await it.stop()
    await it.start(*wall.wrapper)
    assert await _keyed(it) == (run_id, True)
    assert ledger.ask(it.home, "SELECT count(*) FROM runs WHERE pruned = 1") == [(0,)]


async def test_what_is_newer_is_listed_first_though_the_clock_went_back(
    it: GatewayProcess, wall: Wall
) -> None:
    runs: list[str] = []
    sessions: list[str] = []
    for number, step_s in enumerate((0.0, -HOUR_S, -HOUR_S)):
        wall.step(step_s)
        runs.insert(0, await it.run("hello", session_id=f"s{number}"))
        sessions.insert(0, f"s{number}")
        await it.finished(runs[0])
        await it.kill()
        await it.start(*wall.wrapper)
    listed = (await it.get("/v1/runs"))[1]["data"]
    assert [one["run_id"] for one in listed] == runs
    assert runs == sorted(runs, reverse=True)
    times = [t for one in reversed(listed) for t in (one["created_at"], one["updated_at"])]
    assert times == sorted(times)
    listed = (await it.get("/api/sessions"))[1]["data"]
    assert [one["session_id"] for one in listed] == sessions


async def test_over_a_boot_a_clock_far_ahead_ends_approvals_and_keeps_request_keys(
    it: GatewayProcess, wall: Wall, tmp_path: Path
) -> None:
    run_id, _ = await _ask(it, tmp_path / "effects")
    keyed, _ = await _keyed(it)
    await it.finished(keyed)
    await it.stop()
    _reboot(it.home)
    wall.step(400 * DAY_S)
    await it.start(*wall.wrapper)
    assert await _keyed(it) == (keyed, True)
    assert await _answer(it, run_id) == 409
    assert not (tmp_path / "effects").exists()


async def test_over_a_boot_a_clock_that_went_back_withdraws_approvals(
    it: GatewayProcess, wall: Wall, tmp_path: Path
) -> None:
    run_id, _ = await _ask(it, tmp_path / "effects")
    await it.stop()
    _reboot(it.home)
    wall.step(-HOUR_S)
    await it.start(*wall.wrapper)
    assert await _answer(it, run_id) == 409
    assert not (tmp_path / "effects").exists()
    newer = await it.run("hello")
    assert newer > run_id
