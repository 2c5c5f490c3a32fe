"""Restart and stop by the operator: the recorded state, and the exit code."""

import signal
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from holdfast.host.lock import SOCKET, take_lock
from tests.crash.evidence import begun, facts
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer, Wait, finish, say, stream, token
from tests.fakes.supervisor import ear

pytestmark = pytest.mark.anyio

LAUNCHD = {"XPC_SERVICE_NAME": "org.holdfast.gateway"}


async def order(it: GatewayProcess, path: str) -> int:
    """At the operator's door."""
    connector = aiohttp.UnixConnector(str(it.home / SOCKET))
    async with (
        aiohttp.ClientSession("http://localhost", connector=connector) as http,
        http.post(f"/v1/gateway/{path}") as response,
    ):
        return response.status


def states(home: Path) -> list[tuple[str, int]]:
    return [(f["state"], f["running"]) for f in facts(home, "gateway.state")]


def wanted(home: Path) -> list[Any]:
    return [f["wanted"] for f in facts(home, "gateway.wanted")]


@pytest.mark.promise("STOP-10")
async def test_while_draining_the_state_is_written_only_when_the_number_of_runs_changes(
    tmp_path: Path, model: ModelServer
) -> None:
    gates = [anyio.Event() for _ in range(3)]
    for gate in gates:
        model.then(stream(token("a"), Wait(gate), token("b"), finish()))
    async with gateway(tmp_path, model.base_url, "[gateway]\ndrain_s = 30\n") as it:
        runs = []
        for _ in gates:
            runs.append(await it.run("go"))
            await begun(it, runs[-1], "message.delta")
        assert states(it.home) == [], "nothing is written while it serves"
        it.signal(signal.SIGTERM)
        await it.said("3 running, waiting up to 30 s")
        for gate, run_id in zip(gates[:2], runs[:2], strict=True):
            gate.set()
            assert (await it.finished(run_id))["output"] == "ab"
        gates[2].set()
        assert await it.ended() == 0
        assert states(it.home) == [("draining", n) for n in (3, 2, 1)] + [("running", 0)]


@pytest.mark.promise("STOP-10")
async def test_a_drain_with_nothing_running_is_written_at_its_start_and_its_end(
    it: GatewayProcess,
) -> None:
    assert await it.stop() == 0
    assert states(it.home) == [("draining", 0), ("running", 0)]


@pytest.mark.promise("STOP-07", "STOP-11")
async def test_under_launchd_a_restart_ends_with_75_and_what_was_cut_goes_on(
    tmp_path: Path, model: ModelServer
) -> None:
    model.then(stream(token("half"), Wait()))
    async with gateway(tmp_path, model.base_url, **LAUNCHD) as it:
        run_id = await it.run("say:whole")
        await begun(it, run_id, "message.delta")
        assert await order(it, "restart") == 202
        await it.said("Shutting down (holdfast gateway restart); 1 running")
        assert await it.ended() == 75
        assert (wanted(it.home), states(it.home)[-1]) == (["running"], ("stopped", 0))
        (mark,) = facts(it.home, "run.interrupted")
        assert (mark["cause"], mark["reason"]) == ("restart_timeout", "Gateway restarting")
        await it.start()
        assert (await it.finished(run_id))["output"] == "whole"


@pytest.mark.promise("STOP-11")
async def test_under_launchd_a_stop_ends_with_0(tmp_path: Path) -> None:
    async with gateway(tmp_path, **LAUNCHD) as it:
        assert await order(it, "stop") == 202
        assert await it.ended() == 0


@pytest.mark.promise("STOP-07")
async def test_under_systemd_a_restart_ends_with_0_and_leaves_no_successor(tmp_path: Path) -> None:
    with ear() as heard:
        async with gateway(tmp_path, NOTIFY_SOCKET=heard.address) as it:
            assert await order(it, "restart") == 202
            await heard.hears("STOPPING=1")
            assert await it.ended() == 0
            assert (lock := take_lock(it.home)) is not None, "somebody else waits for the home"
            lock.release()


@pytest.mark.promise("STOP-11")
async def test_an_accepted_stop_counts_even_if_the_shutdown_is_killed(
    tmp_path: Path, model: ModelServer
) -> None:
    model.then(stream(token("half"), Wait()))
    async with gateway(tmp_path, model.base_url, "[gateway]\ndrain_s = 600\n") as it:
        run_id = await it.run("go")
        await begun(it, run_id, "message.delta")
        assert await order(it, "stop") == 202
        await it.said("Shutting down (holdfast gateway stop)")
        await it.kill()
        assert wanted(it.home) == ["stopped"]
        model.otherwise = lambda ask: say("at last")
        await it.start()  # asked for, not a boot
        assert wanted(it.home) == ["stopped", "running"]
        assert (await it.finished(run_id))["output"] == "at last"
