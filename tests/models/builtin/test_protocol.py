"""One JSON object a turn: what the small model reads, and how its turn is understood."""

import json
from typing import Any

import pytest

from holdfast.core.messages import Assistant, Image, Message, Proposal, ToolResult, User
from holdfast.core.types import CallId
from holdfast.errors import Rejected
from holdfast.models.builtin import protocol
from holdfast.models.builtin.protocol import PROFILE, TurnParser, encode
from holdfast.models.model import Answer, Request, Text, ToolSpec
from holdfast.models.peer import Peer, Settings
from tests.fakes.model_server import finish, token, usage

PEER = Peer("builtin", "here", "small", "key", Settings("", ""))


def tool(name: str, *required: str, **optional: str) -> ToolSpec:
    kinds = {name: {"type": "string"} for name in required} | {
        name: {"type": kind} for name, kind in optional.items()
    }
    return ToolSpec(name, f"Do {name}. More.", {"properties": kinds, "required": list(required)})


TOOLS = (
    tool("list_files", path="string"),
    tool("read_file", "path", offset="integer"),
    tool("write_file", "path", "content"),
    tool("patch", "path", "old", "new", all="boolean"),
    tool("search_files", "pattern", path="string"),
    tool("terminal", "command", background="boolean"),
)


def body(*messages: Message, tools: tuple[ToolSpec, ...] = TOOLS) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(Request("small", "Be kind.", messages, tools)))
    return found


def schema_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    options: list[dict[str, Any]] = found["response_format"]["json_schema"]["schema"]["anyOf"]
    return options


def called(call_id: str, name: str = "read_file", path: str = "a.txt") -> Assistant:
    return Assistant("", (Proposal(CallId(call_id), name, json.dumps({"path": path})),))


def understood(*chunks: bytes, tools: tuple[ToolSpec, ...] = TOOLS) -> tuple[list[str], Answer]:
    request = Request("small", "", (User("hi"),), tools)
    parser = TurnParser(PEER, request)
    pieces = [piece for chunk in chunks for piece in parser.feed(chunk)]
    pieces += parser.end()
    assert all(isinstance(piece, Text) for piece in pieces)
    return [piece.text for piece in pieces], parser.answer(request)


def test_the_grammar_has_each_tool_with_its_required_arguments_and_the_answer() -> None:
    *calls, answer = schema_of(body(User("hi")))
    assert {c["properties"]["tool"]["const"] for c in calls} == {t.name for t in TOOLS}
    arguments = {
        c["properties"]["tool"]["const"]: c["properties"]["args"]["required"] for c in calls
    }
    assert arguments["list_files"] == ["path"]
    assert arguments["read_file"] == ["path"]
    assert arguments["patch"] == ["path", "old", "new"]
    assert list(answer["properties"]) == ["facts", "answer"], "it looks before it answers"


@pytest.mark.parametrize(
    ("asked", "writes"),
    [
        ("Which port is used?", False),
        ("What is in a.txt,\nand who wrote it?", False),
        ("Fix the typo in a.txt", True),
        ("Can you write a.txt?", True),
        ("What is wrong in a.py? Fix it.", True),
    ],
)
def test_a_question_cannot_be_answered_by_writing_files(asked: str, writes: bool) -> None:
    *calls, _ = schema_of(body(User("Write b.txt"), Assistant("done"), User(asked), called("c1")))
    names = {c["properties"]["tool"]["const"] for c in calls}
    assert ("write_file" in names, "patch" in names) == (writes, writes)
    assert {"read_file", "terminal"} <= names


def test_the_profile_has_few_tools_and_its_prompt_is_short() -> None:
    assert len(PROFILE.tools) <= 8
    assert PROFILE.cautious
    assert PROFILE.banner
    text = "".join(message["content"] for message in body(User("hi"))["messages"])
    assert len(text) < 2_800  # characters: about 850 tokens


def test_the_beginning_of_the_prompt_is_the_same_in_every_conversation() -> None:
    """So that the server has read it already."""
    one, two = body(User("one"))["messages"], body(User("two"))["messages"]
    assert one[:-1] == two[:-1]
    assert body(User("hi"))["cache_prompt"] is True


def test_examples_of_tools_that_are_not_offered_are_left_out() -> None:
    few = body(User("hi"), tools=TOOLS[:2])["messages"]
    assert not any("terminal" in message["content"] for message in few)
    assert len(few) < len(body(User("hi"))["messages"])


def test_calls_and_results_are_turns_of_the_conversation() -> None:
    found = body(User("go"), called("c1"), ToolResult(CallId("c1"), "1\thello"))["messages"][-2:]
    assert json.loads(found[0]["content"]) == {"tool": "read_file", "args": {"path": "a.txt"}}
    assert found[1]["role"] == "user"
    assert "hello" in found[1]["content"]


def test_several_calls_of_a_turn_are_shown_each_with_its_result() -> None:
    both = Assistant("", (*called("c1").calls, *called("c2", path="b.txt").calls))
    results = (ToolResult(CallId("c1"), "first"), ToolResult(CallId("c2"), "second"))
    found = [m["content"] for m in body(User("go"), both, *results)["messages"][-4:]]
    assert ["a.txt" in found[0], "first" in found[1]] == [True, True]
    assert ["b.txt" in found[2], "second" in found[3]] == [True, True]


def test_a_long_result_is_cut_and_that_of_a_command_is_plain() -> None:
    result = json.dumps({"exit_code": 3, "output": "x" * 10_000, "error": "killed"})
    text = body(User("go"), called("c1"), ToolResult(CallId("c1"), result))["messages"][-1]
    assert len(text["content"]) < protocol.RESULT_ROOM + 100
    assert "exit code 3" in text["content"]
    assert "killed" in text["content"]
    assert "{" not in text["content"]


def test_an_image_is_said_to_be_invisible() -> None:
    text = body(User("look", (Image("image/png", b"x"),)))["messages"][-1]["content"]
    assert text.startswith("look\n")


def test_who_repeats_a_call_with_the_same_result_has_to_answer() -> None:
    once = (called("c1"), ToolResult(CallId("c1"), "same"))
    twice = (called("c2"), ToolResult(CallId("c2"), "same"))
    assert len(schema_of(body(User("go"), *once))) > 1
    assert len(schema_of(body(User("go"), *once, *twice))) == 1
    changed = (called("c2"), ToolResult(CallId("c2"), "other"))
    assert len(schema_of(body(User("go"), *once, *changed))) > 1
    assert len(schema_of(body(User("go"), *once, *twice, Assistant("done"), User("more")))) > 1


def test_after_many_calls_it_has_to_answer() -> None:
    many = [
        message
        for n in range(protocol.CALLS)
        for message in (called(f"c{n}", path=f"{n}"), ToolResult(CallId(f"c{n}"), f"{n}"))
    ]
    assert len(schema_of(body(User("go"), *many[:-2]))) > 1
    assert len(schema_of(body(User("go"), *many))) == 1


def test_without_tools_it_is_a_plain_conversation() -> None:
    found = body(User("title?"), called("c1"), ToolResult(CallId("c1"), "x"), tools=())
    assert "response_format" not in found
    assert found["messages"][0] == {"role": "system", "content": "Be kind."}
    pieces, answer = understood(token("A "), token("title"), finish(), tools=())
    assert (pieces, answer.text) == (["A ", "title"], "A title")


def test_the_text_of_an_answer_comes_out_as_it_grows() -> None:
    parts = ['{"ans', 'wer": "One\\', "n t\\u00", "e4 and \\ud8", '3d\\ude00 \\"x', '\\""}']
    pieces, answer = understood(*map(token, parts), usage(50, 9), finish())
    assert answer.text == "".join(pieces) == 'One\n tä and 😀 "x"'
    assert len(pieces) >= 3
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (50, 9)
    assert not answer.calls


def test_the_facts_before_an_answer_are_not_part_of_it() -> None:
    parts = '{"facts": "\\"a\\": 3, ', 'b: 4", "ans', 'wer": "b is', ' larger"}'
    pieces, answer = understood(*map(token, parts), finish())
    assert pieces == ["b is", " larger"]
    assert answer.text == "b is larger"


def test_a_call_says_nothing_and_has_its_arguments() -> None:
    call = json.dumps({"tool": "write_file", "args": {"path": "ä", "content": "1\n"}})
    pieces, answer = understood(token(call[:20]), token(call[20:]), finish())
    assert (pieces, answer.text) == ([], "")
    (proposal,) = answer.calls
    assert proposal.tool == "write_file"
    assert json.loads(proposal.arguments) == {"path": "ä", "content": "1\n"}


def test_an_answer_that_is_cut_at_its_limit_counts_and_a_call_does_not() -> None:
    _, answer = understood(token('{"answer": "so fa'), finish("length"))
    assert answer.text == "so fa"
    with pytest.raises(Rejected):
        understood(token('{"tool": "write_file", "args": {"pa'), finish("length"))
