"""A fault in one place does not affect others: ports, damaged sessions, terminals."""

import socket
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from holdfast.engine.runs.coordinator import SET_APART
from tests.crash.evidence import facts
from tests.fakes.gateway import GatewayProcess, unstarted
from tests.fakes.model_server import ModelServer, Wait, stream, token

pytestmark = pytest.mark.anyio


@pytest.mark.promise("BACK-07")
@pytest.mark.fault("F-25")
async def test_a_port_in_use_interrupts_no_run(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    run_id = await it.run("slow:2 hello")
    await it.events(run_id, until="message.delta")
    await it.stop()
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        for _ in range(4):
            command = [sys.executable, "-m", "holdfast", "gateway", "run"]
            environment = {**it.environment, "HOLDFAST_PORT": str(taken.getsockname()[1])}
            ended = await anyio.run_process(
                command, env=environment, cwd=tmp_path, check=False, stdin=None
            )
            assert ended.returncode == 78, ended.stderr
            assert b"cannot listen" in ended.stderr
    await it.start()
    assert (await it.finished(run_id))["status"] == "completed"
    assert len(facts(it.home, "run.interrupted", run_id=run_id)) == 1


async def test_a_session_that_cannot_be_read_keeps_no_other_from_going_on(
    it: GatewayProcess, model: ModelServer
) -> None:
    await it.run("slow:5 " + "x" * 100_000)  # so big that it is a file
    sound = await it.run("slow:1 hello")
    await it.events(sound, until="message.delta")
    await it.kill()
    for blob in (it.home / "blobs").iterdir():
        blob.unlink()
    await it.start()
    assert (await it.finished(sound))["status"] == "completed"
    assert (await it.finished(await it.run("hello again")))["status"] == "completed"
    assert any(SET_APART in line for line in it.lines)


async def test_a_terminal_hands_the_home_over_to_a_gateway_and_goes_on(
    model: ModelServer, tmp_path: Path
) -> None:
    model.then(stream(token("half"), Wait()))
    async with unstarted(tmp_path, model.base_url) as it:
        (work := tmp_path / "work").mkdir()
        command = [sys.executable, "-m", "holdfast", "run", "--json", "hello"]
        async with await anyio.open_process(
            command, env=it.environment, cwd=work, stderr=None, stdin=None
        ) as terminal:
            assert terminal.stdout is not None
            heard = b""
            while b"message.delta" not in heard:
                heard += await terminal.stdout.receive()
            await it.start()
            async for data in terminal.stdout:
                heard += data
            assert await terminal.wait() == 0
    assert heard.count(b'"run.completed"') == 1
    assert heard.count(b'"run.resumed"') == 1
