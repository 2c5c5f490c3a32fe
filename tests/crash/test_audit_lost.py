"""While the audit cannot be written, nothing is decided; work continues when it can."""

from pathlib import Path

import pytest

from tests.behaviour.hands import approve, until
from tests.crash.evidence import ask_for, facts, lines
from tests.fakes.gateway import GatewayProcess, unstarted
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio


async def _health(it: GatewayProcess) -> tuple[int, str]:
    status, body = await it.get("/health/detailed")
    return status, body["checks"]["audit"]


@pytest.mark.fault("F-51")
async def test_an_unwritable_audit_is_reported_and_pauses_work_until_it_is_writable(
    tmp_path: Path, model: ModelServer
) -> None:
    effects = tmp_path / "effects"
    async with unstarted(tmp_path, model.base_url) as it:
        (it.home / "audit.jsonl").mkdir()  # nothing can be appended to that
        await it.start()
        assert await _health(it) == (200, "ok")
        run_id = await it.run(ask_for("risky", path=effects, tag="x"))
        await it.said("work waits for the audit")
        await until(lambda: len(facts(it.home, "run.interrupted")) >= 3)
        status, said = await _health(it)
        assert (status, "audit" in said) == (503, True)
        resumed = [fact["at"] for fact in facts(it.home, "run.interrupted")][:3]
        first, second = resumed[1] - resumed[0], resumed[2] - resumed[1]
        assert second > 1.5 * first, "it is tried again later each time"
        assert not lines(effects), "what could not be written down was not done"
        assert len([line for line in it.lines if "work waits for the audit" in line]) == 1
        assert (await it.status(run_id))["status"] in ("running", "queued")
        (it.home / "audit.jsonl").rmdir()
        await approve(it, run_id)
        assert (await it.finished(run_id))["status"] == "completed"
        assert len(lines(effects)) == 1
        assert await _health(it) == (200, "ok")
