"""What a run looks like: words to stdout, the rest to stderr, and the output is the truth."""

import io
from contextlib import redirect_stdout

import pytest

from holdfast.api.schema.events import Event
from holdfast.cli.client.frames import Frame
from holdfast.cli.run import notes
from holdfast.cli.run.approval import WANTS
from holdfast.cli.run.screen import JsonScreen, Plain, Screen


def show(screen: Screen, *events: Event) -> None:
    for event in events:
        screen.show(Frame(event, f'{{"event":"{event.event}"}}'))


def happened(event: str, **fields: object) -> Event:
    return Event(event=event, run_id="run_1", seq=1, **fields)  # type: ignore[arg-type]


def test_words_come_as_they_are_and_end_with_one_line_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(
        Plain(),
        happened("message.delta", delta="Hello "),
        happened("message.delta", delta="you"),
        happened("run.completed", output="Hello you"),
    )
    assert capsys.readouterr() == ("Hello you\n", "")


def test_an_answer_that_was_not_streamed_is_printed_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(Plain(), happened("run.completed", output="Hello"))
    assert capsys.readouterr().out == "Hello\n"


def test_an_empty_answer_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show(Plain(), happened("run.completed", output=""))
    assert capsys.readouterr() == ("", "")


def test_tools_and_their_failures_are_told_beside_the_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(
        Plain(),
        happened("message.delta", delta="Looking"),
        happened("tool.started", tool="list_files", preview="."),
        happened("tool.completed", tool="list_files", error="no such directory"),
        happened("message.delta", delta="Found"),
        happened("run.completed", output="Found"),
    )
    out, err = capsys.readouterr()
    assert out == "Looking\nFound\n"
    assert err == "→ list_files .\n✗ list_files (failed): no such directory\n"


@pytest.mark.parametrize("outcome", ["failed", "denied", "unknown"])
def test_a_call_that_did_not_work_says_how_it_ended(
    capsys: pytest.CaptureFixture[str], outcome: str
) -> None:
    show(Plain(), happened("tool.completed", tool="write_file", error=True, outcome=outcome))
    assert capsys.readouterr().err == f"✗ write_file ({outcome})\n"


VOID_THEN_GOOD = (
    happened("message.delta", turn=1, delta="Hel"),
    happened("message.void", turn=1, reason="cut"),
    happened("message.delta", turn=1, delta="Hello"),
    happened("run.completed", output="Hello"),
)


class Tty(io.StringIO):
    def isatty(self) -> bool:  # type: ignore[explicit-override]  # typing.override is 3.12
        return True


def test_on_a_terminal_void_words_are_called_void_and_what_counts_comes_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with redirect_stdout(Tty()) as terminal:
        show(Plain(), *VOID_THEN_GOOD)
    assert terminal.getvalue() == "Hel\nHello\n"
    assert notes.CONNECTION_LOST in capsys.readouterr().err


def test_anywhere_else_void_words_are_not_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(Plain(), *VOID_THEN_GOOD)
    out, err = capsys.readouterr()
    assert out == "Hello\n"
    assert notes.CONNECTION_LOST in err


@pytest.mark.parametrize(
    "ending",
    [
        happened("tool.started", tool="list_files", preview="."),
        happened("message.delta", turn=2, delta="next"),
        happened("run.failed", error="no credit"),
        happened("run.cancelled"),
    ],
)
def test_words_are_written_as_soon_as_their_turn_is_over(
    capsys: pytest.CaptureFixture[str], ending: Event
) -> None:
    screen = Plain()
    show(screen, happened("message.delta", turn=1, delta="Looking"))
    assert capsys.readouterr().out == ""
    show(screen, ending)
    assert capsys.readouterr().out == "Looking\n"


def test_on_a_terminal_words_are_written_as_they_come() -> None:
    with redirect_stdout(Tty()) as terminal:
        show(Plain(), happened("message.delta", turn=1, delta="Look"))
    assert terminal.getvalue() == "Look"


def test_arguments_of_a_call_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(Plain(), happened("tool.started", tool="read_file", preview="\x1b[2J\x9b\r"))
    assert capsys.readouterr().err == "→ read_file ␛[2J�\n"


def test_a_failure_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    show(Plain(), happened("run.failed", error="no credit", code="model_rejected"))
    show(Plain(), happened("run.failed", error={"message": "no credit"}))
    assert capsys.readouterr().err == "holdfast: the run failed: no credit\n" * 2


def test_json_lines_are_passed_on_untouched(capsys: pytest.CaptureFixture[str]) -> None:
    screen = JsonScreen()
    screen.note("not for programs")
    show(screen, happened("run.started"), happened("run.completed", output="Hello"))
    assert capsys.readouterr() == ('{"event":"run.started"}\n{"event":"run.completed"}\n', "")


def test_output_of_a_command_is_marked_and_harmless(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(
        Plain(),
        happened("tool.started", tool="bash", preview="make", call_id="a"),
        happened("tool.progress", call_id="a", delta="one\ntw"),
        happened("tool.progress", call_id="a", delta="o\x1b[3"),
        happened("tool.progress", call_id="b", delta="other"),
        happened("tool.progress", call_id="a", delta="1m\x07three\n\n"),
        happened("tool.completed", tool="bash", call_id="a"),
        happened("message.delta", turn=2, delta="Done."),
        happened("run.completed", output="Done."),
    )
    out, err = capsys.readouterr()
    assert out == "Done.\n"
    assert err == "→ bash make\n│ one\n│ two\n│ other\n│ three\n│ \n"


@pytest.mark.parametrize("sandbox", ["", "L2", "L3"])
def test_a_sandbox_that_holds_is_not_worth_a_word(
    capsys: pytest.CaptureFixture[str], sandbox: str
) -> None:
    show(Plain(), happened("run.started", sandbox=sandbox))
    assert capsys.readouterr() == ("", "")


def test_a_weak_sandbox_is_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Plain()
    for level in ("L1", "L1", "UNSANDBOXED", "UNSANDBOXED"):
        show(screen, happened("run.started", sandbox=level))
    told = [line for line in capsys.readouterr().err.splitlines() if notes.WEAK_SANDBOX in line]
    assert len(told) == 2
    assert "(L1)" in told[0]
    assert "(UNSANDBOXED)" in told[1]


def test_a_question_that_cannot_be_put_says_how_it_is_answered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = {"request_id": "apr_1", "command": "rm x", "description": "why", "expires_at": 4e9}
    show(
        Plain(),
        happened("message.delta", delta="I will"),
        happened("approval.request", **asked),
        happened("approval.expired", request_id="apr_1"),
        happened("run.resumed", reason="woken"),
    )
    out, err = capsys.readouterr()
    assert out == "I will\n"
    assert f"  why\n  {WANTS}\n    rm x\n" in err
    assert "holdfast approvals approve apr_1" in err
    assert err.endswith(f"{notes.NOT_ANSWERED}\n")


def test_long_output_shows_its_first_and_last_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "".join(f"{n}\n" for n in range(8_000))
    show(Plain(), happened("tool.progress", call_id="a", delta=text))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 41
    assert lines[19:22] == ["│ 19", "│ … 7960 lines …", "│ 7980"]
    assert lines[-1] == "│ 7999"


def test_while_a_question_is_open_the_end_of_the_output_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = Plain()
    screen.hold()
    show(screen, happened("tool.progress", call_id="b", delta="first\n"))
    for n in range(100):
        show(screen, happened("tool.progress", call_id="a", delta=f"{n:02}" + "x" * 998))
    show(screen, happened("tool.completed", tool="bash", call_id="a", error=True))
    assert capsys.readouterr() == ("", "")
    screen.go_on()
    told = capsys.readouterr().err
    assert told.startswith("│ … earlier output is left out …\n│ ")
    assert "first" not in told
    assert told.endswith("99" + "x" * 998 + "\n✗ bash (failed)\n")
    assert 64_000 < len(told) < 66_000


def test_a_call_that_was_denied_says_what_and_once_how_to_be_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    denied = happened("tool.completed", tool="bash", preview="make", error=True, outcome="denied")
    show(Plain(), denied)
    assert capsys.readouterr().err == "✗ bash make (denied)\n"
    show(Plain(answerable=False), denied, denied)
    told = capsys.readouterr().err
    assert told.startswith(f"✗ bash make (denied)\n{notes.DENIED_HERE}")
    assert told.count("holdfast approvals") == told.count('mode = "sandboxed"') == 1
    assert told.endswith("✗ bash make (denied)\n")
