"""The main path, once, over HTTP: request, turn, tool call, reply."""

from pathlib import Path

import pytest

from tests.fakes.gateway import GatewayProcess

pytestmark = pytest.mark.anyio


@pytest.mark.promise("RUN-01", "RUN-02")
async def test_a_message_becomes_a_run_that_ends_with_an_answer(it: GatewayProcess) -> None:
    run_id = await it.run("hello")
    assert len(run_id) == 36 and run_id.startswith("run_")
    stream = await it.events(run_id)
    first, *between, last = stream.names
    assert (first, set(between), last) == ("run.started", {"message.delta"}, "run.completed")
    assert stream.text == "echo: hello"
    assert (await it.status(run_id))["output"] == "echo: hello"


async def test_a_tool_is_run_once_and_its_result_goes_back_to_the_model(
    it: GatewayProcess, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    run_id = await it.run(f'tool:bump {{"path": "{counter}", "tag": "x"}}')
    stream = await it.events(run_id)
    assert [n for n in stream.names if n.startswith("tool.")] == ["tool.started", "tool.completed"]
    assert len(counter.read_text().splitlines()) == 1
    assert "bumped x" in (await it.status(run_id))["output"]
