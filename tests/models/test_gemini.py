"""What is particular to Gemini's API: parts, signatures, calls without ids, its errors."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from holdfast.core.messages import Assistant, Image, Message, Proposal, System, ToolResult, User
from holdfast.core.types import CallId, Usage
from holdfast.errors import Filtered, HoldfastError, Overflow, Rejected, Transient
from holdfast.models.gemini import GeminiModel
from holdfast.models.model import Answer, Request, ToolSpec
from tests.fakes.gemini import (
    WIRE,
    error,
    event,
    finish,
    function_call,
    parts,
    refuse,
    say,
    thought,
    token,
)
from tests.fakes.model_server import (
    DONE,
    SETTINGS,
    ModelServer,
    Reply,
    serve,
    server_at,
    stream,
)

pytestmark = pytest.mark.anyio

ASK = Request("gemini-2.5-pro", "", [User("hello")], [])


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with serve(lambda ask: say("done"), wire=WIRE) as server:
        yield server


@pytest.fixture
async def model(server: ModelServer) -> AsyncIterator[GeminiModel]:
    async with aclosing(GeminiModel(server_at(server.base_url, provider="gemini"))) as model:
        yield model


async def answer(model: GeminiModel, request: Request = ASK) -> Answer:
    last = [piece async for piece in model.stream(request)][-1]
    assert isinstance(last, Answer)
    return last


async def failure(model: GeminiModel) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        await answer(model)
    return caught.value


async def sent(
    server: ModelServer, model: GeminiModel, *messages: Message, name: str = "gemini-2.5-pro"
) -> list[Any]:
    """The turns that reach the server for these messages."""
    await answer(model, Request(name, "", messages, []))
    turns: list[Any] = server.requests[-1].body["contents"]
    return turns


async def test_a_conversation_reaches_the_server_in_its_own_form(
    server: ModelServer, model: GeminiModel
) -> None:
    messages: list[Message] = [
        System("be kind"),
        User("hi", (Image("image/png", b"a picture"),)),
        Assistant("I look.", (Proposal(CallId("c1"), "ls", '{"path": "."}'),)),
        ToolResult(CallId("c1"), "a.txt"),
        User("and?"),
        Assistant("there is a.txt"),
        User("thanks"),
    ]
    tools = [
        ToolSpec(
            "ls",
            "lists",
            {
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "additionalProperties": False,
            },
        ),
        ToolSpec("now", "the time", {"type": "object", "properties": {}}),
    ]
    await answer(model, Request("models/gemini-2.5-pro", "you are", messages, tools))
    (seen,) = server.requests
    assert seen.path == "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
    assert seen.body == {
        "systemInstruction": {"parts": [{"text": "you are"}, {"text": "be kind"}]},
        "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "hi"},
                    {"inlineData": {"mimeType": "image/png", "data": "YSBwaWN0dXJl"}},
                ],
            },
            {
                "role": "model",
                "parts": [
                    {"text": "I look."},
                    {"functionCall": {"name": "ls", "args": {"path": "."}}},
                ],
            },
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "ls", "response": {"result": "a.txt"}}}],
            },
            {"role": "user", "parts": [{"text": "and?"}]},
            {"role": "model", "parts": [{"text": "there is a.txt"}]},
            {"role": "user", "parts": [{"text": "thanks"}]},
        ],
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "ls",
                        "description": "lists",
                        "parameters": {
                            "type": "object",
                            "properties": {"path": {"type": "string"}},
                        },
                    },
                    {"name": "now", "description": "the time"},
                ]
            }
        ],
    }


@pytest.mark.parametrize("suffix", ["", "/", "/v1beta", "/v1beta/"])
async def test_the_base_url_may_end_with_the_version(server: ModelServer, suffix: str) -> None:
    async with aclosing(GeminiModel(server_at(server.base_url + suffix))) as model:
        assert (await answer(model)).text == "done"


@pytest.mark.parametrize(
    ("name", "thinks"),
    [
        ("gemini-2.0-flash", False),
        ("gemini-2.5-flash", True),
        ("gemini-3-pro-preview", True),
        ("gemini-flash-latest", True),
        ("gemini-2.5-flash-image", False),
        ("gemma-3-27b-it", False),
    ],
)
async def test_thoughts_are_asked_for_only_where_they_are_known(
    server: ModelServer, model: GeminiModel, name: str, thinks: bool
) -> None:
    await answer(model, Request(name, "", [User("hi")], []))
    assert ("generationConfig" in server.requests[0].body) is thinks


async def test_signatures_go_back_in_their_parts(server: ModelServer, model: GeminiModel) -> None:
    server.then(
        stream(
            thought("hm"),
            token("I "),
            token("look"),
            parts({"text": ".", "thoughtSignature": "one"}),
            function_call("ls", {"path": "."}, "two", "s1"),
            function_call("ls", {}),
            token(" Wait"),
            finish(signature="three"),
        )
    )
    first = await answer(model)
    assert (first.text, first.reasoning) == ("I look. Wait", "hm")
    one, two = first.calls
    turns = await sent(
        server,
        model,
        User("hello"),
        Assistant(first.text, first.calls, first.opaque),
        ToolResult(two.call_id, "b"),
        ToolResult(one.call_id, "a"),
        name="gemini-3-pro-preview",
    )
    assert turns[1:] == [
        {
            "role": "model",
            "parts": [
                {"text": "I look"},
                {"text": ".", "thoughtSignature": "one"},
                {
                    "functionCall": {"name": "ls", "args": {"path": "."}, "id": "s1"},
                    "thoughtSignature": "two",
                },
                {"functionCall": {"name": "ls", "args": {}}},
                {"text": " Wait"},
                {"text": "", "thoughtSignature": "three"},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "ls", "response": {"result": "a"}, "id": "s1"}},
                {"functionResponse": {"name": "ls", "response": {"result": "b"}}},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("name", "signed"), [("gemini-3-pro-preview", True), ("gemini-2.5-pro", False)]
)
async def test_calls_of_another_model_get_the_signature_that_is_accepted_for_them(
    server: ModelServer, model: GeminiModel, name: str, signed: bool
) -> None:
    calls = tuple(Proposal(CallId(i), "ls", "not JSON") for i in "ab")
    results = [ToolResult(call.call_id, "no") for call in calls]
    turns = await sent(server, model, User("a"), Assistant("", calls), *results, name=name)
    first, second = turns[1]["parts"]
    assert ("thoughtSignature" in first, "thoughtSignature" in second) == (signed, False)
    assert first["functionCall"]["args"] == {"arguments": "not JSON"}


async def test_an_id_that_is_used_again_gets_its_own_result(
    server: ModelServer, model: GeminiModel
) -> None:
    call = Proposal(CallId("c1"), "ls", "{}")
    first: list[Message] = [Assistant("", (call,)), ToolResult(CallId("c1"), "first")]
    second: list[Message] = [Assistant("", (call,)), ToolResult(CallId("c1"), "second")]
    turns = await sent(server, model, User("a"), *first, *second, User("b"))
    results = [turns[at]["parts"][0]["functionResponse"]["response"] for at in (2, 4)]
    assert results == [{"result": "first"}, {"result": "second"}]


async def test_turns_alternate_begin_with_the_user_and_have_no_blank_text(
    server: ModelServer, model: GeminiModel
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
        ToolResult(CallId("gone"), "alone"),
        User("e"),
    )
    assert [turn["role"] for turn in turns] == ["user", "model", "user", "model", "user"]
    assert [p["text"] for t in turns for p in t["parts"]][1:] == ["hello", "a", "b", *"cde"]


async def test_usage_counts_thoughts_and_what_the_cache_gave(
    server: ModelServer, model: GeminiModel
) -> None:
    more = {"thoughtsTokenCount": 5, "cachedContentTokenCount": 3, "toolUsePromptTokenCount": 1}
    server.then(stream(token("a"), finish(7, 2, "STOP", "", **more), DONE))
    assert (await answer(model)).usage == Usage(8, 7, 3)


async def test_a_last_event_without_usage_waits_for_it(
    server: ModelServer, model: GeminiModel
) -> None:
    used = {"promptTokenCount": 4, "candidatesTokenCount": 1}
    server.then(stream(parts({"text": "a"}, finishReason="STOP"), event(usageMetadata=used)))
    assert await answer(model) == Answer("a", usage=Usage(4, 1))


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refuse(429, "quota"), Transient),
        (refuse(503, "The model is overloaded."), Transient),
        (stream(token("a"), event(error=error(503, "overloaded"))), Transient),
        (stream(token("a"), event(error=error(400, "bad"))), Rejected),
        (stream(event(promptFeedback={"blockReason": "SAFETY"})), Filtered),
        (stream(token("a"), finish(reason="SAFETY")), Filtered),
        (stream(token("a"), finish(reason="RECITATION")), Filtered),
        (stream(token("a"), finish(reason="MALFORMED_FUNCTION_CALL")), Transient),
        (stream(token("a"), finish(reason="OTHER")), Transient),
        (stream(thought("a"), finish(reason="MAX_TOKENS")), Transient),
        (stream(token("a"), event(usageMetadata={"promptTokenCount": 1})), Transient),
        (stream(function_call("", {}), finish()), Transient),
        (
            refuse(400, "The input token count (2) exceeds the maximum number of tokens allowed"),
            Overflow,
        ),
    ],
)
async def test_the_servers_errors_say_who_acts_next(
    server: ModelServer, model: GeminiModel, reply: Reply, kind: type[HoldfastError]
) -> None:
    server.then(reply)
    assert type(await failure(model)) is kind


@pytest.mark.parametrize(
    ("given", "wait_s"), [("34.5s", 34.5), ("0s", 0.0), ("soon", None), (None, None)]
)
async def test_an_error_says_in_its_details_how_long_to_wait(
    server: ModelServer, model: GeminiModel, given: str | None, wait_s: float | None
) -> None:
    quota = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []}
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": given}
    server.then(refuse(429, "quota", details=[quota, retry]))
    found = await failure(model)
    assert isinstance(found, Transient)
    assert found.retry_after_s == wait_s


async def test_a_bad_key_is_named_though_the_status_is_another(
    server: ModelServer, model: GeminiModel
) -> None:
    server.then(refuse(400, "API key not valid. Please pass a valid API key."))
    found = await failure(model)
    assert isinstance(found, Rejected)
    assert SETTINGS.key in str(found)


@pytest.mark.parametrize("reason", ["STOP", "MAX_TOKENS", "FUNCTION_CALL", "SOMETHING_NEW"])
async def test_an_answer_that_reached_its_limit_is_kept(
    server: ModelServer, model: GeminiModel, reason: str
) -> None:
    server.then(stream(token("half of"), finish(reason=reason)))
    assert (await answer(model)).text == "half of"
