"""Code is coloured line by line, and nothing of it is lost."""

import time

import pytest

from holdfast.cli.text.markdown import MarkdownStream
from holdfast.cli.text.syntax import (
    ADDED,
    COMMENT,
    HUNK,
    KEYWORD,
    NUMBER,
    REMOVED,
    STRING,
    coloured,
)
from holdfast.cli.text.wrap import PLAIN, TextStyle


def styles(info: str, line: str) -> dict[str, TextStyle]:
    return {span.text: span.style for span in coloured(info, line) if span.style != PLAIN}


def test_words_of_a_language_have_their_colours() -> None:
    found = styles("python", "if x == 12: return 'a # b'  # why")
    assert found == {
        "if": KEYWORD,
        "12": NUMBER,
        "return": KEYWORD,
        "'a # b'": STRING,
        "# why": COMMENT,
    }
    assert styles("ts", 'const a = "x" // y') == {"const": KEYWORD, '"x"': STRING, "// y": COMMENT}
    assert styles("sql", "SELECT 1") == {"SELECT": KEYWORD, "1": NUMBER}


def test_lines_of_a_diff_have_their_colours() -> None:
    for line, style in (("+a", ADDED), ("-a", REMOVED), ("@@ -1 +1 @@", HUNK), (" a", PLAIN)):
        assert [span.style for span in coloured("diff", line)] == [style]


@pytest.mark.parametrize("info", ["", "python", "diff", "brainfuck", "python title=x", "{.py}"])
@pytest.mark.parametrize("line", ["", "x = 'open", "# é 薔薇", "\\" * 99, '"' * 99, "a" * 5000])
def test_no_character_is_lost(info: str, line: str) -> None:
    assert "".join(span.text for span in coloured(info, line)) == line


def test_a_line_made_to_be_slow_is_not() -> None:
    began = time.process_time()
    for line in ("'\\" * 1000, '"' * 1999, "/*" * 1000, "1." * 1000):
        coloured("js", line)
    assert time.process_time() - began < 1.0


def test_code_in_an_answer_is_coloured_where_colours_are_wanted() -> None:
    text = "```python\nreturn 1\n```\n"
    shown = "\n".join([*(it := MarkdownStream(40, True)).feed(text), *it.close()])
    assert "\x1b[35mreturn\x1b[0m" in shown
    plain = "\n".join([*(it := MarkdownStream(40, False)).feed(text), *it.close()])
    assert "\x1b" not in plain and "  return 1" in plain
