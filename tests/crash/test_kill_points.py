"""kill -9 at exactly one point of post → turn → tool → reply, for every such point.

After each the gateway is started again and the promise is looked at from outside: what
was answered with 202 is completed, once; what was not can be sent again under its key;
the effect happened at most once, and if that is in doubt the model was told.
"""

from pathlib import Path

import aiohttp
import pytest

from tests.crash import kills
from tests.crash.evidence import (
    THOROUGH,
    UNKNOWN,
    ask_for,
    endings,
    facts,
    lines,
    noted,
    results,
)
from tests.fakes.gateway import GatewayProcess, unstarted
from tests.fakes.model_server import ModelServer

pytestmark = [pytest.mark.anyio, pytest.mark.debian("strace")]


async def _post(it: GatewayProcess, text: str, key: str) -> tuple[str, bool]:
    """The run's id, and whether this was a replay."""
    async with it.http.post(
        it.url + "/v1/runs", json={"input": text}, headers={"Idempotency-Key": key}
    ) as response:
        assert response.status == 202, await response.text()
        body = await response.json()
        return str(body["run_id"]), response.headers.get("Idempotency-Replayed") == "true"


async def _walk(it: GatewayProcess, text: str, key: str) -> tuple[str, bool]:
    """Post and read to the end: the run's id if that much was said, and whether it went through."""
    run_id = ""
    try:
        run_id, _ = await _post(it, text, key)
        return run_id, bool(endings(await it.events(run_id)))
    except aiohttp.ClientError:
        return run_id, False


async def _check(
    it: GatewayProcess, model: ModelServer, accepted: str, text: str, key: str, effects: Path
) -> None:
    """What must hold for one message, whatever happened to the process meanwhile."""
    run_id, _ = await _post(it, text, key)
    assert accepted in ("", run_id), "the same key gave another run"
    stream = await it.events(run_id)
    assert endings(stream) == ["run.completed"], stream.names
    assert stream.names.count("run.started") == 1
    assert [f.id for f in stream.frames] == sorted({f.id for f in stream.frames})
    assert len(facts(it.home, "input.promoted", run_id=run_id)) == 1
    (settled,) = facts(it.home, "call.settled", run_id=run_id)
    written = len(lines(effects, key))
    output = (await it.status(run_id))["output"]
    if settled["outcome"] == "unknown":
        assert written <= 1
        assert UNKNOWN in results(model)[-1] and UNKNOWN in output
    else:
        assert settled["outcome"] == "ok" and written == 1
        assert output == f"the tool said: bumped {key}"


@pytest.mark.fault("F-01")
@pytest.mark.promise("RUN-01")
async def test_a_kill_at_any_sync_loses_nothing_and_repeats_nothing(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    """Under strace from its start, so that every sync of the process counts."""
    effects = tmp_path / "effects"
    number, cuts, through = 0, 0, False
    while not through:
        number += 1
        key = f"sync-{number}"
        with noted(f"killed at fdatasync {number}"):
            assert await it.stop() == 0
            await it.start(*kills.at("fdatasync", number), wait=False)
            if not (up := await it.comes_up()):  # killed at a sync of the start itself
                await it.start()
            text = ask_for("bump", path=effects, tag=key)
            run_id, through = await _walk(it, text, key)
            if not up:
                assert through
                through = False
            elif not through:
                cuts += 1
                await it.ended()
                await it.start()
            await _check(it, model, run_id, text, key, effects)
    assert cuts >= 3, "post, call and reply each have their own sync"
    assert len(facts(it.home, "run.queued")) == number


async def _answers(it: GatewayProcess) -> bool:
    """Whether it lives: one that is being killed may look alive until it is spoken to."""
    try:
        return it.alive and (await it.get("/health"))[0] == 200
    except aiohttp.ClientError:
        await it.ended()
        return False


async def _kill_at_each(
    it: GatewayProcess, model: ModelServer, effects: Path, call: str, path: Path | None, step: int
) -> int:
    """Attach for the 1st, (1 + step)th … `call` until the walk goes through; how many walks."""
    number, walks, through = 1, 0, False
    while not through:
        key = f"{call}-{number}"
        with noted(f"killed at {call} {number}"):
            text = ask_for("bump", path=effects, tag=key)
            async with kills.attached(it, call, number, path):
                run_id, through = await _walk(it, text, key)
                if not through:
                    await it.ended()
            if not await _answers(it):  # also if the point came after the last word
                await it.start()
            await _check(it, model, run_id, text, key, effects)
        number += step
        walks += 1
    assert len(facts(it.home, "run.queued")) == walks
    return walks


@pytest.mark.fault("F-01")
@pytest.mark.timeout(300)
async def test_a_kill_between_two_writes_to_the_journal_loses_nothing_and_repeats_nothing(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    """Each is a commit torn in the middle, or one that was written and not synced."""
    wal = it.home / "journal.db-wal"
    step = 1 if THOROUGH else 3
    walks = await _kill_at_each(it, model, tmp_path / "effects", "pwrite64", wal, step)
    assert walks * step > 20


@pytest.mark.fault("F-01")
async def test_a_kill_before_any_byte_leaves_the_process_loses_nothing_and_repeats_nothing(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    """The 202, the request to the model, each frame of the events: committed and not said."""
    assert await _kill_at_each(it, model, tmp_path / "effects", "sendto", None, 1) > 6


@pytest.mark.fault("F-01")
async def test_a_kill_just_before_and_just_after_the_effect_never_repeats_it(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    for call in ("write", "close"):
        effects = tmp_path / f"effects-{call}"
        effects.touch()
        text = ask_for("bump", path=effects, tag=call)
        with noted(f"killed at {call} of the effect"):
            async with kills.attached(it, call, 1, effects):
                run_id, through = await _walk(it, text, call)
                assert not through
                await it.ended()
            await it.start()
            await _check(it, model, run_id, text, call, effects)
            assert len(lines(effects)) == (1 if call == "close" else 0)
            (settled,) = facts(it.home, "call.settled", run_id=run_id)
            assert settled["outcome"] == "unknown"


@pytest.mark.fault("F-03")
@pytest.mark.promise("RUN-01", "RUN-21")
async def test_a_kill_after_the_commit_and_before_the_202_leaves_one_run_under_its_key(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    await it.finished(await it.run("first"))  # what a start does in the background is done by then
    async with kills.attached(it, "sendto", 1):
        with pytest.raises(aiohttp.ClientError):
            await _post(it, "hello", "k-1")
        await it.ended()
    _, queued = facts(it.home, "run.queued")
    await it.start()
    run_id, replayed = await _post(it, "hello", "k-1")
    assert (run_id, replayed) == (queued["run_id"], True)
    assert (await it.finished(run_id))["output"] == "echo: hello"
    assert len(facts(it.home, "run.queued")) == 2


@pytest.mark.fault("F-01")
async def test_a_kill_while_the_journal_is_being_made_leaves_a_home_that_starts(
    tmp_path: Path, model: ModelServer
) -> None:
    number, up = 0, False
    while not up:
        number += 1
        place = tmp_path / str(number)
        place.mkdir()
        with noted(f"killed at fdatasync {number} of the first start"):
            async with unstarted(place, model.base_url) as it:
                await it.start(*kills.at("fdatasync", number), wait=False)
                up = await it.comes_up()
                if not up:
                    await it.start()
                assert (await it.finished(await it.run("hello")))["status"] == "completed"
    assert number > 4
