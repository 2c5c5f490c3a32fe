"""Full text search in sessions at the operator's socket, also after kills."""

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest

from holdfast.host.lock import SOCKET
from tests.behaviour.test_library import bring_in, rename
from tests.fakes.gateway import GatewayProcess
from tests.fakes.model_server import DONE, ModelServer, Wait, finish, stream, token

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def searching(it: GatewayProcess) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(str(it.home / SOCKET))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
        yield http


async def search(it: GatewayProcess, **query: str) -> tuple[int, Any]:
    async with (
        searching(it) as http,
        http.get("/v1/operator/search", params=query) as response,
    ):
        return response.status, await response.json()


async def found(it: GatewayProcess, words: str) -> list[str]:
    status, body = await search(it, q=words)
    assert (status, body["complete"]) == (200, True), body
    return [hit["session_id"] for hit in body["data"]]


async def test_words_of_both_sides_titles_and_imports_are_found(it: GatewayProcess) -> None:
    await it.finished(await it.run("say:the otter dives", session_id="a"))
    await it.finished(await it.run("of kingfishers", session_id="b"))
    assert (await rename(it, "b", "Riverside"))[0] == 200
    status, _ = await bring_in(
        it,
        session_id="old",
        source="elsewhere",
        messages=[{"role": "user", "content": "otters, long ago"}],
        created_at=1_500_000_000.0,
    )
    assert status == 201
    assert await found(it, "otter") == ["a", "old"]
    status, body = await search(it, q="river", limit="1")
    assert status == 200
    [hit] = body["data"]
    assert {**hit, "at": 0} == {
        "session_id": "b",
        "title": "Riverside",
        "role": "title",
        "at": 0,
        "snippet": "⟦Riverside⟧",
    }
    assert (await search(it, q="long ago"))[1]["data"][0]["at"] == 1_500_000_000.0


async def test_it_survives_kill_9_and_the_loss_of_the_index(it: GatewayProcess) -> None:
    await it.finished(await it.run("a needle", session_id="s"))
    assert await found(it, "needle") == ["s"]
    index = it.home / "search.db"
    assert stat.S_IMODE(index.stat().st_mode) == 0o600
    await it.kill()
    index.write_bytes(b"damaged " * 500)
    await it.start()
    await it.finished(await it.run("another needle", session_id="t"))
    assert sorted(await found(it, "needle")) == ["s", "t"]
    index.unlink()
    assert sorted(await found(it, "needle")) == ["s", "t"]


async def test_words_are_found_while_their_run_is_at_work(
    it: GatewayProcess, model: ModelServer
) -> None:
    gate = anyio.Event()
    model.then(stream(token("half"), Wait(gate), token("way"), finish(), DONE))
    run_id = await it.run("unfinished business", session_id="s")
    await it.events(run_id, until="message.delta")
    assert await found(it, "unfinished") == ["s"]
    gate.set()
    await it.finished(run_id)
    assert await found(it, "halfway") == ["s"]


async def test_search_is_not_available_over_the_network(it: GatewayProcess) -> None:
    status, body = await it.get("/v1/operator/search?q=anything")
    assert (status, body["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({}, "q"),
        ({"q": "  "}, "q"),
        ({"q": "x" * 501}, "q"),
        ({"q": "x", "limit": "0"}, "limit"),
        ({"q": "x", "limit": "101"}, "limit"),
        ({"q": "x", "limit": "many"}, "limit"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    it: GatewayProcess, query: dict[str, str], param: str
) -> None:
    status, body = await search(it, **query)
    assert (status, body["error"]["param"]) == (400, param)


async def test_no_query_causes_a_server_error(it: GatewayProcess) -> None:
    await it.finished(await it.run("do this AND that", session_id="s"))
    for words in ('"', "* OR (", "NEAR(a b)", "🎉", "text:this", "%00", "'", "\x00"):
        assert await found(it, words) == []
    assert await found(it, "and *") == ["s"]
