"""An answer becomes lines of a terminal: the same ones, in whatever pieces it comes."""

import re
import unicodedata
from textwrap import dedent

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wcwidth import wcswidth, wcwidth

from holdfast.cli.text.markdown import MarkdownStream

LOOK = re.compile(r"\x1b\[[0-9;]*m")
BOLD, DIM, ITALIC, UNDERLINED, CODE, END = (
    f"\x1b[{code}m" for code in ("1", "2", "3", "4", "35", "0")
)

PIECES = st.sampled_from(
    ["*", "**", "***", "_", "__", "~~", "~", "`", "``", "```", "```py\n", "\n```\n", "~~~\n", "> ",
     "\n> ", "\n>> ", "\n", "\n\n", " ", "    ", "- ", "\n- ", "\n  - ", "\n1. ", "\n10) ", "- [x] ",
     "# ", "\n## ", " ##", "[", "]", "(", ")", "](", "![", "|", "\\|", "\n|---|---|\n", "| a | b |",
     "\n--- | :-:\n", "\n---\n", "\\", "<", "<b>", "https://example.org/a_b", "http", "https://",
     "[x](https://example.org/)", '[y](src/a.py "t")', "word", "Zoë", "😀", "漢字", "。", "（", "नि",
     "🇩🇪", "👍🏽", "❤\ufe0f", "e\u0301", "\u0301", "\u200d", "\u202e", "\x00", "\x1b[31m", "\x9b1m",
     "\ud800", "\t", "\r\n", "\n    code", "a" * 30, "x" * 170, "| " + "y " * 90]
)  # fmt: skip
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=40).map("".join)
WIDTHS = st.sampled_from([2, 3, 8, 10, 13, 20, 40, 80])
explored = settings(max_examples=150, deadline=None, derandomize=True)


def lines(text: str, width: int = 40, *, colour: bool = False) -> list[str]:
    stream = MarkdownStream(width, colour)
    return stream.feed(text) + stream.close()


def shown(text: str, width: int = 40) -> str:
    """What is seen without colour, between the line ends of the test."""
    return "\n".join(["", *lines(dedent(text).strip("\n"), width), ""])


def seen(line: str) -> str:
    return LOOK.sub("", line)


def cut(text: str, cuts: list[int]) -> list[str]:
    at = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[begin:end] for begin, end in zip(at, at[1:], strict=False)]


@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=30), WIDTHS, st.booleans())
@example("**" + "a " * 1100 + "**", [2100, 2150], 40, True)
@example("`" + "a " * 1100 + "` b", [2000, 2010], 40, True)
@example("__init__", [4, 7], 40, False)
@explored
def test_the_lines_do_not_hang_on_the_pieces(
    text: str, cuts: list[int], width: int, colour: bool
) -> None:
    stream = MarkdownStream(width, colour)
    got: list[str] = []
    for piece in cut(text, cuts):
        got += stream.feed(piece)
        stream.pending()
    assert got + stream.close() == lines(text, width, colour=colour)


@given(TEXTS, WIDTHS, st.booleans())
@explored
def test_no_line_is_too_wide_or_steers_the_terminal_or_leaks_its_look(
    text: str, width: int, colour: bool
) -> None:
    stream = MarkdownStream(width, colour)
    final = stream.feed(text)
    for line in [*final, *stream.pending(), *stream.close()]:
        bare = seen(line)
        assert not [c for c in bare if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
        assert wcswidth(bare) <= width
        assert sum(max(wcwidth(char), 0) for char in bare) <= width
        looks = LOOK.findall(line)
        assert colour or not looks
        assert set(looks[1::2]) <= {END} and END not in looks[::2] and len(looks) % 2 == 0


@given(st.lists(PIECES, max_size=40), st.sampled_from([20, 40, 80]), st.booleans())
@explored
def test_no_word_is_lost(pieces: list[str], width: int, colour: bool) -> None:
    words = [f"q{number}w" for number in range(len(pieces))]
    text = "".join(f"{piece}{word}" for piece, word in zip(pieces, words, strict=True))
    said = "".join(seen(line) for line in lines(text, width, colour=colour))
    squeezed = "".join(char for char in said if char.isalnum())
    assert [word for word in words if word not in squeezed] == []


@given(st.text("ab c\n", max_size=600), WIDTHS)
@explored
def test_pending_lines_are_those_that_would_follow(text: str, width: int) -> None:
    stream = MarkdownStream(width, colour=False)
    stream.feed(text)
    assert stream.pending() == stream.pending() == stream.close()


def test_headings_paragraphs_and_rules() -> None:
    assert shown("""
        # The title #
        ## A part
        Words that go on until the line is full, and then some.
        A line of its own.


        ***
        #hashtag
        """) == dedent("""
        # The title
        ## A part
        Words that go on until the line is full,
        and then some.
        A line of its own.

        ────────────────────────────────────────
        #hashtag
        """)


def test_lists_hang_on_their_marks() -> None:
    assert shown("""
        - one item with so many words that they wrap
          - nested, and also with words enough to wrap
        * [ ] to do
        * [x] done, which is told in many words
        1. first
           goes on
            - deep

           a paragraph of the first
        10. tenth
        back
        """) == dedent("""
        • one item with so many words that they
          wrap
          • nested, and also with words enough
            to wrap
        [ ] to do
        [x] done, which is told in many words
        1. first
           goes on
           • deep

           a paragraph of the first
        10. tenth
            back
        """)


def test_quotes_have_a_bar_and_may_hold_anything() -> None:
    assert shown("""
        > quoted words that are long enough to wrap
        > > nested
        >
        > - item
        > ```sh
        > ls
        > ```
        not quoted
        """) == dedent("""
        │ quoted words that are long enough to
        │ wrap
        │ │ nested
        │
        │ • item
        │   sh:
        │   ls
        not quoted
        """)


def test_code_is_kept_to_the_last_character() -> None:
    assert shown("""
        ````markdown
        ```
        **not** [a](b) | c

            deep
        ```
        ````
        ~~~
        this line is longer than the forty columns, and goes on
        """) == dedent("""
          markdown:
          ```
          **not** [a](b) | c

              deep
          ```
          this line is longer than the forty col
        ↳ umns, and goes on
        """)


def test_code_in_a_list_stands_below_its_item() -> None:
    assert shown("""
        1. Run it:
           ```sh
           make
             all
           ```
        2. ```
           x
           ```
        """) == dedent("""
        1. Run it:
             sh:
             make
               all
        2.
             x
        """)


def test_indented_lines_are_code_unless_they_go_on_with_a_paragraph() -> None:
    assert shown("words\n    go on\n\n    *code*\n    a | b", 40) == dedent("""
        words
        go on

          *code*
          a | b
        """)


def test_tables_fit_the_width() -> None:
    table = """
        | Name | What it does | n |
        |:-----|:------------:|--:|
        | `a\\|b` | one **bold** word | 1 |
        | longer | so many words that the cell must wrap | 22 |
        """
    assert shown(table, 80) == dedent("""
        Name   │             What it does              │  n
        ───────┼───────────────────────────────────────┼───
        `a|b`  │             one bold word             │  1
        longer │ so many words that the cell must wrap │ 22
        """)
    assert shown(table, 28) == dedent("""
        Name   │  What it does  │  n
        ───────┼────────────────┼───
        `a|b`  │ one bold word  │  1
        ───────┼────────────────┼───
        longer │ so many words  │ 22
               │ that the cell  │
               │   must wrap    │
        """)


def test_a_table_that_is_too_narrow_becomes_records() -> None:
    assert shown(
        """
        Name | Meaning | Example
        --- | --- | ---
        alphabet | characters | abcdefghij
        numbers | digits<br>only | 0123456789 | more
        """,
        20,
    ) == dedent("""
        Name: alphabet
        Meaning: characters
        Example: abcdefghij

        Name: numbers
        Meaning: digits
        only
        Example: 0123456789
        more
        """)


def test_a_line_with_a_bar_alone_is_no_table() -> None:
    assert shown("a | b\nc | d\n| x |\n\nls | wc") == "\na | b\nc | d\n| x |\n\nls | wc\n"


def test_wide_characters_wrap_without_blanks_and_no_line_begins_with_a_full_stop() -> None:
    assert shown("**重要：**这是一个很长的段落，没有空格。对吗", 20) == dedent("""
        重要：这是一个很长的
        段落，没有空格。对吗
        """)
    assert shown("这是一个很长的段落落。是", 20) == "\n这是一个很长的段落\n落。是\n"


@pytest.mark.parametrize(
    ("text", "painted"),
    [
        ("a **b** c", f"a {BOLD}b{END} c"),
        ("a *b* _c_", f"a {ITALIC}b{END} {ITALIC}c{END}"),
        ("***b***", f"\x1b[1;3mb{END}"),
        ("**a *b* c**", f"{BOLD}a {END}\x1b[1;3mb{END}{BOLD} c{END}"),
        ("**重要：**内容", f"{BOLD}重要：{END}内容"),
        ("~~gone~~", f"~~{DIM}gone{END}~~"),
        ("`a*b*` ``c`d``", f"{CODE}a*b*{END} {CODE}c`d{END}"),
        ("[a](http://b.c/)", f"{UNDERLINED}a{END}{DIM} (http://b.c/){END}"),
        ('[a](b "c")', f'{UNDERLINED}a{END}{DIM} (b "c"){END}'),
        ("[b.c](https://b.c/)", f"{UNDERLINED}b.c{END}"),
        ("_https://a.b/_c_d_", f"{ITALIC}https://a.b/_c_d{END}"),
        ("# a *b*", f"\x1b[1;4ma {END}\x1b[1;3;4mb{END}"),
        ("> a", f"{DIM}│{END} a"),
        ("```sh\nls", f"  {DIM}sh{END}  ls"),
    ],
)
def test_marks_become_looks(text: str, painted: str) -> None:
    assert "".join(lines(text, 80, colour=True)) == painted


@pytest.mark.parametrize(
    "text",
    [
        "snake_case_words and __init__ and _x",
        "2 * 3 * 4, 2*3*4, 2**3**4, *args, **kwargs",
        "an unclosed **mark and ~5 ~~",
        "an open ` tick and [a label] (no) [x]() [1]",
        "<b>html</b> &amp; https://a.b/c_d_e*",
        "C:\\Users\\me",
    ],
)
def test_text_that_is_no_mark_is_unchanged(text: str) -> None:
    assert lines(text, 80, colour=True) == [text]


def test_an_escaped_mark_is_text() -> None:
    assert lines(r"\*a\* \`b\` \[c](d)", 80, colour=True) == ["*a* `b` [c](d)"]


def test_a_style_continues_after_a_line_end_and_is_set_on_each_row() -> None:
    text = "**bold words\nthat go on** and end"
    assert lines(text, 40, colour=True) == [
        f"{BOLD}bold words{END}",
        f"{BOLD}that go on{END} and end",
    ]


def test_steering_characters_are_shown_or_dropped() -> None:
    text = "a\x1b[31mb\x07\r\n```\n\x1b]0;title\x07\tx\u202e\n```\n| \x9b | \ud800 |\n|--|--|"
    assert lines(text) == ["a␛[31mb␇", "  ␛]0;title␇    x", "� │ �", "──┼──"]


def test_a_line_of_code_is_final_at_its_end() -> None:
    stream = MarkdownStream(40, colour=False)
    assert stream.feed("```py\nx = 1\ny") == ["  py:", "  x = 1"]
    assert stream.pending() == ["  y"]
    assert stream.feed(" = 2\n``") == ["  y = 2"]
    assert stream.feed("`\nend\n") == ["end"]
    assert stream.close() == []


def test_a_paragraph_is_final_row_by_row_up_to_what_is_open() -> None:
    stream = MarkdownStream(20, colour=True)
    rows = ["words that go on so", "on until all is said"] * 6
    assert stream.feed(" ".join(rows)) == rows[:-1]
    assert stream.feed(" and **bold ones ") == rows[-1:]
    assert stream.feed("that go on and on " * 10) == []
    assert BOLD in "".join(stream.pending())  # it will be, if it is closed
    assert BOLD in "".join(stream.feed("at last** end\n"))


def test_a_mark_without_a_partner_does_not_hold_back_the_rest_for_ever() -> None:
    stream = MarkdownStream(40, colour=True)
    stream.feed("an **open mark and ")
    assert "an **open mark" in "".join(stream.feed("words " * 500))


def test_a_table_is_held_until_it_ends_and_shown_meanwhile() -> None:
    stream = MarkdownStream(40, colour=False)
    assert stream.feed("Words:\n| a | b |\n") == ["Words:"]
    assert stream.feed("|---|---|\n| 1 | 2 |\n| 3") == []
    assert stream.pending() == ["a │ b", "──┼──", "1 │ 2", "3 │"]
    assert stream.feed("33 | 4 |\n\nend") == ["a   │ b", "────┼──", "1   │ 2", "333 │ 4"]
    assert stream.close() == ["", "end"]


def test_a_long_answer_in_small_pieces_is_read_once() -> None:
    """Were a paragraph read again with every piece, this would never end."""
    text = "an **open mark, a `tick and [a label in a very long line; " * 5_000
    stream = MarkdownStream(80, colour=True)
    said = 0
    for at in range(0, len(text), 20):
        said += sum(len(seen(line)) for line in stream.feed(text[at : at + 20]))
    assert said > len(text) * 0.9
