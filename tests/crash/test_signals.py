"""Signals end a gateway properly, from the first line of its process on."""

import os
import signal
from pathlib import Path

import anyio
import pytest

from tests.crash.evidence import begun, facts
from tests.fakes.gateway import GatewayProcess, gateway, unstarted
from tests.fakes.model_server import ModelServer, Wait, say, stream, token

pytestmark = pytest.mark.anyio

STARTS = 12
EVERY_S = 0.04  # a start takes about a third of a second


async def listens(it: GatewayProcess) -> None:
    """Return when the process has come to its first line: it no longer dies by SIGTERM."""
    with anyio.fail_after(30):
        while not _catches(it.pid, signal.SIGTERM):  # noqa: ASYNC110  see below
            await anyio.sleep(0.001)  # sleep: the kernel has no event for it


def _catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.promise("STOP-05")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_at_any_moment_of_the_start_ends_it_with_0(
    tmp_path: Path, model: ModelServer, ending: signal.Signals
) -> None:
    model.otherwise = lambda ask: stream(token("half"), Wait())
    async with gateway(tmp_path, model.base_url) as it:
        run_id = await it.run("go on")  # so that there is something to recover
        await begun(it, run_id, "message.delta")
        await it.kill()
        for number in range(STARTS):
            await it.start(wait=False)
            await listens(it)
            await anyio.sleep(number * EVERY_S)  # sleep: the moment under test
            it.signal(ending)
            with anyio.fail_after(15):
                assert await it.ended() == 0, it.lines
        model.otherwise = lambda ask: say("whole")
        await it.start()
        assert (await it.finished(run_id))["output"] == "whole"


@pytest.mark.promise("STOP-05", "BACK-03")
async def test_a_hangup_ends_it_like_sigterm(tmp_path: Path, model: ModelServer) -> None:
    model.then(stream(token("half"), Wait()))
    async with gateway(tmp_path, model.base_url) as it:
        run_id = await it.run("go on")
        await begun(it, run_id, "message.delta")
        it.signal(signal.SIGHUP)
        assert await it.ended() == 0
        (mark,) = facts(it.home, "run.interrupted")
        assert mark["cause"] == "shutdown_timeout"


@pytest.mark.promise("STOP-05")
async def test_a_gateway_started_with_nohup_ignores_the_hangup(
    tmp_path: Path, model: ModelServer
) -> None:
    async with unstarted(tmp_path, model.base_url) as it:
        await it.start("nohup")
        os.kill(it.pid, signal.SIGHUP)
        assert (await it.finished(await it.run("hello")))["status"] == "completed"
