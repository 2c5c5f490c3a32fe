"""Clients that leave: their requests are cancelled, and nothing is left half done."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event

import aiohttp
import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
from aiohttp import web

from holdfast.api.server import listen_unix, serving

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0  # a net below a test that would wait for ever


@asynccontextmanager
async def served(directory: Path, app: web.Application) -> AsyncIterator[aiohttp.ClientSession]:
    path = directory / "socket"
    async with serving(app) as runner:
        await listen_unix(runner, path)
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
            yield http


async def ok(request: web.Request) -> web.Response:
    return web.Response()


@pytest.mark.promise("RUN-24")
async def test_who_leaves_while_a_thread_is_at_work_does_not_make_others_share_what_it_works_with(
    tmp_path: Path,
) -> None:
    begun, left, release = anyio.Event(), anyio.Event(), Event()
    seen: list[str] = []

    def work() -> None:
        anyio.from_thread.run_sync(begun.set)
        release.wait(PATIENCE_S)
        seen.append("the thread is done")

    async def slow(request: web.Request) -> web.Response:
        try:
            await anyio.to_thread.run_sync(work)
            await anyio.lowlevel.checkpoint()
            seen.append("it went on for nobody")
        finally:
            seen.append("the handler is left")
            left.set()
        return web.Response()

    app = web.Application()
    app.router.add_get("/slow", slow)
    app.router.add_get("/ok", ok)
    with anyio.fail_after(PATIENCE_S):
        async with served(tmp_path, app) as http:
            async with anyio.create_task_group() as asking:
                asking.start_soon(http.get, "/slow")
                await begun.wait()
                asking.cancel_scope.cancel()
            for _ in range(3):  # it has heard of the end of that connection before these
                async with http.get("/ok") as response:
                    assert response.status == 200
            release.set()
            await left.wait()
    assert seen == ["the thread is done", "the handler is left"]


@pytest.mark.promise("RUN-24")
async def test_who_leaves_a_stream_ends_it_and_that_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left, go_on = anyio.Event(), Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        try:
            while True:
                await stream.write(b"x" * 4096)
                await anyio.to_thread.run_sync(go_on.wait)
        finally:
            left.set()

    app = web.Application()
    app.router.add_get("/endless", endless)
    app.router.add_get("/ok", ok)
    with anyio.fail_after(PATIENCE_S):
        async with served(tmp_path, app) as http:
            async with http.get("/endless") as response:
                await response.content.read(4096)
            for _ in range(3):
                async with http.get("/ok") as response:
                    assert response.status == 200
            go_on.set()  # it finds that there is no client when it writes again
            await left.wait()
            async with http.get("/ok") as response:
                assert response.status == 200
    assert not [r for r in caplog.records if r.levelname == "ERROR"], caplog.text
