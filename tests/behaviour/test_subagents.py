"""Delegated tasks: waiting occupies no slot, and results arrive where they were promised."""

import re
from pathlib import Path

import msgspec
import pytest

from holdfast.core.session.delegation import TOO_DEEP
from holdfast.tools.ask import CHILD_RUN
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio


def _task(task: str, **more: object) -> str:
    return f"tool:delegate_task {msgspec.json.encode({'task': task, **more}).decode()}"


async def _started(it: GatewayProcess, run_id: str) -> dict[str, str]:
    stream = await it.events(run_id, until="subagent.started")
    return next(f.data for f in stream.frames if f.event == "subagent.started")


@pytest.mark.promise("RUN-20")
async def test_a_task_is_a_run_of_its_own_and_its_answer_the_result(
    it: GatewayProcess, model: ModelServer
) -> None:
    run_id = await it.run(_task("say:three files", name="counting"), session_id="mine")
    done = await it.finished(run_id)
    assert done["output"] == "the tool said: three files"
    stream = await it.events(run_id)
    names = [n for n in stream.names if not n.startswith("message.")]
    assert names == [
        "run.started",
        "tool.started",
        "subagent.started",
        "subagent.completed",
        "tool.completed",
        "run.resumed",
        "run.completed",
    ]
    begun, ended = [f.data for f in stream.frames if f.event.startswith("subagent.")]
    assert re.fullmatch("run_[0-9a-f]{32}", begun["child_run_id"])
    assert begun["child_run_id"] == ended["child_run_id"]
    assert begun["call_id"] == ended["call_id"]
    assert (begun["preview"], begun["name"]) == ("say:three files", "counting")
    assert (begun["background"], ended["status"]) == (False, "completed")
    child = await it.status(begun["child_run_id"])
    assert (child["status"], child["output"]) == ("completed", "three files")
    code, said = await it.get(f"/api/sessions/{child['session_id']}/messages")
    assert (code, said["data"][0]["content"]) == (200, "say:three files")
    first = next(seen for seen in model.requests if "say:three" in str(seen.body["messages"][1]))
    assert len(first.body["messages"]) == 2  # the instructions and the task: nothing else


@pytest.mark.promise("LATE-07", "LATE-03")
async def test_over_http_the_background_is_waited_for_and_the_result_says_so(
    it: GatewayProcess,
) -> None:
    run_id = await it.run(_task("say:later", background=True))
    output = (await it.finished(run_id))["output"]
    assert "[Note: background is not possible here" in output and output.endswith("later")


@pytest.mark.promise("LATE-07", "LATE-08")
async def test_a_background_task_reports_its_result_even_after_a_kill(
    tmp_path: Path, model: ModelServer
) -> None:
    async with gateway(tmp_path, model.base_url) as it:
        run_id = await it.run(_task("stall:1", background=True), session_id="mine", late="events")
        done = await it.finished(run_id)
        handle = msgspec.json.decode(done["output"].removeprefix("the tool said: "))
        child = (await _started(it, run_id))["child_run_id"]
        assert (handle["task_id"], handle["status"]) == (child, "running")
        await it.events(child, until="message.delta")
        await it.kill()
        await it.start()
        assert (await it.status(child))["status"] in {"running", "queued"}
        await it.post(f"/v1/runs/{child}/stop")
        (told, first) = await _two_runs(it)
        assert first == run_id
        await it.finished(told)
        code, said = await it.get("/api/sessions/mine/messages")
        words = [m["content"] for m in said["data"] if m["role"] == "user"]
        assert code == 200 and len(words) == 2
        assert words[1].startswith(f"[Task {child} has ended: cancelled]\n[material ")
        assert "\nThe task was stopped" in words[1]
        await it.kill()
        await it.start()
        _, again = await it.get("/api/sessions/mine/messages")
        assert again == said  # and is not told again


async def _two_runs(it: GatewayProcess) -> tuple[str, str]:
    """The runs of the session, newest first, once there are two."""
    async with it.http.get(f"{it.url}/api/sessions/mine/events") as response:
        begun: list[str] = []
        async for line in response.content:
            if line.startswith(b"data:"):
                event = msgspec.json.decode(line[5:])
                if event["event"] == "run.started":
                    begun.append(event["run_id"])
            if len(begun) == 2:
                return begun[1], begun[0]
    raise AssertionError(begun)


async def test_with_one_slot_a_run_and_its_nested_tasks_still_finish(
    tmp_path: Path, model: ModelServer
) -> None:
    async with gateway(tmp_path, model.base_url, "[limits]\nrunning = 1\n") as it:
        run_id = await it.run(_task(_task("say:bottom")))
        done = await it.finished(run_id)
        assert done["output"] == "the tool said: the tool said: bottom"


async def test_a_task_that_was_delegated_twice_is_not_delegated_again(it: GatewayProcess) -> None:
    run_id = await it.run(_task(_task(_task("say:too deep"))))
    assert TOO_DEEP in (await it.finished(run_id))["output"]


@pytest.mark.promise("RUN-14")
async def test_a_stop_reaches_the_task_and_what_it_has_delegated(it: GatewayProcess) -> None:
    run_id = await it.run(_task(_task("stall:1")))
    child = (await _started(it, run_id))["child_run_id"]
    grandchild = (await _started(it, child))["child_run_id"]
    await it.events(grandchild, until="message.delta")
    assert (await it.status(run_id))["status"] == "running"
    await it.post(f"/v1/runs/{run_id}/stop")
    for stopped in (run_id, child, grandchild):
        assert (await it.finished(stopped))["status"] == "cancelled"


async def test_a_task_asks_for_approval_as_its_parent_would_and_may_not_ask_the_user(
    it: GatewayProcess, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    risky = f'tool:risky {{"path": "{effects}", "tag": "x"}}'
    run_id = await it.run(_task(risky))
    child = (await _started(it, run_id))["child_run_id"]
    await it.events(child, until="approval.request")
    assert (await it.status(run_id))["status"] == "running"
    (asked,) = (await it.get("/v1/approvals"))[1]["data"]
    assert asked["run_id"] == child
    await it.post(f"/v1/approvals/{asked['request_id']}", {"choice": "once"})
    assert (await it.finished(run_id))["output"] == "the tool said: the tool said: bumped x"
    question = await it.run(_task('tool:ask {"question": "Which?"}'))
    assert CHILD_RUN in (await it.finished(question))["output"]


async def test_a_task_works_in_the_workspace_of_its_parent(it: GatewayProcess) -> None:
    write = 'tool:write_file {"path": "note.txt", "content": "from the task"}'
    run_id = await it.run(f'{_task(write)}\ntool:read_file {{"path": "note.txt"}}')
    assert "from the task" in (await it.finished(run_id))["output"]
