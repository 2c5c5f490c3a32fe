"""Children: made once, told of once, wherever the process ends; stopped with whoever began them."""

from collections.abc import Iterable
from pathlib import Path

import anyio
import msgspec
import pytest

from holdfast.core.events import TERMINAL, Record
from holdfast.core.intents import DoorCapabilities, Principal, Submit
from holdfast.core.material import fenced
from holdfast.core.messages import Assistant, Proposal, ToolResult, User
from holdfast.core.run.call import CallParked, CallSettled, CallStarted, Outcome
from holdfast.core.run.child import ChildBegun, ChildEnded
from holdfast.core.run.limits import Limits
from holdfast.core.run.run import ModelAnswered, RunCancelled, RunCompleted, RunQueued, StopAsked
from holdfast.core.session import delegation
from holdfast.core.session.session import OnStart
from holdfast.core.types import CallId, Fact, RunId, SessionId, SessionKey, Usage
from holdfast.engine.service import Service
from holdfast.engine.sessions import Sessions
from holdfast.errors import Refused, Rejected
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.models.model import Answer, Piece, Request
from holdfast.tools import delegate
from tests.engine.workshop import (
    ME,
    PATIENCE_S,
    Asked,
    Played,
    Told,
    call,
    finished,
    follow,
    journaled,
    parts,
    reach,
    running,
    serving,
    stop,
    submit,
    turn,
)
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio

NETWORK = Principal(
    ME.owner, DoorCapabilities(platform="api_server", answerable=True, late=False), ME.roles
)
SESSION = SessionId("s")
KEY = SessionKey(ME.owner, SESSION)


def task(text: str, call_id: str = "c1", **more: object) -> Proposal:
    arguments = msgspec.json.encode({"task": text, **more}).decode()
    return call("delegate_task", arguments, call_id)


def child_of(run_id: RunId, number: int = 1, call_id: str = "c1") -> RunId:
    return delegation.child_id(run_id, number, CallId(call_id))


def results(asked: Asked) -> list[str]:
    return [m.text for m in asked.messages if isinstance(m, ToolResult)]


async def session_facts(
    service: Service, kinds: tuple[type[Fact], ...], count: int, session: SessionId = SESSION
) -> list[Record]:
    """The first `count` records of these kinds in a session, once they are there."""
    found: list[Record] = []
    with anyio.fail_after(PATIENCE_S):
        async with service.follow_session(ME, session, 0) as batches:
            async for batch in batches:
                found += [r for r in batch if isinstance(r.fact, kinds)]
                if len(found) >= count:
                    return found
    raise AssertionError


async def test_a_child_sees_its_task_only_and_its_answer_is_the_result(tmp_path: Path) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "the whole story", SESSION)
        (await model.asked(1)).answer("", task("count the files", name="counting"))
        asked = await model.asked(2)
        assert list(asked.messages) == [User("count the files")]
        assert delegation.INSTRUCTIONS in asked.request.system
        child = child_of(run_id)
        waiting = await service.run(ME, run_id)
        assert (waiting.status, waiting.waiting_for_approval) == ("waiting", False)
        assert waiting.question is None
        view = await service.run(ME, child)
        assert view.session_id == f"{SESSION}~{child}"
        asked.answer("there are three")
        last = await model.asked(3)
        assert results(last) == ["there are three"]
        last.answer("three")
        assert (await finished(service, run_id)).status == "completed"
        begun, ended = [
            r.fact
            for r in await follow(service, run_id)
            if isinstance(r.fact, ChildBegun | ChildEnded)
        ]
        assert isinstance(begun, ChildBegun) and isinstance(ended, ChildEnded)
        assert (begun.child, begun.name, ended.child) == (child, "counting", child)
        assert (ended.status, ended.run_id) == ("completed", run_id)
        assert await service.messages(ME, view.session_id)


async def test_a_child_works_where_and_for_whom_its_parent_does(tmp_path: Path) -> None:
    model = Told()
    async with journaled(tmp_path) as journal:
        async with running(parts(tmp_path, journal, model, delegate.TOOLS)) as service:
            run_id = await submit(service, "go", SESSION)
            (await model.asked(1)).answer("", task("work"))
            asked = await model.asked(2)
            child = child_of(run_id)
            queued = (await reach(service, child, RunQueued)).fact
            assert isinstance(queued, RunQueued) and queued.parent is not None
            assert (queued.parent.session_id, queued.parent.run_id) == (SESSION, run_id)
            assert (queued.origin.platform, queued.origin.late) == ("cli", True)
            assert str(tmp_path) in asked.request.system
            first = model.requests[0].request.system
            assert first in asked.request.system  # the same workspace


async def test_with_one_place_a_parent_and_its_children_still_finish(tmp_path: Path) -> None:
    model, limits = Played(_play), Limits(running=1)
    async with serving(tmp_path, model, tools=delegate.TOOLS, limits=limits) as service:
        run_id = await submit(service, "deep 2")
        view = await finished(service, run_id)
        assert view.status == "completed"
        assert _output(view.ending) == "got: got: bottom"


def _output(ending: object) -> str:
    return str(getattr(ending, "output", ""))


def _play(request: Request) -> Iterable[Piece]:
    """`deep N` delegates `deep N-1`; `later X` does so in the background; else an echo."""
    words, got = "", ""
    for message in request.messages:
        if isinstance(message, User) and (said := _said(message.text)):
            words, got = said, ""
        elif isinstance(message, ToolResult):
            got = message.text
    what, _, rest = words.partition(" ")
    if got:
        yield Answer(f"got: {got}")
    elif what == "deep" and rest != "0":
        yield Answer("", calls=(task(f"deep {int(rest) - 1}"),))
    elif what == "later":
        yield Answer("", calls=(task(rest, background=True),))
    else:
        yield Answer("bottom" if what == "deep" else f"heard: {words}")


def _said(text: str) -> str:
    """What a user really said: a note about a cut may stand before it, or alone."""
    return text.partition("]\n\n")[2] if text.startswith("[System note:") else text


async def test_several_children_work_side_by_side_and_each_answers_its_own_call(
    tmp_path: Path,
) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "go", SESSION)
        (await model.asked(1)).answer("", task("one", "c1"), task("two", "c2"))
        both = {a.messages[-1].text: a for a in [await model.asked(2), await model.asked(3)]}
        both["two"].answer("2")
        await session_facts(service, (CallSettled,), 1)
        assert (await service.run(ME, run_id)).status == "waiting"
        both["one"].answer("1")
        last = await model.asked(4)
        assert {(m.call_id, m.text) for m in last.messages if isinstance(m, ToolResult)} == {
            ("c1", "1"),
            ("c2", "2"),
        }


@pytest.mark.promise("LATE-07")
async def test_a_child_that_fails_or_is_stopped_by_itself_resolves_its_call(tmp_path: Path) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "go", SESSION)
        (await model.asked(1)).answer("", task("one", "c1"), task("two", "c2"))
        both = {a.messages[-1].text: a for a in [await model.asked(2), await model.asked(3)]}
        both["one"].fail(Rejected("no such model"))
        await stop(service, child_of(run_id, 1, "c2"))
        last = await model.asked(4)
        told: dict[str, str] = {
            m.call_id: m.text for m in last.messages if isinstance(m, ToolResult)
        }
        assert told["c1"] == "The task failed: no such model"
        assert f"{delegation.STOPPED_TEXT}: enough" in told["c2"]
        settled = [
            r.fact.outcome
            for r in await session_facts(service, (CallSettled,), 2)
            if isinstance(r.fact, CallSettled)
        ]
        assert settled == [Outcome.FAILED, Outcome.FAILED]
        last.answer("so be it")
        assert (await finished(service, run_id)).status == "completed"


async def test_a_childs_child_may_not_delegate_and_no_run_has_more_than_eight(
    tmp_path: Path,
) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        await submit(service, "go", SESSION)
        (await model.asked(1)).answer("", *(task(f"t{n}", f"c{n}") for n in range(9)))
        children = [await model.asked(n) for n in range(2, 10)]
        refused = [
            r.fact
            for r in await session_facts(service, (CallSettled,), 1)
            if isinstance(r.fact, CallSettled)
        ]
        assert [f.call_id for f in refused] == ["c8"]
        assert refused[0].text == delegation.TOO_MANY
        children[0].answer("", task("deeper"))
        grandchild = await model.asked(10)
        grandchild.answer("", task("deepest"))
        told = await model.asked(11)
        assert delegation.TOO_DEEP in results(told)[-1]


@pytest.mark.promise("LATE-07")
async def test_in_the_background_there_is_a_handle_and_the_end_is_a_new_input(
    tmp_path: Path,
) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "go", SESSION)
        (await model.asked(1)).answer("", task("think", background=True, name="thought"))
        both = [await model.asked(2), await model.asked(3)]
        mine = next(a for a in both if a.messages[0] == User("go"))
        its = next(a for a in both if a.messages[0] == User("think"))
        handle = msgspec.json.decode(results(mine)[0])
        assert (handle["task_id"], handle["status"]) == (child_of(run_id), "running")
        mine.answer("begun")
        assert (await finished(service, run_id)).status == "completed"
        its.answer("a thought")
        told = await model.asked(4)
        words = told.messages[-1].text
        child = child_of(run_id)
        material = fenced(f"task {child} thought", "a thought")
        assert words == f"[Task {child} has ended: completed]\n{material}"
        told.answer("good")
        (record,) = await session_facts(service, (ChildEnded,), 1)
        assert isinstance(record.fact, ChildEnded) and record.fact.run_id is None
        events = await follow(service, run_id)
        assert isinstance(events[-1].fact, TERMINAL)


@pytest.mark.promise("LATE-07")
@pytest.mark.promise("LATE-02")
async def test_without_late_delivery_a_background_task_is_waited_for(
    tmp_path: Path,
) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = (await service.send(Submit(NETWORK, "go", SESSION))).run_id
        (await model.asked(1)).answer("", task("think", background=True))
        (await model.asked(2)).answer("a thought")
        told = await model.asked(3)
        (result,) = results(told)
        assert result == f"[Note: {delegate.NO_BACKGROUND.format('api_server')}]\n\na thought"
        told.answer("done")
        await finished(service, run_id)
        queued = await session_facts(service, (RunQueued,), 1)
        assert len(queued) == 1  # and no new input


@pytest.mark.promise("LATE-07")
async def test_the_end_of_a_background_task_is_told_after_a_restart_and_once(
    tmp_path: Path,
) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "go", SESSION)
        (await model.asked(1)).answer("", task("think", background=True))
        both = [await model.asked(2), await model.asked(3)]
        next(a for a in both if a.messages[0] == User("go")).answer("begun")
        await finished(service, run_id)
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        (await model.asked(1)).answer("a thought")  # the child goes on
        told = await model.asked(2)
        assert told.messages[-1].text.count("\na thought\n[end of material ") == 1
        told.answer("good")
        await session_facts(service, TERMINAL, 2)
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        again = await submit(service, "anything?", SESSION)
        asked = await model.asked(1)
        users = [m.text for m in asked.messages if isinstance(m, User)]
        assert sum("has ended" in text for text in users) == 1
        asked.answer("no")
        await finished(service, again)


async def test_a_stop_reaches_all_descendants_and_their_end_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "go", SESSION)
        (await model.asked(1)).answer("", task("late", "c1", background=True), task("now", "c2"))
        both = {a.messages[-1].text: a for a in [await model.asked(2), await model.asked(3)]}
        both["now"].answer("", task("deeper", "c3"))
        deep = await model.asked(4)
        await stop(service, run_id)
        assert (await finished(service, run_id)).status == "cancelled"
        now = child_of(run_id, 1, "c2")
        for child in (child_of(run_id, 1, "c1"), now, child_of(now, 1, "c3")):
            view = await finished(service, child)
            assert isinstance(view.ending, RunCancelled)
            assert view.ending.reason == "enough"
        assert deep.cut and both["late"].cut
        await session_facts(service, (ChildEnded,), 2)
        again = await submit(service, "still there?", SESSION)
        asked = await model.asked(5)
        assert asked.messages[-1].text.endswith("still there?")
        assert not any("has ended" in m.text for m in asked.messages if isinstance(m, User))
        asked.answer("yes")
        await finished(service, again)
    assert "looked at again" not in caplog.text


async def test_a_stop_that_was_cut_reaches_the_children_at_the_next_start(tmp_path: Path) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "go", SESSION)
        (await model.asked(1)).answer("", task("late", background=True))
        await model.asked(3)  # both are at work
    await write(tmp_path, KEY, StopAsked(run_id=run_id, reason="enough"))
    async with serving(tmp_path, Told(), tools=delegate.TOOLS) as service:
        await finished(service, run_id)
        child = await finished(service, child_of(run_id))
        assert child.status == "cancelled"
        await session_facts(service, (ChildEnded,), 1)


async def write(place: Path, key: SessionKey, *facts: Fact) -> None:
    """Write them down and do nothing more, like a process that is killed right after."""
    async with journaled(place) as journal:
        sessions = Sessions(journal, ManualClock())
        async with sessions.load(key) as held:
            assert held is not None
            await sessions.append(held, *facts).wait()


def _end(child: RunId) -> tuple[Fact, ...]:
    """A child that was at work comes to its end."""
    said = ModelAnswered(run_id=child, turn=1, text="a thought")
    return said, RunCompleted(run_id=child, output="a thought", usage=Usage())


async def cut_before_the_child(place: Path, *more: Fact) -> RunId:
    """A run that waits for a child which does not exist yet; the process has ended."""
    model = Told()
    async with serving(place, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "go", SESSION)
        await model.asked(1)
    child, call_id = child_of(run_id), CallId("c1")
    await write(
        place,
        KEY,
        ModelAnswered(run_id=run_id, turn=1, text="", calls=(task("think"),)),
        CallStarted(run_id=run_id, call_id=call_id, tool="delegate_task"),
        ChildBegun(run_id=run_id, call_id=call_id, child=child, task="think"),
        CallParked(run_id=run_id, call_id=call_id, reason="waits", child=child),
        *(msgspec.structs.replace(fact, run_id=run_id) for fact in more),
    )
    return run_id


async def test_a_child_that_was_wanted_and_not_made_yet_is_made_at_the_next_start(
    tmp_path: Path,
) -> None:
    run_id = await cut_before_the_child(tmp_path)
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        asked = await model.asked(1)
        assert list(asked.messages) == [User("think")]
        asked.answer("a thought")
        last = await model.asked(2)
        assert results(last) == ["a thought"]
        last.answer("done")
        assert (await finished(service, run_id)).status == "completed"


@pytest.mark.parametrize("background", [False, True], ids=["waited for", "in the background"])
async def test_a_child_whose_end_was_not_told_yet_is_told_of_at_the_next_start(
    tmp_path: Path, *, background: bool
) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "go", SESSION)
        (await model.asked(1)).answer("", task("think", background=background))
        await model.asked(2)
        if background:
            both = [await model.asked(2), await model.asked(3)]
            next(a for a in both if a.messages[0] == User("go")).answer("begun")
            await finished(service, run_id)  # its session is idle
    child = child_of(run_id)
    await write(tmp_path, delegation.child_session(KEY, child), *_end(child))
    for _ in range(2):
        model = Told()
        async with serving(tmp_path, model, tools=delegate.TOOLS):
            asked = await model.asked(1)
            said = [m.text for m in asked.messages if not isinstance(m, Assistant)]
            assert sum(f"\n{text}\n".count("\na thought\n") for text in said) == 1


async def test_a_child_waits_for_the_users_next_message_too(
    tmp_path: Path,
) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "go", SESSION)
        (await model.asked(1)).answer("", task("one"))
        (await model.asked(2)).answer("", task("two"))
        await model.asked(3)
    model = Told()
    wait = OnStart.WAIT
    async with serving(tmp_path, model, tools=delegate.TOOLS, on_start=wait) as service:
        again = await submit(service, "well?", SESSION)
        (await model.asked(1)).answer("deep")
        (await model.asked(2)).answer("less deep")
        last = await model.asked(3)
        assert results(last) == ["less deep"]
        last.answer("done")
        assert (await finished(service, run_id)).status == "completed"
        (await model.asked(4)).answer("well")
        await finished(service, again)


@pytest.mark.parametrize("came_for_it", [True, False])
async def test_a_process_that_will_not_stay_takes_up_children_when_they_are_needed(
    tmp_path: Path, *, came_for_it: bool
) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "go", SESSION)
        (await model.asked(1)).answer("", task("think", background=not came_for_it))
        both = [await model.asked(2)] if came_for_it else [await model.asked(n) for n in (2, 3)]
        if not came_for_it:
            next(a for a in both if a.messages[0] == User("go")).answer("begun")
            await finished(service, run_id)
    model = Told()
    async with journaled(tmp_path) as journal, anyio.create_task_group() as tasks:
        service = Service(parts(tmp_path, journal, model, delegate.TOOLS), tasks)
        await service.start(frozenset({run_id}) if came_for_it else frozenset())
        if not came_for_it:
            assert not model.requests
            await submit(service, "well?", SESSION)
        with anyio.fail_after(PATIENCE_S):
            number = 1
            while not (asked := await model.asked(number)).messages[0].text.endswith("think"):
                asked.answer("well")
                number += 1
        asked.answer("a thought")
        told = await model.asked(number + 1)
        while "a thought" not in told.messages[-1].text:
            told.answer("well")
            number += 1
            told = await model.asked(number + 1)
        tasks.cancel_scope.cancel()


async def test_who_follows_before_the_start_has_the_children_of_the_session_taken_up(
    tmp_path: Path,
) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "go", SESSION)
        (await model.asked(1)).answer("", task("think", background=True))
        both = [await model.asked(n) for n in (2, 3)]
        next(a for a in both if a.messages[0] == User("go")).answer("begun")
        await finished(service, run_id)
    model = Told()

    async def watch() -> None:
        async with service.follow_session(ME, SESSION, 0) as batches:
            async for _ in batches:
                pass

    async with journaled(tmp_path) as journal, anyio.create_task_group() as tasks:
        service = Service(parts(tmp_path, journal, model, delegate.TOOLS), tasks)
        tasks.start_soon(watch)
        await anyio.wait_all_tasks_blocked()
        await service.start(frozenset())
        assert (await model.asked(1)).messages[0].text.endswith("think")
        tasks.cancel_scope.cancel()


async def test_a_child_of_a_run_that_was_stopped_is_not_made_any_more(tmp_path: Path) -> None:
    run_id = await cut_before_the_child(tmp_path, StopAsked(run_id=RunId(""), reason="enough"))
    async with serving(tmp_path, Told(), tools=delegate.TOOLS) as service:
        assert (await finished(service, run_id)).status == "cancelled"
        await session_facts(service, (ChildEnded,), 1)
        with pytest.raises(Refused, match="no run"):
            await service.run(ME, child_of(run_id))


@pytest.mark.promise("BACK-10")
@pytest.mark.fault("F-01")
@pytest.mark.parametrize("words", ["deep 2", "later deep 1"])
async def test_each_child_is_made_and_reported_once_wherever_it_is_cut(
    tmp_path: Path, words: str
) -> None:
    for turns in range(0, 120, 5):
        place = tmp_path / str(turns)
        place.mkdir()
        async with serving(place, Played(_play), tools=delegate.TOOLS) as service:
            run_id = await submit(service, words, SESSION)
            await turn(turns)
        async with serving(place, Played(_play), tools=delegate.TOOLS) as service:
            view = await finished(service, run_id)
            if words == "deep 2":
                assert _output(view.ending) == "got: got: bottom", turns
            else:
                await session_facts(service, TERMINAL, 2)
        async with journaled(place) as journal:
            assert await journal.with_children() == []
            counts = await _counts(journal)
        expected = 2
        assert counts == {"child.begun": expected, "child.ended": expected}, turns
        runs = 3 if words == "deep 2" else 4
        assert await _runs(place) == runs, turns


async def _counts(journal: SqliteJournal) -> dict[str, int]:
    found: dict[str, int] = {}
    for stream in range(1, 10):
        for record in await journal.facts(stream, (ChildBegun, ChildEnded), ()):
            name = "child.begun" if isinstance(record.fact, ChildBegun) else "child.ended"
            found[name] = found.get(name, 0) + 1
    return found


async def _runs(place: Path) -> int:
    async with journaled(place) as journal:
        queued = 0
        for stream in range(1, 10):
            queued += len(await journal.facts(stream, (RunQueued,), ()))
        return queued


async def test_a_parent_that_was_told_is_not_told_again_by_the_same_end(tmp_path: Path) -> None:
    model = Told()
    async with serving(tmp_path, model, tools=delegate.TOOLS) as service:
        run_id = await submit(service, "go", SESSION)
        (await model.asked(1)).answer("", task("think"))
        (await model.asked(2)).answer("a thought")
        (await model.asked(3)).answer("done")
        await finished(service, run_id)
        child = await service.run(ME, child_of(run_id))
        again = await submit(service, "go on", child.session_id)  # its session can be spoken to
        (await model.asked(4)).answer("more thoughts")
        await finished(service, again)
    async with serving(tmp_path, Told(), tools=delegate.TOOLS) as service:
        assert len(await session_facts(service, (ChildEnded,), 1)) == 1
        assert len(await session_facts(service, (CallParked,), 1)) == 1
