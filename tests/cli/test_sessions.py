"""`holdfast sessions`: marks are shown, set and dropped, and nothing is made up."""

import json
import sys
from pathlib import Path
from subprocess import CompletedProcess

import anyio
import pytest

from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import Wait, serve, stream, token

pytestmark = [pytest.mark.anyio, pytest.mark.promise("BACK-12")]


async def _say(it: GatewayProcess, *words: str) -> "CompletedProcess[bytes]":
    command = [sys.executable, "-m", "holdfast", "sessions", *words]
    return await anyio.run_process(command, env=it.environment, cwd=it.home, check=False)


async def test_a_mark_is_shown_with_its_cause_and_time_and_dropped_whole(tmp_path: Path) -> None:
    waits = '[recovery]\non_start = "wait"\n'
    async with serve() as model, gateway(tmp_path, model.base_url, waits) as it:
        assert b"There are no sessions." in (await _say(it)).stdout
        model.then(stream(token("half"), Wait()))
        run_id = await it.run("go", session_id="s")
        await it.events(run_id, until="message.delta")
        await it.stop()
        await it.start()
        shown = (await _say(it)).stdout.decode()
        assert "s  open  1 unfinished  cut 20" in shown
        assert "shutdown_timeout (Gateway shutting down)" in shown
        assert (await _say(it, "unmark", "s")).returncode == 0
        (line,) = (await _say(it, "--json")).stdout.splitlines()
        now = json.loads(line)
        assert (now["mark"], now["mark_reason"], now["marked_at"]) == ("", "", 0.0)
        again = await _say(it, "unmark", "s")
        assert again.returncode == 1 and b"It has no mark. Nothing changed." in again.stderr
        assert (await _say(it, "mark", "s")).returncode == 0
        assert b"restart_timeout (Marked by the operator)" in (await _say(it)).stdout


@pytest.mark.parametrize("word", ["mark", "unmark"])
async def test_a_session_that_is_not_there_is_not_made(tmp_path: Path, word: str) -> None:
    async with gateway(tmp_path) as it:
        said = await _say(it, word, "nobody")
        assert said.returncode == 1 and b"no such session. Nothing changed." in said.stderr
        assert (await _say(it, "--json")).stdout == b""
        assert (await _say(it, word)).returncode == 2
