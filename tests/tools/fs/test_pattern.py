"""Patterns find what `re` finds, in time proportional to the text."""

import re
import tracemalloc
from functools import reduce
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ToolFailed
from holdfast.tools.fs import pattern

ATOMS = [*"abA_ .", *r"\w \d \s \S \b ^ $ [ab] [^a] [\w-] []a] \. \x61 \t é".split()]
COUNTS = ["*", "+", "?", "{2}", "{1,2}", "{,2}", "{2,}", "*?", "+?", "{", "{}"]

TREES = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(st.sampled_from(["(", "(?:", "(?P<n>"]), inner).map(lambda t: f"{t[0]}{t[1]})"),
        st.tuples(inner, st.sampled_from(COUNTS)).map(lambda t: f"(?:{t[0]}){t[1]}"),
        st.tuples(st.sampled_from(ATOMS), st.sampled_from(COUNTS)).map("".join),
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(["", "(?i)"]),
    TREES,
    st.lists(st.text("abAB_ .1é-]{}\t", max_size=8), min_size=1),
)
def test_a_line_matches_exactly_when_re_says_so(flags: str, text: str, lines: list[str]) -> None:
    text = flags + reduce(lambda seen, n: seen.replace("<n>", f"<g{n}>", 1), range(20), text)
    try:
        model = re.compile(text)
    except re.error:
        with pytest.raises(re.error):
            pattern.regex(text)
        return
    found = pattern.regex(text)
    for line in lines:
        assert (found.find(line) is not None) == (model.search(line) is not None)


@given(st.text(max_size=20), st.text(min_size=1, max_size=3))
def test_plain_text_is_found_as_it_stands(line: str, text: str) -> None:
    assert (pattern.literal(text).find(line) is not None) == (text in line)
    assert pattern.literal(text).find(line + text) is not None


@pytest.mark.parametrize(
    "text", ["(a+)+$", "(a|a)*$", "(.*)*=", "a*a*a*a*a*a*$", "(?:a?){20}a{20}$"]
)
def test_a_pattern_that_would_hang_re_costs_linear_time(text: str) -> None:
    found = pattern.regex(text)
    found.find("a" * 5_000 + "b")
    assert found.effort < 100_000


@pytest.mark.parametrize("text", ["(?=a)", "(?<!a)b", r"(a)\1", "a++", "(?s:a)", "(?P=n)"])
def test_patterns_that_need_backtracking_are_refused_with_a_message(text: str) -> None:
    with pytest.raises(ToolFailed, match="not supported"):
        pattern.regex(text)


@pytest.mark.parametrize(
    "text", ["a" * 501, "a{99999}", "(a{99}){99}", "(((){999}){999}){999}", "(" * 200 + ")" * 200]
)
def test_a_pattern_that_would_grow_too_big_is_refused(text: str) -> None:
    with pytest.raises(ToolFailed, match="too big"):
        pattern.regex(text)


def test_memory_stays_bounded_when_every_character_is_new() -> None:
    found = pattern.regex("(.b|.c)$")
    line = "".join(map(chr, range(0x4E00, 0x9FFF)))
    assert found.find(line) is None
    assert found.find(line + "xb") == len(line) + 2


def test_a_pattern_with_many_states_stays_small() -> None:
    wanted = pattern.regex("[ab]*a[ab]{900}c")
    line = "".join(Random(1).choices("ab", k=2_000))  # a new state for each character
    tracemalloc.start()
    try:
        assert wanted.find("c" + line) is None
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 * 2**20
