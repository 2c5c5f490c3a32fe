"""Published ports: granted by a person, forwarded from loopback, closed with their process."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core.run.process import LOWEST_PORT
from tests.behaviour.hands import approve, asked, audit, command, does, output, process
from tests.cli import Place
from tests.fakes.gateway import ROOT, GatewayProcess

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]

PORT = 20_000 + os.getpid() % 10_000  # another one in each process of the suite
SERVE = f"{sys.executable} -I -m http.server {PORT} --bind 127.0.0.1"
READY = f"until (exec 3<>/dev/tcp/127.0.0.1/{PORT}) 2>/dev/null; do sleep 0.1; done; echo ready"


async def serving(it: GatewayProcess) -> str:
    """Start a server in the background of the session `s`; its process id, once it listens."""
    told = await does(it, command(SERVE, background=True), session_id="s")
    assert (await does(it, command(READY), session_id="s"))["output"] == "ready\n"
    return str(told["process_id"])


async def fetched(port: int) -> bytes:
    """The first line of the answer on this port of this machine; empty: none came."""
    try:
        async with await anyio.connect_tcp("127.0.0.1", port) as to:
            await to.send(b"HEAD / HTTP/1.0\r\n\r\n")
            return (await to.receive()).splitlines()[0]
    except (OSError, anyio.EndOfStream):
        return b""


async def published(it: GatewayProcess, process_id: str) -> dict[str, Any]:
    """Have the model publish the port, approved; what it was told."""
    run_id = await it.run(process("publish", process_id=process_id, port=PORT), session_id="s")
    question = await approve(it, run_id)
    assert str(PORT) in question["command"]
    assert question["choices"] == ["once", "deny"]
    return await output(it, run_id)


def place(it: GatewayProcess, root: Path) -> Place:
    found = Place(root)
    found.environ |= {"PYTHONPATH": str(ROOT), "HOLDFAST_HOME": str(it.home)}
    return found


async def ports(it: GatewayProcess) -> list[dict[str, Any]]:
    _, body = await it.get("/api/processes")
    return [port for one in body["data"] for port in one["ports"]]


@pytest.mark.promise("NET-04")
async def test_the_model_publishes_a_port_once_a_person_allows_it(it: GatewayProcess) -> None:
    process_id = await serving(it)
    assert await fetched(PORT) == b""
    told = await published(it, process_id)
    assert told["url"] == f"http://127.0.0.1:{PORT}"
    assert b"200" in await fetched(PORT)
    assert [p["host_port"] for p in await ports(it)] == [PORT]
    assert any(str(PORT) in e.get("what", "") for e in audit(it))
    closing = process("unpublish", process_id=process_id, port=PORT)
    await it.finished(await it.run(closing, session_id="s"))
    assert await fetched(PORT) == b""
    assert await ports(it) == []


@pytest.mark.promise("NET-04")
async def test_a_refused_port_stays_closed(it: GatewayProcess) -> None:
    process_id = await serving(it)
    run_id = await it.run(process("publish", process_id=process_id, port=PORT), session_id="s")
    await asked(it, run_id)
    await approve(it, run_id, "deny")
    await it.finished(run_id)
    assert await fetched(PORT) == b""
    low = process("publish", process_id=process_id, port=LOWEST_PORT - 1)
    run_id = await it.run(low, session_id="s")
    stream = await it.events(run_id)
    assert "approval.request" not in stream.names
    assert await ports(it) == []


@pytest.mark.promise("NET-04")
async def test_a_port_is_closed_with_its_process(it: GatewayProcess) -> None:
    process_id = await serving(it)
    await published(it, process_id)
    await it.post(f"/api/processes/{process_id}/kill")
    assert await fetched(PORT) == b""
    assert await ports(it) == []


@pytest.mark.promise("NET-04")
async def test_a_killed_gateway_closes_the_port_and_the_next_one_lists_none(
    it: GatewayProcess,
) -> None:
    process_id = await serving(it)
    await published(it, process_id)
    await it.kill()
    assert await fetched(PORT) == b""
    await it.start()
    assert await ports(it) == []
    _, body = await it.get("/api/processes?session_id=s&ended=true")
    assert [(p["process_id"], p["status"]) for p in body["data"]] == [(process_id, "ended")]


@pytest.mark.promise("NET-04")
async def test_the_operator_publishes_and_closes_a_port(it: GatewayProcess, tmp_path: Path) -> None:
    process_id = await serving(it)
    at = place(it, tmp_path)
    opened = await at.holdfast("ports", "open", str(PORT), "--session", "s", "--json")
    found = json.loads(opened.out)
    assert (found["process_id"], found["port"]) == (process_id, PORT)
    assert b"200" in await fetched(found["host_port"])
    assert found["url"] in (await at.holdfast("ports")).out
    assert any(e["kind"] == "port.published" for e in audit(it))
    assert (await at.holdfast("ports", "close", str(PORT))).code == 0
    assert await fetched(found["host_port"]) == b""
    assert (await at.holdfast("ports", "close", str(PORT))).code == 1
    assert (await at.holdfast("ports", "open", "80")).code == 1


async def test_only_the_operator_at_a_terminal_publishes_by_request(it: GatewayProcess) -> None:
    process_id = await serving(it)
    status, body = await it.post(f"/api/processes/{process_id}/ports", {"port": PORT})
    assert (status, body["error"]["code"]) == (403, "admin_only")
    assert await fetched(PORT) == b""


async def test_a_taken_port_is_published_under_another_number(it: GatewayProcess) -> None:
    process_id = await serving(it)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=PORT):
        told = await published(it, process_id)
    at = int(told["url"].rpartition(":")[2])
    assert at != PORT
    assert b"200" in await fetched(at)
