"""Stop: acknowledged at once, obeyed soon, and only by the run that was meant."""

import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tests.behaviour.figures import note
from tests.fakes import model_server as says
from tests.fakes.gateway import GatewayProcess, Stream, gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

REASON = "Stop requested via API"
SOON_S = 2.0  # the promise is 0.5 s; the rest is for a busy machine
RESISTING_S = 4.5  # 3 s promised


async def _stop(it: GatewayProcess, run_id: str, what: str, readers: int = 3) -> float:
    """Stop the run while readers follow it; how long until the last of them had its end."""
    streams: list[Stream] = []

    async def follow() -> None:
        streams.append(await it.events(run_id))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as following:
            for _ in range(readers):
                following.start_soon(follow)
            begun = time.monotonic()
            status, body = await it.post(f"/v1/runs/{run_id}/stop")
            acknowledged_s = time.monotonic() - begun
            assert (status, body) == (200, {"run_id": run_id, "status": "stopping"})
    took_s = time.monotonic() - begun
    for stream in streams:
        assert stream.names.count("run.cancelled") == 1
        assert stream.names[-1] == "run.cancelled" and stream.closed
        assert stream.frames[-1].data["reason"] == REASON
    assert (await it.status(run_id))["status"] == "cancelled"
    note(f"{what}: acknowledged in {acknowledged_s * 1000:.0f} ms, over in {took_s * 1000:.0f} ms")
    assert acknowledged_s < 1
    return took_s


async def _nothing_is_left(it: GatewayProcess) -> None:
    _, health = await it.get("/health/detailed")
    assert health["runs"] == {"running": 0, "queued": 0, "waiting": 0}


@pytest.mark.promise("RUN-14", "RUN-17")
async def test_stopping_a_run_closes_its_model_stream_and_every_reader(
    it: GatewayProcess, model: ModelServer
) -> None:
    model.then(says.stream(says.token("so"), says.Wait()))
    run_id = await it.run("hello")
    await it.events(run_id, until="message.delta")
    assert await _stop(it, run_id, "model stream", readers=20) < SOON_S
    with anyio.fail_after(2):
        await model.idle()
    await _nothing_is_left(it)


@pytest.mark.promise("RUN-14")
async def test_a_model_that_has_not_said_a_word_can_be_stopped_too(
    it: GatewayProcess, model: ModelServer
) -> None:
    model.then(says.stream(says.Wait()))
    run_id = await it.run("hello")
    await model.asked(1)
    assert await _stop(it, run_id, "silent model") < SOON_S
    with anyio.fail_after(2):
        await model.idle()


@pytest.mark.promise("RUN-14", "RUN-17")
async def test_a_run_in_the_middle_of_a_tool_is_stopped(
    it: GatewayProcess, model: ModelServer
) -> None:
    run_id = await it.run("tool:hang {}")
    await it.events(run_id, until="tool.started")
    assert await _stop(it, run_id, "hanging tool") < SOON_S
    ends = [f.data for f in (await it.events(run_id)).frames if f.event == "tool.completed"]
    assert [end["error"] for end in ends] == [True], "an open call must be settled first"
    assert len(model.requests) == 1, "a stopped run must not ask again"
    await _nothing_is_left(it)


@pytest.mark.promise("RUN-16")
async def test_a_tool_whose_cleanup_raises_does_not_keep_its_run_alive(
    it: GatewayProcess, model: ModelServer
) -> None:
    run_id = await it.run("tool:explode {}", session_id="s")
    await it.events(run_id, until="tool.started")
    assert await _stop(it, run_id, "cleanup that raises") < SOON_S
    assert len(model.requests) == 1
    assert (await it.finished(await it.run("on", session_id="s")))["output"] == "echo: on"
    await _nothing_is_left(it)


@pytest.mark.promise("RUN-14", "RUN-16")
async def test_a_thread_that_cannot_be_interrupted_does_not_keep_its_run_alive(
    it: GatewayProcess, tmp_path: Path
) -> None:
    run_id = await it.run(f'tool:wedge {{"path": "{tmp_path}/wedged"}}', session_id="s")
    await it.events(run_id, until="tool.started")
    took_s = 0.0

    async def stop() -> None:
        nonlocal took_s
        took_s = await _stop(it, run_id, "wedged thread")

    async with anyio.create_task_group() as stopping:
        stopping.start_soon(stop)
        while (seen := (await it.status(run_id))["status"]) == "running":
            pass
        assert seen == "stopping"
        again = await it.post(f"/v1/runs/{run_id}/stop")
        assert again == (200, {"run_id": run_id, "status": "stopping"})
    assert took_s < RESISTING_S
    assert (await it.finished(await it.run("on", session_id="s")))["output"] == "echo: on"


@pytest.mark.promise("RUN-14", "RUN-17")
async def test_a_run_that_waits_behind_another_is_cancelled_at_once(
    it: GatewayProcess, model: ModelServer
) -> None:
    first = await it.run("tool:hang {}", session_id="s")
    second = await it.run("second", session_id="s")
    third = await it.run("third", session_id="s")
    await it.events(first, until="tool.started")
    assert await _stop(it, second, "queued behind another") < SOON_S
    assert (await it.status(first))["status"] == "running", "it was not meant"
    assert await _stop(it, first, "the one before it") < SOON_S
    assert (await it.finished(third))["output"] == "echo: third"
    said = [m["content"] for r in model.requests for m in r.body["messages"]]
    assert "second" not in said, "what was stopped before it began is not said"


@pytest.mark.promise("RUN-14")
async def test_a_run_that_waits_for_a_slot_is_cancelled_at_once(
    model: ModelServer, tmp_path: Path
) -> None:
    async with gateway(tmp_path, model.base_url, config="[limits]\nrunning = 1\n") as it:
        busy = await it.run("tool:hang {}")
        await it.events(busy, until="tool.started")
        waiting = await it.run("hello")
        assert await _stop(it, waiting, "waits for a place") < SOON_S
        assert await _stop(it, busy, "has the place") < SOON_S
        await _nothing_is_left(it)
        assert (await it.finished(await it.run("on")))["output"] == "echo: on"


@pytest.mark.promise("RUN-14")
async def test_stop_needs_no_body_and_minds_no_content_type(it: GatewayProcess) -> None:
    for content, body in (
        ("text/plain", b""),
        ("application/json", b""),
        ("application/x-www-form-urlencoded", b""),
        ("application/json", b"{}"),
        ("", b""),
    ):
        run_id = await it.run("tool:hang {}")
        headers = {"Content-Type": content} if content else {}
        url = f"{it.url}/v1/runs/{run_id}/stop"
        async with it.http.post(url, data=body, headers=headers) as response:
            assert response.status == 200, content
        assert (await it.finished(run_id))["status"] == "cancelled"


@pytest.mark.promise("RUN-15")
async def test_a_finished_run_cannot_be_stopped(it: GatewayProcess) -> None:
    completed = await it.run("hello")
    failed = await it.run("fail:400")
    cancelled = await it.run("tool:hang {}")
    await it.post(f"/v1/runs/{cancelled}/stop")
    for run_id in (completed, failed, cancelled):
        before = await it.finished(run_id)
        status, body = await it.post(f"/v1/runs/{run_id}/stop")
        assert status == 404 and body["error"]["message"]
        assert await it.status(run_id) == before


@pytest.mark.promise("RUN-14")
async def test_a_stop_outlives_the_gateway(it: GatewayProcess) -> None:
    run_id = await it.run("tool:wedge {}")
    await it.events(run_id, until="tool.started")
    await it.post(f"/v1/runs/{run_id}/stop")
    await it.kill()
    await it.start()
    stream = await it.events(run_id)
    assert stream.names[-1] == "run.cancelled"
    assert (await it.status(run_id))["status"] == "cancelled"


@pytest.mark.fault("F-12")
@pytest.mark.promise("RUN-15")
async def test_a_stop_that_comes_too_late_never_hits_the_next_run(
    it: GatewayProcess, model: ModelServer
) -> None:
    """The model's last words and the stop race each other, a little different every time."""
    outcomes = []
    for number in range(40):
        outcomes.append(await _race(it, model, f"s{number % 4}", number))
    note(f"{outcomes.count('cancelled')} of {len(outcomes)} stops were in time")
    await _nothing_is_left(it)


async def _race(it: GatewayProcess, model: ModelServer, session: str, number: int) -> str:
    gate = anyio.Event()
    model.then(says.stream(says.token("a"), says.Wait(gate), says.finish(), says.DONE))
    first = await it.run("first", session_id=session)
    await it.events(first, until="message.delta")
    second = await it.run(f"next {number}", session_id=session)
    answers: list[int] = []

    async def stop() -> None:
        status, _ = await it.post(f"/v1/runs/{first}/stop")
        answers.append(status)

    async with anyio.create_task_group() as racing:
        order: list[Callable[[], object]] = [lambda: racing.start_soon(stop), gate.set]
        for act in order if number % 2 else reversed(order):
            act()
            for _ in range(number // 2):
                await anyio.lowlevel.checkpoint()
    ended = (await it.finished(first))["status"]
    assert (answers[0], ended) in {(200, "cancelled"), (404, "completed")}
    after = await it.events(second)
    assert after.names[-1] == "run.completed", "the stop of one run hit the next"
    assert after.text == f"echo: next {number}"
    return str(ended)
