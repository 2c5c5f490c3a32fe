"""Nothing that is displayed can steer a terminal, hide, or be refused by a chat platform."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.text.escape import (
    OutputCleaner,
    escape,
    for_chat,
    is_hidden,
    reveal,
    reveal_lines,
    steerless,
    visible,
)

SEQUENCES = (
    "\x1b[31m",
    "\x1b[?25l",
    "\x9b2J",
    "\x1b]0;title\x07",
    "\x1b]8;;http://x\x1b\\",
    "\x1bPq~\x1b\\",
    "\x1b(B",
    "\x1bc",
    "\x1b7",
)


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_a_sequence_is_taken_out_whole_wherever_it_is_cut(sequence: str) -> None:
    text = f"a{sequence}b\tc\n"
    for cut in range(len(text)):
        output = OutputCleaner()
        assert output.text("x", text[:cut]) + output.text("x", text[cut:]) == "ab\tc\n"


def test_a_bar_that_is_drawn_over_itself_becomes_lines() -> None:
    output = OutputCleaner()
    pieces = ("10%\r", "20%\r", "30%\r", "\nend\r\n")
    assert "".join(output.text("x", piece) for piece in pieces) == "10%\n20%\n30%\nend\n"


def test_calls_do_not_get_into_each_others_sequences() -> None:
    output = OutputCleaner()
    assert output.text("x", "a\x1b[") == "a"
    assert output.text("y", "31m") == "31m"
    assert output.text("x", "31mb") == "b"
    output.text("x", "\x1b[")
    output.end("x")
    assert output.text("x", "31m") == "31m"


def test_an_endless_sequence_is_not_held_back() -> None:
    output = OutputCleaner()
    assert "still here" in output.text("x", "\x1b]" + "x" * 5_000 + "still here")


PIECES = st.lists(st.text() | st.sampled_from([*SEQUENCES, "\x1b", "\x1b[", "\r", "\u202e"]))


@given(PIECES)
def test_no_control_gets_through(pieces: list[str]) -> None:
    output = OutputCleaner()
    shown = "".join(output.text("x", piece) for piece in pieces)
    assert not [c for c in shown if unicodedata.category(c) == "Cc" and c not in "\n\t"]
    assert not {"\u202e", "\u2028", "\u2066"} & set(shown)


@given(st.text())
def test_revealed_text_has_no_hidden_character(text: str) -> None:
    assert not any(map(is_hidden, reveal(text)))


def test_escapes_that_are_there_already_stay() -> None:
    assert reveal("\\u{202e}\u202e") == "\\u{202e}\\u{202e}"
    assert escape("\\u{202e}") == "\\u{5c}u{202e}"
    assert reveal_lines("a\u202e\nb") == ["a\\u{202e}", "b"]


def test_visible_text_has_pictures_of_its_controls() -> None:
    assert visible("a\x1b[31m\tb\r\n\u202e\x9b\ud800") == "a␛[31m\tb\n\ufffd\ufffd"


def test_only_our_colours_reach_the_screen() -> None:
    assert steerless("\x1b[1;31ma\x1b[0m \x1b[2J\u202e\x07") == "\x1b[1;31ma\x1b[0m �[2J��"


def test_a_chat_gets_what_it_accepts() -> None:
    assert for_chat("a\r\nb\rc\x00\u202e\t\ud800") == "a\nb\nc\t\N{REPLACEMENT CHARACTER}"
