"""Clients that open connections and finish no request do not block others."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

from tests.behaviour.wire import exchange, head
from tests.fakes.gateway import GatewayProcess, gateway, unstarted

pytestmark = pytest.mark.anyio

UNFINISHED = b"GET /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
DESCRIPTORS = 512
THROUGH_S = 10.0  # a client with a key gets through within; others keep the machine busy


@contextmanager
def crowd(url: str, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Many connections that have sent so much and send no more."""
    host, _, port = url.removeprefix("http://").partition(":")
    with ExitStack() as closing:
        made = []
        for _ in range(count):
            made.append(closing.enter_context(socket.create_connection((host, int(port)), 10)))
            made[-1].sendall(sent)
        yield made


async def _end_of(connection: socket.socket) -> None:
    """Return when the other end has closed it."""
    connection.setblocking(False)
    with anyio.fail_after(20):
        while True:
            await anyio.wait_readable(connection)
            try:
                if not connection.recv(4096):
                    return
            except ConnectionError:
                return


@pytest.mark.promise("API-03")
@pytest.mark.parametrize("sent", [b"", UNFINISHED], ids=["silent", "unfinished"])
async def test_unfinished_headers_are_waited_for_only_so_long(tmp_path: Path, sent: bytes) -> None:
    async with gateway(tmp_path, config="[limits]\nheaders_s = 0.3\n") as it:
        with crowd(it.url, 20, sent) as connections:
            for connection in connections:
                await _end_of(connection)
        assert (await it.get("/health/ready"))[0] == 200


@pytest.mark.promise("API-03")
async def test_many_clients_without_a_key_block_no_other_client(tmp_path: Path) -> None:
    """There are more of them than the process may have descriptors."""
    async with unstarted(tmp_path) as it:
        await it.start("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")
        # The first run waits for the test of the sandbox, which needs descriptors too.
        assert (await it.finished(await it.run("hello")))["status"] == "completed"
        with crowd(it.url, DESCRIPTORS + 100, UNFINISHED):
            with anyio.fail_after(THROUGH_S):
                run_id = await it.run("hello")
                assert (await it.finished(run_id))["status"] == "completed"
        # Those that have sent a whole request, but no key, are no better.
        request = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with crowd(it.url, DESCRIPTORS + 100, request):
            with anyio.fail_after(THROUGH_S):
                assert (await it.get("/health/detailed"))[0] == 200


@pytest.mark.promise("API-03")
async def test_clients_with_a_key_are_not_disconnected(tmp_path: Path) -> None:
    async with gateway(tmp_path, config="[limits]\nheaders_s = 0.3\n") as it:
        run_id = await it.run("!sleep 1000", session_id="s")
        path = f"/v1/runs/{run_id}/events"
        async with it.http.get(it.url + path) as reader, _kept(it) as kept:
            with crowd(it.url, 20, UNFINISHED) as connections:
                for connection in connections:
                    await _end_of(connection)
            assert await kept.again() == 200
            await it.post(f"/v1/runs/{run_id}/stop")
            assert b"run.cancelled" in await reader.content.read()


class _kept:
    """A connection of a client with a key, which is kept between two requests."""

    def __init__(self, it: GatewayProcess) -> None:
        self._it = it

    async def __aenter__(self) -> "_kept":
        host, _, port = self._it.url.removeprefix("http://").partition(":")
        self._stream = await anyio.connect_tcp(host, int(port))
        assert await self.again() == 200
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stream.aclose()

    async def again(self) -> int:
        await self._stream.send(head("GET", "/v1/models"))
        answer = await self._stream.receive()
        return int(answer.split(b" ")[1])


@pytest.mark.promise("API-03")
async def test_a_body_that_does_not_come_is_waited_for_only_so_long(tmp_path: Path) -> None:
    async with gateway(tmp_path, config="[limits]\nbody_s = 0.3\n") as it:
        fields = ("Content-Type: application/json", "Content-Length: 1000")
        answer = await exchange(it.url, head("POST", "/v1/runs", *fields) + b'{"input"')
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
