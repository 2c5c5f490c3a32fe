"""Without free descriptors, runs continue, the journal is intact, and it serves again later."""

import time
from pathlib import Path

import aiohttp
import anyio
import pytest
from anyio.abc import SocketStream

from holdfast.tools.exec.commands import LOOK_S
from tests.behaviour.hands import approve, command, gone, output, told_late
from tests.behaviour.wire import head
from tests.crash.evidence import ask_for, begun, endings, facts, lines
from tests.fakes.gateway import GatewayProcess, Stream
from tests.fakes.model_server import ModelServer, Wait, call, calls, stream, token

pytestmark = pytest.mark.anyio

LIMIT = 60
UNANSWERED_S = 3.0  # then it was not accepted


async def _use_up(it: GatewayProcess) -> list[SocketStream]:
    """Connect until no more fit into the gateway; the kernel takes those that it does not.

    With the key: those without one have to make room for others.
    """
    host, _, port = it.url.removeprefix("http://").partition(":")
    made = []
    answered = True
    while answered:
        made.append(await anyio.connect_tcp(host, int(port)))
        await made[-1].send(head("GET", "/v1/models"))
        with anyio.move_on_after(UNANSWERED_S) as waiting:
            await made[-1].receive()
        answered = not waiting.cancelled_caught
    return made


@pytest.mark.fault("F-29")
async def test_existing_runs_and_the_journal_outlive_the_descriptor_limit(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    effects, gate = tmp_path / "effects", anyio.Event()
    arguments = ask_for("bump", path=effects, tag="x").partition(" ")[2]
    model.then(stream(token("let me see"), Wait(gate), *calls(call("bump", arguments)).steps))
    await it.stop()
    await it.start("prlimit", f"--nofile={LIMIT}:{LIMIT}")
    run_id = await it.run("say:done")
    await begun(it, run_id, "message.delta")
    seen: list[Stream] = []

    async def read() -> None:
        seen.append(await it.events(run_id))

    clients: list[SocketStream] = []
    try:
        async with anyio.create_task_group() as reader:
            reader.start_soon(read)
            await it.get("/health")
            clients += await _use_up(it)
            await it.said("Too many open files")
            gate.set()
        assert endings(seen[0]) == ["run.completed"] and seen[0].text == "done"
        assert len([line for line in it.lines if "Too many open files" in line]) < 5
        with pytest.raises((aiohttp.ClientError, TimeoutError)):
            await _ask(it, within_s=0.3)
    finally:
        for client in clients:
            await client.aclose()
    began = time.monotonic()
    assert await _ask(it, within_s=5) == 200
    assert time.monotonic() - began <= 5
    assert (await it.finished(await it.run("hello")))["output"] == "echo: hello"
    assert len(facts(it.home, "run.completed")) == len(facts(it.home, "run.queued")) == 2
    (settled,) = facts(it.home, "call.settled")
    assert (settled["outcome"] == "ok") == (len(lines(effects)) == 1)


async def _ask(it: GatewayProcess, within_s: float) -> int:
    """Ask on a connection of its own."""
    timeout = aiohttp.ClientTimeout(total=within_s)
    async with aiohttp.ClientSession(timeout=timeout) as stranger:
        async with stranger.get(it.url + "/health") as response:
            return response.status


@pytest.mark.fault("F-29")
@pytest.mark.debian("bwrap")
async def test_processes_outlive_the_descriptor_limit_and_their_end_is_told_after_it(
    it: GatewayProcess,
) -> None:
    await it.stop()
    await it.start("prlimit", "--nofile=120:120")
    script = "while [ ! -e go ]; do sleep 0.1; echo tick; done; exit 7"
    asked = command(script, background=True, notify_on_complete=True, watch_patterns=["never said"])
    begun_by = await it.run(asked, session_id="bg", late="events")
    await approve(it, begun_by)
    await it.finished(begun_by)
    (workspace,) = (it.home / "workspaces").iterdir()
    clients: list[SocketStream] = []
    try:
        clients += await _use_up(it)
        await it.said("Too many open files")
        await anyio.sleep(4 * LOOK_S)  # sleep: a look that finds nothing tells nobody
        assert it.alive
        (workspace / "go").touch()
        await gone(script, 10)
        await anyio.sleep(2 * LOOK_S)  # sleep: the same
        assert it.alive
    finally:
        for client in clients:
            await client.aclose()
    assert "exit code 7" in await told_late(it, "bg", "has ended")


@pytest.mark.fault("F-29")
@pytest.mark.debian("bwrap")
async def test_a_command_outlives_the_descriptor_limit_and_so_does_what_it_said(
    it: GatewayProcess,
) -> None:
    await it.stop()
    await it.start("prlimit", "--nofile=120:120")
    run_id = await it.run(command("echo first; while [ ! -e go ]; do sleep 0.1; done; echo last"))
    await approve(it, run_id)
    await begun(it, run_id, "tool.progress")
    (workspace,) = (it.home / "workspaces").iterdir()
    clients: list[SocketStream] = []
    try:
        clients += await _use_up(it)
        await it.said("Too many open files")
        await anyio.sleep(4 * LOOK_S)  # sleep: a look that finds nothing tells nobody
        (workspace / "go").touch()
        await gone("echo last", 10)
        assert it.alive
    finally:
        for client in clients:
            await client.aclose()
    told = await output(it, run_id)
    assert (told["exit_code"], told["output"]) == (0, "first\nlast\n")
    (settled,) = facts(it.home, "call.settled")
    assert settled["outcome"] == "ok"
