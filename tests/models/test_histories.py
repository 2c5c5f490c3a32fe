"""Any history becomes a request that keeps the server's rules about turns, calls and results."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.messages import Assistant, Image, Message, Proposal, System, ToolResult, User
from holdfast.core.types import CallId
from holdfast.models import anthropic_request, gemini_request, responses_request
from holdfast.models.model import Request
from holdfast.models.replay import Layout, parts

TEXTS = st.sampled_from(["", " ", "hello", "日本 🌊"])
ARGUMENTS = st.sampled_from(["{}", '{"path": "a"}', "", "not JSON", "[1]", "null"])
IDS = st.sampled_from(["c1", "c2", "functions.ls:0", "x" * 70]).map(CallId)
CALLS = st.lists(st.builds(Proposal, IDS, st.just("ls"), ARGUMENTS), max_size=3).map(tuple)
PICTURES = st.sampled_from([(), (Image("image/png", b"x"),)])


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Messages in any order; every call has a result somewhere behind it."""
    said: list[Message] = []
    waiting: list[Message] = []
    for _ in range(draw(st.integers(0, 6))):
        match draw(st.sampled_from(["user", "assistant", "system", "results"])):
            case "user":
                said.append(User(draw(TEXTS), draw(PICTURES)))
            case "assistant":
                said.append(Assistant(draw(TEXTS), draw(CALLS)))
                waiting += [ToolResult(c.call_id, "done") for c in _calls(said[-1:])]
            case "system":
                said.append(System(draw(TEXTS)))
            case _:
                said += waiting
                waiting = []
    return [*said, *waiting]


def _calls(messages: Sequence[Message]) -> list[Proposal]:
    return [call for m in messages if isinstance(m, Assistant) for call in m.calls]


@given(histories())
def test_anthropic_gets_turns_that_alternate_and_calls_with_their_results(
    messages: list[Message],
) -> None:
    request = Request("claude-opus-4-7", "be", messages, [])
    body: Any = msgspec.json.decode(anthropic_request.encode(request))
    turns = body["messages"]
    roles = [turn["role"] for turn in turns]
    assert roles == ["user" if at % 2 == 0 else "assistant" for at in range(len(roles))]
    assert all(turn["content"] for turn in turns)
    assert not any(
        b["type"] == "text" and not b["text"].strip() for t in turns for b in t["content"]
    )
    used = [[b["id"] for b in t["content"] if b["type"] == "tool_use"] for t in turns]
    results = [
        [b["tool_use_id"] for b in t["content"] if b["type"] == "tool_result"] for t in turns
    ]
    assert results == [[], *used][: len(turns)]
    flat = [one for turn in used for one in turn]
    assert len(set(flat)) == len(flat) == len(_calls(messages))
    assert str(body).count("cache_control") <= 4


@given(histories(), st.sampled_from(["gemini-2.5-pro", "gemini-3-pro-preview"]))
def test_gemini_gets_as_many_results_as_calls_in_the_next_turn(
    messages: list[Message], name: str
) -> None:
    body: Any = msgspec.json.decode(gemini_request.encode(Request(name, "be", messages, [])))
    turns = body["contents"]
    assert turns[0]["role"] == "user"
    assert all(turn["parts"] for turn in turns)
    made = [sum("functionCall" in part for part in turn["parts"]) for turn in turns]
    answered = [sum("functionResponse" in part for part in turn["parts"]) for turn in turns]
    assert answered == [0, *made][: len(turns)]
    assert sum(made) == len(_calls(messages))
    roles = [turn["role"] for turn in turns]
    assert ("model", "model") not in zip(roles, roles[1:], strict=False)


@given(histories())
def test_responses_gets_every_call_and_result(messages: list[Message]) -> None:
    request = Request("gpt-5", "be", messages, [])
    items: Any = msgspec.json.decode(responses_request.encode(request, "auto"))["input"]
    made = [item["call_id"] for item in items if item["type"] == "function_call"]
    answered = [item["call_id"] for item in items if item["type"] == "function_call_output"]
    assert sorted(made) == sorted(answered)
    assert len(made) == len(_calls(messages))


@given(TEXTS, CALLS, st.lists(st.sampled_from(["text", "call", "own"]), max_size=8))
def test_a_layout_loses_nothing_of_the_answer_whatever_it_says(
    text: str, calls: tuple[Proposal, ...], order: list[str]
) -> None:
    layout = Layout()
    for kind in order:
        match kind:
            case "text":
                layout.text(2)
            case "call":
                layout.call()
            case _:
                layout.own({"a": 1})
    found = list(parts(Assistant(text, calls, layout.encode())))
    assert "".join(part for part in found if isinstance(part, str)) == text
    assert tuple(part for part in found if isinstance(part, Proposal)) == calls
    own = [part for part in found if not isinstance(part, str | Proposal)]
    assert len(own) == order.count("own")
