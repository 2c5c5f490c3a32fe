"""Widths: never less than a terminal may take; a cut text shows that it was cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from holdfast.core.text.width import clip, columns, fold


@pytest.mark.parametrize(
    ("text", "wide"),
    [("abc", 3), ("漢字", 4), ("e\u0301", 1), ("\u0301", 1), ("❤\ufe0f", 2), ("नि", 2)],
)
def test_a_text_has_its_columns(text: str, wide: int) -> None:
    assert columns(text) == wide


@given(st.text())
def test_no_text_is_wider_than_counted(text: str) -> None:
    assert wcswidth(text) <= columns(text)


def test_a_joiner_takes_no_column() -> None:
    assert columns("a\u200db") == 2


def test_a_long_text_is_cut_and_says_so() -> None:
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdefg", 6) == "abcde…"


@pytest.mark.parametrize(
    ("text", "width", "column", "rows", "last"),
    [
        ("abcdef", 4, 0, ["abcd", "ef"], 2),
        ("abc\nde", 4, 2, ["ab", "c", "de"], 2),
        ("漢字漢", 4, 0, ["漢字", "漢"], 2),
        ("a\tb", 9, 0, ["a\t", "b"], 1),
        ("abcdef", 0, 0, ["abcdef"], 0),
    ],
)
def test_rows_fit(text: str, width: int, column: int, rows: list[str], last: int) -> None:
    assert fold(text, width, column) == (rows, last)
