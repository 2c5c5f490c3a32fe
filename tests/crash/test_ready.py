"""`/health/ready` says whether work is accepted; `/health` says that the process lives."""

import json
import signal
import sys
from pathlib import Path

import anyio
import pytest

from holdfast.host.lock import OWNER, read_owner
from tests.behaviour.hands import until
from tests.crash.test_committed_reads import locked
from tests.fakes.gateway import ROOT, GatewayProcess, unstarted
from tests.fakes.model_server import ModelServer, Wait, stream, token

pytestmark = pytest.mark.anyio


async def _answers(it: GatewayProcess) -> tuple[int, int, str, int]:
    """What is said of its life, of its readiness, and to somebody who brings work."""
    lives, _ = await it.get("/health")
    ready, why = await it.get("/health/ready")
    taken, _ = await it.post("/v1/runs", {"input": "hello"})
    return lives, ready, why.get("error", {}).get("code", ""), taken


@pytest.mark.promise("API-02")
async def test_it_is_ready_once_work_is_taken_and_no_more_while_it_drains(
    tmp_path: Path, model: ModelServer
) -> None:
    config = "[gateway]\ndrain_s = 30\n"
    async with unstarted(tmp_path, model.base_url, config) as it:
        await it.start()
        cut = await it.run("tool:hang {}")
        await it.events(cut, until="tool.started")
        await it.kill()
        (it.home / OWNER).unlink()
        with locked(it.home):  # what was cut has to be written down before work is taken
            await it.start(wait=False)
            it.url = await until(lambda: read_owner(it.home).address)
            assert await _answers(it) == (200, 503, "gateway_starting", 503)
        await it.ready()
        assert (await it.get("/health/ready"))[0] == 200
        gate = anyio.Event()
        model.then(stream(token("slowly"), Wait(gate)))
        busy = await it.run("go on")
        await it.events(busy, until="message.delta")
        it.signal(signal.SIGTERM)
        await it.said("Shutting down")
        assert await _answers(it) == (200, 503, "gateway_draining", 503)


def _healthcheck(url: str) -> list[str]:
    """The command by which compose decides, for a gateway at `url`."""
    compose = (ROOT / "deploy" / "compose.yaml").read_text()
    (line,) = [text for text in compose.splitlines() if text.strip().startswith("test: [")]
    command: list[str] = json.loads(line.partition(": ")[2])
    assert command[:2] == ["CMD", "python"]
    here = [word.replace("http://127.0.0.1:8642", url) for word in command[2:]]
    assert here != command[2:]
    return [sys.executable, *here]


async def _is_healthy(url: str) -> bool:
    return (await anyio.run_process(_healthcheck(url), check=False)).returncode == 0


@pytest.mark.promise("API-02")
async def test_a_start_in_the_background_and_compose_wait_until_work_is_taken(
    tmp_path: Path, model: ModelServer
) -> None:
    async with unstarted(tmp_path, model.base_url, "[gateway]\nport = 0\n") as it:
        await it.start()
        cut = await it.run("tool:hang {}")
        await it.events(cut, until="tool.started")
        await it.kill()
        (it.home / OWNER).unlink()
        command = (sys.executable, "-P", "-m", "holdfast", "gateway", "start")
        try:
            with locked(it.home):  # what was cut has to be written down before work is taken
                starting = await anyio.open_process(command, env=it.environment, cwd=it.home)
                it.url = await until(lambda: read_owner(it.home).address)
                assert (await it.get("/health"))[0] == 200
                assert not await _is_healthy(it.url)  # takes longer than some looks of the start
                assert starting.returncode is None
            with anyio.fail_after(30):
                assert await starting.wait() == 0
            await starting.aclose()
            assert (await it.get("/health/ready"))[0] == 200
            assert await _is_healthy(it.url)
        finally:
            with anyio.CancelScope(shield=True):
                assert (await it.holdfast("gateway", "stop")).returncode == 0


async def test_readiness_needs_no_key_and_reveals_little(it: GatewayProcess) -> None:
    async with it.http.get(it.url + "/health/ready", headers={"Authorization": ""}) as response:
        assert (response.status, set(await response.json())) == (200, {"status", "version"})
