"""Steering: guidance for an active run. Accepted guidance is always read."""

import anyio
import anyio.lowlevel
import pytest

from tests.behaviour.figures import note
from tests.fakes import model_server as says
from tests.fakes.gateway import GatewayProcess
from tests.fakes.model_server import ModelServer, Seen

pytestmark = pytest.mark.anyio


def _words(seen: Seen) -> list[str]:
    """What users said, as a request to the model has it."""
    return [m["content"] for m in seen.body["messages"] if m["role"] == "user"]


@pytest.mark.promise("RUN-22", "RUN-20")
async def test_guidance_is_read_before_the_next_turn(
    it: GatewayProcess, model: ModelServer
) -> None:
    gate = anyio.Event()
    model.then(
        says.stream(
            says.token("I look"),
            says.Wait(gate),
            *says.call("no_such_tool", "{}"),
            says.finish("tool_calls"),
            says.DONE,
        ),
        says.say("went left"),
    )
    run_id = await it.run("find it")
    await it.events(run_id, until="message.delta")
    answer = await it.post(f"/v1/runs/{run_id}/steer", {"input": "look left"})
    assert answer == (200, {"object": "hermes.run.steer", "run_id": run_id, "accepted": True})
    gate.set()
    stream = await it.events(run_id)
    assert (await it.status(run_id))["output"] == "went left"
    first, second = model.requests
    assert _words(first) == ["find it"]
    assert _words(second) == ["find it", "look left"]
    steered = [f.data for f in stream.frames if f.event == "run.steered"]
    assert [s["input"] for s in steered] == ["look left"]


async def test_guidance_that_comes_again_under_its_key_is_read_once(
    it: GatewayProcess, model: ModelServer
) -> None:
    gate = anyio.Event()
    model.then(
        says.stream(says.token("done"), says.Wait(gate), says.finish(), says.DONE),
        says.say("done better"),
    )
    run_id = await it.run("do it")
    await it.events(run_id, until="message.delta")
    for _ in range(2):
        answer = await it.post(
            f"/v1/runs/{run_id}/steer", {"input": "be kind"}, {"Idempotency-Key": "k1"}
        )
        assert answer == (200, {"object": "hermes.run.steer", "run_id": run_id, "accepted": True})
    gate.set()
    await it.finished(run_id)
    assert _words(model.requests[-1]) == ["do it", "be kind"]


@pytest.mark.promise("RUN-22")
async def test_guidance_during_the_last_turn_makes_one_more(
    it: GatewayProcess, model: ModelServer
) -> None:
    gate = anyio.Event()
    model.then(
        says.stream(says.token("done"), says.Wait(gate), says.finish(), says.DONE),
        says.say("done better"),
    )
    run_id = await it.run("do it")
    await it.events(run_id, until="message.delta")
    for text in ("be kind", "and quick"):
        status, _ = await it.post(f"/v1/runs/{run_id}/steer", {"input": text})
        assert status == 200
    gate.set()
    assert (await it.finished(run_id))["output"] == "done better"
    assert _words(model.requests[1]) == ["do it", "be kind", "and quick"]


@pytest.mark.promise("RUN-22")
async def test_guidance_for_a_run_that_has_not_begun_is_read_in_its_first_turn(
    it: GatewayProcess, model: ModelServer
) -> None:
    busy = await it.run("tool:hang {}", session_id="s")
    await it.events(busy, until="tool.started")
    waiting = await it.run("paint", session_id="s")
    status, _ = await it.post(f"/v1/runs/{waiting}/steer", {"input": "in blue"})
    assert status == 200
    await it.post(f"/v1/runs/{busy}/stop")
    await it.finished(waiting)
    first, second = _words(model.requests[-1])[-2:]
    assert first.endswith("\n\npaint")  # behind the note that a stopped run left tool results
    assert second == "in blue"


@pytest.mark.promise("RUN-22")
async def test_a_run_that_is_over_or_being_stopped_takes_no_guidance(
    it: GatewayProcess, model: ModelServer
) -> None:
    over = (await it.finished(await it.run("hello")))["run_id"]
    stopping = await it.run("tool:wedge {}")
    await it.events(stopping, until="tool.started")
    await it.post(f"/v1/runs/{stopping}/stop")
    for run_id in (over, stopping):
        async with it.http.post(
            f"{it.url}/v1/runs/{run_id}/steer", json={"input": "x"}
        ) as response:
            body = await response.json()
            assert (response.status, body["error"]["code"]) == (409, "run_not_accepting_steer")
            assert response.headers["x-should-retry"] == "false"
    assert (await it.finished(stopping))["status"] == "cancelled"
    assert len(model.requests) == 2


@pytest.mark.promise("RUN-22")
async def test_guidance_at_the_last_moment_is_read_or_refused_but_never_lost(
    it: GatewayProcess, model: ModelServer
) -> None:
    taken = 0
    for number in range(30):
        gate = anyio.Event()
        model.requests.clear()
        model.then(says.stream(says.token("a"), says.Wait(gate), says.finish(), says.DONE))
        run_id = await it.run("go")
        await it.events(run_id, until="message.delta")
        answers: list[int] = []

        async def steer(run_id: str = run_id, answers: list[int] = answers) -> None:
            status, _ = await it.post(f"/v1/runs/{run_id}/steer", {"input": "wait!"})
            answers.append(status)

        async with anyio.create_task_group() as racing:
            racing.start_soon(steer)
            for _ in range(number // 2):
                await anyio.lowlevel.checkpoint()
            gate.set()
        assert (await it.finished(run_id))["status"] == "completed"
        read = any("wait!" in _words(seen) for seen in model.requests)
        assert answers == [200 if read else 409], number
        taken += read
    note(f"{taken} of 30 were in time")


@pytest.mark.promise("RUN-22")
async def test_guidance_survives_a_kill(it: GatewayProcess, model: ModelServer) -> None:
    model.then(says.stream(says.token("a"), says.Wait()))
    run_id = await it.run("go")
    await it.events(run_id, until="message.delta")
    status, _ = await it.post(f"/v1/runs/{run_id}/steer", {"input": "look left"})
    assert status == 200
    await it.kill()
    await it.start()
    await it.finished(run_id)
    read = " ".join(_words(model.requests[-1]))
    assert read.count("look left") == 1
    assert (await it.events(run_id)).names.count("run.steered") == 1
