"""Background processes are seen: listed, read and killed by those whose sessions they belong to."""

import json
import secrets
from pathlib import Path

import aiohttp
import pytest

from holdfast.cli.ops.ps import NOTHING_RUNS
from holdfast.commands.processes import NO_PROCESSES
from holdfast.host.lock import SOCKET
from tests.behaviour.hands import audit, carrying, command, does, gone, running
from tests.behaviour.terminals import Door
from tests.cli import Place
from tests.fakes.gateway import ROOT, GatewayProcess
from tests.fakes.model_server import ModelServer

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]


async def begun(it: GatewayProcess, text: str, **more: object) -> str:
    """Start a command in the background of the session `s`; its process id."""
    told = await does(it, command(text, background=True, **more), session_id="s")
    return str(told["process_id"])


@pytest.mark.promise("PROC-01")
async def test_a_process_is_listed_with_its_last_line_and_killed(it: GatewayProcess) -> None:
    token = secrets.token_hex(8)
    process_id = await begun(it, f"echo one; echo two; sleep 1000; : {token}")
    await running(token)

    async def listed(query: str = "") -> list[dict[str, object]]:
        status, body = await it.get(f"/api/processes{query}")
        assert status == 200
        return list(body["data"])

    (one,) = await listed()
    while not one["last_line"]:
        (one,) = await listed()
    assert (one["process_id"], one["session_id"], one["status"]) == (process_id, "s", "running")
    assert one["last_line"] == "two"
    assert await listed("?session_id=other") == []
    _, said = await it.get(f"/api/processes/{process_id}/output")
    assert said["output"] == "one\ntwo\n"
    status, killed = await it.post(f"/api/processes/{process_id}/kill")
    assert (status, killed["status"]) == (200, "ended")
    assert not carrying(token)
    assert await listed() == []
    assert [p["process_id"] for p in await listed("?ended=true")] == [process_id]
    assert any(e["kind"] == "process.killed" and e["what"] == process_id for e in audit(it))


async def test_an_unknown_process_is_not_found(it: GatewayProcess) -> None:
    for method, path in ((it.get, "output"), (it.post, "kill")):
        status, body = await method(f"/api/processes/proc_none/{path}")
        assert (status, body["error"]["code"]) == (404, "process_not_found")


@pytest.mark.promise("PROC-01")
async def test_the_command_line_lists_shows_and_kills(it: GatewayProcess, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.environ |= {"PYTHONPATH": str(ROOT), "HOLDFAST_HOME": str(it.home)}
    assert NOTHING_RUNS in (await place.holdfast("ps")).out
    token = secrets.token_hex(8)
    process_id = await begun(it, f"echo there; sleep 1000; : {token}")
    await running(token)
    short = process_id.removeprefix("proc_")[:6]
    shown = json.loads((await place.holdfast("ps", "--json")).out)
    assert shown["process_id"] == process_id
    assert "there" in (await place.holdfast("ps", "output", short)).out
    assert (await place.holdfast("ps", "kill", process_id)).code == 0
    await gone(token, within_s=5)
    assert (await place.holdfast("ps", "kill", "none")).code == 1
    assert process_id in (await place.holdfast("ps", "--all")).out


@pytest.mark.promise("PROC-01")
async def test_the_slash_command_lists_shows_and_kills(it: GatewayProcess) -> None:
    connector = aiohttp.UnixConnector(str(it.home / SOCKET))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as http:

        async def ps(words: str = "", session: str = "s") -> str:
            status, body = await Door(http).give({"input": f"/ps {words}"}, session)
            assert status == 200, body
            return str(body["output"])

        token = secrets.token_hex(8)
        process_id = await begun(it, f"echo there; sleep 1000; : {token}")
        await running(token)
        assert process_id in await ps()
        assert await ps(session="another") == NO_PROCESSES
        while "there" not in await ps(f"output {process_id}"):
            continue
        assert process_id not in await ps(f"kill {process_id}", session="another")
        assert carrying(token)
        await ps(f"kill {process_id}")
        assert not carrying(token)


@pytest.mark.promise("PROC-02")
async def test_after_a_restart_the_model_is_told_what_died(
    it: GatewayProcess, model: ModelServer
) -> None:
    token = secrets.token_hex(8)
    process_id = await begun(it, f"sleep 1000; : {token}")
    await running(token)
    await it.kill()
    await it.start()
    await it.finished(await it.run("and now?", session_id="s"))
    said = json.dumps(model.requests[-1].body["messages"])
    assert process_id in said.rpartition("System note")[2]
    assert "and now?" in said
