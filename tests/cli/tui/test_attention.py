"""Bell, notification and title: for terminals only, and nothing in them steers one."""

import io

import pytest
from prompt_toolkit.completion import DummyCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput, Output
from prompt_toolkit.output.vt100 import Vt100_Output

from holdfast.api.schema.events import Event
from holdfast.cli.tui.attention import LONG_S, Attention, notification
from holdfast.cli.tui.input.paste import Pastes
from holdfast.cli.tui.style import Style
from holdfast.cli.tui.ui import Ui
from holdfast.core.inbox import Mode

HOSTILE = "a\x07b\x1b]0;c\x9bd\n;e\u202e"


def _terminal(term: str = "xterm") -> tuple[Output, io.StringIO]:
    written = io.StringIO()
    size = lambda: Size(rows=20, columns=80)  # noqa: E731  as the library takes it
    return Vt100_Output(written, size, term=term), written


@pytest.mark.promise("TERM-02")
@pytest.mark.parametrize("old", [False, True])
def test_nothing_in_a_notification_steers_the_terminal(old: bool) -> None:
    sent = notification(HOSTILE * 50, old=old)
    assert (sent[0], sent[-1]) == ("\x1b", "\x07")
    assert sent[1:-1].isprintable() and len(sent) < 200
    assert sent.count(";") == (3 if old else sent.count(";"))


@pytest.mark.promise("TERM-02")
def test_a_call_rings_and_notifies_unless_it_is_not_wanted() -> None:
    output, written = _terminal()
    Attention(output, calls=False).call("x")
    assert written.getvalue() == ""
    Attention(output, calls=True).call("x")
    assert written.getvalue() == "\a" + notification("x", old=False)


def test_a_terminal_that_would_print_sequences_gets_only_the_bell() -> None:
    output, written = _terminal("linux")
    it = Attention(output, calls=True)
    it.call("x")
    it.show_title("y")
    it.restore()
    assert written.getvalue() == "\a"


@pytest.mark.promise("TERM-02")
@pytest.mark.anyio
@pytest.mark.parametrize(("took_s", "calls"), [(LONG_S - 1, 0), (LONG_S, 1)])
async def test_the_end_of_a_long_run_calls_the_user(took_s: float, calls: int) -> None:
    output, written = _terminal()
    with create_pipe_input() as typed:
        ui = Ui(
            Style(False), lambda _: None, DummyCompleter(), InMemoryHistory(), Pastes(),
            mode=Mode.INTERRUPT, typed=typed, output=output,
        )  # fmt: skip
        ui.show(Event("run.started", 1, "run_1", timestamp=1000.0))
        ui.show(Event("run.completed", 2, "run_1", timestamp=1000.0 + took_s))
    assert written.getvalue().count("\x1b]9;") == calls


def test_paper_gets_nothing() -> None:
    it = Attention(DummyOutput(), calls=True)
    it.call("x")
    it.show_title("y")
    it.restore()


def test_the_title_is_set_once_and_the_earlier_one_restored() -> None:
    output, written = _terminal()
    it = Attention(output, calls=True)
    for title in ("one", "one", HOSTILE):
        it.show_title(title)
    it.restore()
    it.restore()
    sent = written.getvalue()
    assert sent.startswith("\x1b[22;2t\x1b]2;one\x07") and sent.endswith("\x1b[23;2t")
    assert (sent.count("one"), sent.count("\x1b"), sent.count("\x07")) == (1, 4, 2)
