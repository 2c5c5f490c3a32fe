"""What is particular to Anthropic's Messages API: blocks, signed thoughts, caching, its errors."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from holdfast.core.messages import Assistant, Image, Message, Proposal, System, ToolResult, User
from holdfast.core.types import CallId, Usage
from holdfast.errors import Filtered, HoldfastError, Overflow, Rejected, Transient
from holdfast.models.anthropic import AnthropicModel
from holdfast.models.model import Answer, Request, ToolSpec
from tests.fakes.anthropic import (
    SIGNATURE,
    WIRE,
    event,
    finish,
    opening,
    refuse,
    say,
    start,
    thought,
    tool_use,
    words,
)
from tests.fakes.model_server import ModelServer, Reply, serve, server_at, stream

pytestmark = pytest.mark.anyio

MARK = {"type": "ephemeral"}
ASK = Request("claude-opus-4-7", "", [User("hello")], [])


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with serve(lambda ask: say("done"), wire=WIRE) as server:
        yield server


@pytest.fixture
async def model(server: ModelServer) -> AsyncIterator[AnthropicModel]:
    async with aclosing(AnthropicModel(server_at(server.base_url, provider="anthropic"))) as model:
        yield model


async def answer(model: AnthropicModel, request: Request = ASK) -> Answer:
    last = [piece async for piece in model.stream(request)][-1]
    assert isinstance(last, Answer)
    return last


async def failure(model: AnthropicModel) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        await answer(model)
    return caught.value


async def sent(server: ModelServer, model: AnthropicModel, *messages: Message) -> list[Any]:
    """The turns that reach the server for these messages."""
    await answer(model, Request("claude-opus-4-7", "", messages, []))
    turns: list[Any] = server.requests[-1].body["messages"]
    return turns


def plain(turns: list[Any]) -> list[Any]:
    """The same without the marks for the cache."""
    return [
        {**turn, "content": [{k: v for k, v in b.items() if k != "cache_control"} for b in blocks]}
        for turn in turns
        for blocks in [turn["content"]]
    ]


async def test_a_conversation_reaches_the_server_in_its_own_form(
    server: ModelServer, model: AnthropicModel
) -> None:
    proposal = Proposal(CallId("c1"), "ls", '{"path": "."}')
    messages: list[Message] = [
        System("be kind"),
        User("hi"),
        Assistant("", (proposal,)),
        ToolResult(CallId("c1"), "a.txt"),
        Assistant("there is a.txt"),
        User("thanks"),
    ]
    tools = [ToolSpec(name, "lists", {"type": "object", "properties": {}}) for name in ("ls", "ll")]
    await answer(model, Request("claude-sonnet-4-5", "you are", messages, tools))
    (seen,) = server.requests
    schema = {"type": "object", "properties": {}}
    assert seen.path == "/v1/messages"
    assert seen.headers["anthropic-version"] == "2023-06-01"
    assert seen.body == {
        "model": "claude-sonnet-4-5",
        "max_tokens": 64_000,
        "stream": True,
        "system": [
            {"type": "text", "text": "you are"},
            {"type": "text", "text": "be kind", "cache_control": MARK},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "ls", "input": {"path": "."}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": "a.txt",
                        "cache_control": MARK,
                    }
                ],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "there is a.txt"}]},
            {
                "role": "user",
                "content": [{"type": "text", "text": "thanks", "cache_control": MARK}],
            },
        ],
        "tools": [
            {"name": "ls", "description": "lists", "input_schema": schema},
            {"name": "ll", "description": "lists", "input_schema": schema, "cache_control": MARK},
        ],
    }


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_base_url_may_end_with_the_version(server: ModelServer, suffix: str) -> None:
    async with aclosing(AnthropicModel(server_at(server.base_url + suffix))) as model:
        assert (await answer(model)).text == "done"


THINKS = {"type": "adaptive", "display": "summarized"}
BOUND = {**THINKS, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


@pytest.mark.parametrize(
    ("name", "max_tokens", "thinking"),
    [
        ("claude-3-haiku-20240307", 4_096, None),
        ("claude-3-5-sonnet-latest", 8_192, None),
        ("claude-3-7-sonnet-20250219", 32_000, None),
        ("claude-sonnet-4-20250514", 32_000, None),
        ("claude-haiku-4-5-20251001", 64_000, None),
        ("claude-opus-4-6", 64_000, THINKS),
        ("claude-sonnet-5", 64_000, THINKS),
        ("claude-fable-5-1", 64_000, BOUND),
        ("anthropic/claude-opus-5-5", 64_000, BOUND),
        ("glm-4.6", 8_192, None),
    ],
)
async def test_the_version_decides_how_long_an_answer_is_and_if_it_thinks(
    server: ModelServer,
    model: AnthropicModel,
    name: str,
    max_tokens: int,
    thinking: dict[str, Any] | None,
) -> None:
    await answer(model, Request(name, "", [User("hi")], []))
    (seen,) = server.requests
    assert seen.body["max_tokens"] == max_tokens
    assert seen.body.get("thinking") == thinking
    assert ("anthropic-beta" in seen.headers) == (thinking is BOUND)


async def test_signed_thoughts_go_back_in_their_place(
    server: ModelServer, model: AnthropicModel
) -> None:
    server.then(
        stream(
            start(),
            *thought("hm", 1),
            opening(1, "redacted_thinking", data="secret"),
            *words("I look.", 2, 2),
            *thought("so", 1, 3, "second"),
            *tool_use("ls", '{"path": "."}', 4, "c1"),
            *tool_use("ls", "{}", 5, "c2"),
            *finish("tool_use"),
        )
    )
    first = await answer(model)
    assert (first.text, first.reasoning) == ("I look.", "hmso")
    turns = await sent(
        server,
        model,
        User("hello"),
        Assistant(first.text, first.calls, first.opaque),
        ToolResult(CallId("c1"), "a"),
        ToolResult(CallId("c2"), "b"),
        User("and now?"),
    )
    assert plain(turns)[1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
                {"type": "redacted_thinking", "data": "secret"},
                {"type": "text", "text": "I look."},
                {"type": "thinking", "thinking": "so", "signature": "second"},
                {"type": "tool_use", "id": "c1", "name": "ls", "input": {"path": "."}},
                {"type": "tool_use", "id": "c2", "name": "ls", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "a"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "b"},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]


async def test_thoughts_stay_before_a_text_that_was_changed_since(
    server: ModelServer, model: AnthropicModel
) -> None:
    server.then(say("my password", reasoning="hm"))
    first = await answer(model)
    turns = await sent(server, model, User("a"), Assistant("my ***", (), first.opaque), User("b"))
    assert [block["type"] for block in turns[1]["content"]] == ["thinking", "text"]
    assert turns[1]["content"][1]["text"] == "my ***"


async def test_an_answer_without_signed_thoughts_keeps_nothing_apart(
    server: ModelServer, model: AnthropicModel
) -> None:
    unsigned = thought("hm", 1, signature="")
    server.then(say("yes"), stream(start(), *unsigned, *words("yes", 1, 1), *finish()))
    assert (await answer(model)).opaque == ""
    assert await answer(model) == Answer("yes", "hm", usage=Usage(7, 2))


async def test_images_are_sent_after_their_text(server: ModelServer, model: AnthropicModel) -> None:
    turns = await sent(server, model, User("look", (Image("image/png", b"a picture"),)))
    source = {"type": "base64", "media_type": "image/png", "data": "YSBwaWN0dXJl"}
    assert plain(turns) == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "look"}, {"type": "image", "source": source}],
        }
    ]


async def test_turns_alternate_begin_with_the_user_and_have_no_blank_text(
    server: ModelServer, model: AnthropicModel
) -> None:
    turns = await sent(
        server,
        model,
        Assistant("hello"),
        User("a"),
        User(" "),
        Assistant(""),
        User("b"),
        Assistant("c"),
        Assistant("d"),
        User("e"),
    )
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant", "user"]
    assert all(block["text"].strip() for turn in turns for block in turn["content"])
    assert [b["text"] for t in turns for b in t["content"]][1:] == ["hello", "a", "b", *"cde"]


async def test_results_come_first_in_their_turn(server: ModelServer, model: AnthropicModel) -> None:
    call = Proposal(CallId("c1"), "ls", "{}")
    turns = await sent(
        server, model, User("a"), Assistant("", (call,)), User("b"), ToolResult(CallId("c1"), "")
    )
    assert [block["type"] for block in turns[2]["content"]] == ["tool_result", "text"]


async def test_results_follow_their_calls_wherever_they_were_and_ids_are_unique(
    server: ModelServer, model: AnthropicModel
) -> None:
    call = Proposal(CallId("c1"), "ls", "{}")
    first, second = ToolResult(CallId("c1"), "first"), ToolResult(CallId("c1"), "second")
    turns = await sent(
        server,
        model,
        User("a"),
        Assistant("", (call,)),
        Assistant("", (call,)),
        first,
        User("b"),
        second,
        ToolResult(CallId("gone"), "alone"),
    )
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant", "user"]
    uses = [block for turn in turns[1::2] for block in turn["content"]]
    results = [turn["content"][0] for turn in turns[2::2]]
    assert len({use["id"] for use in uses}) == 2
    assert [use["id"] for use in uses] == [result["tool_use_id"] for result in results]
    assert [result["content"] for result in results] == ["first", "second"]
    assert turns[4]["content"][1]["text"] == "b"


async def test_ids_and_arguments_of_other_models_are_made_acceptable(
    server: ModelServer, model: AnthropicModel
) -> None:
    odd = CallId("functions.ls:0")
    calls = (Proposal(odd, "ls", '{"path": '), Proposal(CallId("x" * 99), "ls", "[1]"))
    results = [ToolResult(call.call_id, "bad arguments") for call in calls]
    turns = await sent(server, model, User("a"), Assistant("", calls), *results)
    uses, given = turns[1]["content"], turns[2]["content"]
    assert [use["id"] for use in uses] == [result["tool_use_id"] for result in given]
    assert all(use["id"].replace("_", "").isalnum() and len(use["id"]) <= 64 for use in uses)
    assert [use["input"] for use in uses] == [{"arguments": '{"path": '}, {"arguments": "[1]"}]


async def test_usage_counts_what_the_cache_gave_and_took(
    server: ModelServer, model: AnthropicModel
) -> None:
    cache = {"cache_creation_input_tokens": 100, "cache_read_input_tokens": 1_000}
    server.then(
        stream(start(5, **cache), *words("a", 1), *finish(output=9)),
        stream(start(1), *words("a", 1), *finish("end_turn", output=9, input_tokens=5, **cache)),
    )
    for _ in range(2):
        assert (await answer(model)).usage == Usage(1_105, 9, 1_000)


async def test_a_call_that_arrives_whole_is_understood(
    server: ModelServer, model: AnthropicModel
) -> None:
    block = opening(0, "tool_use", id="x", name="ls", input={"path": "."})
    server.then(stream(start(), block, *finish("tool_use")))
    assert (await answer(model)).calls == (Proposal(CallId("x"), "ls", '{"path":"."}'),)


async def test_unknown_events_and_blocks_are_ignored(
    server: ModelServer, model: AnthropicModel
) -> None:
    strange = [event("news", index=1), opening(0, "server_tool_use", id="x", name="y", input={})]
    server.then(stream(start(), *strange, *words("yes", 2, 1), *finish()))
    assert (await answer(model)).text == "yes"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refuse(529, "Overloaded", "overloaded_error"), Transient),
        (refuse(400, "prompt is too long: 2 > 1 maximum", "invalid_request_error"), Overflow),
        (
            refuse(400, "input length and `max_tokens` exceed context limit: 1 + 2 > 2"),
            Overflow,
        ),
        (refuse(401, "invalid x-api-key", "authentication_error"), Rejected),
        (stream(start(), event("error", error={"type": "overloaded_error"})), Transient),
        (stream(start(), event("error", error={"type": "api_error"})), Transient),
        (stream(start(), event("error", error={"type": "rate_limit_error"})), Transient),
        (stream(start(), event("error", error={"type": "request_too_large"})), Overflow),
        (stream(start(), event("error", error={"type": "invalid_request_error"})), Rejected),
        (stream(start(), event("error", error={"type": "authentication_error"})), Rejected),
        (stream(start(), *words("no", 1), *finish("refusal")), Filtered),
        (stream(start(), *words("wait", 1), *finish("pause_turn")), Transient),
        (stream(start(), *words("a", 1), *finish("model_context_window_exceeded")), Overflow),
        (stream(start(), *thought("hm", 1), *finish("max_tokens")), Transient),
        (stream(start(), opening(0, "tool_use", id="x"), *finish("tool_use")), Transient),
    ],
)
async def test_the_servers_errors_say_who_acts_next(
    server: ModelServer, model: AnthropicModel, reply: Reply, kind: type[HoldfastError]
) -> None:
    server.then(reply)
    assert type(await failure(model)) is kind


async def test_an_answer_that_reached_its_limit_is_kept(
    server: ModelServer, model: AnthropicModel
) -> None:
    server.then(stream(start(), *words("half of", 1), *finish("max_tokens")))
    assert (await answer(model)).text == "half of"
