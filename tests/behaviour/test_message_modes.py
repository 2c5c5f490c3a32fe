"""New messages while a run of the session is active: the mode decides what they do."""

from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from tests.fakes import model_server as says
from tests.fakes.gateway import GatewayProcess, Stream, gateway, read_events
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio


async def _at_work(it: GatewayProcess, model: ModelServer, gate: anyio.Event) -> str:
    """A run of the session `s` that has said a word and then waits."""
    model.then(says.stream(says.token("a"), says.Wait(gate), says.finish(), says.DONE))
    run_id = await it.run("first", session_id="s")
    await it.events(run_id, until="message.delta")
    return run_id


def _asked(model: ModelServer) -> list[str]:
    return [request.body["messages"][-1]["content"] for request in model.requests]


@pytest.mark.promise("HALT-01", "HALT-03", "HALT-08")
async def test_words_that_interrupt_end_the_run_at_work_and_are_the_next_ones_input(
    it: GatewayProcess, model: ModelServer
) -> None:
    first = await _at_work(it, model, anyio.Event())
    second = await it.run("second", session_id="s", mode="interrupt")
    assert second != first
    assert (await it.finished(second))["status"] == "completed"
    assert (await it.status(first))["status"] == "cancelled"
    ending = (await it.events(first)).frames[-1].data
    assert (ending["event"], ending["reason"]) == ("run.cancelled", "superseded")
    assert _asked(model) == ["first", "second"]


@pytest.mark.promise("HALT-01", "HALT-02")
async def test_words_that_come_too_late_to_interrupt_are_the_next_input_all_the_same(
    it: GatewayProcess, model: ModelServer
) -> None:
    first = await it.run("first", session_id="s")
    assert (await it.finished(first))["status"] == "completed"
    second = await it.run("second", session_id="s", mode="interrupt")
    assert (await it.finished(second))["status"] == "completed"
    assert (await it.status(first))["status"] == "completed"
    assert _asked(model) == ["first", "second"]


@pytest.mark.promise("HALT-07", "HALT-08")
async def test_several_words_that_interrupt_are_read_in_order(
    it: GatewayProcess, model: ModelServer
) -> None:
    await _at_work(it, model, anyio.Event())
    runs = [await it.run(f"word {n}", session_id="s", mode="interrupt") for n in range(4)]
    for run_id in dict.fromkeys(runs):
        await it.finished(run_id)
    said = [m["content"] for m in model.requests[-1].body["messages"] if m["role"] == "user"]
    text = "\n".join(said)
    assert [text.index(f"word {n}") for n in range(4)] == sorted(
        text.index(f"word {n}") for n in range(4)
    )
    assert all(text.count(f"word {n}") == 1 for n in range(4))


@pytest.mark.promise("HALT-08")
async def test_words_that_steer_are_read_by_the_run_at_work(
    it: GatewayProcess, model: ModelServer
) -> None:
    gate = anyio.Event()
    first = await _at_work(it, model, gate)
    assert await it.run("this way", session_id="s", mode="steer") == first
    gate.set()
    assert (await it.finished(first))["status"] == "completed"
    assert _asked(model) == ["first", "this way"]


async def test_the_same_words_under_the_same_key_are_said_once_in_any_mode(
    it: GatewayProcess, model: ModelServer
) -> None:
    gate = anyio.Event()
    first = await _at_work(it, model, gate)
    body = {"input": "this way", "session_id": "s", "mode": "steer"}
    for again in (False, True):
        headers = {"Idempotency-Key": "k"}
        url = it.url + "/v1/runs"
        async with it.http.post(url, json=body, headers=headers) as response:
            assert (await response.json())["run_id"] == first
            assert ("Idempotency-Replayed" in response.headers) is again
    gate.set()
    await it.finished(first)
    assert _asked(model) == ["first", "this way"]


async def test_an_unknown_mode_is_refused(it: GatewayProcess) -> None:
    status, body = await it.post("/v1/runs", {"input": "x", "mode": "shout"})
    assert (status, body["error"]["param"]) == (400, "mode")


@pytest.mark.promise("HALT-02")
async def test_a_queued_message_can_be_taken_back_until_its_run_starts(
    it: GatewayProcess, model: ModelServer
) -> None:
    gate = anyio.Event()
    first = await _at_work(it, model, gate)
    second = await it.run("second", session_id="s")
    for run_id, expected in ((first, 409), (second, 200)):
        status, _ = await it.post(f"/v1/runs/{run_id}/stop?unless_begun=true", None)
        assert status == expected
    gate.set()
    assert (await it.finished(first))["status"] == "completed"
    assert (await it.status(second))["status"] == "cancelled"
    assert _asked(model) == ["first"]


async def test_a_repeated_stop_returns_the_unread_input_again(
    it: GatewayProcess, model: ModelServer
) -> None:
    first = await _at_work(it, model, anyio.Event())
    second = await it.run("second", session_id="s")
    path, key = f"/v1/runs/{second}/stop?unread=true&unless_begun=true", {"Idempotency-Key": "k1"}
    told: list[tuple[int, Any]] = []

    async def take_back() -> None:
        told.append(await it.post(path, None, key))

    async with anyio.create_task_group() as again:
        for _ in range(3):
            again.start_soon(take_back)
    for _ in range(2):
        status, answer = await it.post(f"/v1/runs/{first}/stop?unread=true", None, key)
        assert (status, answer["unread"]) == (200, [])
        assert (await it.finished(first))["status"] == "cancelled"
    await it.kill()
    await it.start()
    await take_back()
    stopping = {"run_id": second, "status": "stopping", "unread": ["second"]}
    assert told == [(200, stopping)] * 4
    assert (await it.post(path))[0] == 404
    assert (await it.post(path, None, {"Idempotency-Key": "k2"}))[0] == 404


async def test_the_stream_of_a_session_tells_what_waits(
    it: GatewayProcess, model: ModelServer
) -> None:
    gate = anyio.Event()
    first = await _at_work(it, model, gate)
    second = await it.run("second", session_id="s")
    url = it.url + "/api/sessions/s/events"
    seen = Stream(200)
    async with it.http.get(url, timeout=aiohttp.ClientTimeout(total=30)) as response:
        gate.set()
        await read_events(response, seen, until="run.completed")
    queued = [f.data for f in seen.frames if f.data["event"] == "run.queued"]
    assert [(q["run_id"], q["input"]) for q in queued] == [(first, "first"), (second, "second")]
    assert "run.queued" not in (await it.events(second)).names


@pytest.mark.promise("HALT-01")
async def test_words_that_interrupt_survive_a_kill(model: ModelServer, tmp_path: Path) -> None:
    async with gateway(tmp_path, model.base_url) as it:
        await _at_work(it, model, anyio.Event())
        model.then(says.stream(says.token("b"), says.Wait(anyio.Event())))
        second = await it.run("second", session_id="s", mode="interrupt")
        await model.asked(2)
        await it.kill()
        await it.start()
        assert (await it.finished(second))["status"] == "completed"


@pytest.mark.promise("HALT-01")
async def test_words_that_steer_a_run_which_then_fails_are_the_next_runs_input(
    it: GatewayProcess, model: ModelServer
) -> None:
    gate = anyio.Event()
    model.then(says.stream(says.token("a"), says.Wait(gate), says.Abort()), says.refuse(401, "no"))
    first = await it.run("first", session_id="s")
    await it.events(first, until="message.delta")
    assert await it.run("this way", session_id="s", mode="steer") == first
    gate.set()
    assert (await it.finished(first))["status"] == "failed"
    _, listed = await it.get("/v1/runs?session_id=s")
    (second,) = [run["run_id"] for run in listed["data"] if run["run_id"] != first]
    assert (await it.finished(second))["status"] == "completed"
    assert _asked(model) == ["first", "first", "this way"]
