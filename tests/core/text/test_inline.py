"""Marks inside a paragraph: what they mean, in whatever pieces the text arrives."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.text.inline import (
    REACH,
    Code,
    Emphasis,
    Inline,
    InlineParser,
    Link,
    Text,
)

BOLD, ITALIC, STRIKE = Emphasis(bold=True), Emphasis(italic=True), Emphasis(strike=True)
PIECES = st.sampled_from(
    ["*", "**", "***", "_", "__", "~~", "~", "`", "``", " ", "\n", "[", "]", "(", ")", "](", "![", "\\",
     "<", ">", "https://a.b/c_d", "http", "<https://a.b>", "[x](y)", '[x](y "t")', "word", "漢字", "。",
     "__init__", "a" * 30, "*" * 70, "`" * 70, "https://a.b/" + "_" * 70, "<https://" + "a" * 60]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=30).map("".join)


def parse_inline(text: str, *, hopeful: bool = False) -> list[Inline]:
    """Parse a complete text."""
    parser = InlineParser()
    return [*parser.feed(text), *parser.close(hopeful=hopeful)]


def joined(pieces: list[Inline]) -> list[Inline]:
    """Join neighbours that are text with one emphasis, which pieces may separate."""
    out: list[Inline] = []
    for piece in pieces:
        last = out[-1] if out else None
        if isinstance(piece, Text) and isinstance(last, Text) and last.emphasis == piece.emphasis:
            out[-1] = Text(last.text + piece.text, last.emphasis)
        else:
            out.append(piece)
    return out


@given(TEXTS, st.integers(1, 40))
@example("**" + "a " * 1100 + "**", 20)
@example("`" + "a " * 1100 + "` b", 20)
@example("[" + "a " * 1100 + "](b)", 20)
@example("<https://" + "a" * 2200 + ">", 20)
@example("__init__", 4)
@example("http", 1)
@example("https://a.b/_", 13)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_the_result_does_not_depend_on_the_pieces(text: str, size: int) -> None:
    parser = InlineParser()
    pieces = [p for at in range(0, len(text), size) for p in parser.feed(text[at : at + size])]
    assert joined([*pieces, *parser.close()]) == joined(parse_inline(text))


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a **b** c", [Text("a "), Text("b", BOLD), Text(" c")]),
        ("*a* _b_", [Text("a", ITALIC), Text(" "), Text("b", ITALIC)]),
        ("***a***", [Text("a", Emphasis(bold=True, italic=True))]),
        ("~~a~~ ~b", [Text("a", STRIKE), Text(" ~b")]),
        ("**a *b* c**", [Text("a ", BOLD), Text("b", Emphasis(bold=True, italic=True)), Text(" c", BOLD)]),
        ("***a** b*", [Text("a", Emphasis(bold=True, italic=True)), Text(" b", ITALIC)]),
        ("*a __b*", [Text("a __b", ITALIC)]),
        ("**重要：**内容", [Text("重要：", BOLD), Text("内容")]),
        ("`a*b*`", [Code("a*b*", "`")]),
        ("`` a`b ``", [Code("a`b", "`` ")]),
        ("` ` b", [Text("` ` b")]),
        ("`a", [Text("`a")]),
        ("**`a`**", [Code("a", "`", BOLD)]),
        ("[a](b)", [Link("a", "b", "")]),
        ('![a](b "c")', [Link("a", "b", '"c"')]),
        ("[a](b(c))", [Link("a", "b(c)", "")]),
        ("*[a](b)*", [Link("a", "b", "", ITALIC)]),
        ("<https://a.b/c>", [Text("https://a.b/c")]),
        ("_https://a.b/_c_d_", [Text("https://a.b/_c_d", ITALIC)]),
        ("https://a.b/~/c", [Text("https://a.b/~/c")]),
        (r"\*a\* \x", [Text(r"*a* \x")]),
        ("a\\\nb", [Text("a\nb")]),
        ("2*3*4, a_b_c, __init__, [x](), [y], <b>", [Text("2*3*4, a_b_c, __init__, [x](), [y], <b>")]),
    ],
)  # fmt: skip
def test_marks_have_their_meaning(text: str, parsed: list[Inline]) -> None:
    assert joined(parse_inline(text)) == joined(parsed)


def test_an_open_mark_is_text_unless_one_hopes() -> None:
    assert joined(parse_inline("a **b")) == [Text("a **b")]
    assert joined(parse_inline("a **b", hopeful=True)) == [Text("a "), Text("b", BOLD)]
    assert joined(parse_inline("a `b", hopeful=True)) == [Text("a "), Code("b", "`")]
    assert joined(parse_inline("a ` ", hopeful=True)) == [Text("a ` ")]


@pytest.mark.parametrize("opener", ["**", "`", "[", "<https://"])
def test_no_mark_holds_more_than_its_reach(opener: str) -> None:
    parser = InlineParser()
    text = opener + "a" * (REACH + 100)
    assert "".join(piece.text for piece in parser.feed(text) if isinstance(piece, Text)) == text
