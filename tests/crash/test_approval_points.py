"""kill -9 at each write of the commit that records an answer: it counts once, and is not lost.

The writes of the commits of a request and its answer are gone through one by one, without a
gateway around them, in tests/journal/sqlite/test_approvals_crash.py.
"""

from pathlib import Path

import aiohttp
import pytest

from tests.behaviour.hands import asked
from tests.crash import kills
from tests.crash.evidence import THOROUGH, ask_for, facts, lines, noted
from tests.fakes.gateway import GatewayProcess

pytestmark = [pytest.mark.anyio, pytest.mark.debian("strace")]

STEP = 1 if THOROUGH else 4


async def _listed(it: GatewayProcess) -> list[str]:
    _, body = await it.get("/v1/approvals")
    return [str(waiting["request_id"]) for waiting in body["data"]]


async def _answer(it: GatewayProcess, request_id: str) -> int:
    """The status of an answer, or 0: nobody said anything."""
    try:
        return (await it.post(f"/v1/approvals/{request_id}", {"choice": "once"}))[0]
    except aiohttp.ClientError:
        return 0


@pytest.mark.fault("F-10")
@pytest.mark.promise("RUN-13")
@pytest.mark.timeout(300)
async def test_an_answer_counts_once_wherever_its_commit_is_killed(
    it: GatewayProcess, tmp_path: Path
) -> None:
    effects, wal = tmp_path / "effects", it.home / "journal.db-wal"
    number, known = 1, 0
    while not known:  # the commits of the call and of the reply come after that of the answer
        key = f"write-{number}"
        with noted(f"killed at write {number}"):
            run_id = await it.run(ask_for("risky", path=effects, tag=key))
            request_id = str((await asked(it, run_id))["request_id"])
            async with kills.attached(it, "pwrite64", number, wal):
                said = await _answer(it, request_id)
                await it.ended()
            known = len(facts(it.home, "approval.granted", run_id=run_id))
            assert known == 1 or said != 200, "an answer that was confirmed is lost"
            await it.start()
            assert await _listed(it) == ([] if known else [request_id])
            assert await _answer(it, request_id) == (409 if known else 200)
            assert (await it.finished(run_id))["status"] == "completed"
            assert len(facts(it.home, "approval.granted", run_id=run_id)) == 1
            (settled,) = facts(it.home, "call.settled", run_id=run_id)
            assert len(lines(effects, key)) == 1 or settled["outcome"] == "unknown"
        number += STEP
    assert number > 1 + STEP, "there was something to be killed at"
