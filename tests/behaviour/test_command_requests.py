"""Slash commands as requests to the operator's socket: refused, repeated, without a gateway."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from holdfast import plugins
from holdfast.cli.client.client import connect
from holdfast.cli.exits import Exit
from holdfast.commands.status import NO_ACTIVE_RUN
from holdfast.engine.commands.terminal import DONE_BEFORE
from holdfast.engine.runs.rewinding import RUN_ACTIVE
from holdfast.host.lock import SOCKET
from tests.behaviour.terminals import HERE, Door, at_work, configured, ignored, risky, said
from tests.fakes import model_server as says
from tests.fakes.gateway import GatewayProcess
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def door(it: GatewayProcess) -> AsyncIterator[Door]:
    connector = aiohttp.UnixConnector(str(it.home / SOCKET))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
        yield Door(http)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "words for the agent"}, "input"),
        ({"input": "/etc/hosts is broken"}, "input"),
        ({"input": "  "}, "input"),
        ({"input": 5}, "input"),
        ({}, "input"),
        ({"input": "/status", "mode": "hurry"}, "mode"),
        ({"input": "/status", "workspace": "a\0b"}, "workspace"),
        ([], None),
    ],
)
async def test_a_text_that_is_no_command_is_refused(
    door: Door, body: object, param: str | None
) -> None:
    status, answer = await door.give(body)
    assert (status, answer["error"]["code"]) == (400, "invalid_request")
    assert answer["error"]["param"] == param


async def test_a_name_that_is_no_sessions_and_a_key_that_is_none_are_refused(door: Door) -> None:
    assert (await door.give({"input": "/status"}, "a%20b"))[0] == 400
    assert (await door.give({"input": "/status"}, key="k" * 256))[0] == 400


async def test_slash_commands_are_not_available_over_the_network(it: GatewayProcess) -> None:
    status, _ = await it.post(f"/v1/operator/sessions/{HERE}/command", {"input": "/status"})
    assert status == 404
    assert (await it.get("/v1/operator/commands"))[0] == 404


async def test_words_whose_answer_was_lost_are_said_once(
    it: GatewayProcess, model: ModelServer, door: Door
) -> None:
    first = await at_work(it, model)
    _, queued = await door.give({"input": "/queue later"}, key="k1")
    _, again = await door.give({"input": "/queue later"}, key="k1")
    assert queued["run_id"] == again["run_id"]
    await it.post(f"/v1/runs/{first}/stop")
    await it.finished(queued["run_id"])
    _, retried = await door.give({"input": "/retry"}, key="k2")
    await it.finished(retried["run_id"])
    await it.kill()
    await it.start()
    _, again = await door.give({"input": "/retry"}, key="k2")
    assert again["run_id"] == retried["run_id"]
    assert len((await it.get(f"/v1/runs?session_id={HERE}"))[1]["data"]) == 3


async def test_an_undo_and_an_approval_that_come_again_are_done_once(
    it: GatewayProcess, door: Door, tmp_path: Path
) -> None:
    before = DONE_BEFORE
    await said(it, "one")
    await said(it, "two")
    assert (await door.give({"input": "/undo"}, key="k1"))[1]["undone"] == "two"
    again = (await door.give({"input": "/undo"}, key="k1"))[1]
    assert (again["output"], again["undone"]) == (before, None)
    run_id = await it.run(risky(tmp_path / "effects", "x", "y"), session_id=HERE)
    first = await it.events(run_id, until="approval.request")
    assert (await door.give({"input": "/approve"}, key="k2"))[1]["output"].startswith("Allowed")
    await it.events(run_id, first.frames[-1].id, until="approval.request")
    assert (await door.give({"input": "/approve"}, key="k2"))[1]["output"] == before
    assert (await it.status(run_id))["status"] == "waiting_for_approval"
    assert (await door.give({"input": "/undo"}, key="k3"))[1]["output"] == RUN_ACTIVE


async def test_words_of_a_command_that_answered_a_question_are_not_said_as_well(
    it: GatewayProcess, door: Door
) -> None:
    run_id = await it.run(f"tool:ask {json.dumps({'question': 'Which?'})}", session_id=HERE)
    await it.events(run_id, until="question.asked")
    _, answered = await door.give({"input": "/queue the blue one"}, key="k1")
    assert answered["run_id"] == run_id
    assert (await door.give({"input": "/queue the blue one"}, key="k1"))[0] == 200
    assert (await it.finished(run_id))["output"] == "the tool said: the blue one"
    assert (await door.give({"input": "/queue the blue one"}, key="k1"))[0] == 200
    assert len((await it.get(f"/v1/runs?session_id={HERE}"))[1]["data"]) == 1


async def test_a_refused_message_of_a_command_differs_from_other_refusals(
    door: Door,
) -> None:
    nowhere = {"input": "/queue hello", "workspace": "/no/such/place"}
    _, done = await door.give(nowhere)
    assert done["refused"]
    assert "not a directory" in done["output"]
    for text in ("/undo", "/queue", "/stauts", "/status"):
        assert not (await door.give({"input": text}))[1]["refused"]


async def test_without_a_gateway_the_terminal_serves_the_commands_itself(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    async with connect(configured(tmp_path / "home"), ignored) as desk:
        assert len(await desk.commands()) == len(plugins.find_commands())
        assert (await desk.command(HERE, "/status")).output.startswith(NO_ACTIVE_RUN)
        done = await desk.command(HERE, "/queue hello", workspace=str(work))
        names = [frame.event.event async for frame in desk.follow(str(done.run_id))]
        assert names[-1] == "run.completed"
        assert (await desk.command(HERE, "/undo")).undone == "hello"
        refused = (await desk.command(HERE, "/restart")).output
        assert refused == "Only a gateway can be restarted."


async def test_commands_that_are_configured_wrongly_are_told_of_when_one_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "clashing_commands.py").write_text(
        "from holdfast.commands.status import COMMANDS as ours\nCOMMANDS = ours[1:]\n"
    )
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text('plugins = ["clashing_commands"]\n')
    async with connect(configured(home), ignored) as desk:
        for ask in (desk.command(HERE, "/status"), desk.commands()):
            with pytest.raises(Exit, match="has a command /stop, which exists already"):
                await ask


async def test_a_run_that_a_killed_gateway_left_can_be_stopped_by_a_terminal_alone(
    it: GatewayProcess, model: ModelServer
) -> None:
    run_id = await at_work(it, model)
    await it.kill()
    model.then(says.stream(says.token("a"), says.Wait(), says.finish(), says.DONE))
    async with connect(configured(it.home), ignored) as desk:
        assert (await desk.command(HERE, "/stop")).output == "Stopped: 1 run."
        names = [frame.event.event async for frame in desk.follow(run_id)]
    assert names[-1] == "run.cancelled"
