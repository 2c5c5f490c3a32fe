"""The event stream: its content, and that a reconnecting reader misses and repeats nothing."""

import socket
import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.behaviour import ledger
from tests.behaviour.figures import note
from tests.behaviour.wire import frames, head, small_socket, take
from tests.fakes import model_server as says
from tests.fakes.gateway import TERMINAL, Frame, GatewayProcess, Stream
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

DAY_S = 24 * 3600.0
FLOOD = 400  # times 32 kB: three times what the kernel takes for a reader that does not read


async def _eventful(it: GatewayProcess, model: ModelServer, tmp_path: Path) -> str:
    """A run with something of everything: thoughts, text, calls that work and one that fails."""
    arguments = f'{{"path": "{tmp_path}/counter", "tag": "x"}}'
    model.then(
        says.stream(
            *(says.delta(reasoning_content=t) for t in ("hm ", "well")),
            *(says.token(t) for t in ("I ", "shall ", "bump")),
            *says.call("bump", arguments, call_id="one"),
            *says.call("bump", "{}", call_id="two", index=1),
            says.finish("tool_calls"),
            says.DONE,
        ),
        says.say("all done, as you wished", 6),
    )
    return await it.run("go")


@pytest.mark.promise("RUN-10", "RUN-20")
async def test_a_stream_has_every_event_and_ends_with_one_final_event(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    run_id = await _eventful(it, model, tmp_path)
    stream = await it.events(run_id)
    assert _story(stream) == [
        "run.started",
        "reasoning.delta",
        "message.delta",
        "tool.started",
        "tool.completed",
        "message.delta",
        "run.completed",
    ]
    numbers = [frame.id for frame in stream.frames]
    assert numbers == sorted(set(numbers)), "numbers must rise"
    for frame in stream.frames:
        assert frame.data["run_id"] == run_id
        assert frame.data["seq"] == frame.id
        assert abs(frame.data["timestamp"] - time.time()) < 60
    assert [n for n in stream.names if n in TERMINAL] == ["run.completed"]
    assert stream.comments[-1] == "stream closed"
    assert stream.raw.endswith(b"\n\n: stream closed\n\n")

    by_name = {frame.event: frame.data for frame in stream.frames}
    assert by_name["run.completed"]["output"] == stream.text == "all done, as you wished"
    assert set(by_name["run.completed"]["usage"]) == {
        "input_tokens",
        "output_tokens",
        "total_tokens",
    }
    started, completed = by_name["tool.started"], by_name["tool.completed"]
    assert started["tool"] == completed["tool"] == "bump"
    assert "counter" in started["preview"]
    assert isinstance(completed["duration"], float) and isinstance(completed["error"], bool)


@pytest.mark.promise("RUN-20")
async def test_a_call_that_worked_and_one_that_did_not_can_be_told_apart(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    stream = await it.events(await _eventful(it, model, tmp_path))
    ends = {f.data["call_id"]: f.data for f in stream.frames if f.event == "tool.completed"}
    begun = {f.data["call_id"] for f in stream.frames if f.event == "tool.started"}
    assert {call: end["error"] for call, end in ends.items()} == {"one": False, "two": True}
    assert "one" in begun


@pytest.mark.promise("RUN-10")
async def test_a_run_that_fails_says_why_in_its_last_event(it: GatewayProcess) -> None:
    stream = await it.events(await it.run("fail:400"))
    assert stream.names[-1] == "run.failed" and stream.closed
    assert "400" in stream.frames[-1].data["error"]
    assert [n for n in stream.names if n in TERMINAL] == ["run.failed"]


@pytest.mark.promise("RUN-10", "RUN-11")
async def test_the_stream_is_sse_as_browsers_and_proxies_need_it(it: GatewayProcess) -> None:
    run_id = await it.run("hello")
    async with it.http.get(f"{it.url}/v1/runs/{run_id}/events") as response:
        raw = await response.read()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert "no-cache" in response.headers["Cache-Control"]
        assert response.headers["X-Accel-Buffering"] == "no"
    assert b"\r" not in raw
    assert raw.startswith(b"retry: 2000\n\n")
    assert not [line for line in raw.split(b"\n") if line.startswith(b"event:")]
    blocks = [b for b in raw.split(b"\n\n") if b and not b.startswith((b":", b"retry"))]
    assert blocks and all(b.startswith(b"id: ") and b.count(b"\n") == 1 for b in blocks)


@pytest.mark.promise("RUN-20")
async def test_text_that_turned_out_void_is_withdrawn_when_the_run_goes_on(
    it: GatewayProcess, model: ModelServer
) -> None:
    model.then(says.stream(says.token("half a sen"), says.Wait()))
    run_id = await it.run("hello")
    await it.events(run_id, until="message.delta")
    await it.kill()
    await it.start()
    stream = await it.events(run_id)
    void = next(f for f in stream.frames if f.event == "message.void")
    cut = next(f for f in stream.frames if f.event == "message.delta")
    assert cut.data["delta"] == "half a sen"
    assert void.data["turn"] == cut.data["turn"] and void.data["reason"]
    assert stream.names.count("run.started") == 1 and stream.names.count("run.resumed") == 1
    assert stream.text == "echo: hello" == (await it.status(run_id))["output"]


@pytest.mark.promise("RUN-11")
@pytest.mark.fault("F-26")
async def test_a_stream_dropped_at_every_event_goes_on_where_it_was(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    run_id = await _eventful(it, model, tmp_path)
    whole = await it.events(run_id)
    assert len(whole.frames) > 6
    for index, frame in enumerate(whole.frames):
        rest = await it.events(run_id, after=frame.id)
        assert _raw(rest.frames) == _raw(whole.frames[index + 1 :])
        assert rest.status == (204 if index == len(whole.frames) - 1 else 200)
        assert rest.closed == (rest.status == 200)
        async with it.http.get(f"{it.url}/v1/runs/{run_id}/events?after={frame.id}") as response:
            assert _raw(frames(await response.read())) == _raw(rest.frames)
    last = whole.frames[-1].id
    for past in (last, last + 1, last + 10**6, 10**17):
        assert (await it.events(run_id, after=past)).status == 204


@pytest.mark.promise("RUN-11")
@pytest.mark.fault("F-26")
async def test_a_reader_that_drops_after_every_frame_of_a_live_run_misses_nothing(
    it: GatewayProcess,
) -> None:
    run_id = await it.run("tokens:80:0.8")
    whole = Stream(0)
    pieces: list[Frame] = []

    async def read_whole() -> None:
        nonlocal whole
        whole = await it.events(run_id)

    async def read_by_one() -> None:
        while got := await take(it, run_id, pieces[-1].id if pieces else 0, 1):
            pieces.extend(got)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as readers:
            readers.start_soon(read_whole)
            readers.start_soon(read_by_one)
    assert whole.closed and len(whole.frames) > 10
    assert _raw(pieces) == _raw(whole.frames)


@pytest.mark.promise("RUN-11")
@pytest.mark.fault("F-26")
async def test_readers_who_come_at_any_time_all_read_the_same(
    it: GatewayProcess, model: ModelServer
) -> None:
    gates = [anyio.Event() for _ in range(8)]
    steps = [s for n, g in enumerate(gates) for s in (says.token(f"t{n} "), says.Wait(g))]
    model.then(says.stream(*steps, says.finish(), says.DONE))
    run_id = await it.run("hello")
    read: list[Stream] = []

    async def follow(after: int) -> None:
        read.append(await it.events(run_id, after=after))

    async with anyio.create_task_group() as readers:
        readers.start_soon(follow, 0)
        after = 0
        for number, gate in enumerate(gates):
            while True:
                (frame,) = await take(it, run_id, after, 1)
                after = frame.id
                if frame.data.get("delta") == f"t{number} ":
                    break
            for cursor in (0, after - 1, after):
                readers.start_soon(follow, cursor)
            gate.set()
    whole = max(read, key=lambda s: len(s.frames))
    assert whole.text == "".join(f"t{n} " for n in range(8))
    for stream in read:
        assert stream.closed
        assert _raw(stream.frames) == _raw(whole.frames[len(whole.frames) - len(stream.frames) :])
    assert len({len(s.frames) for s in read}) > 5, "they were to come at different times"


@pytest.mark.promise("RUN-11")
@pytest.mark.fault("F-26")
async def test_a_restart_changes_no_frame_and_no_number(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    over = await _eventful(it, model, tmp_path)
    whole = await it.events(over)
    model.then(says.stream(says.token("so far"), says.Wait()))
    cut = await it.run("cut")
    before = await it.events(cut, until="message.delta")
    await it.kill()
    await it.start()
    assert _raw((await it.events(over)).frames) == _raw(whole.frames)
    middle = whole.frames[len(whole.frames) // 2].id
    rest = await it.events(over, after=middle)
    assert _raw(rest.frames) == [f.raw for f in whole.frames if f.id > middle]
    resumed = await it.events(cut, after=before.frames[-1].id)
    again = await it.events(cut)
    assert resumed.closed and again.closed
    assert _raw(again.frames) == _raw(before.frames) + _raw(resumed.frames)


@pytest.mark.promise("RUN-11")
async def test_a_reader_whose_cursor_is_ahead_of_the_run_is_let_go_when_it_ends(
    it: GatewayProcess,
) -> None:
    run_id = await it.run("tool:hang {}")
    await it.events(run_id, until="tool.started")
    async with it.http.get(f"{it.url}/v1/runs/{run_id}/events?after=1000000") as response:
        assert response.status == 200
        await it.post(f"/v1/runs/{run_id}/stop")
        with anyio.fail_after(5):
            assert frames(await response.read()) == []


@pytest.mark.promise("RUN-11")
async def test_after_retention_deltas_are_gone_and_every_number_stands(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    old = await _eventful(it, model, tmp_path)
    young = await it.run("hello")
    before = {run_id: await it.events(run_id) for run_id in (old, young)}
    status = await it.status(old)
    await it.stop()
    age, kept = 2 * DAY_S, DAY_S - 600
    for run_id, seconds in ((old, age), (young, kept)):
        ledger.change(
            it.home,
            lambda journal, by=seconds, run=run_id: journal.execute(  # type: ignore[misc]
                "UPDATE runs SET updated_at = updated_at - ? WHERE run_id = ?", (by, run)
            ),
        )
    await it.start()
    await it.said("pruned")
    after = await it.events(old)
    assert _raw(after.frames) == [f.raw for f in before[old].frames if ".delta" not in f.event]
    assert after.closed
    assert (await it.status(old))["output"] == status["output"]
    middle = after.frames[1].id
    rest = await it.events(old, after=middle)
    assert _raw(rest.frames) == [f.raw for f in after.frames if f.id > middle]
    assert (await it.events(old, after=after.frames[-1].id)).status == 204
    assert _raw((await it.events(young)).frames) == _raw(before[young].frames)


@pytest.mark.promise("RUN-10", "RUN-11")
@pytest.mark.fault("F-27")
async def test_a_stalled_reader_is_disconnected_delays_no_other_and_may_resume(
    it: GatewayProcess, model: ModelServer
) -> None:
    gate = anyio.Event()
    flood = [says.token("x" * 32_000) for _ in range(FLOOD)]
    model.then(says.stream(*flood, says.finish(), says.DONE))
    alone = await it.run("alone")
    begun = time.monotonic()
    await _to_the_end(it, alone)
    alone_s = time.monotonic() - begun

    model.then(says.stream(says.token("go "), says.Wait(gate), *flood, says.finish(), says.DONE))
    run_id = await it.run("watched")
    await it.events(run_id, until="message.delta")
    with small_socket(it.url) as idle:
        idle.sendall(head("GET", f"/v1/runs/{run_id}/events"))
        assert await anyio.to_thread.run_sync(idle.recv, 12) == b"HTTP/1.1 200"
        gate.set()
        begun = time.monotonic()
        whole = await _to_the_end(it, run_id)
        watched_s = time.monotonic() - begun
        assert sum(len(f.data.get("delta", "")) for f in whole) == 3 + FLOOD * 32_000
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        idle.settimeout(10)
        got = frames(await anyio.to_thread.run_sync(_drain, idle))
    note(f"alone {alone_s:.2f} s, beside a reader that does not read {watched_s:.2f} s")
    assert watched_s < 2 * alone_s + 1
    assert got[-1].event not in TERMINAL, "everything was kept for a reader that did not read"
    assert sum(len(f.raw) for f in got) < sum(len(f.raw) for f in whole) / 2
    rest = await it.events(run_id, after=got[-1].id)
    assert rest.closed and _raw(got) + _raw(rest.frames) == _raw(whole)


async def _to_the_end(it: GatewayProcess, run_id: str) -> list[Frame]:
    """As a client reads that comes back when it is cut: this process is not always quick."""
    whole: list[Frame] = []
    raw = b""
    while not raw.endswith(b": stream closed\n\n"):
        headers = {"Last-Event-ID": str(whole[-1].id)} if whole else None
        async with it.http.get(f"{it.url}/v1/runs/{run_id}/events", headers=headers) as response:
            raw = await response.read()
        whole += frames(raw)
    return whole


@pytest.mark.promise("RUN-10")
async def test_a_big_piece_of_text_disconnects_no_reader_that_keeps_up(
    it: GatewayProcess, model: ModelServer
) -> None:
    gate = anyio.Event()
    big = says.token("x" * 700_000)
    steps = (says.token("go "), says.Wait(gate), big, says.finish(), says.DONE)
    model.then(says.stream(*steps))
    run_id = await it.run("hello")
    async with it.http.get(f"{it.url}/v1/runs/{run_id}/events") as response:
        raw = b""
        while b'"go "' not in raw:
            raw += await response.content.readany()
        gate.set()
        raw += await response.read()
    assert raw.endswith(b": stream closed\n\n")
    assert sum(len(f.data.get("delta", "")) for f in frames(raw)) == 700_003


def _drain(connection: socket.socket) -> bytes:
    """What is left of a response on a socket, undone from its chunks."""
    raw = b""
    while not raw.endswith(b"\r\n0\r\n\r\n") and (data := connection.recv(1 << 20)):
        raw += data
    body, rest = b"", raw.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body


def _raw(of: list[Frame]) -> list[bytes]:
    return [frame.raw for frame in of]


def _story(stream: Stream) -> list[str]:
    """The names, neighbours of one name once: how text is cut into deltas is not promised."""
    names = stream.names
    return [n for i, n in enumerate(names) if i == 0 or names[i - 1] != n]


async def test_addresses_are_not_disarmed_in_the_api(it: GatewayProcess) -> None:
    text = "see https://evil.example/?q=1 and evil.example"
    run_id = await it.run(f"say:{text}")
    assert (await it.events(run_id)).text == text
    assert (await it.finished(run_id))["output"] == text
