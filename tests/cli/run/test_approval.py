"""A request as text: whole, visible, and no choice hidden behind another."""

import pytest

from holdfast.api.schema.approvals import ApprovalObject
from holdfast.cli.run import approval
from holdfast.cli.run.approval import WANTS
from holdfast.core.text.escape import reveal


def asked(
    command: str = "ls", description: str = "", choices: tuple[str, ...] = ()
) -> ApprovalObject:
    return ApprovalObject("apr_1", "run_1", "call_1", command, description, choices, 0.0)


def test_a_command_is_shown_to_its_last_character() -> None:
    long = "x" * 20_000 + " end"
    assert approval.body(asked(long)).endswith(long)


def test_nothing_in_a_request_steers_the_terminal_or_passes_for_our_own_line() -> None:
    shown = approval.body(asked("a\r\x1b[2Kb\u202ec\napr_1  [o]nce ? ", "why\n\x9b"))
    assert shown.split("\n") == [
        "  why",
        "  \\u{9b}",
        f"  {WANTS}",
        "    a\\u{d}\\u{1b}[2Kb\\u{202e}c",
        "    apr_1  [o]nce ? ",
    ]


def test_text_escaped_by_the_server_is_unchanged() -> None:
    assert "    echo \\u{202e} \\u{5c}u{41}" in approval.body(asked("echo \\u{202e} \\u{5c}u{41}"))


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (-1, "has expired"),
        (0, "has expired"),
        (0.2, "expires in 1 s"),
        (42.4, "expires in 42 s"),
        (540, "expires in 9 min"),
        (599.9, "expires in 10 min"),
        (3 * 3600, "expires in 3 h"),
        (7 * 86_400, "expires in 7 d"),
    ],
)
def test_the_time_left_is_shown_in_one_unit(left: float, said: str) -> None:
    assert approval.in_words(left) == said


def test_every_choice_is_spelt_out_and_answered_by_its_name_or_its_letter() -> None:
    choices = ("once", "session", "always", "deny")
    assert approval.prompt(asked(choices=choices)) == (
        "apr_1 ls  [o]nce  [s]ession  [a]lways  [d]eny ? "
    )
    typed = approval.words(choices)
    assert typed["o"] == typed["once"] == "once"
    assert typed["a"] == "always"
    assert not {"", "y", "on"} & typed.keys()


def test_a_letter_that_two_choices_share_stands_for_neither() -> None:
    choices = ("deny", "detach", "once")
    assert approval.prompt(asked(choices=choices)) == "apr_1 ls  [deny]  [detach]  [o]nce ? "
    assert approval.words(choices).keys() == {"deny", "detach", "o", "once"}


def test_the_line_to_answer_says_what_it_is_about_and_fits_a_terminal() -> None:
    choices = ("once", "session", "always", "deny")
    for command in ("make " + "x" * 200, "make " + "x" * 21 + "\nrm -r /", "\x1b[2J" + "\x07" * 9):
        long = ApprovalObject("apr_1a2b3c4d5e6f", "run_1", "call_1", command, "", choices, 0.0)
        line = approval.prompt(long)
        assert line.startswith(f"apr_1a2b… {reveal(command[:5])}")
        assert "…  [o]nce  [s]ession" in line
        assert len(line) < 80
        assert line.isprintable()
