"""Tool calls: in order, recorded before their effect, and always a result the model can read."""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import anyio
import msgspec
import pytest

from holdfast.core.events import Record
from holdfast.core.messages import Proposal, ToolResult
from holdfast.core.redaction import REDACTED, Redactor
from holdfast.core.run.call import CallParked, CallSettled, CallStarted, OnCrash, Outcome
from holdfast.core.run.files import ChangeKind, FileChange, FileChanged, changed
from holdfast.core.run.run import RunCompleted, RunPhase
from holdfast.engine.runs.calls import PREVIEW, RESULT
from holdfast.errors import ToolFailed
from holdfast.tools import tool as tools
from holdfast.tools.tool import Context, Done, Effect, Park, Tool, ToolFailure, Unknown, free
from tests.engine.workshop import (
    ME,
    PATIENCE_S,
    Told,
    call,
    follow,
    reach,
    serving,
    stop,
    submit,
    turn,
)

pytestmark = pytest.mark.anyio


SECRET = "sk-very-secret-key"


class Name(msgspec.Struct):
    name: str = ""


Runs = Callable[[Context, Name], Awaitable[tools.Outcome]]


def made(
    name: str,
    run: Runs,
    effect: Effect = Effect.READ,
    on_crash: OnCrash = OnCrash.REPEAT,
    timeout_s: float = 60.0,
    preview: Callable[[Name], str] = lambda asked: f"name {asked.name}",
) -> Tool[Name]:
    return Tool(name, "A tool.", Name, effect, on_crash, timeout_s, run, preview, free)


def settled(records: list[Record]) -> list[CallSettled]:
    return [r.fact for r in records if isinstance(r.fact, CallSettled)]


async def ask(directory: Path, kit: list[Tool[Name]], *calls: Proposal) -> list[Record]:
    """Have the model ask for `calls` and then hear their results; the run's records."""
    model = Told()
    async with serving(directory, model, tools=kit) as service:
        run_id = await submit(service, "go")
        (await model.asked(1)).answer("", *calls)
        second = await model.asked(2)
        told = {m.call_id: m.text for m in second.messages if isinstance(m, ToolResult)}
        second.answer("done")
        records = await follow(service, run_id)
    facts = settled(records)
    assert told == {f.call_id: f.text for f in facts}
    assert told.keys() == {c.call_id for c in calls}
    assert isinstance(records[-1].fact, RunCompleted)
    return records


async def result(directory: Path, tool: Tool[Name], arguments: str = "{}") -> CallSettled:
    (fact,) = settled(await ask(directory, [tool], call(tool.name, arguments)))
    return fact


async def test_calls_go_in_the_order_the_model_gave_them(tmp_path: Path) -> None:
    log: list[str] = []

    async def write(context: Context, asked: Name) -> Done:
        log.append(f"{asked.name} begins")
        await turn(10)
        log.append(f"{asked.name} ends")
        return Done(asked.name)

    calls = [call("write", f'{{"name": "{n}"}}', n) for n in "abc"]
    kit = [made("write", write, Effect.WRITE, OnCrash.UNKNOWN)]
    records = await ask(tmp_path, kit, *calls)
    assert log == [f"{n} {does}" for n in "abc" for does in ("begins", "ends")]
    assert [f.text for f in settled(records)] == ["a", "b", "c"]


async def test_neighbours_that_only_read_run_side_by_side(tmp_path: Path) -> None:
    present: set[str] = set()
    complete = anyio.Event()

    async def meet(context: Context, asked: Name) -> Done:
        """Returns only when all three are here at once."""
        present.add(asked.name)
        if len(present) == 3:
            complete.set()
        await complete.wait()
        return Done(asked.name)

    calls = [call("meet", f'{{"name": "{n}"}}', n) for n in "abc"]
    with anyio.fail_after(PATIENCE_S):
        records = await ask(tmp_path, [made("meet", meet)], *calls)
    assert sorted(f.text for f in settled(records)) == ["a", "b", "c"]


async def test_a_call_that_changes_something_runs_alone(tmp_path: Path) -> None:
    active: set[str] = set()
    beside: dict[str, set[str]] = {}

    async def work(context: Context, asked: Name) -> Done:
        active.add(asked.name)
        beside[asked.name] = active - {asked.name}
        await turn(10)
        beside[asked.name] |= active - {asked.name}
        active.remove(asked.name)
        return Done(asked.name)

    kit = [made("look", work), made("change", work, Effect.WRITE, OnCrash.UNKNOWN)]
    names = ("look a", "look b", "change c", "look d", "change e")
    calls = [call(n.split()[0], f'{{"name": "{n[-1]}"}}', n[-1]) for n in names]
    await ask(tmp_path, kit, *calls)
    assert beside == {"a": {"b"}, "b": {"a"}, "c": set(), "d": set(), "e": set()}


@pytest.mark.parametrize("effect", [Effect.ACT, Effect.WRITE])
async def test_a_call_is_in_the_file_as_started_before_its_effect(
    tmp_path: Path, effect: Effect
) -> None:
    async def act(context: Context, asked: Name) -> Done:
        with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
            found = connection.execute(
                "SELECT data FROM events WHERE kind = 'call.started' AND run_id = ?",
                (context.run_id,),
            ).fetchall()
        return Done(str([context.call_id in row[0].decode() for row in found]))

    assert (await result(tmp_path, made("act", act, effect, OnCrash.UNKNOWN))).text == "[True]"


async def done(context: Context, asked: Name) -> Done:
    return Done(f"hello {asked.name}")


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "{",
        "[]",
        '{"name": 7}',
        "[" * 100_000,
        '{"name": NaN}',
        "null",
    ],
    ids=["empty", "torn", "a list", "a number", "deep", "NaN", "null"],
)
async def test_arguments_that_do_not_fit_are_said_to_the_model(
    tmp_path: Path, arguments: str
) -> None:
    fact = await result(tmp_path, made("greet", done), arguments)
    if arguments:
        assert fact.outcome is Outcome.FAILED
        assert "arguments do not fit greet" in fact.text and "Call it again" in fact.text
    else:
        assert (fact.outcome, fact.text) == (Outcome.OK, "hello ")


async def test_a_tool_that_does_not_exist_is_said_to_the_model_with_those_that_do(
    tmp_path: Path,
) -> None:
    (fact,) = settled(await ask(tmp_path, [made("greet", done)], call("hug")))
    assert (fact.outcome, fact.tool) == (Outcome.FAILED, "hug")
    assert "no tool called 'hug'" in fact.text and "greet" in fact.text


async def fail(context: Context, asked: Name) -> ToolFailure:
    return ToolFailure("the door is locked")


async def refuse(context: Context, asked: Name) -> Done:
    raise ToolFailed("the door is locked")


async def explode(context: Context, asked: Name) -> Done:
    raise ValueError("boom")


async def explode_together(context: Context, asked: Name) -> Done:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(explode, context, asked)
    return Done("never")


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (fail, "the door is locked"),
        (refuse, "the door is locked"),
        (explode, "The tool broke: ValueError: boom"),
        (explode_together, "The tool broke: ValueError: boom"),
    ],
)
async def test_a_tool_that_fails_or_breaks_is_a_result(
    tmp_path: Path, run: Runs, text: str
) -> None:
    fact = await result(tmp_path, made("try", run))
    assert fact.outcome is Outcome.FAILED
    assert text in fact.text


async def hang(context: Context, asked: Name) -> Done:
    await anyio.sleep_forever()
    return Done("never")


@pytest.mark.parametrize(
    ("on_crash", "outcome"),
    [(OnCrash.REPEAT, Outcome.FAILED), (OnCrash.UNKNOWN, Outcome.UNKNOWN)],
)
async def test_a_tool_that_takes_too_long_is_cut_and_the_model_told(
    tmp_path: Path, on_crash: OnCrash, outcome: Outcome
) -> None:
    fact = await result(tmp_path, made("hang", hang, Effect.ACT, on_crash, timeout_s=0))
    assert fact.outcome is outcome
    assert fact.text.startswith("Timed out after 0 s.")
    assert ("may have taken effect" in fact.text) is (outcome is Outcome.UNKNOWN)


async def test_a_result_that_is_too_long_is_cut_and_says_so(tmp_path: Path) -> None:
    async def talk(context: Context, asked: Name) -> Done:
        return Done("x" * (RESULT + 5))

    fact = await result(tmp_path, made("talk", talk))
    assert fact.outcome is Outcome.OK
    assert fact.text == "x" * RESULT + "\n[cut: 5 more characters]"


async def test_words_that_are_no_unicode_are_written_down_all_the_same(tmp_path: Path) -> None:
    """A file's name may be any bytes, and Python hands them on as half surrogates."""

    async def name(context: Context, asked: Name) -> Done:
        return Done("caf\udce9.txt")

    odd = made("name", name, preview=lambda asked: "caf\udce9")
    records = await ask(tmp_path, [odd], call("name"))
    (fact,) = settled(records)
    assert (fact.outcome, fact.text) == (Outcome.OK, "caf?.txt")
    previews = [r.fact.preview for r in records if isinstance(r.fact, CallStarted)]
    assert previews == ["caf?"]


async def test_a_preview_is_one_short_line_and_one_that_breaks_breaks_nothing(
    tmp_path: Path,
) -> None:
    def broken(asked: Name) -> str:
        raise ValueError("boom")

    def long(asked: Name) -> str:
        return "x" * 1_000

    kit = [made("long", done, preview=long), made("broken", done, preview=broken)]
    calls = (call("long", call_id="a"), call("broken", call_id="b"))
    records = await ask(tmp_path, kit, *calls)
    started = {r.fact.tool: r.fact.preview for r in records if isinstance(r.fact, CallStarted)}
    assert started == {"long": "x" * PREVIEW, "broken": ""}
    assert [f.outcome for f in settled(records)] == [Outcome.OK, Outcome.OK]


async def test_a_call_that_parks_holds_no_place_and_its_run_can_be_stopped(tmp_path: Path) -> None:
    async def park(context: Context, asked: Name) -> Park:
        return Park("waits for you")

    model = Told()
    kit = [made("park", park, Effect.ACT, OnCrash.UNKNOWN)]
    async with serving(tmp_path, model, tools=kit) as service:
        run_id = await submit(service, "go")
        (await model.asked(1)).answer("", call("park"))
        await reach(service, run_id, CallParked)
        assert (await service.run(ME, run_id)).status is RunPhase.WAITING
        await anyio.wait_all_tasks_blocked()
        assert (service.health().running, service.health().waiting) == (0, 1)
        await stop(service, run_id)
        records = await follow(service, run_id)
        assert [f.outcome for f in settled(records)] == [Outcome.ABORTED]
        assert (await service.run(ME, run_id)).status is RunPhase.CANCELLED
    assert len(model.requests) == 1


CHANGE = FileChange(
    path="a/b.py", kind=ChangeKind.PATCHED, added=2, removed=1, before="0", after="1"
)


@pytest.mark.promise("EDIT-01")
@pytest.mark.parametrize(
    "outcome", [Done("x", (CHANGE,)), ToolFailure("x", (CHANGE,)), Unknown("x", (CHANGE,))]
)
async def test_changed_files_are_recorded_directly_before_the_outcome(
    outcome: tools.Outcome, tmp_path: Path
) -> None:
    async def edit(context: Context, asked: Name) -> tools.Outcome:
        return outcome

    kit = [made("edit", edit, Effect.WRITE, OnCrash.UNKNOWN)]
    records = await ask(tmp_path, kit, call("edit"))
    at = next(i for i, r in enumerate(records) if isinstance(r.fact, CallSettled))
    before, end = records[at - 1], records[at]
    assert isinstance(before.fact, FileChanged) and isinstance(end.fact, CallSettled)
    assert before.fact == changed(before.fact.run_id, end.fact.call_id, CHANGE)
    assert (end.seq, end.at) == (before.seq + 1, before.at)  # one append


@pytest.mark.promise("EDIT-01")
async def test_a_secret_in_a_path_is_not_recorded(tmp_path: Path) -> None:
    async def edit(context: Context, asked: Name) -> Done:
        return Done("x", (msgspec.structs.replace(CHANGE, path=f"a/{SECRET}\udcff.txt"),))

    model = Told()
    kit = [made("edit", edit, Effect.WRITE, OnCrash.UNKNOWN)]
    async with serving(tmp_path, model, tools=kit, redactor=Redactor([SECRET])) as service:
        run_id = await submit(service, "go")
        (await model.asked(1)).answer("", call("edit"))
        (await model.asked(2)).answer("done")
        records = await follow(service, run_id)
    paths = [r.fact.path for r in records if isinstance(r.fact, FileChanged)]
    assert paths == [f"a/{REDACTED}?.txt"]
