"""A run that takes the process down each time it is driven: given up aloud, alone."""

import anyio
import pytest

from tests.crash.evidence import count, endings, facts, noted, user_texts
from tests.fakes.gateway import GatewayProcess
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

POISON = "\n".join(["tool:die {}"] * 5)  # whatever it is told, it asks for the same again
RESTARTS = count("HOLDFAST_RESTARTS", 20, 100)


async def _poisoned(it: GatewayProcess, session_id: str) -> tuple[str, int]:
    """Post it, and start again for as long as that ends the process: its id, and how often."""
    run_id, deaths = await it.run(POISON, session_id=session_id), 0
    while True:
        with anyio.move_on_after(10):
            await it.ended()
            deaths += 1
            await it.start(wait=False)
            if not await it.comes_up():
                continue
            if (await it.status(run_id))["status"] == "failed":
                return run_id, deaths


@pytest.mark.fault("F-13")
@pytest.mark.promise("BACK-07")
async def test_a_run_that_kills_the_process_three_times_is_given_up_and_told(
    it: GatewayProcess, model: ModelServer
) -> None:
    await it.finished(await it.run("before", session_id="poison"))
    await it.finished(await it.run("innocent", session_id="other"))
    run_id, deaths = await _poisoned(it, "poison")
    assert deaths == 3
    stream = await it.events(run_id)
    assert endings(stream) == ["run.failed"]
    notice = stream.frames[-1].data
    assert notice["code"] == "stuck" and "3 times" in notice["error"]
    (suspended,) = facts(it.home, "session.suspended")
    assert suspended["reason"] == "stuck"
    _, history = await it.get("/api/sessions/poison/messages")
    assert [m["content"] for m in history["data"]][:3] == ["before", "echo: before", POISON]
    again = await it.finished(await it.run("fresh", session_id="poison"))
    assert again["output"] == "echo: fresh" and user_texts(model) == ["fresh"]
    await it.finished(await it.run("more", session_id="other"))
    assert user_texts(model) == ["innocent", "more"]


@pytest.mark.fault("F-13")
@pytest.mark.promise("BACK-07")
async def test_what_waits_behind_a_poison_run_starts_afresh_and_completes(
    it: GatewayProcess, model: ModelServer
) -> None:
    poison = await it.run("\n".join(["tool:hang {}"] * 5), session_id="poison")
    behind = await it.run("say:at last", session_id="poison")
    cursor = 0
    for _ in range(3):
        stream = await it.events(poison, after=cursor, until="tool.started")
        cursor = stream.frames[-1].id
        await it.kill()
        await it.start()
    assert endings(await it.events(poison)) == ["run.failed"]
    done = await it.finished(behind)
    assert done["output"] == "at last" and user_texts(model) == ["say:at last"]


@pytest.mark.fault("F-13")
@pytest.mark.promise("BACK-07")
@pytest.mark.timeout(300)
async def test_quick_restarts_pause_no_session_that_gets_somewhere(
    it: GatewayProcess, model: ModelServer
) -> None:
    """Each life ends while something runs; in the next that is finished, and one more begun."""
    await it.finished(await it.run("say:patience", session_id="idle"))
    for life in range(RESTARTS):
        with noted(f"life {life}"):
            cut = await it.run("tool:hang {}", session_id="busy")
            await it.events(cut, until="tool.started")
            done = await it.run(f"life {life}", session_id="quiet")
            assert (await it.finished(done))["status"] == "completed"
            await it.kill()
            await it.start()
            assert (await it.finished(cut))["status"] == "completed"
    assert not facts(it.home, "session.suspended", "session.reset", "run.failed")
    await it.finished(await it.run("and still", session_id="quiet"))
    assert len(user_texts(model)) == RESTARTS + 1
    await it.finished(await it.run("hello", session_id="idle"))
    assert user_texts(model) == ["say:patience", "hello"]
