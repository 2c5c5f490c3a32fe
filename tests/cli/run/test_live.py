"""What commands say can pass for nothing else, however wide a terminal is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.run import live
from holdfast.cli.run.live import Margin
from holdfast.core.text.width import fold


def test_a_long_line_bears_the_mark_in_every_row_it_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_width", lambda: 8)
    margin = Margin()
    assert margin.write("a", "x" * 5) == "│ xxxxx"
    assert margin.write("a", " " * 3 + "? the run asks\n") == "   \n│ ? the ru\n│ n asks\n"
    assert margin.write("a", "\t漢漢漢漢漢") == "│ \t\n│ 漢漢漢漢\n│ 漢"
    assert margin.end() == "\n"
    assert live.marked("ready\x1b[2J\n› not us, really\n") == "\n│ ready\n│ › not us\n│ , really"


@given(st.text(), st.integers(2, 12), st.integers(0, 12))
def test_rows_are_the_text_and_none_is_too_long(text: str, width: int, column: int) -> None:
    text = text.replace("\t", " ")
    rows, _ = fold(text, width, min(column, width))
    assert "".join(rows) == text.replace("\n", "")
    assert all(len(row) <= width for row in rows)
    assert fold(text, 0, 0)[0] == text.split("\n")
