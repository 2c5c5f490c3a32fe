"""Shutdown: announced at once, done in time whatever hangs, and all work continues afterwards."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import anyio
import pytest

from tests.crash.evidence import begun, endings, facts
from tests.fakes.gateway import GatewayProcess, Stream, gateway
from tests.fakes.model_server import Ask, ModelServer, Reply, Wait, finish, say, stream, token

pytestmark = pytest.mark.anyio

Record = Callable[[str, object], None]
PROMISED_S = 10.0  # after the drain, always
USUAL_S = 5.0  # 99 times of 100


def drain(seconds: float) -> str:
    return f"[gateway]\ndrain_s = {seconds}\n"


async def _read(it: GatewayProcess, run_id: str, streams: list[Stream]) -> None:
    streams.append(await it.events(run_id))


async def _said_and_over(it: GatewayProcess) -> tuple[float, float]:
    """SIGTERM: seconds until the line that says so, and until it is gone with code 0."""
    began = time.monotonic()
    it.signal(signal.SIGTERM)
    await it.said("Shutting down (SIGTERM)")
    said = time.monotonic() - began
    assert await it.ended() == 0
    return said, time.monotonic() - began


@pytest.mark.promise("STOP-03", "RUN-11")
async def test_without_a_drain_running_work_is_interrupted_at_once_and_goes_on_after_the_start(
    it: GatewayProcess, model: ModelServer
) -> None:
    model.then(stream(token("half"), Wait()))
    running = await it.run("say:whole", session_id="s")
    before = await begun(it, running, "message.delta")
    queued = await it.run("say:later", session_id="s")
    seen: list[Stream] = []
    async with anyio.create_task_group() as readers:
        readers.start_soon(_read, it, running, seen)
        await it.get("/health")
        _, took = await _said_and_over(it)
    assert took < 2, took
    await model.idle()  # its connections are closed
    (reader,) = seen
    assert not endings(reader) and not reader.closed, "it will come back"
    await it.start()
    rest = await it.events(running, after=before.frames[-1].id)
    assert rest.names[:2] == ["run.resumed", "message.void"] and rest.text == "whole"
    assert (await it.finished(queued))["output"] == "later"
    (mark,) = facts(it.home, "run.interrupted")
    assert (mark["run_id"], mark["reason"]) == (running, "Gateway shutting down")
    assert mark["cause"] == "shutdown_timeout"


@pytest.mark.promise("STOP-04")
async def test_a_run_that_finishes_within_the_drain_is_not_interrupted_and_its_answer_goes_out(
    tmp_path: Path, model: ModelServer
) -> None:
    gate = anyio.Event()
    model.then(stream(token("in "), Wait(gate), token("time"), finish()))
    async with gateway(tmp_path, model.base_url, drain(30)) as it:
        run_id = await it.run("go")
        await begun(it, run_id, "message.delta")
        seen: list[Stream] = []
        async with anyio.create_task_group() as readers:
            readers.start_soon(_read, it, run_id, seen)
            began = time.monotonic()
            it.signal(signal.SIGTERM)
            await it.said("1 running, waiting up to 30 s")
            status, refusal = await it.post("/v1/runs", {"input": "too late"})
            assert (status, refusal["error"]["code"]) == (503, "gateway_draining")
            gate.set()
            assert await it.ended() == 0
        assert time.monotonic() - began < 10, "it does not wait the drain out"
        assert endings(seen[0]) == ["run.completed"] and seen[0].closed
        await it.start()
        assert (await it.status(run_id))["output"] == "in time"
        assert not facts(it.home, "run.interrupted")


@pytest.mark.promise("STOP-04")
async def test_a_run_that_does_not_finish_within_the_drain_is_interrupted_when_it_is_over(
    tmp_path: Path, model: ModelServer
) -> None:
    model.then(stream(token("half"), Wait()))
    async with gateway(tmp_path, model.base_url, drain(1)) as it:
        run_id = await it.run("say:whole")
        await begun(it, run_id, "message.delta")
        asked_at = time.time()
        _, took = await _said_and_over(it)
        assert 1 <= took <= 1 + PROMISED_S, took
        await it.start()
        assert (await it.finished(run_id))["output"] == "whole"
        (mark,) = facts(it.home, "run.interrupted")
        assert mark["reason"] == "Gateway shutting down"
        assert mark["cut_at"] >= asked_at + 1


@pytest.mark.promise("STOP-04")
async def test_a_drain_with_nothing_running_ends_at_once(tmp_path: Path) -> None:
    async with gateway(tmp_path, config=drain(600)) as it:
        await it.finished(await it.run("hello"))
        _, took = await _said_and_over(it)
        assert took < 2, took


async def _hang_everything(it: GatewayProcess) -> list[str]:
    runs = [await it.run(f"tool:{tool} {{}}") for tool in ("wedge", "hang", "explode")]
    for run_id in runs:
        await begun(it, run_id)
    runs.append(await it.run("stall:2"))
    await begun(it, runs[-1], "message.delta")
    return runs


def _at_last(ask: Ask) -> Reply:
    """The model in the next life: it has no more wishes."""
    return say("at last")


@pytest.mark.promise("STOP-05")
async def test_it_ends_in_time_with_a_wedged_thread_hanging_tools_a_stalled_model_and_readers(
    it: GatewayProcess, model: ModelServer, record_property: Record
) -> None:
    runs = await _hang_everything(it)
    seen: list[Stream] = []
    async with anyio.create_task_group() as readers:
        for run_id in runs:
            readers.start_soon(_read, it, run_id, seen)
        await it.get("/health")
        said, took = await _said_and_over(it)
    record_property("exit_s", round(took, 3))
    assert said < 1, said
    assert took <= USUAL_S, took
    model.otherwise = _at_last
    await it.start()
    for run_id in runs:
        assert (await it.finished(run_id))["output"] == "at last"


@pytest.mark.promise("STOP-05")
async def test_it_ends_in_time_with_clients_that_do_not_read_and_do_not_hang_up(
    it: GatewayProcess,
) -> None:
    run_id = await it.run("tokens:2000:1")
    host, _, port = it.url.removeprefix("http://").partition(":")
    request = f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    mute = [await anyio.connect_tcp(host, int(port)) for _ in range(5)]
    try:
        await mute[0].send(request[:20])  # half a request
        key = it.http.headers["Authorization"]
        await mute[1].send(request[:-2] + f"Authorization: {key}\r\n\r\n".encode())
        await begun(it, run_id, "message.delta")
        _, took = await _said_and_over(it)
        assert took <= PROMISED_S, took
    finally:
        for client in mute:
            await client.aclose()


@pytest.mark.promise("STOP-05")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(
    tmp_path: Path, model: ModelServer, number: signal.Signals
) -> None:
    async with gateway(tmp_path, model.base_url, drain(600)) as it:
        runs = await _hang_everything(it)
        it.signal(number)
        await it.said(f"Shutting down ({number.name}); 4 running")
        began = time.monotonic()
        it.signal(number)
        assert await it.ended() == 0
        took = time.monotonic() - began
        assert took < 1, took
        model.otherwise = _at_last
        await it.start()
        for run_id in runs:
            assert (await it.finished(run_id))["output"] == "at last"


@pytest.mark.fault("F-16")
@pytest.mark.promise("STOP-05")
async def test_fifty_runs_ten_tools_and_wedged_threads_do_not_hold_the_exit(
    it: GatewayProcess, model: ModelServer, record_property: Record
) -> None:
    texts = ["stall:3"] * 40 + ["tool:hang {}"] * 5 + ["tool:wedge {}"] * 5
    runs = [await it.run(text) for text in texts]
    async with anyio.create_task_group() as together:
        for run_id, text in zip(runs, texts, strict=True):
            event = "message.delta" if text == "stall:3" else "tool.started"
            together.start_soon(begun, it, run_id, event)
    _, took = await _said_and_over(it)
    record_property("exit_with_50_s", round(took, 3))
    assert took <= PROMISED_S, took
    assert len(facts(it.home, "run.interrupted")) == 50
    model.otherwise = _at_last
    await it.start()
    for run_id in runs:
        assert (await it.finished(run_id))["status"] == "completed"
    unknown = [f for f in facts(it.home, "call.settled") if f["outcome"] == "unknown"]
    assert len(unknown) == 10
    assert not facts(it.home, "run.failed")


@pytest.mark.promise("STOP-04")
@pytest.mark.debian("bash")
async def test_a_terminal_that_is_gone_changes_nothing_about_the_way_down(
    tmp_path: Path, model: ModelServer
) -> None:
    gate = anyio.Event()
    model.then(stream(token("in "), Wait(gate), token("time"), finish()))
    async with gateway(tmp_path, model.base_url, drain(30)) as it:
        await it.stop()
        await it.start("bash", "-c", 'exec "$@" 2> >(exec sed -u "/ready on/q" >&2)', "bash")
        run_id = await it.run("go")
        await begun(it, run_id, "message.delta")
        it.signal(signal.SIGTERM)
        while (await it.get("/health/ready"))[0] != 503:
            pass
        gate.set()
        assert await it.ended() == 0
        await it.start()
        assert (await it.status(run_id))["output"] == "in time"


@pytest.mark.promise("STOP-05")
async def test_a_signal_right_after_the_start_is_obeyed_like_any_other(it: GatewayProcess) -> None:
    await it.kill()
    await it.start()
    assert await it.stop() == 0


@pytest.mark.promise("STOP-03")
async def test_input_accepted_during_a_shutdown_is_there_after_the_start(
    it: GatewayProcess,
) -> None:
    """Clients post until nobody answers; every 202 among the answers was meant."""
    accepted: list[str] = []

    async def post(client: int) -> None:
        while True:
            try:
                status, body = await it.post("/v1/runs", {"input": f"say:from {client}"})
            except (aiohttp.ClientError, RuntimeError):  # it is gone, and so is our session
                return
            if status != 202:
                assert (status, body["error"]["code"]) == (503, "gateway_draining")
                return
            accepted.append(body["run_id"])
            if len(accepted) == 40:
                it.signal(signal.SIGTERM)

    async with anyio.create_task_group() as clients:
        for client in range(8):
            clients.start_soon(post, client)
    assert await it.ended() == 0
    await it.start()
    for run_id in accepted:
        assert (await it.finished(run_id))["status"] == "completed"
    assert len(facts(it.home, "run.queued")) == len(accepted) >= 40
