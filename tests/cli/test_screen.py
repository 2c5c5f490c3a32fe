"""What a run looks like: words to stdout, the rest to stderr, and the output is the truth."""

import pytest

from holdfast.cli.screen import JsonLines, Plain, Screen
from holdfast.cli.wire import Event, Frame


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
    assert err == "→ list_files .\n✗ list_files: no such directory\n"


def test_void_words_are_called_void_and_what_counts_comes_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(
        Plain(),
        happened("message.delta", delta="Hel"),
        happened("message.void", reason="cut"),
        happened("message.delta", delta="Hello"),
        happened("run.completed", output="Hello"),
    )
    out, err = capsys.readouterr()
    assert out == "Hel\nHello\n"
    assert "does not count" in err


def test_what_a_tool_is_called_with_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(Plain(), happened("tool.started", tool="read_file", preview="\x1b[2J\x9b\r"))
    assert capsys.readouterr().err == "→ read_file ␛[2J�\n"


def test_a_failure_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    show(Plain(), happened("run.failed", error="no credit", code="model_rejected"))
    show(Plain(), happened("run.failed", error={"message": "no credit"}))
    assert capsys.readouterr().err == "holdfast: the run failed: no credit\n" * 2


def test_json_lines_are_passed_on_untouched(capsys: pytest.CaptureFixture[str]) -> None:
    screen = JsonLines()
    screen.note("not for programs")
    show(screen, happened("run.started"), happened("run.completed", output="Hello"))
    assert capsys.readouterr() == ('{"event":"run.started"}\n{"event":"run.completed"}\n', "")
