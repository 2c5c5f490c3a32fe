"""Recovery: interrupted runs continue under their ids, once, according to the policy."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.crash.evidence import (
    NOTE,
    UNKNOWN,
    ask_for,
    begun,
    endings,
    facts,
    lines,
    results,
    user_texts,
)
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer, Reply, Wait, call, calls, stream, token

pytestmark = pytest.mark.anyio

Cut = Callable[[GatewayProcess], Awaitable[object]]
CUTS: dict[str, Cut] = {"crash": GatewayProcess.kill, "shutdown": GatewayProcess.stop}
both_cuts = pytest.mark.parametrize("cut", CUTS)

WAIT = '[recovery]\non_start = "wait"\n'
SUSPEND = '[recovery]\non_start = "suspend"\n'


def half(text: str) -> Reply:
    """The beginning of an answer, and then nothing."""
    return stream(token(text), Wait())


async def _cut_in_mid_answer(
    it: GatewayProcess, model: ModelServer, cut: str, text: str = "say:all of it"
) -> str:
    """A run in session `s` that was cut while the model spoke; the gateway is up again."""
    model.then(half("all"))
    run_id = await it.run(text, session_id="s")
    await begun(it, run_id, "message.delta")
    await CUTS[cut](it)
    await it.start()
    return run_id


async def _nothing_more_happens(it: GatewayProcess, model: ModelServer) -> None:
    """A run in a session of its own comes and goes; nothing else asked the model meanwhile."""
    before = len(model.requests)
    await it.finished(await it.run("bystander"))
    assert [user_texts(model, r)[-1] for r in range(before, len(model.requests))] == ["bystander"]


@both_cuts
@pytest.mark.promise("BACK-01")
async def test_a_session_that_was_cut_keeps_its_id_and_transcript(
    it: GatewayProcess, model: ModelServer, cut: str
) -> None:
    await it.finished(await it.run("first", session_id="s"))
    run_id = await _cut_in_mid_answer(it, model, cut)
    done = await it.finished(run_id)
    assert (done["status"], done["session_id"], done["output"]) == ("completed", "s", "all of it")
    await it.finished(await it.run("third", session_id="s"))
    assert user_texts(model) == ["first", "say:all of it", "third"]
    _, transcript = await it.get("/api/sessions/s/messages")
    assert [m["content"] for m in transcript["data"] if m["role"] == "assistant"] == [
        "echo: first",
        "all of it",
        "echo: third",
    ]
    assert not facts(it.home, "session.reset", "session.suspended")


@pytest.mark.promise("BACK-03")
async def test_the_reason_and_the_time_of_each_cut_are_kept(
    it: GatewayProcess, model: ModelServer
) -> None:
    model.then(half("once"), half("twice"))
    started = time.time()
    run_id = await it.run("say:thrice")
    await begun(it, run_id, "message.delta")
    await it.kill()
    killed = time.time()
    await it.start()
    await begun(it, run_id, "message.void")
    await model.asked(2)
    stopping = time.time()
    await it.stop()
    stopped = time.time()
    await it.start()
    assert (await it.finished(run_id))["output"] == "thrice"
    crash, shutdown = facts(it.home, "run.interrupted", run_id=run_id)
    assert crash["cause"] == "crash" and crash["reason"]
    assert started <= crash["cut_at"] <= killed
    assert (shutdown["cause"], shutdown["reason"]) == ("shutdown_timeout", "Gateway shutting down")
    assert stopping <= shutdown["cut_at"] <= stopped
    causes = [f["cause"] for f in facts(it.home, "run.resumed", run_id=run_id)]
    assert causes == ["crash", "shutdown_timeout"]


@both_cuts
@pytest.mark.promise("BACK-04")
async def test_the_mark_outlives_looking_at_it_and_ends_with_a_run_that_completed(
    tmp_path: Path, model: ModelServer, cut: str
) -> None:
    async with gateway(tmp_path, model.base_url, WAIT) as it:
        run_id = await _cut_in_mid_answer(it, model, cut)
        for _ in range(2):
            assert (await it.status(run_id))["status"] == "queued"
            assert (await it.get("/api/sessions/s/messages"))[0] == 200
            await it.kill()
            await it.start()
        assert len(facts(it.home, "run.interrupted")) == 1
        await it.finished(await it.run("next", session_id="s"))
        noted = [t for r in range(len(model.requests)) for t in user_texts(model, r) if NOTE in t]
        assert len(noted) == 1, "told once, when it went on"
        await it.kill()
        await it.start()
        await it.finished(await it.run("and then", session_id="s"))
        assert user_texts(model) == ["say:all of it", "next", "and then"]
        assert len(facts(it.home, "run.resumed")) == 1


@both_cuts
@pytest.mark.promise("BACK-09")
async def test_resume_goes_on_by_itself(it: GatewayProcess, model: ModelServer, cut: str) -> None:
    run_id = await _cut_in_mid_answer(it, model, cut)
    assert (await it.finished(run_id))["output"] == "all of it"
    cause = {"crash": "gateway interruption", "shutdown": "gateway shutdown"}[cut]
    (told,) = user_texts(model)
    assert told.startswith(NOTE) and cause in told and told.endswith("]\n\nsay:all of it")


@both_cuts
@pytest.mark.promise("BACK-09")
async def test_wait_goes_on_at_the_next_message(
    tmp_path: Path, model: ModelServer, cut: str
) -> None:
    async with gateway(tmp_path, model.base_url, WAIT) as it:
        run_id = await _cut_in_mid_answer(it, model, cut)
        await _nothing_more_happens(it, model)
        assert (await it.status(run_id))["status"] == "queued"
        second = await it.run("say:and more", session_id="s")
        assert (await it.finished(second))["output"] == "and more"
        assert (await it.status(run_id))["output"] == "all of it"
        assert user_texts(model) == ["say:all of it", "say:and more"]


@pytest.mark.promise("BACK-09")
async def test_suspend_starts_a_new_session_after_a_crash(
    tmp_path: Path, model: ModelServer
) -> None:
    async with gateway(tmp_path, model.base_url, SUSPEND) as it:
        await it.finished(await it.run("first", session_id="s"))
        run_id = await _cut_in_mid_answer(it, model, "crash")
        stream = await it.events(run_id)
        assert endings(stream) == ["run.failed"]
        assert stream.frames[-1].data["code"] == "suspended"
        await _nothing_more_happens(it, model)
        await it.finished(await it.run("fresh", session_id="s"))
        assert user_texts(model) == ["fresh"]
        (reset,) = facts(it.home, "session.reset")
        assert reset["reason"] == "suspended"


@pytest.mark.promise("BACK-09")
async def test_suspend_spares_a_session_that_was_marked_before_the_cut(
    tmp_path: Path, model: ModelServer
) -> None:
    async with gateway(tmp_path, model.base_url, SUSPEND) as it:
        run_id = await _cut_in_mid_answer(it, model, "shutdown")
        await _nothing_more_happens(it, model)
        assert (await it.status(run_id))["status"] == "queued"
        await it.finished(await it.run("next", session_id="s"))
        assert (await it.status(run_id))["output"] == "all of it"
        assert user_texts(model) == ["say:all of it", "next"]
        assert not facts(it.home, "session.reset", "session.suspended")


@both_cuts
@pytest.mark.promise("BACK-10", "RUN-11")
async def test_a_run_goes_on_under_its_id_from_its_last_recorded_step(
    it: GatewayProcess, model: ModelServer, tmp_path: Path, cut: str
) -> None:
    effects = tmp_path / "effects"
    arguments = ask_for("bump", path=effects, tag="once").partition(" ")[2]
    model.then(calls(call("bump", arguments)), half("the begin"))
    run_id = await it.run("say:the beginning and the end")
    before = await begun(it, run_id, "message.delta")
    await CUTS[cut](it)
    await it.start()
    after = await it.events(run_id, after=before.frames[-1].id)
    assert after.names[:2] == ["run.resumed", "message.void"] and after.closed
    whole = await it.events(run_id)
    assert before.frames + after.frames == whole.frames
    assert whole.names.count("run.started") == whole.names.count("tool.started") == 1
    assert endings(whole) == ["run.completed"]
    done = await it.status(run_id)
    assert whole.text == done["output"] == "the beginning and the end"
    assert len(model.requests) == 3, "the first answer is not asked for again"
    assert results(model) == ["bumped once"] and len(lines(effects)) == 1
    answers = facts(it.home, "model.answered", run_id=run_id)
    spent = sum(a["usage"]["input_tokens"] + a["usage"]["output_tokens"] for a in answers)
    assert done["usage"]["total_tokens"] == spent


@both_cuts
@pytest.mark.promise("BACK-10")
async def test_a_call_in_flight_is_not_run_again_and_the_model_is_told(
    it: GatewayProcess, model: ModelServer, cut: str
) -> None:
    run_id = await it.run("tool:hang {}")
    await begun(it, run_id)
    await CUTS[cut](it)
    await it.start()
    stream = await it.events(run_id)
    assert stream.names.count("tool.started") == 1
    (ended,) = (f.data for f in stream.frames if f.event == "tool.completed")
    assert ended["outcome"] == "unknown" and ended["error"] is True
    assert UNKNOWN in results(model)[-1] and UNKNOWN in (await it.status(run_id))["output"]


@both_cuts
@pytest.mark.promise("BACK-10")
async def test_a_call_in_flight_that_is_safe_to_repeat_is_repeated(
    it: GatewayProcess, model: ModelServer, tmp_path: Path, cut: str
) -> None:
    effects = tmp_path / "effects"
    run_id = await it.run(ask_for("linger", path=effects, tag="x"))
    await begun(it, run_id)
    await CUTS[cut](it)
    await it.start()
    stream = await it.events(run_id)
    assert stream.names.count("tool.started") == 2 and len(lines(effects)) == 2
    assert results(model) == ["lingered x"]
    assert (await it.status(run_id))["output"] == "the tool said: lingered x"


@pytest.mark.promise("BACK-10", "RUN-14")
async def test_a_stop_that_a_crash_overtook_still_stops_the_run(
    it: GatewayProcess, model: ModelServer
) -> None:
    """Accepted is accepted: the run is never driven on, it ends cancelled."""
    run_id = await it.run("tool:wedge {}")
    await begun(it, run_id)
    assert (await it.post(f"/v1/runs/{run_id}/stop"))[0] == 200
    await it.kill()
    await it.start()
    assert endings(await it.events(run_id)) == ["run.cancelled"]
    assert len(model.requests) == 1
