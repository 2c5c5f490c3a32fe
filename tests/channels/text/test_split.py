"""Splitting: every part fits and is markdown by itself, and together they are the whole."""

import re
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.channels.text.render import telegram, utf16_length
from holdfast.channels.text.split import split
from tests.channels.text.test_render import TEXTS

LIMITS = st.integers(24, 120)


def length(markdown: str) -> int:
    part = telegram(markdown, named_hosts=())
    return utf16_length(part.text) if part else 0


def cut(text: str, limit: int) -> list[str]:
    return list(split(text, length, limit))


@given(TEXTS, LIMITS)
@settings(max_examples=400, deadline=None)
@example("**" + "a" * 40 + "**", 24)
@example("```py\n" + "x = 1\n" * 20 + "```", 24)
@example("[" + "a" * 40 + "](https://example.org/)", 24)
@example("|a|b|\n|-|-|\n" + "|ccc|dddddd|\n" * 20, 40)
@example(">" * 200 + " a", 24)
@example("> ```\n> " + "a" * 100, 24)
@example("`" * 100 + "\n" + "a" * 100, 24)
@example("```py\n\x80", 24)
@example("```py\n\u200b", 24)
@example("``` " + "a" * 100 + "\n" + "b" * 100, 24)
def test_every_part_fits_and_nothing_is_lost(text: str, limit: int) -> None:
    parts = cut(text, limit)
    assert all(0 < length(part) <= limit for part in parts)
    lost = Counter(filter(str.isalnum, text)) - Counter("".join(parts))
    assert not lost


@given(st.text(st.characters(exclude_characters="`~|>\r"), max_size=300), LIMITS)
@settings(max_examples=300, deadline=None)
def test_without_reopened_blocks_the_parts_are_the_text(text: str, limit: int) -> None:
    visible = "".join(cut(text, limit)).split()
    left_out = Counter("".join(text.split())) - Counter("".join(visible))
    assert not [ch for ch in left_out if ch.isalnum()]
    at = 0
    for ch in "".join(visible):  # in order
        at = text.index(ch, at) + 1


def test_a_text_that_fits_is_unchanged() -> None:
    text = "  a\r\n\r\n**b**  \n"
    assert cut(text, 24) == [text]
    assert cut("[docs](https://example.org/" + "x" * 10 + ")", 50) != []


@pytest.mark.parametrize("blank", ["", " \n", "```\n\n```", "\n" * 500, "\u200b" * 100])
def test_nothing_to_see_has_no_parts(blank: str) -> None:
    assert cut(blank, 24) == []


def test_parts_end_where_it_hurts_least() -> None:
    text = "First paragraph here.\n\nSecond one is a bit longer.\n\nThird."
    assert cut(text, 52) == [
        "First paragraph here.\n\nSecond one is a bit longer.",
        "Third.",
    ]
    assert cut("one two three four", 9) == ["one two", "three", "four"]
    assert cut("one two\nthree four", 14) == ["one two", "three four"]
    assert cut("abcdefghij", 4) == ["abcd", "efgh", "ij"]


def test_length_is_the_platforms() -> None:
    assert "".join(cut("😀" * 5, 4)) == "😀" * 5
    assert all(utf16_length(part) <= 4 for part in cut("😀" * 5, 4))
    assert cut("e\u0301" * 4, 3) == ["e\u0301"] * 4


def test_an_address_that_is_written_out_longer_still_fits() -> None:
    parts = cut("a.b.c.com/x " * 40, 100)
    assert all(length(part) <= 100 for part in parts)
    assert " ".join(parts).split() == ["a.b.c.com/x"] * 40


def test_code_that_fits_into_a_message_is_not_cut() -> None:
    block = "```py\n" + "\n".join(f"    line {n}" for n in range(8)) + "\n```"
    parts = cut(f"Some words before it.\n{block}\nand after", 115)
    assert parts[0] == "Some words before it."
    assert parts[1].startswith(block)


@pytest.mark.parametrize("prefix", ["", "> ", "   "])
def test_longer_code_is_cut_between_lines_and_opened_again(prefix: str) -> None:
    lines = [f"{prefix}    step({n})" for n in range(40)]
    fence = f"{prefix}```"
    parts = cut(f"{fence}py title=x\n" + "\n".join(lines) + f"\n{fence}\nafter", 100)
    pieces = [part.split("\n") for part in parts]
    assert len(parts) > 3
    assert all(piece[0] == f"{fence}py" for piece in pieces[1:-1])
    assert [piece[-1] for piece in pieces[:-1]] == [fence] * (len(parts) - 1)
    assert [line for piece in pieces for line in piece if "step" in line] == lines
    assert pieces[-1][-1] == "after"


def test_no_part_is_a_fence_around_nothing() -> None:
    parts = cut("```py\n" + "word\n" * 6 + "\n" * 20 + "```\nafter", 40)
    assert [part.replace("\n", "") for part in parts] == ["```py" + "word" * 6 + "```", "after"]
    assert cut("```py\n" + "a" * 30 + "\n```", 30) == ["```py\n" + "a" * 30 + "\n```"]


def test_a_line_of_code_that_is_too_long_stays_code_and_quoted() -> None:
    parts = cut("> ```\n> " + "word " * 30 + "\n> ```", 40)
    assert len(parts) > 3
    for part in parts:
        assert re.fullmatch(r"> ```\n> [word ]+\n> ```", part), part


def test_a_table_goes_on_under_its_heading() -> None:
    head = "| a | b |\n|---|---|\n"
    rows = [f"| {n} | row |" for n in range(100, 140)]
    parts = cut("Look:\n\n" + head + "\n".join(rows), 200)
    assert all(part.startswith(head) for part in parts[1:])
    assert re.findall(r"\| \d+ \| row \|", "".join(parts)) == rows


def test_a_heading_as_long_as_a_message_is_not_repeated() -> None:
    text = "|" + "a|" * 60 + "\n|" + "-|" * 60 + "\n" + ("|" + "b|" * 60 + "\n") * 3
    parts = cut(text, 100)
    assert all(length(part) <= 100 for part in parts)
    assert "".join(parts).count("a") == 60


def test_a_quote_stays_one() -> None:
    parts = cut("> " + "word " * 20 + "\n\nnot quoted", 30)
    assert [part.startswith("> word") for part in parts[:-1]] == [True] * (len(parts) - 1)
    assert parts[-1].endswith("not quoted")


@pytest.mark.timeout(60)
def test_a_hostile_text_costs_little() -> None:
    """Each takes about a second; a quadratic pass would run into the limit."""
    pieces = ("*a_", "[", "` ", "> ", "\n> ", "a.", "https://", "```\n", "|a|\n|-|\n", "`", "\n")
    for piece in pieces:
        split(piece * (60_000 // len(piece)), length, 4000)
