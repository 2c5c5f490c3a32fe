"""Blocks of Markdown: their events, in whatever pieces the text arrives."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.text.markdown import (
    Block,
    Code,
    End,
    Event,
    Gap,
    Heading,
    Item,
    MarkdownParser,
    Paragraph,
    Quote,
    Rule,
    Table,
    Text,
)

PIECES = st.sampled_from(
    ["```", "```py\n", "\n```\n", "~~~\n", "> ", "\n> ", "\n>> ", "\n", "\n\n", " ", "    ", "\t", "- ",
     "\n- ", "\n  - ", "\n1. ", "- [x] ", "# ", "\n## ", " ##", "|", "\\|", "\n|---|---|\n", "| a | b |",
     "\n---\n", "word", "\n    code", "x" * 170, "| " + "y " * 90, "|" + "z" * 4100]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=30).map("".join)


def parse(text: str) -> list[Event]:
    parser = MarkdownParser()
    return joined([*parser.feed(text), *parser.close()])


def joined(events: list[Event]) -> list[Event]:
    """Join neighbouring texts, which pieces may separate."""
    out: list[Event] = []
    for event in events:
        if isinstance(event, Text) and out and isinstance(out[-1], Text):
            out[-1] = Text(out[-1].text + event.text)
        else:
            out.append(event)
    return out


def block(kind: Block, text: str = "") -> list[Event]:
    return [kind, Text(text), End()] if text else [kind, End()]


@given(TEXTS, st.integers(1, 40))
@example("> " + "x" * 400 + "\n> y", 7)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_the_events_do_not_depend_on_the_pieces(text: str, size: int) -> None:
    parser = MarkdownParser()
    events = [e for at in range(0, len(text), size) for e in parser.feed(text[at : at + size])]
    assert joined([*events, *parser.close()]) == parse(text)


@given(TEXTS)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_every_block_that_begins_ends(text: str) -> None:
    depth = 0
    for event in parse(text):
        depth += isinstance(event, Block) - isinstance(event, End)
        assert depth >= isinstance(event, Text)
    assert depth == 0


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("a\nb\n\nc", [*block(Paragraph(0), "a\nb\n"), Gap(), *block(Paragraph(0), "c\n")]),
        ("## a ##\nb", [*block(Heading(0, 2), "a\n"), *block(Paragraph(0), "b\n")]),
        ("# " + "a" * 200, block(Heading(0, 1), "a" * 200)),
        ("- a\n  b", block(Item(0, "", "-", " ", ""), "a\n  b\n")),
        ("- [x] a", block(Item(0, "", "-", " ", "[x]"), "a\n")),
        ("1. [x] a", block(Item(0, "", "1.", " ", ""), "[x] a\n")),
        ("- a\n  - b\n\n  c\n\nd", [
            *block(Item(0, "", "-", " ", ""), "a\n"),
            *block(Item(1, "  ", "-", " ", ""), "b\n"), Gap(),
            *block(Paragraph(1), "  c\n"), Gap(), *block(Paragraph(0), "d\n")]),
        ("- ```\n  x\n  ```", [*block(Item(0, "", "-", " ", "")), *block(Code(1, ""), "x\n")]),
        ("```py a\n> x\n\n  y", block(Code(0, "py a"), "> x\n\n  y\n")),
        ("    x\n    y", block(Code(0, None), "x\ny\n")),
        ("a\n    b", block(Paragraph(0), "a\n    b\n")),
        ("***", [Rule(0, "***")]),
        ("> a\n> > b\nc", [
            Quote(0), *block(Paragraph(0), "a\n"), Quote(0),
            *block(Paragraph(0), "b\n"), End(), End(), *block(Paragraph(0), "c\n")]),
        ("|a|b|\n|:-:|-:|\n|`c\\|d`|x<br>y|\nz", [
            Table(0, [["a", "b"], ["`c|d`", "x\ny"]], ["^", ">"]), *block(Paragraph(0), "z\n")]),
        ("a | b\n- | -\nc | d", [Table(0, [["a", "b"], ["c", "d"]], ["", ""])]),
        ("a\n|b|\n|-|", [*block(Paragraph(0), "a\n"), Table(0, [["b"]], [""])]),
        ("a | b\nc | d", block(Paragraph(0), "a | b\nc | d\n")),
    ],
)  # fmt: skip
def test_blocks_have_their_events(text: str, events: list[Event]) -> None:
    assert parse(text) == events


def test_quotes_nest_only_so_deep() -> None:
    deepest = [Quote(0)] * 8
    assert parse(">" * 9 + " a") == [*deepest, *block(Paragraph(0), "> a\n"), *[End()] * 8]


def test_a_line_is_held_only_until_its_kind_is_known() -> None:
    parser = MarkdownParser()
    assert parser.feed("x" * 160) == []
    assert parser.feed("x") == [Paragraph(0), Text("x" * 160), Text("x")]
