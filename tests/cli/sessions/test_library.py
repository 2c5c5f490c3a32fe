"""What the terminal's client does with sessions, through the door of a real engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from holdfast.api.schema.runs import RunRequest
from holdfast.api.schema.sessions import ImportRequest, MessageObject, ToolCallObject, ToolFunction
from holdfast.cli.client.client import Client, connect
from holdfast.cli.client.refusals import Exists, NotFound
from holdfast.config.load import load
from holdfast.host.lock import SOCKET, take_lock

pytestmark = pytest.mark.anyio

TALK = (
    MessageObject("user", "what is in here?"),
    MessageObject("assistant", "I look", (ToolCallObject("c1", ToolFunction("ls", "{}")),)),
    MessageObject("tool", "a.txt", tool_call_id="c1"),
    MessageObject("assistant", "One file."),
)


@asynccontextmanager
async def client_at(directory: Path) -> AsyncIterator[Client]:
    config = load({"HOME": str(directory), "HOLDFAST_HOME": str(directory / "home")}, {})
    async with connect(config, lambda note: None, patience_s=5) as client:
        yield client


@pytest.fixture
def work(tmp_path: Path) -> str:
    made = tmp_path / "work"
    made.mkdir()
    return str(made)


async def finish(client: Client, submission: RunRequest) -> None:
    run_id = await client.submit(submission)
    async for _ in client.follow(run_id):
        pass


async def test_a_session_is_found_named_and_forked(tmp_path: Path, work: str) -> None:
    async with client_at(tmp_path) as client:
        assert await client.list_sessions() == ()
        await finish(client, RunRequest("hello there", session_id="a", workspace=work))
        (one,) = await client.list_sessions()
        assert await client.session("a") == one
        assert (one.name, one.workspace, one.platform) == ("hello there", work, "cli")
        named = await client.rename("a", "Mine")
        assert (named.title, named.name) == ("Mine", "Mine")
        fork = await client.fork("a", "Other")
        assert (fork.title, fork.workspace, fork.preview) == ("Other", work, "hello there")
        assert await client.transcript(fork.session_id) == await client.transcript("a")
        history = await client.history("a")
        assert [(m.role, m.text) for m in history.data][0] == ("user", "hello there")
        assert (history.unfinished, history.after > 0) == ((), True)
        for asked in (client.session("x"), client.rename("x", "y"), client.fork("x")):
            with pytest.raises(NotFound):
                await asked


async def test_all_that_is_asked_for_is_listed_page_by_page(tmp_path: Path) -> None:
    async with client_at(tmp_path) as client:
        for number in range(105):
            old = ImportRequest(f"s{number}", (), source="x", created_at=1000.0 - number)
            await client.import_session(old)
        names = [f"s{number}" for number in range(105)]
        assert [one.session_id for one in await client.list_sessions(200)] == names
        assert [one.session_id for one in await client.list_sessions(103)] == names[:103]
        assert [one.session_id for one in await client.list_sessions(2)] == names[:2]


async def test_a_session_brought_in_is_told_as_it_was_and_only_once(tmp_path: Path) -> None:
    async with client_at(tmp_path) as client:
        old = ImportRequest(
            "old", TALK, source="hermes", title="Long ago", created_at=5.0, updated_at=7.0
        )
        made = await client.import_session(old)
        assert (made.title, made.created_at, made.updated_at) == ("Long ago", 5.0, 7.0)
        assert (await client.history("old")).data == TALK
        with pytest.raises(Exists):
            await client.import_session(old)
    async with client_at(tmp_path) as client:
        assert await client.transcript("old") == TALK


async def test_a_fork_whose_answer_was_lost_is_not_made_twice(tmp_path: Path) -> None:
    """An owner that makes the fork, goes before it says so, and comes back."""
    home = tmp_path / "home"
    lock = take_lock(home)
    assert lock is not None
    made: list[str] = []

    async def fork(request: web.Request) -> web.Response:
        name = (await request.json())["session_id"]
        if name in made:
            error = {"message": "taken", "code": "session_exists"}
            return web.json_response({"error": error}, status=409)
        made.append(name)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def show(request: web.Request) -> web.Response:
        shown = {
            **dict.fromkeys(("title", "preview", "workspace", "platform", "model"), ""),
            **dict.fromkeys(("created_at", "updated_at"), 0.0),
        }
        name = request.match_info["id"]
        return web.json_response({**shown, "session_id": name, "status": "open", "unfinished": 0})

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.router.add_post("/api/sessions/a/fork", fork)
    app.router.add_get("/api/sessions/{id}", show)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    (home / SOCKET).parent.mkdir(parents=True, exist_ok=True)
    await web.UnixSite(runner, str(home / SOCKET)).start()
    try:
        async with client_at(tmp_path) as client:
            assert (await client.fork("a")).session_id == made[0]
        assert len(made) == 1
    finally:
        await runner.cleanup()
        lock.release()


def test_a_message_with_pictures_has_its_words_and_their_number() -> None:
    from_door = b'{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url",\
"image_url":{"url":"data:image/png;base64,x"}}]}'
    said = msgspec.json.decode(from_door, type=MessageObject)
    assert (said.text, said.images) == ("see", 1)
    assert (TALK[0].text, TALK[0].images) == ("what is in here?", 0)
