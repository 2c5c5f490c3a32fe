"""Approvals: requested by id, answered by any client, used once, and never lost."""

from pathlib import Path

import anyio
import pytest

from holdfast.core.session.answers import EXPIRED_TEXT
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio


def _ask(effects: Path, *tags: str) -> str:
    return "\n".join(f'tool:risky {{"path": "{effects}", "tag": "{tag}"}}' for tag in tags)


def _lines(effects: Path) -> list[str]:
    return effects.read_text().splitlines() if effects.exists() else []


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


async def _asked(it: GatewayProcess, run_id: str) -> dict[str, object]:
    """The request a run waits with, once it does."""
    stream = await it.events(run_id, until="approval.request")
    return next(f.data for f in stream.frames if f.event == "approval.request")


@pytest.mark.promise("RUN-12", "RUN-20")
async def test_a_call_that_must_be_asked_for_waits_and_runs_once_it_is_granted(
    it: GatewayProcess, effects: Path
) -> None:
    run_id = await it.run(_ask(effects, "x"))
    asked = await _asked(it, run_id)
    assert {"request_id", "command", "description", "choices", "expires_at"} <= set(asked)
    status = await it.status(run_id)
    assert status["status"] == "waiting_for_approval"
    assert status["approval"]["request_id"] == asked["request_id"]
    assert _lines(effects) == []
    assert (await it.get("/health/detailed"))[1]["runs"]["running"] == 0
    code, answer = await it.post(f"/v1/runs/{run_id}/approval", {"choice": "once"})
    assert (code, answer) == (
        200,
        {
            "object": "hermes.run.approval_response",
            "run_id": run_id,
            "choice": "once",
            "resolved": 1,
        },
    )
    stream = await it.events(run_id)
    names = [n for n in stream.names if not n.startswith("message.")]
    assert names == [
        "run.started",
        "approval.request",
        "approval.responded",
        "run.resumed",
        "tool.started",
        "tool.completed",
        "run.completed",
    ]
    assert len(_lines(effects)) == 1
    code, answer = await it.post(f"/v1/runs/{run_id}/approval", {"choice": "once"})
    assert (code, answer["error"]["code"]) == (409, "approval_not_active")


@pytest.mark.promise("RUN-12")
async def test_a_denied_call_does_not_run_and_the_model_is_told(
    it: GatewayProcess, effects: Path
) -> None:
    run_id = await it.run(_ask(effects, "x"))
    await _asked(it, run_id)
    code, answer = await it.post(f"/v1/runs/{run_id}/approval", {"choice": "maybe"})
    assert (code, answer["error"]["code"]) == (400, "invalid_approval_choice")
    await it.post(f"/v1/runs/{run_id}/approval", {"choice": "deny"})
    done = await it.finished(run_id)
    assert done["status"] == "completed"
    assert "not approved" in done["output"]
    assert _lines(effects) == []


@pytest.mark.promise("ASK-07")
async def test_the_model_reads_why_a_call_was_denied(it: GatewayProcess, effects: Path) -> None:
    run_id = await it.run(_ask(effects, "x"))
    await _asked(it, run_id)
    for body in ({"choice": "once", "reason": "x"}, {"choice": "deny", "reason": "x" * 2001}):
        code, answer = await it.post(f"/v1/runs/{run_id}/approval", body)
        assert (code, answer["error"]["code"]) == (400, "invalid_reason")
    because = {"choice": "deny", "reason": "use the staging server"}
    assert (await it.post(f"/v1/runs/{run_id}/approval", because))[0] == 200
    assert because["reason"] in (await it.finished(run_id))["output"]
    assert _lines(effects) == []


@pytest.mark.promise("RUN-13")
async def test_an_answer_is_for_one_request_unless_it_says_all(
    it: GatewayProcess, model: ModelServer, effects: Path
) -> None:
    run_id = await it.run(_ask(effects, "x"))
    await _asked(it, run_id)
    code, answer = await it.post(
        f"/v1/runs/{run_id}/approval", {"choice": "always", "all": "false"}
    )
    assert (code, answer["choice"], answer["resolved"]) == (200, "session", 1)
    assert "administrators" in answer["note"]
    assert (await it.finished(run_id))["status"] == "completed"


@pytest.mark.promise("RUN-13")
async def test_pending_approvals_are_listed_and_answered_by_id(
    it: GatewayProcess, effects: Path
) -> None:
    runs = [await it.run(_ask(effects, tag)) for tag in "ab"]
    asked = {run: await _asked(it, run) for run in runs}
    code, listed = await it.get("/v1/approvals")
    assert code == 200
    assert [a["run_id"] for a in listed["data"]] == runs
    second = asked[runs[1]]["request_id"]
    code, answer = await it.post(f"/v1/approvals/{second}", {"choice": "once"})
    assert (code, answer["run_id"], answer["resolved"]) == (200, runs[1], 1)
    await it.finished(runs[1])
    assert [line[0] for line in _lines(effects)] == ["b"]
    assert (await it.status(runs[0]))["status"] == "waiting_for_approval"
    code, answer = await it.post(f"/v1/approvals/{second}", {"choice": "once"})
    assert (code, answer["error"]["code"]) == (409, "approval_not_pending")


@pytest.mark.fault("F-10")
async def test_a_pending_approval_survives_a_restart_and_works_once(
    it: GatewayProcess, effects: Path
) -> None:
    run_id = await it.run(_ask(effects, "x"))
    asked = await _asked(it, run_id)
    await it.kill()
    await it.start()
    assert (await it.status(run_id))["approval"]["request_id"] == asked["request_id"]
    answers = []

    async def click() -> None:
        body = {"choice": "once", "request_id": asked["request_id"]}
        answers.append((await it.post(f"/v1/runs/{run_id}/approval", body))[0])

    async with anyio.create_task_group() as people:
        for _ in range(5):
            people.start_soon(click)
    assert sorted(answers) == [200, 409, 409, 409, 409]
    assert (await it.finished(run_id))["status"] == "completed"
    assert len(_lines(effects)) == 1


async def test_an_expired_approval_is_reported(tmp_path: Path, model: ModelServer) -> None:
    effects = tmp_path / "effects"
    async with gateway(tmp_path, model.base_url, "[approval]\nexpiry_s = 0.1\n") as it:
        run_id = await it.run(_ask(effects, "x"))
        stream = await it.events(run_id)
        assert "approval.expired" in stream.names
        assert EXPIRED_TEXT in (await it.status(run_id))["output"]
    assert _lines(effects) == []


async def test_a_stopped_run_withdraws_its_request(it: GatewayProcess, effects: Path) -> None:
    run_id = await it.run(_ask(effects, "x"))
    await _asked(it, run_id)
    await it.post(f"/v1/runs/{run_id}/stop")
    assert (await it.finished(run_id))["status"] == "cancelled"
    assert (await it.get("/v1/approvals"))[1]["data"] == []
    assert _lines(effects) == []


@pytest.mark.fault("F-33")
async def test_a_command_changed_after_its_approval_does_not_run(
    tmp_path: Path, model: ModelServer
) -> None:
    effects, seal = tmp_path / "effects", tmp_path / "seal"
    seal.write_text("before")
    async with gateway(tmp_path, model.base_url, TEST_SEAL=str(seal)) as it:
        run_id = await it.run(_ask(effects, "x"))
        await _asked(it, run_id)
        seal.write_text("after")
        await it.post(f"/v1/runs/{run_id}/approval", {"choice": "once"})
        done = await it.finished(run_id)
    assert "no longer what was approved" in done["output"]
    assert _lines(effects) == []


async def test_runs_that_wait_for_approval_occupy_no_slot(
    tmp_path: Path, model: ModelServer
) -> None:
    config = "[limits]\nrunning = 1\n"
    async with gateway(tmp_path, model.base_url, config) as it:
        waiting = [await it.run(_ask(tmp_path / "effects", str(n))) for n in range(5)]
        for run_id in waiting:
            await _asked(it, run_id)
        assert (await it.finished(await it.run("hello")))["output"] == "echo: hello"
