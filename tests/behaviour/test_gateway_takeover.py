"""A process that takes over a home continues its runs and interrupts none."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from holdfast.api.schema.runs import RunRequest
from holdfast.cli.client.client import Client, connect
from holdfast.config.load import load
from tests.behaviour.desk import gated
from tests.behaviour.terminals import at_work, ignored
from tests.fakes.gateway import GatewayProcess
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0  # a net below a test that would wait for ever


@asynccontextmanager
async def terminals(it: GatewayProcess) -> AsyncIterator[tuple[Client, Client]]:
    """Two of them, each ready to own the home."""
    config = load(it.environment, {})
    async with connect(config, ignored) as one, connect(config, ignored) as other:
        yield one, other


async def attend(client: Client, session: str, run_id: str) -> None:
    """Sit in a session until that run completes."""
    with anyio.fail_after(PATIENCE_S):
        async with aclosing(client.attend(session, 0, lambda: [run_id])) as frames:
            async for frame in frames:
                if frame.event.run_id == run_id and frame.event.event == "run.completed":
                    return


async def follow(client: Client, run_id: str) -> str:
    """Read a run's events until it completes; its answer."""
    with anyio.fail_after(PATIENCE_S):
        last = [frame.event async for frame in client.follow(run_id)][-1]
    assert last.event == "run.completed"
    return last.output


@pytest.mark.promise("BACK-10")
async def test_the_gateway_is_killed_and_the_runs_of_all_terminals_go_on(
    it: GatewayProcess, model: ModelServer
) -> None:
    runs = {s: await at_work(it, model, s) for s in ("one", "two", "three", "four")}
    async with terminals(it) as (one, other), anyio.create_task_group() as all_of_them:
        await it.kill()
        all_of_them.start_soon(attend, one, "one", runs["one"])
        all_of_them.start_soon(attend, other, "two", runs["two"])
        all_of_them.start_soon(follow, one, runs["three"])
        all_of_them.start_soon(follow, other, runs["four"])


async def test_switching_to_another_session_interrupts_nothing(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    left = await at_work(it, model, "left")
    await it.kill()
    async with terminals(it) as (owner, other):
        await owner.runs()
        reply, gate = gated("at work elsewhere")
        model.then(reply)
        words = RunRequest("elsewhere", session_id="elsewhere", workspace=str(tmp_path))
        busy = await other.submit(words)
        async with aclosing(other.follow(busy)) as frames:
            async for frame in frames:
                if frame.event.event == "message.delta":
                    break
        await attend(owner, "left", left)
        gate.set()
        assert await follow(other, busy) == "at work elsewhere"
    asked = [request.body["messages"][-1]["content"] for request in model.requests]
    assert asked.count("elsewhere") == 1
