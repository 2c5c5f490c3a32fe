"""The input line: what Enter does, what a question does to words, and what comes back."""

from collections.abc import Iterator

import anyio
import pytest
from prompt_toolkit.completion import DummyCompleter
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from holdfast.api.schema.approvals import ApprovalObject
from holdfast.api.schema.events import Event
from holdfast.cli.client.frames import AskedQuestion
from holdfast.cli.tui.actions import Action, AnswerQuestion, Halt, Quit, SendMessage
from holdfast.cli.tui.input.answers import SEEN_S
from holdfast.cli.tui.input.paste import Pastes
from holdfast.cli.tui.style import Style
from holdfast.cli.tui.ui import Ui
from holdfast.core.inbox import Mode
from holdfast.core.text.escape import steerless

pytestmark = pytest.mark.anyio

APPROVAL = ApprovalObject("apr_1", "run_1", "c", "rm x", "why", ("once", "session", "deny"), 4e9)
QUESTION = AskedQuestion("q", "which one?", ("red", "blue"), "run_1")


class Desk:
    """An input line that nobody draws, and what was done at it."""

    def __init__(self, ui: Ui, done: list[Action]) -> None:
        self.ui = ui
        self.done = done

    def type(self, text: str) -> None:
        self.ui.buffer.insert_text(text)

    @property
    def said(self) -> list[str]:
        return [action.text for action in self.done if isinstance(action, SendMessage)]


@pytest.fixture
def desk() -> Iterator[Desk]:
    done: list[Action] = []
    with create_pipe_input() as typed:
        ui = Ui(
            Style(False),
            done.append,
            DummyCompleter(),
            InMemoryHistory(),
            Pastes(),
            mode=Mode.INTERRUPT,
            typed=typed,
            output=DummyOutput(),
        )
        yield Desk(ui, done)


async def test_enter_sends_what_is_typed_and_nothing_else(desk: Desk) -> None:
    desk.ui.accept()
    desk.type("  \n ")
    desk.ui.accept()
    assert desk.done == []
    desk.ui.buffer.reset()
    desk.type("words")
    desk.ui.accept()
    assert desk.said == ["words"]
    assert [said.text for said in desk.ui.sending] == ["words"]


async def test_bytes_that_are_no_text_do_not_end_the_conversation(desk: Desk) -> None:
    desk.type("caf\udce9")
    desk.ui.accept()
    assert desk.said == ["caf�"]
    desk.said[0].encode()


@pytest.mark.promise("HALT-09")
@pytest.mark.parametrize("asked", [APPROVAL, QUESTION])
async def test_text_typed_before_a_question_answers_nothing_and_returns(
    desk: Desk, asked: ApprovalObject | AskedQuestion
) -> None:
    desk.type("once upon a ti")
    desk.ui.ask(asked)
    assert desk.ui.buffer.text == ""
    desk.ui.ask(None)
    assert desk.ui.buffer.text == "once upon a ti"
    assert desk.done == []


async def test_a_question_that_has_only_just_appeared_is_not_answered(desk: Desk) -> None:
    desk.ui.ask(APPROVAL)
    desk.type("o")
    desk.ui.accept()
    assert desk.done == []
    await anyio.sleep(SEEN_S)  # sleep: that it has been read is a matter of time
    desk.ui.accept()
    (given,) = desk.done
    assert isinstance(given, AnswerQuestion)
    assert (given.asked, given.text) == (APPROVAL, "once")


@pytest.mark.promise("HALT-09")
@pytest.mark.parametrize("asked", [APPROVAL, QUESTION])
async def test_words_typed_to_a_question_that_closes_stay_in_the_line(
    desk: Desk, asked: ApprovalObject | AskedQuestion
) -> None:
    desk.type("draft")
    desk.ui.ask(asked)
    desk.type("rather the green one")
    desk.ui.ask(None)
    assert desk.ui.buffer.text == "rather the green one\ndraft"


async def test_words_that_come_back_while_something_is_asked_answer_nothing(desk: Desk) -> None:
    desk.ui.ask(APPROVAL)
    desk.ui.give_back("refused words")
    assert desk.ui.buffer.text == ""
    desk.ui.ask(None)
    assert desk.ui.buffer.text == "refused words"


@pytest.mark.promise("HALT-02")
async def test_a_halt_names_the_run_that_was_on_the_screen(desk: Desk) -> None:
    desk.ui.view.hear(Event("run.queued", 1, "run_1", input="a"))
    desk.ui.view.hear(Event("run.started", 2, "run_1"))
    desk.ui.halt()
    (halt,) = desk.done
    assert isinstance(halt, Halt)
    assert (halt.run_id, halt.sent) == ("run_1", None)


@pytest.mark.promise("HALT-02")
async def test_a_halt_of_words_on_their_way_is_for_these_words(desk: Desk) -> None:
    for text in ("first", "second"):
        desk.type(text)
        desk.ui.accept()
        if text == "first":
            desk.ui.halt()
    halts = [action for action in desk.done if isinstance(action, Halt)]
    assert [halt.sent.text for halt in halts if halt.sent] == ["first"]


async def test_nothing_at_work_is_nothing_to_halt_and_twice_leaves(desk: Desk) -> None:
    desk.ui.halt()
    assert desk.done == []
    desk.ui.interrupt()
    assert desk.done == []
    desk.ui.interrupt()
    assert [type(action) for action in desk.done] == [Quit]


async def test_processes_that_would_end_are_named_before_leaving(desk: Desk) -> None:
    desk.ui.holding = lambda: "a server ends with us"
    desk.ui.depart()
    assert desk.done == []
    desk.ui.depart()
    assert [type(action) for action in desk.done] == [Quit]


@pytest.mark.parametrize(
    "hostile", ["\x1b]0;title\x07", "\x1b[2J", "\x9b2J", "a\rb", "\x1bc", "x\u202ey", "\x00"]
)
def test_only_our_own_colours_reach_the_terminal(hostile: str) -> None:
    shown = steerless(f"{Style(True).bad('red')} {hostile} words")
    assert shown.startswith("\x1b[31mred\x1b[0m ")
    rest = shown.removeprefix("\x1b[31mred\x1b[0m ")
    assert not {"\x1b", "\x07", "\r", "\x9b", "\u202e", "\x00"} & set(rest)
