"""A run asks its user at the terminal: the next line is the answer, and none is lost."""

from pathlib import Path

import msgspec
import pytest

from holdfast.cli.run.approval import WANTS
from holdfast.tools.ask import NO_USER
from tests.cli import Place, terminal
from tests.cli.door import RUN, Door
from tests.fakes.gateway import ROOT, GatewayProcess

pytestmark = pytest.mark.anyio

LINE, NUMBERED = "your answer ? ", "your answer, or a number ? "


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.environ |= {"HOLDFAST_MODEL": "openai/fake", "PYTHONPATH": str(ROOT)}
    return place


def _ask(question: str, *options: str) -> str:
    asked = {"question": question, "options": options}
    return f"tool:ask {msgspec.json.encode(asked).decode()}"


@pytest.mark.usefixtures("it")
async def test_a_question_is_answered_by_a_number_or_in_words_and_never_by_enter(
    place: Place,
) -> None:
    async with terminal(place, "run", _ask("Which colour?", "red", "blue")) as screen:
        said = await screen.read_until(NUMBERED)
        assert "? the run asks:\r\n  Which colour?\r\n    1  red\r\n    2  blue\r\n" in said
        await screen.type("\n")
        assert "type an answer" in await screen.read_until(NUMBERED)
        await screen.type("2\n")
        said = await screen.read_until("the tool said: blue")
        assert "elsewhere" not in said and "interruption" not in said
        assert await screen.process.wait() == 0
    async with terminal(place, "run", _ask("Which colour?", "red")) as screen:
        await screen.read_until(NUMBERED)
        await screen.type("3 parts of green\n")
        await screen.read_until("the tool said: 3 parts of green")


@pytest.mark.usefixtures("it")
async def test_in_a_conversation_the_next_line_is_the_answer_and_the_one_after_it_is_not(
    place: Place,
) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type(_ask("Which colour?") + "\n")
        await screen.read_until(LINE)
        await screen.type("green\n")
        await screen.read_until("the tool said: green\r\n› ")
        await screen.type("say:on\n")
        await screen.read_until("on\r\n› ")


async def test_no_question_is_asked_through_a_pipe(place: Place, it: GatewayProcess) -> None:
    done = await place.holdfast("run", _ask("Which colour?"))
    assert done.code == 0
    assert NO_USER in done.out


@pytest.mark.promise("HALT-09")
async def test_words_to_a_question_that_was_answered_elsewhere_stay_where_they_are_typed(
    place: Place, it: GatewayProcess
) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type(_ask("Which colour?") + "\n")
        await screen.read_until(LINE)
        await screen.type("say:gre")
        await screen.read_until("say:gre")
        (run,) = (await it.get("/v1/runs"))[1]["data"]
        await it.post(f"/v1/runs/{run['run_id']}/steer", {"input": "red"})
        said = await screen.read_until("› say:gre")
        assert "the question was answered elsewhere" in said
        assert "the tool said: red" in said
        await screen.type("en\n")
        await screen.read_until("green\r\n› ")


@pytest.mark.promise("HALT-09")
async def test_an_answer_that_comes_too_late_is_the_next_line(place: Place, front: Door) -> None:
    asked = {"call_id": "call_1", "question": "Which colour?", "options": []}
    front.question = asked
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("work\n")
        front.say("question.asked", **asked)
        await screen.read_until(LINE)
        await screen.type("green\n")
        await screen.read_until("too late")
        assert front.steered == [{"input": "green", "call_id": "call_1"}]
        front.status = "completed"
        front.say("run.completed", output="so be it")
        await screen.read_until("so be it")
        await screen.read_until("› green")
        await screen.read_until("so be it")  # of the next run, whose events are the same here
        assert [said["input"] for said in front.submitted] == ["work", "green"]


async def test_a_question_whose_run_ends_is_withdrawn(place: Place, front: Door) -> None:
    asked = {"call_id": "call_1", "question": "Which colour?", "options": ["red"]}
    front.question = asked
    async with terminal(place, "run", "work") as screen:
        front.say("question.asked", **asked)
        await screen.read_until(NUMBERED)
        front.say("run.failed", error="it broke", code="internal_error")
        said = await screen.read_until("it broke")
        assert "the question was withdrawn: the run is over" in said
        assert await screen.process.wait() == 1


async def test_a_question_that_was_answered_long_ago_is_not_put_again(
    place: Place, front: Door
) -> None:
    asked = {"call_id": "call_1", "question": "Which colour?", "options": []}
    front.say("question.asked", **asked)
    front.say("question.answered", call_id="call_1")
    front.say("run.completed", output="so be it")
    async with terminal(place, "run", "work") as screen:
        assert LINE not in await screen.read_until("so be it")
        assert await screen.process.wait() == 0


@pytest.mark.usefixtures("it")
async def test_a_question_of_a_child_run_is_asked_at_the_terminal(
    place: Place, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    risky = f'tool:risky {{"path": "{effects}", "tag": "x"}}'
    task = msgspec.json.encode({"task": risky}).decode()
    deeper = msgspec.json.encode({"task": f"tool:delegate_task {task}"}).decode()
    async with terminal(place, "run", f"tool:delegate_task {deeper}") as screen:
        said = await screen.read_until("[d]eny ? ")
        assert f"{WANTS}\r\n    bump x" in said
        await screen.type("once\n")
        await screen.read_until("the tool said: bumped x")
        assert await screen.process.wait() == 0
    assert effects.read_text().startswith("x ")


@pytest.mark.promise("LATE-06", "LATE-07")
@pytest.mark.usefixtures("it")
async def test_the_end_of_a_task_in_the_background_comes_to_the_open_terminal(
    place: Place,
) -> None:
    task = {"task": "say:a thought", "background": True, "name": "thinking"}
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type(f"tool:delegate_task {msgspec.json.encode(task).decode()}\n")
        said = await screen.read_until("(thinking): completed")
        said += await screen.read_until("a thought")
        assert "the tool said: {" in said and '"status":"running"' in said


async def test_a_question_that_cannot_be_answered_here_says_how(
    place: Place, front: Door, tmp_path: Path
) -> None:
    asked = {"call_id": "call_1", "question": "Which\x1b[2J colour?", "options": ["red"]}
    front.say("question.asked", **asked)
    front.say("run.completed", output="so be it")
    done = await place.holdfast("run", "work")
    assert "? the run asks:\n  Which\\u{1b}[2J colour?\n    1  red\n" in done.err
    assert f"to answer it: holdfast runs {RUN}" in done.err
