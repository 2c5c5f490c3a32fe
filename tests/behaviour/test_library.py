"""Sessions over HTTP: list, rename, fork and import."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest

from holdfast.core.run.call import UNKNOWN_TEXT
from holdfast.engine.runs.prompt import IMPORTED
from holdfast.host.lock import SOCKET
from tests.fakes import model_server as says
from tests.fakes.gateway import GatewayProcess, Stream, read_events
from tests.fakes.model_server import ModelServer, Seen

pytestmark = pytest.mark.anyio

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what is\nin here?"},
    {
        "role": "assistant",
        "content": "I look",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
    {"role": "assistant", "content": "One file."},
]


def talk(seen: Seen) -> list[tuple[str, str]]:
    """A request to the model without its standing instructions."""
    said = [m for m in seen.body["messages"] if m["role"] != "system"]
    return [(m["role"], m["content"] or "") for m in said]


async def rename(it: GatewayProcess, name: str, title: object) -> tuple[int, Any]:
    url = f"{it.url}/api/sessions/{name}"
    async with it.http.patch(url, json={"title": title}) as response:
        return response.status, await response.json()


async def listed(it: GatewayProcess, query: str = "") -> list[str]:
    status, body = await it.get(f"/api/sessions{query}")
    assert (status, body["object"]) == (200, "list")
    return [one["session_id"] for one in body["data"]]


async def messages(it: GatewayProcess, name: str, query: str = "") -> Any:
    status, body = await it.get(f"/api/sessions/{name}/messages{query}")
    assert status == 200, body
    return body


@asynccontextmanager
async def operator(it: GatewayProcess) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(str(it.home / SOCKET))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
        yield http


async def bring_in(it: GatewayProcess, **body: object) -> tuple[int, Any]:
    async with operator(it) as http, http.post("/v1/operator/import", json=body) as response:
        return response.status, await response.json()


async def test_sessions_are_listed_those_that_were_spoken_in_last_first(it: GatewayProcess) -> None:
    assert await listed(it) == []
    for name in ("a", "b", "c"):
        await it.finished(await it.run(f"I am\n  {name}", session_id=name))
    await it.finished(await it.run("again", session_id="a"))
    assert await listed(it) == ["a", "c", "b"]
    assert await listed(it, "?limit=2") == ["a", "c"]
    status, page = await it.get("/api/sessions?limit=2&after=a")
    assert [one["session_id"] for one in page["data"]] == ["c", "b"]
    assert (status, page["has_more"]) == (200, False)
    assert (await it.get("/api/sessions?limit=1"))[1]["has_more"]
    assert await listed(it, "?after=b") == await listed(it, "?after=nobody") == []
    for wrong in ("?limit=0", "?limit=x", "?after=a%20b", "?after="):
        assert (await it.get(f"/api/sessions{wrong}"))[0] == 400
    await it.kill()
    await it.start()
    assert await listed(it) == ["a", "c", "b"]


async def test_a_session_is_shown_as_it_stands(it: GatewayProcess, model: ModelServer) -> None:
    run = await it.finished(await it.run("I am\n  here", session_id="a"))
    status, one = await it.get("/api/sessions/a")
    assert status == 200
    assert (one["object"], one["session_id"], one["title"]) == ("hermes.session", "a", "")
    assert (one["preview"], one["status"], one["unfinished"]) == ("I am here", "open", 0)
    assert (one["platform"], one["model"]) == ("api_server", "openai/fake")
    assert one["created_at"] <= run["created_at"] <= one["updated_at"] == run["updated_at"]
    assert Path(one["workspace"]).is_relative_to(it.home)
    gate = anyio.Event()
    model.then(says.stream(says.token("a"), says.Wait(gate), says.finish(), says.DONE))
    busy = [await it.run("more", session_id="a"), await it.run("and more", session_id="a")]
    assert (await it.get("/api/sessions/a"))[1]["unfinished"] == 2
    gate.set()
    for run_id in busy:
        await it.finished(run_id)
    _, after = await it.get("/api/sessions/a")
    assert (after["unfinished"], after["preview"]) == (0, "I am here")
    assert after["updated_at"] > one["updated_at"]
    assert (await it.get("/api/sessions"))[1]["data"] == [after]


async def test_sessions_of_the_gateway_and_of_children_are_not_listed(it: GatewayProcess) -> None:
    task = msgspec.json.encode({"task": "say:done"}).decode()
    await it.finished(await it.run(f"tool:delegate_task {task}", session_id="mine"))
    assert await listed(it) == ["mine"]
    for name in ("%2Fstanding", "%2Fchats"):
        assert (await it.get(f"/api/sessions/{name}"))[0] in (400, 404)


async def test_a_session_that_is_not_there_is_not_found_and_not_made(it: GatewayProcess) -> None:
    asked = [
        await it.get("/api/sessions/nobody"),
        await it.get("/api/sessions/nobody/messages?settled=true"),
        await rename(it, "nobody", "x"),
        await it.post("/api/sessions/nobody/fork", {"session_id": "made"}),
        await it.get("/api/sessions/made"),
    ]
    for status, body in asked:
        assert (status, body["error"]["code"]) == (404, "session_not_found")
    assert await listed(it) == []


async def test_a_session_can_be_renamed(it: GatewayProcess) -> None:
    await it.finished(await it.run("hello", session_id="a"))
    before = (await it.get("/api/sessions/a"))[1]
    status, named = await rename(it, "a", "  Ädas Plan ✓ ")
    assert (status, named) == (200, before | {"title": "Ädas Plan ✓"})
    await it.kill()
    await it.start()
    assert (await it.get("/api/sessions/a"))[1] == named
    for wrong in ("x" * 121, "one\ntwo", "a\0b", None, 7, ["x"]):
        status, body = await rename(it, "a", wrong)
        assert (status, body["error"]["param"]) == (400, "title"), wrong
    async with it.http.patch(f"{it.url}/api/sessions/a", json={}) as response:
        assert response.status == 400
    assert (await it.get("/api/sessions/a"))[1] == named
    assert (await rename(it, "a", ""))[1] == before


@pytest.mark.promise("RUN-08")
async def test_a_fork_goes_on_from_where_its_source_was_and_leaves_it_alone(
    it: GatewayProcess, model: ModelServer
) -> None:
    write = 'tool:write_file {"path": "a.txt", "content": "mine"}'
    await it.finished(await it.run(write, session_id="a"))
    await rename(it, "a", "Mine")
    status, fork = await it.post("/api/sessions/a/fork", {"session_id": "b"})
    assert (status, fork["session_id"], fork["title"]) == (201, "b", "Mine (fork)")
    assert (fork["preview"], fork["unfinished"]) == (write, 0)
    source = (await it.get("/api/sessions/a"))[1]
    assert fork["workspace"] == source["workspace"]
    said = (await messages(it, "a"))["data"]
    assert (await messages(it, "b"))["data"] == said
    await it.kill()
    await it.start()
    assert (await messages(it, "b"))["data"] == said
    before = [(m["role"], m["content"]) for m in said]
    await it.finished(await it.run("and now?", session_id="b"))
    assert talk(model.requests[-1]) == [*before, ("user", "and now?")]
    assert (await messages(it, "a"))["data"] == said
    await it.finished(await it.run("what else?", session_id="a"))
    assert talk(model.requests[-1]) == [*before, ("user", "what else?")]
    read = 'tool:read_file {"path": "a.txt"}'
    assert "mine" in (await it.finished(await it.run(read, session_id="b")))["output"]


async def test_a_fork_needs_no_id_and_takes_no_used_one(it: GatewayProcess) -> None:
    await it.finished(await it.run("hello", session_id="a"))
    async with it.http.post(f"{it.url}/api/sessions/a/fork") as response:
        assert response.status == 201
        first = await response.json()
    status, second = await it.post("/api/sessions/a/fork", {"title": "Other"})
    assert (status, second["title"], first["title"]) == (201, "Other", "")
    assert first["session_id"] != second["session_id"]
    status, taken = await it.post("/api/sessions/a/fork", {"session_id": "a"})
    assert (status, taken["error"]["code"]) == (409, "session_exists")
    unfit: list[object] = [{"session_id": "a b"}, {"session_id": 1}, {"title": "a\nb"}, []]
    for wrong in unfit:
        assert (await it.post("/api/sessions/a/fork", wrong))[0] == 400, wrong
    assert len(await listed(it)) == 3


async def test_a_busy_session_can_be_forked_and_its_open_calls_are_unknown_there(
    it: GatewayProcess, model: ModelServer
) -> None:
    busy = await it.run("tool:hang {}", session_id="a")
    await it.events(busy, until="tool.started")
    await it.run("wait", session_id="a")
    assert (await it.post("/api/sessions/a/fork", {"session_id": "b"}))[0] == 201
    said = (await messages(it, "b"))["data"]
    assert [m["role"] for m in said] == ["user", "assistant", "tool"]
    assert (said[0]["content"], said[2]["content"]) == ("tool:hang {}", UNKNOWN_TEXT)
    done = await it.finished(await it.run("say:still here", session_id="b"))
    assert done["output"] == "still here"
    assert talk(model.requests[-1])[:3] == [(m["role"], m["content"]) for m in said]
    assert (await it.status(busy))["status"] == "running"


async def read_on(it: GatewayProcess, name: str, after: int, until: str) -> Stream:
    url = f"{it.url}/api/sessions/{name}/events?after={after}"
    async with it.http.get(url) as response:
        stream = Stream(response.status)
        await read_events(response, stream, until)
        return stream


async def test_transcript_and_following_events_contain_everything_once(
    it: GatewayProcess, model: ModelServer
) -> None:
    await it.finished(await it.run("one", session_id="a"))
    quiet = await messages(it, "a", "?settled=true")
    assert quiet["data"] == (await messages(it, "a"))["data"]
    gates = [anyio.Event(), anyio.Event()]
    for gate in gates:
        model.then(says.stream(says.token("yes"), says.Wait(gate), says.finish(), says.DONE))
    two = await it.run("two", session_id="a")
    assert (await read_on(it, "a", quiet["after"], "run.queued")).frames[-1].data["run_id"] == two
    await it.events(two, until="message.delta")
    three = await it.run("three", session_id="a")
    now = await messages(it, "a", "?settled=true")
    assert [m["content"] for m in now["data"]] == ["one", "echo: one"]
    assert (now["after"], now["unfinished"]) == (quiet["after"], [two, three])
    gates[0].set()
    await it.events(three, until="message.delta")
    later = await messages(it, "a", "?settled=true")
    assert [m["content"] for m in later["data"]] == ["one", "echo: one", "two", "yes"]
    assert later["unfinished"] == [three]
    await it.kill()
    await it.start()
    assert await messages(it, "a", "?settled=true") == later
    gates[1].set()
    await it.finished(three)
    first = (await read_on(it, "a", later["after"], "run.completed")).frames
    second = (await read_on(it, "a", first[-1].id, "run.completed")).frames
    assert (first[0].data["input"], first[-1].data["run_id"]) == ("three", two)
    told = [f for f in (*first, *second) if f.data["run_id"] in later["unfinished"]]
    assert (told[0].event, told[-1].event) == ("run.queued", "run.completed")
    everything = await messages(it, "a", "?settled=true")
    assert everything["data"] == (await messages(it, "a"))["data"]
    assert (len(everything["data"]), everything["unfinished"]) == (6, [])


@pytest.mark.promise("RUN-08")
async def test_an_imported_session_goes_on_from_what_was_said_elsewhere(
    it: GatewayProcess, model: ModelServer
) -> None:
    await it.finished(await it.run("today", session_id="today"))
    status, made = await bring_in(
        it,
        session_id="old",
        title="Long ago",
        source="hermes",
        created_at=1_600_000_000.5,
        updated_at=1_600_000_100.5,
        messages=TALK,
    )
    assert status == 201, made
    assert (made["title"], made["preview"]) == ("Long ago", "what is in here?")
    assert (made["created_at"], made["updated_at"]) == (1_600_000_000.5, 1_600_000_100.5)
    assert made.pop("left_out") == 1, "the system message"
    assert await listed(it) == ["today", "old"]
    await it.kill()
    await it.start()
    assert (await it.get("/api/sessions/old"))[1] == made
    assert (await messages(it, "old"))["data"] == TALK[1:]
    await it.finished(await it.run("and now?", session_id="old"))
    said = [(m["role"], m["content"]) for m in TALK[1:]]
    assert talk(model.requests[-1]) == [*said, ("user", "and now?")]
    (told,) = (m["content"] for m in model.requests[-1].body["messages"] if m["role"] == "system")
    assert IMPORTED in told and TALK[0]["content"] not in told
    assert await listed(it) == ["old", "today"]
    status, again = await bring_in(it, session_id="old", messages=[])
    assert (status, again["error"]["code"]) == (409, "session_exists")
    assert (await it.get("/api/sessions/old"))[1]["title"] == "Long ago"


async def test_only_the_operators_socket_accepts_imports(it: GatewayProcess) -> None:
    body = {"session_id": "old", "messages": []}
    assert (await it.post("/v1/operator/import", body))[0] == 404
    assert await listed(it) == []


async def test_an_import_that_does_not_fit_is_refused_and_leaves_nothing(
    it: GatewayProcess,
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}
    lone = "\ud800"
    unfit: list[dict[str, Any]] = [
        {"role": "robot", "content": "x"},
        {"role": "tool", "content": "x"},
        {"role": "user", "content": "x", "tool_calls": [call]},
        {"role": "assistant", "content": "x", "tool_calls": [call | {"id": ""}]},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "c"}]},
        {"role": "tool", "tool_call_id": lone, "content": "x"},
        {"role": "user", "content": lone},
        {"role": "user", "content": 7},
        {},
    ]
    for message in unfit:
        status, body = await bring_in(it, session_id="old", messages=[message])
        assert (status, body["error"]["type"]) == (400, "invalid_request_error"), message
    for wrong in (
        {"session_id": "a b"},
        {"session_id": None},
        {"messages": None},
        {"messages": "x"},
        {"title": lone},
        {"source": lone},
        {"created_at": -1},
        {"created_at": 1e300},
        {"updated_at": "now"},
        {"workspace": str(it.home / "missing")},
        {"workspace": "a\0b"},
    ):
        status, body = await bring_in(it, **{"session_id": "old", "messages": []} | wrong)
        assert status == 400, (wrong, body)
    assert await listed(it) == []
    long = {"title": "one\n" + "x" * 200, "created_at": 0, "workspace": ""}
    status, made = await bring_in(it, session_id="old", messages=[], **long)
    assert (status, len(made["title"]), made["preview"]) == (201, 120, "")


@pytest.mark.promise("RUN-08")
async def test_a_kill_leaves_forks_and_imports_whole_or_not_at_all(it: GatewayProcess) -> None:
    text = "words " * 20_000  # a file of its own
    await it.finished(await it.run(f"say:{text}", session_id="a"))
    said = (await messages(it, "a"))["data"]
    made: list[str] = []

    async def ask(kind: str, number: int) -> None:
        name = f"{kind}{number}"
        try:
            if kind == "fork":
                status, _ = await it.post("/api/sessions/a/fork", {"session_id": name})
            else:
                status, _ = await bring_in(it, session_id=name, messages=said)
        except (aiohttp.ClientError, OSError):
            return
        assert status == 201
        made.append(name)
        if len(made) == 5:
            await it.kill()

    async with anyio.create_task_group() as asking:
        for number in range(20):
            asking.start_soon(ask, "fork", number)
            asking.start_soon(ask, "import", number)
    await it.start()
    there = set(await listed(it, "?limit=100"))
    assert len(made) >= 5 and there >= {"a", *made}
    for name in there:
        assert (await messages(it, name))["data"] == said, name
