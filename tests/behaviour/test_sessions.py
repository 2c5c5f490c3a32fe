"""Sessions over HTTP: which runs belong together, and what the model remembers."""

from pathlib import Path

import anyio
import pytest

from tests.fakes import model_server as says
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer, Seen

pytestmark = pytest.mark.anyio


def _talk(seen: Seen) -> list[tuple[str, str]]:
    """A request to the model without its standing instructions."""
    return [(m["role"], m["content"]) for m in seen.body["messages"] if m["role"] != "system"]


@pytest.mark.promise("RUN-08")
async def test_a_session_goes_on_where_it_was_and_knows_nothing_of_others(
    it: GatewayProcess, model: ModelServer
) -> None:
    first = await it.run("my name is Ada", session_id="never-seen-before")
    assert (await it.finished(first))["session_id"] == "never-seen-before"
    await it.finished(await it.run("I am somebody else", session_id="another"))
    await it.finished(await it.run("who am I?", session_id="never-seen-before"))
    assert _talk(model.requests[-1]) == [
        ("user", "my name is Ada"),
        ("assistant", "echo: my name is Ada"),
        ("user", "who am I?"),
    ]


@pytest.mark.promise("RUN-08")
async def test_a_session_goes_on_after_a_restart(it: GatewayProcess, model: ModelServer) -> None:
    await it.finished(await it.run("one", session_id="s"))
    await it.kill()
    await it.start()
    done = await it.finished(await it.run("two", session_id="s"))
    assert done["session_id"] == "s"
    talk = [("user", "one"), ("assistant", "echo: one"), ("user", "two")]
    assert _talk(model.requests[-1]) == talk


@pytest.mark.promise("RUN-08")
async def test_the_agent_works_under_the_session_it_was_given(
    it: GatewayProcess, model: ModelServer
) -> None:
    write = 'tool:write_file {"path": "a.txt", "content": "mine"}'
    read = 'tool:read_file {"path": "a.txt"}'
    await it.finished(await it.run(write, session_id="s"))
    assert "mine" in (await it.finished(await it.run(read, session_id="s")))["output"]
    assert "mine" not in (await it.finished(await it.run(read, session_id="t")))["output"]


@pytest.mark.promise("RUN-08")
async def test_runs_without_a_session_get_one_each(it: GatewayProcess, model: ModelServer) -> None:
    runs = [await it.finished(await it.run(f"number {n}")) for n in range(3)]
    names = {run["session_id"] for run in runs}
    assert len(names) == 3 and all(names)
    assert _talk(model.requests[-1]) == [("user", "number 2")]
    again = await it.finished(await it.run("and now?", session_id=runs[0]["session_id"]))
    assert again["session_id"] == runs[0]["session_id"]
    assert _talk(model.requests[-1])[0] == ("user", "number 0")


@pytest.mark.promise("RUN-08")
async def test_ids_that_look_like_paths_or_words_are_only_names(
    it: GatewayProcess, model: ModelServer
) -> None:
    names = [".", "..", "a" * 255, "~root", "run_" + "0" * 32, "null", "0", "user@host:1+1=2~"]
    for name in names:
        run = await it.finished(await it.run(f"I am {name}", session_id=name))
        assert run["session_id"] == name
        assert _talk(model.requests[-1]) == [("user", f"I am {name}")]
    made = {path.name for path in (it.home / "workspaces").glob("*")}
    assert not made & set(names), "an id became a path"


@pytest.mark.promise("RUN-23")
async def test_runs_of_one_session_go_one_after_the_other_in_order(
    it: GatewayProcess, model: ModelServer
) -> None:
    gate = anyio.Event()
    model.then(says.stream(says.token("a"), says.Wait(gate), says.finish(), says.DONE))
    runs = [await it.run(f"number {n}", session_id="s") for n in range(8)]
    await it.events(runs[0], until="message.delta")
    other = await it.finished(await it.run("beside it", session_id="t"))
    assert other["status"] == "completed", "another session had to wait"
    assert [(await it.status(r))["status"] for r in runs] == ["running"] + ["queued"] * 7
    gate.set()
    for run_id in runs:
        await it.finished(run_id)
    asked = [_talk(seen)[-1][1] for seen in model.requests]
    assert [a for a in asked if a.startswith("number")] == [f"number {n}" for n in range(8)]
    whole = _talk(model.requests[-1])
    assert [role for role, _ in whole] == ["user", "assistant"] * 7 + ["user"], "two at once"
    ends = [(await it.status(run_id))["updated_at"] for run_id in runs]
    assert ends == sorted(ends)


@pytest.mark.promise("RUN-23", "RUN-08")
async def test_many_who_open_one_session_at_once_share_it(
    it: GatewayProcess, model: ModelServer
) -> None:
    runs: list[str] = []

    async def post(number: int) -> None:
        runs.append(await it.run(f"number {number}", session_id="fresh"))

    async with anyio.create_task_group() as posting:
        for number in range(12):
            posting.start_soon(post, number)
    for run_id in runs:
        assert (await it.finished(run_id))["status"] == "completed"
    talk = _talk(model.requests[-1])
    assert [role for role, _ in talk] == ["user", "assistant"] * 11 + ["user"]
    assert {words for role, words in talk if role == "user"} == {f"number {n}" for n in range(12)}


async def test_the_transcript_of_a_session_can_be_read(it: GatewayProcess, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    words = f'tool:bump {{"path": "{counter}", "tag": "x"}}'
    await it.finished(await it.run(words, session_id="s"))
    status, body = await it.get("/api/sessions/s/messages")
    assert (status, body["object"], body["has_more"]) == (200, "list", False)
    user, asked, result, answer = body["data"]
    assert user == {"role": "user", "content": words}
    (call,) = asked["tool_calls"]
    assert asked["role"] == "assistant" and call["function"]["name"] == "bump"
    assert result["role"] == "tool" and result["tool_call_id"] == call["id"]
    assert result["content"] == "bumped x"
    assert answer == {"role": "assistant", "content": "the tool said: bumped x"}
    await it.kill()
    await it.start()
    assert await it.get("/api/sessions/s/messages") == (200, body)


async def test_an_unused_session_is_not_found_and_not_created(it: GatewayProcess) -> None:
    for _ in range(2):
        status, body = await it.get("/api/sessions/nobody/messages")
        assert (status, body["error"]["code"]) == (404, "session_not_found")
    for name in ("..%2F..", "a" * 256, "%00", "%ff", "a%20b"):
        status, body = await it.get(f"/api/sessions/{name}/messages")
        assert status == 400 and body["error"]["param"] == "session_id"


async def test_a_workspace_must_be_below_an_allowed_root(
    model: ModelServer, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "project").mkdir(parents=True)
    (root / "loop").symlink_to("loop")
    (root / "out").symlink_to(tmp_path)
    (root / "file").write_text("no directory")
    config = f'[gateway]\nworkspace_roots = ["{root}"]\n'
    async with gateway(tmp_path, model.base_url, config=config) as it:
        for bad in (
            "/etc",
            "~nosuchuser/x",
            "~",
            "relative",
            "..",
            f"{root}/../home",
            f"{root}/out",
            f"{root}/loop",
            f"{root}/loop/x",
            f"{root}/file",
            f"{root}/file/x",
            f"{root}/missing",
            f"{root}/{'a' * 300}",
            "/" + "a/" * 2000,
            "x" * 5000,
            f"{root}/\0",
        ):
            status, body = await it.post("/v1/runs", {"input": "x", "workspace": bad})
            assert status == 400, (bad[:80], body)
            assert body["error"]["param"] == "workspace", bad[:80]
        write = 'tool:write_file {"path": "a.txt", "content": "here"}'
        where = str(root / "project")
        await it.finished(await it.run(write, session_id="s", workspace=where))
        assert (root / "project" / "a.txt").read_text() == "here"
        status, body = await it.post(
            "/v1/runs", {"input": "x", "session_id": "s", "workspace": str(root)}
        )
        assert (status, body["error"]["code"]) == (400, "workspace_fixed")
