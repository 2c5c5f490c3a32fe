"""The mark of a cut: set before the interrupt, on what runs then; dropped whole, by who may."""

from pathlib import Path

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.approval.approval import Role
from holdfast.core.messages import User
from holdfast.core.run.call import OnCrash
from holdfast.core.run.run import CutCause, RunCompleted, RunInterrupted, RunPhase, RunStarted
from holdfast.core.types import RunId, SessionId
from holdfast.engine.service import Service
from holdfast.errors import Refused
from holdfast.gateway import SessionView
from holdfast.tools.tool import Context, Done, Effect, Tool, free
from tests.engine.workshop import ME, Told, call, finished, follow, reach, serving, stop, submit

pytestmark = pytest.mark.anyio


class Nothing(msgspec.Struct):
    pass


async def _marked(service: Service) -> dict[str, SessionView]:
    return {v.session_id: v for v in await service.session_admin.sessions(ME)}


async def _kinds(directory: Path, *runs: RunId) -> list[set[type]]:
    """What the journal says of each, read by a service that drives nothing."""
    async with serving(directory, Told()) as service:
        found = []
        for run_id in runs:
            async with service.follow(ME, run_id, 0) as batches:
                assert batches is not None
                found.append({type(r.fact) for r in await anext(batches)})
        return found


@pytest.mark.promise("BACK-02")
async def test_only_what_runs_when_the_drain_is_over_is_marked(tmp_path: Path) -> None:
    model = Told()
    async with serving(tmp_path, model) as service:
        finishes = await submit(service, "finishes", "a")
        first = await model.asked(1)
        cut = await submit(service, "is cut", "b")
        await model.asked(2)
        waits = await submit(service, "has not begun", "b")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.stop, 1.0, CutCause.SHUTDOWN)
            first.answer("in time")
            assert (await finished(service, finishes)).status is RunPhase.COMPLETED
        assert (await service.run(ME, cut)).status is RunPhase.INTERRUPTED
        assert (await service.run(ME, waits)).status is RunPhase.QUEUED
        found = await _marked(service)
        assert (found["a"].mark, found["b"].mark) == ("", "shutdown_timeout")
    done, interrupted, untouched = await _kinds(tmp_path, finishes, cut, waits)
    assert RunCompleted in done and RunInterrupted not in done
    assert RunInterrupted in interrupted
    assert not {RunStarted, RunInterrupted} & untouched


@pytest.mark.promise("BACK-02")
async def test_the_mark_stands_before_the_work_is_interrupted(tmp_path: Path) -> None:
    begun, seen = anyio.Event(), list[tuple[RunPhase, str]]()

    async def hang(context: Context, asked: Nothing) -> Done:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await reach(service, run_id, RunInterrupted)  # it would never come after this
                view = await service.run(ME, run_id)
                seen.append((view.status, (await _marked(service))["s"].mark))
        return Done("never")

    tool = Tool("hang", "Hang.", Nothing, Effect.ACT, OnCrash.UNKNOWN, 60, hang, str, free)
    model = Told()
    async with serving(tmp_path, model, tools=[tool]) as service:
        run_id = await submit(service, "go", "s")
        (await model.asked(1)).answer("", call("hang"))
        await begun.wait()
        await service.stop(0, CutCause.RESTART)
        assert seen == [(RunPhase.INTERRUPTED, "restart_timeout")]


@pytest.mark.promise("BACK-06")
async def test_a_run_that_starts_in_a_marked_session_is_told_also_after_another_restart(
    tmp_path: Path,
) -> None:
    model = Told()
    async with serving(tmp_path, model) as service:
        cut = await submit(service, "go", "s")
        await model.asked(1)
        await service.stop(0, CutCause.RESTART)
    async with serving(tmp_path, model) as service:
        await model.asked(2)
        await stop(service, cut)
        assert (await finished(service, cut)).status is RunPhase.CANCELLED
    async with serving(tmp_path, model) as service:  # it knows of the session only what it reads
        for number, words in ((3, "next"), (4, "and then")):
            run_id = await submit(service, words, "s")
            asked = await model.asked(number)
            told = asked.messages[-1]
            assert isinstance(told, User)
            if number == 3:
                assert told.text.startswith("[System note:") and "gateway restart" in told.text
                assert told.text.endswith(f"]\n\n{words}")
            else:
                assert told.text == words
            asked.answer("done")
            await finished(service, run_id)


@pytest.mark.promise("BACK-12")
async def test_a_mark_is_dropped_whole_and_only_where_there_is_one(tmp_path: Path) -> None:
    model, s = Told(), SessionId("s")
    async with serving(tmp_path, model) as service:
        run_id = await submit(service, "go", "s")
        await model.asked(1)
        await service.stop(0, CutCause.RESTART)
    async with serving(tmp_path, model) as service:
        (await model.asked(2)).fail(KeyError("it breaks"))
        await finished(service, run_id)
        marked = (await _marked(service))["s"]
        assert (marked.mark, marked.mark_reason) == ("restart_timeout", "Gateway restarting")
        assert marked.marked_at > 0
        await service.session_admin.clear_mark(ME, s)
        bare = (await _marked(service))["s"]
        assert (bare.mark, bare.mark_reason, bare.marked_at) == ("", "", 0.0)
        before = await follow(service, run_id)
        for session_id, code in ((s, "session_not_marked"), ("nobody", "session_not_found")):
            with pytest.raises(Refused, match="Nothing changed") as refused:
                await service.session_admin.clear_mark(ME, SessionId(session_id))
            assert refused.value.code == code
        with pytest.raises(Refused, match="Nothing changed"):
            await service.session_admin.mark(ME, SessionId("nobody"))
        assert list(await _marked(service)) == ["s"], "none was made"
        assert await follow(service, run_id) == before
        await service.session_admin.mark(ME, s)
        by_hand = (await _marked(service))["s"]
        assert (by_hand.mark, by_hand.mark_reason) == ("restart_timeout", "Marked by the operator")
        await service.session_admin.mark(ME, s)
        assert (await _marked(service))["s"] == by_hand, "a mark that stands stays as it is"


async def test_only_the_operator_may(tmp_path: Path) -> None:
    somebody = replace(ME, roles=frozenset(Role) - {Role.ADMIN})
    async with serving(tmp_path, Told()) as service:
        for refused in (
            service.session_admin.sessions(somebody),
            service.session_admin.mark(somebody, SessionId("s")),
            service.session_admin.clear_mark(somebody, SessionId("s")),
            service.session_admin.release(somebody),
        ):
            with pytest.raises(Refused, match="operator"):
                await refused
