"""A run that kills the process each time is given up, reported, and affects no other run."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import aiohttp
import anyio
import pytest

from tests.crash.evidence import count, endings, facts, noted, user_texts
from tests.fakes.gateway import GatewayProcess
from tests.fakes.model_server import ModelServer, Wait, stream, token

pytestmark = pytest.mark.anyio

POISON = "\n".join(["tool:die {}"] * 5)  # whatever it is told, it asks for the same again
RESTARTS = count("HOLDFAST_RESTARTS", 20, 100)
INNOCENTS = 20


async def _poisoned(it: GatewayProcess, session_id: str) -> tuple[str, int]:
    """Post it, and start again for as long as that ends the process: its id, and how often."""
    run_id = await it.run(POISON, session_id=session_id)
    return run_id, await _given_up(it, run_id)


async def _given_up(it: GatewayProcess, run_id: str) -> int:
    """Start again for as long as `run_id` ends the process; how often that was."""
    deaths = 0
    with anyio.fail_after(120):
        while True:
            await it.ended()
            deaths += 1
            await it.start(wait=False)
            if not await it.comes_up():
                continue
            with suppress(aiohttp.ClientError):  # it may end while it is asked
                if (await it.status(run_id))["status"] == "failed":
                    return deaths


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
@pytest.mark.timeout(180)
@pytest.mark.parametrize("place", [0, INNOCENTS], ids=["the oldest", "the newest"])
async def test_a_poison_run_among_many_is_given_up_and_all_the_others_complete(
    it: GatewayProcess, model: ModelServer, place: int
) -> None:
    poison, innocents = "", []
    for n in range(INNOCENTS + 1):
        model.then(stream(token("half"), Wait()))
        if n == place:
            poison = await it.run("\n".join(["tool:die {}"] * 20))
        else:
            innocents.append(await it.run(f"slow:2 {n}", session_id=f"innocent-{n}"))
    await model.asked(INNOCENTS + 1)
    await it.kill()  # all of them are driven; from now on the poison does it
    await it.start(wait=False)
    deaths = 1 + await _given_up(it, poison)
    assert 3 < deaths <= 9  # log2(21) and a few
    assert endings(await it.events(poison)) == ["run.failed"]
    for run_id in innocents:
        assert (await it.finished(run_id))["status"] == "completed"
    (failed,) = facts(it.home, "run.failed")
    assert (failed["run_id"], failed["code"]) == (poison, "stuck")
    assert len(facts(it.home, "session.suspended")) == 1
    assert facts(it.home, "run.held") and facts(it.home, "run.isolated")
    _, health = await it.get("/health/detailed")
    assert health["held"] == ""


@pytest.mark.fault("F-13")
@pytest.mark.promise("BACK-07")
async def test_held_runs_are_told_of_and_the_operator_may_let_them_go_on(
    tmp_path: Path, it: GatewayProcess, model: ModelServer
) -> None:
    runs = [await it.run("\n".join(["tool:hang {}"] * 9), session_id=f"s{n}") for n in range(3)]
    for life in range(3):
        for run_id in runs:
            await it.events(run_id, after=_starts(it, run_id, life), until="tool.started")
        await it.kill()
        await it.start()
    _, health = await it.get("/health/detailed")
    assert "1 of the runs" in health["held"] and "holdfast sessions release" in health["held"]
    assert health["status"] == "ok", "everything else goes on"
    assert (await it.finished(await it.run("hello")))["status"] == "completed"
    listed = await it.holdfast("sessions")
    assert listed.stdout.count(b", 1 held") == 1
    doctor = await it.holdfast("doctor")
    assert b"continue all of them: holdfast sessions release" in doctor.stdout
    assert b"1 runs continue" in (await it.holdfast("sessions", "release")).stdout
    assert b"No run was on hold." in (await it.holdfast("sessions", "release")).stdout
    for run_id in runs:
        await it.events(run_id, after=_starts(it, run_id, 3), until="tool.started")
    assert not facts(it.home, "run.failed")


def _starts(it: GatewayProcess, run_id: str, number: int) -> int:
    """A cursor behind the calls that were started in `number` lives."""
    with closing(sqlite3.connect(f"file:{it.home}/journal.db?mode=ro", uri=True)) as journal:
        rows = journal.execute(
            "SELECT seq FROM events WHERE run_id = ? AND kind = 'call.started' ORDER BY seq",
            (run_id,),
        ).fetchall()
    return int(rows[number - 1][0]) if number else 0


@pytest.mark.fault("F-13")
@pytest.mark.promise("BACK-07")
async def test_a_run_behind_a_poison_run_completes_in_a_new_session(
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
