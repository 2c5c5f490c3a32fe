"""A run from its 202 to its last event, as a client of the runs API sees it."""

import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.behaviour import ledger
from tests.fakes import model_server as says
from tests.fakes.gateway import GatewayProcess
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

UNKNOWN = "run_" + "0" * 32


@pytest.mark.promise("RUN-01")
async def test_the_run_is_in_the_journal_before_its_202_leaves(it: GatewayProcess) -> None:
    for _ in range(30):
        status, body = await it.post("/v1/runs", {"input": "hello"})
        found = ledger.ask(it.home, "SELECT 1 FROM runs WHERE run_id = ?", body["run_id"])
        assert (status, set(body)) == (202, {"run_id", "status"})
        assert re.fullmatch(r"run_[0-9a-f]{32}", body["run_id"])
        assert body["status"] == "started"
        assert found, "answered before it was written down"


@pytest.mark.promise("RUN-01")
async def test_a_run_that_got_its_202_survives_a_kill_right_after_it(it: GatewayProcess) -> None:
    run_id = await it.run("hello")
    await it.kill()
    await it.start()
    assert (await it.finished(run_id))["output"] == "echo: hello"


@pytest.mark.promise("RUN-02")
async def test_a_run_can_be_looked_at_right_after_its_202(it: GatewayProcess) -> None:
    for number in range(30):
        run_id = await it.run(f"hello {number}")
        seen = await it.status(run_id)
        assert seen["object"] == "hermes.run"
        assert seen["run_id"] == run_id
        assert seen["status"] in {"queued", "running", "completed"}
        assert isinstance(seen["created_at"], float) and seen["updated_at"] >= seen["created_at"]


@pytest.mark.promise("RUN-07")
async def test_a_completed_run_says_what_came_out_and_what_it_cost(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    run_id = await it.run(f'tool:bump {{"path": "{counter}", "tag": "x"}}', session_id="s")
    last = (await it.events(run_id)).frames[-1].data
    status = await it.status(run_id)
    assert status["last_event"] == "run.completed"
    assert status["output"] == last["output"] == "the tool said: bumped x"
    assert status["usage"] == last["usage"]
    asked = len(model.requests)
    assert asked == 2
    assert status["usage"]["input_tokens"] == 7 * asked
    assert status["usage"]["output_tokens"] > 0
    assert status["usage"]["total_tokens"] == 14 + status["usage"]["output_tokens"]

    again = await it.finished(await it.run("say:three", session_id="s"))
    assert again["usage"] == {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    assert (await it.status(run_id)) == status, "another run of the session changed its figures"


@pytest.mark.promise("RUN-07")
async def test_a_finished_run_reads_the_same_after_a_restart(it: GatewayProcess) -> None:
    done = await it.finished(await it.run("hello"))
    failed = await it.finished(await it.run("fail:400"))
    await it.kill()
    await it.start()
    assert await it.status(done["run_id"]) == done
    assert await it.status(failed["run_id"]) == failed


@pytest.mark.promise("RUN-19")
async def test_every_status_of_a_run_is_visible(it: GatewayProcess, model: ModelServer) -> None:
    gate = anyio.Event()
    model.then(says.stream(says.token("a"), says.Wait(gate), says.finish(), says.DONE))
    first = await it.run("first", session_id="s")
    second = await it.run("second", session_id="s")
    await it.events(first, until="message.delta")
    assert (await it.status(first))["status"] == "running"
    assert (await it.status(second))["status"] == "queued"
    gate.set()
    assert (await it.finished(first))["status"] == "completed"
    assert (await it.finished(second))["status"] == "completed"

    broken = await it.finished(await it.run("fail:400"))
    assert broken["status"] == "failed"
    assert "400" in broken["error"] and broken["last_event"] == "run.failed"
    assert "output" not in broken

    wedged = await it.run("tool:wedge {}")
    await it.events(wedged, until="tool.started")
    await it.post(f"/v1/runs/{wedged}/stop")
    assert (await it.status(wedged))["status"] == "stopping"
    assert (await it.finished(wedged))["status"] == "cancelled"


@pytest.mark.promise("RUN-09")
@pytest.mark.parametrize(
    "run_id",
    [UNKNOWN, "run_x", "nonsense", "..%2F..%2Fetc%2Fpasswd", "%00", "%ff", "a" * 4000, "' OR 1=1"],
)
async def test_a_run_that_does_not_exist_is_not_found_on_any_route(
    it: GatewayProcess, run_id: str
) -> None:
    base = f"/v1/runs/{run_id}"
    answers = [
        await it.get(base),
        await it.get(base + "/events"),
        await it.get(base + "/events?after=3"),
        await it.post(base + "/stop"),
        await it.post(base + "/steer", {"input": "left"}),
        await it.post(base + "/approval", {"choice": "once"}),
    ]
    for status, body in answers:
        assert (status, body["error"]["code"]) == (404, "run_not_found")
        assert body["error"]["message"]


async def test_an_answer_without_a_pending_approval_is_a_conflict(it: GatewayProcess) -> None:
    live = await it.run("tool:hang {}")
    await it.events(live, until="tool.started")
    path = f"/v1/runs/{live}/approval"
    status, body = await it.post(path, {"choice": "once"})
    assert (status, body["error"]["code"]) == (409, "approval_not_pending")
    status, body = await it.post(path, {"choice": "perhaps"})
    assert (status, body["error"]["code"]) == (400, "invalid_approval_choice")
    await it.post(f"/v1/runs/{live}/stop")
    await it.finished(live)
    status, body = await it.post(path, {"choice": "deny", "all": "false"})
    assert (status, body["error"]["code"]) == (409, "approval_not_active")


@pytest.mark.promise("RUN-25")
@pytest.mark.parametrize(
    ("reply", "output"),
    [
        (says.plain("whole"), "whole"),
        (says.plain(""), ""),
        (says.stream(says.finish(), says.usage(7, 0), says.DONE), ""),
        (says.stream(says.delta(role="assistant", content=""), says.finish(), says.DONE), ""),
        (says.say("", reasoning="only thoughts"), ""),
    ],
    ids=["not streamed", "not streamed and empty", "no delta", "an empty delta", "only reasoning"],
)
async def test_a_model_that_streams_no_text_does_not_hold_up_its_run(
    it: GatewayProcess, model: ModelServer, reply: says.Reply, output: str
) -> None:
    model.then(reply)
    with anyio.fail_after(2):
        run_id = await it.run("hello")
        stream = await it.events(run_id)
    assert stream.names[-1] == "run.completed" and stream.closed
    assert (await it.status(run_id))["output"] == output


async def test_messages_instructions_and_history_reach_the_model_in_order(
    it: GatewayProcess, model: ModelServer
) -> None:
    run_id = await it.run(
        "unused",
        input=[
            {"role": "assistant", "content": "third"},
            {"role": "user", "content": [{"type": "text", "text": "say:"}, _text("fourth")]},
        ],
        instructions="Be terse.",
        conversation_history=[
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "second"},
        ],
        metadata={"ticket": "17"},
        model="openai/fake",
        a_field_nobody_knows={"x": [1]},
    )
    assert (await it.finished(run_id))["output"] == "fourth"
    system, *rest = model.requests[0].body["messages"]
    assert system["role"] == "system" and "Be terse." in system["content"]
    assert [m["content"] for m in rest] == ["first", "second", "third", "say:fourth"]
    assert model.requests[0].body["model"] == "fake"
    assert (await it.status(run_id))["model"] == "openai/fake", "it must say which was used"


@pytest.mark.promise("API-01", "RUN-05", "MODEL-10")
async def test_a_model_that_is_not_served_is_refused_and_the_answer_names_the_one_that_is(
    it: GatewayProcess,
) -> None:
    for name in ("some/other-model", "fake", "openai/fake "):
        for session in ({}, {"session_id": "s"}):
            status, body = await it.post("/v1/runs", {"input": "x", "model": name, **session})
            assert (status, body["error"]["code"]) == (400, "model_not_served")
            assert body["error"]["param"] == "model" and "openai/fake" in body["error"]["message"]
    assert (await it.get("/v1/runs"))[1]["data"] == []
    assert (await it.get("/api/sessions/s"))[0] == 404
    for served in (None, "openai/fake", "openai/other"):
        run_id = await it.run("say:yes", session_id="s", model=served)
        assert (await it.finished(run_id))["model"] == (served or "openai/fake")


def _text(text: str) -> dict[str, str]:
    return {"type": "input_text", "text": text}


async def test_runs_are_listed_newest_first_by_pages_and_by_filter(it: GatewayProcess) -> None:
    runs = [await it.run(f"number {n}", session_id=f"s{n % 2}") for n in range(7)]
    for run_id in runs:
        await it.finished(run_id)
    failed = (await it.finished(await it.run("fail:400", session_id="s0")))["run_id"]

    everything = await _list(it, "?limit=100")
    assert _ids(everything) == [failed, *reversed(runs)]
    assert everything["object"] == "list" and everything["has_more"] is False
    assert everything["data"][1] == await it.status(runs[-1])

    assert _ids(await _list(it, "?status=failed")) == [failed]
    assert _ids(await _list(it, "?session_id=s1")) == [runs[5], runs[3], runs[1]]
    assert _ids(await _list(it, "?session_id=s0&status=completed&limit=2")) == [runs[6], runs[4]]
    assert _ids(await _list(it, "?session_id=nobody")) == []
    assert _ids(await _list(it, "?status=running")) == []

    pages, after = [], ""
    while True:
        page = await _list(it, f"?limit=3{after}")
        pages += _ids(page)
        if not page["has_more"]:
            break
        after = f"&after={page['data'][-1]['run_id']}"
    assert pages == _ids(everything)


async def test_a_filter_by_status_fills_its_page_from_further_back(it: GatewayProcess) -> None:
    stuck = await it.run("tool:wedge {}")
    await it.events(stuck, until="tool.started")
    busy = [await it.run("tool:hang {}") for _ in range(3)]
    for run_id in busy:
        await it.events(run_id, until="tool.started")
    await it.post(f"/v1/runs/{stuck}/stop")
    page = await _list(it, "?status=stopping&limit=1")
    assert _ids(page) == [stuck], "runs that do not match took the page's places"
    assert _ids(await _list(it, "?status=running&limit=10")) == busy[::-1]


async def test_an_invalid_page_is_refused(it: GatewayProcess) -> None:
    wrong = ["limit=0", "limit=101", "limit=-1", "limit=", "limit=x", "limit=1.5", "limit=%00"]
    wrong += ["limit=000000001" + "9" * n for n in (1, 20, 3000)]
    wrong += ["status=done", "status=", "session_id=", "session_id=..%2Fx", "session_id=%ff"]
    for query in wrong:
        status, body = await it.get(f"/v1/runs?{query}")
        assert status == 400, query[:60]
        assert body["error"]["param"] == query.partition("=")[0]
    status, body = await it.get("/v1/runs?after=%00")
    assert (status, body["error"]["code"]) == (404, "run_not_found")


async def _list(it: GatewayProcess, query: str) -> dict[str, Any]:
    status, body = await it.get("/v1/runs" + query)
    assert status == 200, body
    return dict(body)


def _ids(page: dict[str, Any]) -> list[str]:
    return [run["run_id"] for run in page["data"]]
