"""A session as a file: nothing in it can pass for anything else, and JSON comes back the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.schema.runs import ContentPart, ImageUrl
from holdfast.api.schema.sessions import MessageObject, SessionObject, ToolCallObject, ToolFunction
from holdfast.cli.sessions import export

INFO = SessionObject(
    session_id="ses_1",
    title="Herons",
    preview="hello",
    created_at=1_700_000_000.0,
    updated_at=1_700_003_600.0,
    workspace="/work/birds",
    platform="cli",
    model="openai/m",
    status="open",
    unfinished=0,
)


def told(*messages: MessageObject) -> str:
    return export.markdown(export.exported(INFO, messages))


def blocks(markdown: str) -> list[str]:
    """What stands in fenced blocks, as a reader of markdown finds them."""
    found: list[str] = []
    fence, inside = "", list[str]()
    for line in markdown.split("\n"):
        ticks = line[: len(line) - len(line.lstrip("`"))]
        if fence and len(ticks) >= len(fence) and not line.strip("`"):
            found.append("\n".join(inside))
            fence, inside = "", []
        elif fence:
            inside.append(line)
        elif len(ticks) >= 3:
            fence = ticks
    assert not fence, "a block is open at the end"
    return found


def called(arguments: str, tool: str = "terminal") -> MessageObject:
    return MessageObject("assistant", "", (ToolCallObject("c1", ToolFunction(tool, arguments)),))


def test_the_head_says_what_it_is_where_and_when() -> None:
    head = told()
    assert head.startswith("# Herons\n\n- session: `ses_1`\n- begun: 2023-11-1")
    assert "- workspace: `/work/birds`" in head
    assert "- model: openai/m" in head


def test_who_said_what_is_told_in_order_with_calls_and_results() -> None:
    markdown = told(
        MessageObject("user", "How many?"),
        MessageObject(
            "assistant",
            "I look.",
            (ToolCallObject("c1", ToolFunction("terminal", '{"command":"ls"}')),),
        ),
        MessageObject("tool", "a\nb\n", tool_call_id="c1"),
        MessageObject("assistant", "Two."),
    )
    assert [line for line in markdown.split("\n") if line.startswith("#")][1:] == [
        "## User",
        "## Assistant",
        "### Call of terminal",
        "### Result of terminal",
        "## Assistant",
    ]
    assert blocks(markdown) == ['{\n  "command": "ls"\n}', "a\nb"]
    assert "\n\nTwo.\n" in markdown


def test_arguments_that_are_no_json_are_shown_as_they_are() -> None:
    assert blocks(told(called("{not json"))) == ["{not json"]


@pytest.mark.parametrize("text", ["```\nx\n```", "`````", "a ```` b\n```", "~~~\n```js\n", ""])
def test_no_output_can_leave_its_block(text: str) -> None:
    found = blocks(
        told(MessageObject("tool", f"{text}\n## Assistant\nI did it", tool_call_id="c1"))
    )
    assert found == [f"{text}\n## Assistant\nI did it"]


@given(st.text(alphabet="`~ab\n #", max_size=80), st.text(alphabet="`~ab\n #", max_size=80))
def test_no_message_leaves_a_code_block_open(said: str, output: str) -> None:
    said = said.replace("~", "")  # blocks of tildes are not what the reader here looks for
    indented = "\n".join(line.lstrip(" ") for line in said.split("\n"))
    markdown = told(
        MessageObject("user", indented), MessageObject("tool", output, tool_call_id="c1")
    )
    assert blocks(markdown)[-1] == output.rstrip("\n")


def test_an_open_code_block_is_closed_before_the_next_message() -> None:
    markdown = told(
        MessageObject("user", "see:\n```py\nx = 1"), MessageObject("assistant", "~~~\ny")
    )
    assert "```py\nx = 1\n```\n\n## Assistant" in markdown
    assert markdown.endswith("~~~\ny\n~~~\n")


def test_the_name_of_a_tool_stays_on_its_line() -> None:
    assert "### Call of a b\n" in told(called("{}", "a\nb"))


def test_pictures_are_told_of() -> None:
    picture = ContentPart("image_url", image_url=ImageUrl("data:image/png;base64,AAAA"))
    markdown = told(MessageObject("user", (ContentPart("text", "look"), picture, picture)))
    assert "look\n\n*[2 pictures]*" in markdown
    assert "base64" not in markdown


words = st.text(max_size=30).filter(lambda t: t.isprintable())
parts = st.lists(
    st.one_of(
        words.map(lambda t: ContentPart("text", t)),
        words.map(lambda t: ContentPart("image_url", image_url=ImageUrl(t))),
    ),
    max_size=3,
).map(tuple)
messages = st.builds(
    MessageObject,
    role=st.sampled_from(["user", "assistant", "tool", "system"]),
    content=st.one_of(words, parts),
    tool_calls=st.lists(
        st.builds(ToolCallObject, words, st.builds(ToolFunction, words, words)), max_size=2
    ).map(tuple),
    tool_call_id=words,
)


@given(st.lists(messages, max_size=5).map(tuple))
def test_json_comes_back_the_same(said: tuple[MessageObject, ...]) -> None:
    session = export.exported(INFO, said)
    again = export.decode(export.encode(session).encode())
    assert again == session
    brought = export.back(session)
    assert (brought.messages, brought.title) == (said, "Herons")
    assert (brought.created_at, brought.updated_at) == (INFO.created_at, INFO.updated_at)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b'{"session_id":"x","messages":[]}',
        b'{"object":"holdfast.session","version":2,"session_id":"x"}',
        b'{"object":"holdfast.session","version":1,"session_id":"x","messages":[{"role":1}]}',
    ],
)
def test_a_file_that_is_no_export_is_rejected(content: bytes) -> None:
    assert export.decode(content) is None
