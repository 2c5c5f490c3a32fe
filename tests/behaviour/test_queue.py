"""Load: the number of active and waiting runs, and requests that are refused."""

import signal
from pathlib import Path

import anyio
import pytest

from tests.behaviour import ledger
from tests.fakes import model_server as says
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio


def _gated(model: ModelServer, count: int) -> list[anyio.Event]:
    """The next `count` answers wait, each for its own gate."""
    gates = [anyio.Event() for _ in range(count)]
    for gate in gates:
        model.then(says.stream(says.token("a"), says.Wait(gate), says.finish(), says.DONE))
    return gates


async def _statuses(it: GatewayProcess, runs: list[str]) -> list[str]:
    return [(await it.status(run_id))["status"] for run_id in runs]


@pytest.mark.promise("RUN-23", "RUN-19")
async def test_runs_beyond_the_slots_wait_and_beyond_the_queue_are_refused(
    model: ModelServer, tmp_path: Path
) -> None:
    limits = "[limits]\nrunning = 2\nqueued = 3\n"
    async with gateway(tmp_path, model.base_url, config=limits) as it:
        gates = _gated(model, 2)
        running = [await it.run(f"running {n}") for n in range(2)]
        for run_id in running:
            await it.events(run_id, until="message.delta")
        waiting = [await it.run(f"waiting {n}") for n in range(3)]
        assert await _statuses(it, running + waiting) == ["running"] * 2 + ["queued"] * 3
        _, health = await it.get("/health/detailed")
        assert (health["runs"]["running"], health["runs"]["queued"]) == (2, 3)

        before = ledger.holdings(it.home)
        async with it.http.post(it.url + "/v1/runs", json={"input": "too many"}) as response:
            body = await response.json()
            assert (response.status, body["error"]["code"]) == (429, "queue_full")
            assert body["error"]["type"] == "rate_limit_error"
            assert int(response.headers["Retry-After"]) >= 1
        assert ledger.holdings(it.home) == before
        assert len(model.requests) == 2, "more were driven than there are places"

        gates[0].set()
        await it.finished(running[0])
        for run_id in waiting:
            assert (await it.finished(run_id))["status"] == "completed"
        assert (await it.status(running[1]))["status"] == "running"
        assert (await it.finished(await it.run("room again")))["status"] == "completed"
        gates[1].set()
        assert (await it.finished(running[1]))["status"] == "completed"
        asked = [r.body["messages"][-1]["content"] for r in model.requests]
        assert asked[2:5] == ["waiting 0", "waiting 1", "waiting 2"], "first come, first served"


@pytest.mark.promise("RUN-23")
async def test_one_busy_session_occupies_only_one_slot(model: ModelServer, tmp_path: Path) -> None:
    async with gateway(tmp_path, model.base_url, config="[limits]\nrunning = 2\n") as it:
        (gate,) = _gated(model, 1)
        crowd = [await it.run(f"crowd {n}", session_id="crowd") for n in range(5)]
        await it.events(crowd[0], until="message.delta")
        assert (await it.finished(await it.run("alone")))["status"] == "completed"
        assert await _statuses(it, crowd) == ["running"] + ["queued"] * 4
        gate.set()
        for run_id in crowd:
            await it.finished(run_id)


@pytest.mark.promise("RUN-23")
async def test_queued_runs_survive_a_restart(model: ModelServer, tmp_path: Path) -> None:
    limits = "[limits]\nrunning = 1\nqueued = 2\n"
    async with gateway(tmp_path, model.base_url, config=limits) as it:
        _gated(model, 1)
        runs = [await it.run("busy")]
        await it.events(runs[0], until="message.delta")
        runs += [await it.run(f"waiting {n}") for n in range(2)]
        await it.kill()
        await it.start()
        for run_id in runs:
            assert (await it.finished(run_id))["status"] == "completed"
        assert (await it.finished(await it.run("room again")))["status"] == "completed"


@pytest.mark.promise("RUN-23")
async def test_while_draining_nothing_new_is_taken_but_what_was_taken_is_answered(
    model: ModelServer, tmp_path: Path
) -> None:
    async with gateway(tmp_path, model.base_url, config="[gateway]\ndrain_s = 30\n") as it:
        (gate,) = _gated(model, 1)
        key = {"Idempotency-Key": "k"}
        status, accepted = await it.post("/v1/runs", {"input": "busy"}, key)
        run_id = accepted["run_id"]
        assert status == 202
        await it.events(run_id, until="message.delta")
        it.signal(signal.SIGTERM)
        await it.said("Shutting down")

        before = ledger.holdings(it.home)
        for path, body in (
            ("/v1/runs", {"input": "new"}),
            ("/v1/runs", {"input": "new", "session_id": "s"}),
        ):
            async with it.http.post(it.url + path, json=body) as response:
                error = (await response.json())["error"]
                assert (response.status, error["code"]) == (503, "gateway_draining")
                assert error["type"] == "server_error"
                assert int(response.headers["Retry-After"]) >= 1
        assert await it.post("/v1/runs", {"input": "busy"}, key) == (202, accepted)
        status, body = await it.post("/v1/runs", {"input": "other"}, key)
        assert (status, body["error"]["code"]) == (409, "idempotency_key_conflict")
        assert (await it.get("/health"))[1]["status"] == "draining"
        assert (await it.get("/health/detailed"))[0] == 503
        assert (await it.status(run_id))["status"] == "running"
        assert ledger.holdings(it.home) == before

        async with anyio.create_task_group() as reading:

            async def follow() -> None:
                stream = await it.events(run_id)
                assert stream.names[-1] == "run.completed" and stream.closed

            reading.start_soon(follow)
            gate.set()
        assert await it.ended() == 0


def _resident_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) >> 10


@pytest.mark.promise("API-04")
async def test_big_inputs_that_wait_hold_no_memory_and_are_bounded_by_bytes(
    tmp_path: Path, model: ModelServer
) -> None:
    config = "[limits]\nrunning = 1\nqueued_mb = 24\n"
    async with gateway(tmp_path, model.base_url, config) as it:
        blocking = await it.run("tool:hang {}")
        await it.events(blocking, until="tool.started")
        for _ in range(12):  # else the model would say all of it again
            model.then(says.say("done"))
        before = _resident_mb(it.pid)
        big = "x" * (2 << 20)
        waiting = [await it.run(big) for _ in range(12)]
        async with it.http.post(f"{it.url}/v1/runs", json={"input": big}) as refused:
            answer = await refused.json()
            assert (refused.status, answer["error"]["code"]) == (429, "queue_full")
            assert int(refused.headers["Retry-After"]) > 0
        assert _resident_mb(it.pid) - before < 14, "12 inputs of 2 MB wait"
        assert (await it.status(waiting[0]))["status"] == "queued"
        await it.post(f"/v1/runs/{blocking}/stop")
        for run_id in waiting:
            assert (await it.finished(run_id))["output"] == "done"
        assert (await it.finished(await it.run("say:room again")))["output"] == "room again"
