"""What is particular to OpenAI's Responses API: items, encrypted reasoning, its last events."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from holdfast.core.messages import Assistant, Image, Message, Proposal, System, ToolResult, User
from holdfast.core.types import CallId, Usage
from holdfast.errors import Filtered, HoldfastError, Overflow, Rejected, Transient
from holdfast.models.model import Answer, Request, ToolSpec
from holdfast.models.responses import ResponsesModel
from tests.fakes.model_server import DONE, ModelServer, Reply, refuse, serve, server_at, stream
from tests.fakes.responses import (
    START,
    WIRE,
    added,
    done,
    event,
    finish,
    function_call,
    message,
    say,
    thought,
    token,
)

pytestmark = pytest.mark.anyio

ASK = Request("gpt-5-mini", "", [User("hello")], [])


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with serve(lambda ask: say("done"), wire=WIRE) as server:
        yield server


@pytest.fixture
async def model(server: ModelServer) -> AsyncIterator[ResponsesModel]:
    async with aclosing(ResponsesModel(server_at(server.base_url))) as model:
        yield model


async def answer(model: ResponsesModel, request: Request = ASK) -> Answer:
    last = [piece async for piece in model.stream(request)][-1]
    assert isinstance(last, Answer)
    return last


async def failure(model: ResponsesModel) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        await answer(model)
    return caught.value


async def sent(server: ModelServer, model: ResponsesModel, *messages: Message) -> list[Any]:
    """The items that reach the server for these messages."""
    await answer(model, Request("gpt-5-mini", "", messages, []))
    items: list[Any] = server.requests[-1].body["input"]
    return items


async def test_a_conversation_reaches_the_server_in_its_own_form(
    server: ModelServer, model: ResponsesModel
) -> None:
    messages: list[Message] = [
        System("be kind"),
        User("hi", (Image("image/png", b"a picture"),)),
        Assistant("I look.", (Proposal(CallId("c1"), "ls", '{"path": "."}'),)),
        ToolResult(CallId("c1"), "a.txt"),
        Assistant("there is a.txt"),
        User("thanks"),
    ]
    tool = ToolSpec("ls", "lists", {"type": "object", "properties": {}})
    await answer(model, Request("gpt-5-mini", "you are", messages, [tool]))
    (seen,) = server.requests
    assert seen.path == "/v1/responses"
    assert seen.body == {
        "model": "gpt-5-mini",
        "stream": True,
        "store": False,
        "instructions": "you are",
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": "auto"},
        "input": [
            {"type": "message", "role": "system", "content": "be kind"},
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "hi"},
                    {"type": "input_image", "image_url": "data:image/png;base64,YSBwaWN0dXJl"},
                ],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "I look."}],
            },
            {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": '{"path": "."}'},
            {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "there is a.txt"}],
            },
            {"type": "message", "role": "user", "content": "thanks"},
        ],
        "tools": [
            {
                "type": "function",
                "name": "ls",
                "description": "lists",
                "parameters": {"type": "object", "properties": {}},
                "strict": False,
            }
        ],
    }


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("o4-mini", True),
        ("gpt-5", True),
        ("openai/gpt-6-astra", True),
        ("codex-mini-latest", True),
        ("gpt-4.1", False),
        ("gpt-4o", False),
        ("gpt-5-chat-latest", False),
        ("llama-3", False),
    ],
)
async def test_reasoning_is_asked_for_only_where_it_is_known(
    server: ModelServer, model: ResponsesModel, name: str, reasons: bool
) -> None:
    await answer(model, Request(name, "", [User("hi")], []))
    body = server.requests[0].body
    assert ("include" in body, "reasoning" in body) == (reasons, reasons)


async def test_summaries_can_be_left_out(server: ModelServer) -> None:
    async with aclosing(ResponsesModel(server_at(server.base_url), summary="")) as model:
        await answer(model)
    body = server.requests[0].body
    assert ("include" in body, "reasoning" in body) == (True, False)


async def test_encrypted_reasoning_goes_back_before_what_followed_it(
    server: ModelServer, model: ResponsesModel
) -> None:
    server.then(
        stream(
            *START,
            *thought("hm", 1, 0, "sealed"),
            *message("I look.", 2, 1, phase="commentary"),
            *thought("so", 1, 2, "again"),
            *function_call("ls", "{}", 3, "c1"),
            *function_call("ls", "{}", 4, "c2"),
            *thought("unused", 1, 5, "last"),
            finish(),
        )
    )
    first = await answer(model)
    assert (first.text, first.reasoning) == ("I look.", "hmsounused")
    items = await sent(
        server,
        model,
        User("hello"),
        Assistant(first.text, first.calls, first.opaque),
        ToolResult(CallId("c1"), "a"),
        ToolResult(CallId("c2"), "b"),
    )
    call = {"type": "function_call", "name": "ls", "arguments": "{}"}
    assert items[1:] == [
        {
            "type": "reasoning",
            "encrypted_content": "sealed",
            "summary": [{"type": "summary_text", "text": "hm"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
            "phase": "commentary",
        },
        {
            "type": "reasoning",
            "encrypted_content": "again",
            "summary": [{"type": "summary_text", "text": "so"}],
        },
        {**call, "call_id": "c1"},
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "a"},
        {"type": "function_call_output", "call_id": "c2", "output": "b"},
    ]


async def test_reasoning_that_is_not_encrypted_is_not_kept(
    server: ModelServer, model: ResponsesModel
) -> None:
    server.then(say("yes", reasoning="hm"))
    found = await answer(model)
    assert (found.reasoning, found.opaque) == ("hm", "")


async def test_reasoning_is_read_under_each_of_its_names(
    server: ModelServer, model: ResponsesModel
) -> None:
    server.then(
        stream(
            event("response.reasoning_text.delta", delta="a"),
            event("response.reasoning_summary_part.added", summary_index=1),
            event("response.reasoning_summary_text.delta", delta="b"),
            token("yes"),
            finish(),
        )
    )
    assert await answer(model) == Answer("yes", "a\n\nb", usage=Usage(7, 2))


async def test_what_was_not_streamed_is_taken_from_the_whole_items(
    server: ModelServer, model: ResponsesModel
) -> None:
    parts = [{"type": "output_text", "text": "yes"}, {"type": "refusal", "refusal": " but"}]
    call = {"type": "function_call", "call_id": "x", "name": "ls", "arguments": '{"a":1}'}
    server.then(stream(done(0, type="message", content=parts), done(1, **call), finish(), DONE))
    found = await answer(model)
    assert found.text == "yes but"
    assert found.calls == (Proposal(CallId("x"), "ls", '{"a":1}'),)


async def test_items_may_grow_at_the_same_time(server: ModelServer, model: ResponsesModel) -> None:
    one, two = function_call("ls", '{"a":1}', 0, "a"), function_call("cat", '{"b":2}', 1, "b")
    mixed = [chunk for pair in zip(one, two, strict=True) for chunk in pair]
    server.then(stream(*mixed, finish()))
    assert [(c.tool, c.arguments) for c in (await answer(model)).calls] == [
        ("ls", '{"a":1}'),
        ("cat", '{"b":2}'),
    ]


async def test_usage_counts_what_the_cache_gave(server: ModelServer, model: ResponsesModel) -> None:
    usage = {"input_tokens": 9, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 5}}
    server.then(stream(*message("a", 1), finish(usage=usage)))
    assert (await answer(model)).usage == Usage(9, 3, 5)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refuse(429, "pay first", code="insufficient_quota"), Rejected),
        (stream(token("a"), event("error", code="server_error", message="oops")), Transient),
        (stream(token("a"), event("error", error={"code": "rate_limit_exceeded"})), Transient),
        (stream(event("error", code="context_length_exceeded", message="no")), Overflow),
        (stream(event("error", error={"code": "invalid_api_key"})), Rejected),
        (stream(finish(kind="response.failed", error={"code": "server_error"})), Transient),
        (stream(finish(kind="response.failed", error={"code": "invalid_prompt"})), Rejected),
        (
            stream(finish(kind="response.failed", error={"code": "context_length_exceeded"})),
            Overflow,
        ),
        (stream(*message("whole", 1)), Transient),
        (
            stream(
                *thought("hm", 1),
                finish(
                    kind="response.incomplete",
                    incomplete_details={"reason": "max_output_tokens"},
                ),
            ),
            Transient,
        ),
        (
            stream(
                *message("no", 1),
                finish(kind="response.incomplete", incomplete_details={"reason": "content_filter"}),
            ),
            Filtered,
        ),
        (stream(added(0, type="function_call", call_id="x"), finish()), Transient),
    ],
)
async def test_the_servers_errors_say_who_acts_next(
    server: ModelServer, model: ResponsesModel, reply: Reply, kind: type[HoldfastError]
) -> None:
    server.then(reply)
    assert type(await failure(model)) is kind


async def test_an_answer_that_reached_its_limit_is_kept(
    server: ModelServer, model: ResponsesModel
) -> None:
    why = {"reason": "max_output_tokens"}
    last = finish(kind="response.incomplete", incomplete_details=why)
    server.then(stream(*message("half of", 1), last))
    assert await answer(model) == Answer("half of", usage=Usage(7, 2), cut=True)


async def test_an_organization_that_gets_no_summaries_is_asked_for_none(
    server: ModelServer, model: ResponsesModel
) -> None:
    said = "Your organization must be verified to generate reasoning summaries. Please go to: x"
    server.then(refuse(400, said, code="unsupported_value"))
    assert (await answer(model)).text == "done"
    assert (await answer(model)).text == "done"
    asked = ["reasoning" in seen.body for seen in server.requests]
    assert asked == [True, False, False]
    server.then(refuse(400, "Unknown parameter"))
    assert type(await failure(model)) is Rejected
