"""The `openai` provider against a real server on loopback, faults included."""

import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from typing_extensions import override

from holdfast.core.messages import Assistant, Image, Message, Proposal, System, ToolResult, User
from holdfast.core.types import CallId, Usage
from holdfast.errors import HoldfastError, Misconfigured, Overflow, Rejected, Transient
from holdfast.models.completions import AnswerParser
from holdfast.models.model import Answer, Piece, Reasoning, Request, Text, ToolSpec
from holdfast.models.openai import OpenAIModel
from holdfast.models.peer import Peer
from tests.fakes.model_server import (
    DONE,
    SETTINGS,
    Abort,
    ModelServer,
    Reply,
    Wait,
    call,
    calls,
    delta,
    event,
    finish,
    plain,
    refuse,
    say,
    serve,
    server_at,
    stream,
    token,
    usage,
)

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret-0123456789"
ASK = Request("fake", "", [User("hello")], [])


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with serve() as server:
        yield server


@pytest.fixture
async def model(server: ModelServer) -> AsyncIterator[OpenAIModel]:
    async with aclosing(OpenAIModel(server_at(server.base_url, KEY))) as model:
        yield model


async def listen(model: OpenAIModel, request: Request = ASK) -> list[Piece]:
    return [piece async for piece in model.stream(request)]


async def answer(model: OpenAIModel, request: Request = ASK) -> Answer:
    last = (await listen(model, request))[-1]
    assert isinstance(last, Answer)
    return last


async def failure(model: OpenAIModel) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        await listen(model)
    assert KEY not in str(caught.value)
    return caught.value


async def test_a_conversation_reaches_the_server_in_its_own_form(
    server: ModelServer, model: OpenAIModel
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
    tool = ToolSpec("ls", "lists", {"type": "object", "properties": {}})
    await listen(model, Request("fake", "you are", messages, [tool]))
    (seen,) = server.requests
    function = {"name": "ls", "arguments": '{"path": "."}'}
    assert seen.body == {
        "model": "fake",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "you are"},
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"type": "function", "id": "c1", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
            {"role": "assistant", "content": "there is a.txt"},
            {"role": "user", "content": "thanks"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "ls",
                    "description": "lists",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
    }
    assert seen.headers["Authorization"] == f"Bearer {KEY}"


async def test_images_are_sent_after_their_text(server: ModelServer, model: OpenAIModel) -> None:
    png, gif = Image("image/png", b"a picture"), Image("image/gif", b"another")
    said: list[Message] = [
        User("before"),
        Assistant("yes"),
        User("look", (png, gif)),
        User("", (png,)),
    ]
    await listen(model, Request("fake", "", said, []))
    first = {"type": "image_url", "image_url": {"url": "data:image/png;base64,YSBwaWN0dXJl"}}
    second = {"type": "image_url", "image_url": {"url": "data:image/gif;base64,YW5vdGhlcg=="}}
    assert [m["content"] for m in server.requests[0].body["messages"]] == [
        "before",
        "yes",
        [{"type": "text", "text": "look"}, first, second],
        [first],
    ]


async def test_without_key_and_tools_neither_is_mentioned(server: ModelServer) -> None:
    async with aclosing(OpenAIModel(server_at(server.base_url + "/", ""))) as model:
        await listen(model)
    (seen,) = server.requests
    assert "Authorization" not in seen.headers
    assert "tools" not in seen.body


async def test_a_huge_conversation_arrives_whole(server: ModelServer, model: OpenAIModel) -> None:
    await listen(model, Request("fake", "", [User("ü" * 1_500_000)], []))
    assert server.requests[0].body["messages"][0]["content"] == "ü" * 1_500_000


async def test_text_is_handed_on_before_the_answer_is_over(
    server: ModelServer, model: OpenAIModel
) -> None:
    wait = Wait()
    server.then(stream(token("one "), wait, token("two"), finish(), usage(3, 2), DONE))
    pieces: list[Piece] = []
    async with aclosing(model.stream(ASK)) as source:
        async for piece in source:
            if not pieces:
                assert piece == Text("one ")
                wait.gate.set()
            pieces.append(piece)
    assert pieces[-1] == Answer("one two", usage=Usage(3, 2))


async def test_events_that_arrive_together_become_one_piece(
    server: ModelServer, model: OpenAIModel
) -> None:
    thoughts = b"".join(delta(reasoning_content=t) for t in "abc")
    words = b"".join(token(t) for t in "defg")
    server.then(stream(thoughts + words + finish() + usage(1, 7) + DONE))
    assert await listen(model) == [
        Reasoning("abc"),
        Text("defg"),
        Answer("defg", "abc", usage=Usage(1, 7)),
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
async def test_reasoning_is_read_under_each_of_its_names(
    server: ModelServer, model: OpenAIModel, name: str
) -> None:
    server.then(stream(delta(**{name: "hm"}), token("yes"), finish(), DONE))
    assert await answer(model) == Answer("yes", "hm")


class Loopback(AbstractResolver):
    """Finds every host on this machine."""

    @override
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host="127.0.0.1",
                port=port,
                family=socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
        ]

    @override
    async def close(self) -> None:
        """Nothing is held."""


async def replayed(server: ModelServer, model: OpenAIModel, found: Answer) -> dict[str, Any]:
    """The message that reaches the server when that answer goes back to it."""
    results = [ToolResult(proposal.call_id, "a") for proposal in found.calls]
    answered = Assistant(found.text, found.calls, found.opaque)
    server.then(say("done"))
    await answer(model, Request("fake", "", [User("hi"), answered, *results], []))
    message: dict[str, Any] = server.requests[-1].body["messages"][1]
    return message


async def test_reasoning_content_goes_back_with_the_calls_that_it_led_to(
    server: ModelServer, model: OpenAIModel
) -> None:
    thoughts = [delta(reasoning_content="h"), delta(reasoning_content="m")]
    server.then(calls(thoughts, call("ls", "{}")))
    first = await replayed(server, model, await answer(model))
    assert first["reasoning_content"] == "hm"
    server.then(say("yes", reasoning="hm"))
    last = await answer(model)
    assert (last.reasoning, last.opaque) == ("hm", "")


async def test_reasoning_details_go_back_joined(server: ModelServer, model: OpenAIModel) -> None:
    text = {"type": "reasoning.text", "index": 0, "format": "x"}
    sealed = {"type": "reasoning.encrypted", "index": 1, "data": "c2VhbGVk", "id": None}
    pieces = [
        delta(reasoning="h", reasoning_details=[{**text, "text": "h", "signature": None}]),
        delta(reasoning="m", reasoning_details=[{**text, "text": "m"}]),
        delta(reasoning_details=[{**text, "signature": "signed"}, sealed]),
    ]
    server.then(calls(pieces, call("ls", "{}")))
    found = await answer(model)
    assert found.reasoning == "hm"
    assert (await replayed(server, model, found))["reasoning_details"] == [
        {**text, "text": "hm", "signature": "signed"},
        sealed,
    ]


@asynccontextmanager
async def at_host(server: ModelServer, host: str) -> AsyncIterator[OpenAIModel]:
    """A provider that takes the server for the one at `host`."""
    url = server.base_url.replace("127.0.0.1", host)
    connector = aiohttp.TCPConnector(resolver=Loopback())
    async with aiohttp.ClientSession(connector=connector) as session:
        yield OpenAIModel(server_at(url, KEY), session)


async def test_mistral_gets_ids_of_nine_letters_or_digits(server: ModelServer) -> None:
    old, own = CallId("call_0123456789abcdef"), CallId("D681PevKs")
    calls = tuple(Proposal(call_id, "ls", "{}") for call_id in (old, own))
    async with at_host(server, "api.mistral.ai") as model:
        first, second = (await replayed(server, model, Answer("", calls=calls)))["tool_calls"]
    results = [m for m in server.requests[0].body["messages"] if m["role"] == "tool"]
    assert [first["id"], second["id"]] == [result["tool_call_id"] for result in results]
    assert len(first["id"]) == 9 and first["id"].isalnum()
    assert second["id"] == own


@pytest.mark.parametrize(
    ("host", "name"),
    [("api.openai.com", "max_completion_tokens"), ("api.groq.com", "max_tokens")],
)
async def test_the_limit_of_an_answer_has_its_new_name_only_at_openai(
    server: ModelServer, host: str, name: str
) -> None:
    async with at_host(server, host) as model:
        await answer(model, Request("fake", "", [User("hi")], [], max_output=7))
    found = {key: value for key, value in server.requests[0].body.items() if "max_" in key}
    assert found == {name: 7}


async def test_deepseek_gets_reasoning_with_every_call(server: ModelServer) -> None:
    async with at_host(server, "api.deepseek.com") as model:
        foreign = Answer("", calls=(Proposal(CallId("c1"), "ls", "{}"),))
        assert (await replayed(server, model, foreign))["reasoning_content"] == ""
        server.then(say("yes", reasoning="hm"))
        last = await replayed(server, model, await answer(model))
        assert last == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


async def test_reasoning_that_is_no_string_is_passed_over(
    server: ModelServer, model: OpenAIModel
) -> None:
    server.then(stream(delta(reasoning={"a": [1]}, content="yes"), finish(), DONE))
    assert await answer(model) == Answer("yes")


WIRE = (
    b": comment\r\n\r\n"
    + token("grün ").replace(b"\n", b"\r\n")
    + b"event: x\nid: 1\ndata:\n\n"
    + token("日本 🌊").replace(b"data: ", b"data:")
    + b"".join(call("ls", '{"path": "ä"}'))
    + finish("tool_calls")
    + usage(4, 5)
    + DONE
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, len(WIRE)])
def test_an_answer_does_not_depend_on_how_its_bytes_are_cut(size: int) -> None:
    incoming = AnswerParser(Peer("openai", "host", "m", "", SETTINGS))
    pieces = [
        p for i in range(0, len(WIRE), size) for p in incoming.feed(WIRE[i : i + size])
    ] + incoming.end()
    assert "".join(p.text for p in pieces) == "grün 日本 🌊"
    proposal = Proposal(CallId("call_1"), "ls", '{"path": "ä"}')
    assert incoming.answer(ASK) == Answer("grün 日本 🌊", "", (proposal,), Usage(4, 5))


async def test_a_character_split_over_writes_is_whole(
    server: ModelServer, model: OpenAIModel
) -> None:
    raw, wait = token("日本"), Wait()
    cut = raw.index("本".encode()) + 1
    wait.gate.set()
    server.then(stream(raw[:cut], wait, raw[cut:], finish(), DONE))
    assert await answer(model) == Answer("日本")


async def test_a_finished_answer_needs_no_done(server: ModelServer, model: OpenAIModel) -> None:
    server.then(stream(token("ok"), finish()))
    assert await answer(model) == Answer("ok")


async def test_done_alone_ends_an_answer(server: ModelServer, model: OpenAIModel) -> None:
    server.then(stream(token("ok"), DONE))
    assert await answer(model) == Answer("ok")


async def test_the_last_line_needs_no_newline(server: ModelServer, model: OpenAIModel) -> None:
    server.then(stream(token("ok"), finish().rstrip()))
    assert await answer(model) == Answer("ok")


@pytest.mark.parametrize(
    "reply", [stream(finish(), DONE), stream(DONE), Reply((), length=0), plain("")]
)
async def test_an_empty_answer_is_an_answer(
    server: ModelServer, model: OpenAIModel, reply: Reply
) -> None:
    server.then(reply)
    assert (await answer(model)).text == ""


async def test_usage_sent_several_times_counts_once(
    server: ModelServer, model: OpenAIModel
) -> None:
    server.then(stream(token("a"), usage(5, 1), token("b"), usage(5, 2), finish(), usage(5, 2)))
    assert (await answer(model)).usage == Usage(5, 2)


async def test_a_server_that_does_not_stream_is_understood(
    server: ModelServer, model: OpenAIModel
) -> None:
    function = {"name": "ls", "arguments": {"path": "."}}
    server.then(plain("hi", tool_calls=[{"id": "x", "type": "function", "function": function}]))
    pieces = await listen(model)
    proposal = Proposal(CallId("x"), "ls", '{"path":"."}')
    assert pieces == [Text("hi"), Answer("hi", "", (proposal,), Usage(7, 2))]


def opening(tool: str, **more: Any) -> dict[str, Any]:
    return {"function": {"name": tool, "arguments": "{}"}, **more}


async def test_split_arguments_are_joined_and_calls_keep_their_order(
    server: ModelServer, model: OpenAIModel
) -> None:
    one = call("ls", '{"path": "a"}', call_id="a", index=0, parts=5)
    two = call("cat", '{"path": "b"}', call_id="b", index=1, parts=3)
    server.then(calls(one[:2], two, one[2:]))
    assert (await answer(model)).calls == (
        Proposal(CallId("a"), "ls", '{"path": "a"}'),
        Proposal(CallId("b"), "cat", '{"path": "b"}'),
    )


@pytest.mark.parametrize(
    "chunks",
    [
        [call("a", "{}", call_id="x", index=0), call("b", "{}", call_id="x", index=1)],
        [call("a", "{}", call_id=None, index=0), call("b", "{}", call_id=None, index=1)],
        [call("a", "{}", call_id="", index=0), call("b", "{}", call_id="y", index=1)],
        [call("a", "{}", call_id="x", index=0), call("b", "{}", call_id="y", index=0)],
        [call("a", "{}", call_id=None, index=None), call("b", "{}", call_id=None, index=None)],
        [(delta(tool_calls=[opening("a"), opening("b")]),)],
        [(delta(tool_calls=[opening("a", id="x"), opening("b", id="x")]),)],
    ],
    ids=["twins", "no-ids", "empty-id", "all-index-0", "no-index", "together", "twins-together"],
)
async def test_every_call_has_an_id_of_its_own(
    server: ModelServer, model: OpenAIModel, chunks: list[tuple[bytes, ...]]
) -> None:
    server.then(calls(*chunks))
    proposals = (await answer(model)).calls
    assert [(p.tool, p.arguments) for p in proposals] == [("a", "{}"), ("b", "{}")]
    assert len({p.call_id for p in proposals} - {""}) == 2


async def test_an_id_the_conversation_already_has_is_not_used_again(
    server: ModelServer, model: OpenAIModel
) -> None:
    old = Assistant("", (Proposal(CallId("call_1"), "ls", "{}"),))
    server.then(calls(call("ls", "{}", call_id="call_1")))
    messages: list[Message] = [User("hi"), old, ToolResult(CallId("call_1"), "none")]
    (proposal,) = (await answer(model, Request("fake", "", messages, []))).calls
    assert proposal.call_id not in ("", "call_1")


async def test_a_server_that_repeats_name_and_id_means_one_call(
    server: ModelServer, model: OpenAIModel
) -> None:
    parts = [
        delta(tool_calls=[{"index": 0, "id": "x", "function": {"name": "ls", "arguments": a}}])
        for a in ('{"a"', ":1}")
    ]
    server.then(calls(parts))
    assert (await answer(model)).calls == (Proposal(CallId("x"), "ls", '{"a":1}'),)


@pytest.mark.parametrize("arguments", ["", None, "  "])
async def test_no_arguments_are_empty_arguments(
    server: ModelServer, model: OpenAIModel, arguments: str | None
) -> None:
    part = {"index": 0, "id": "x", "function": {"name": "ls", "arguments": arguments}}
    server.then(calls([delta(tool_calls=[part])]))
    assert (await answer(model)).calls[0].arguments == "{}"


@pytest.mark.parametrize(
    "reply",
    [
        stream(token("half")),
        stream(token("half"), usage(1, 1)),
        stream(),
        stream(token("half"), b"data: {broken\n\n", finish(), DONE),
        stream(token("half"), b'data: {"choices": "no"}\n\n', finish(), DONE),
        stream(b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n', finish(), DONE),
        stream(token("half"), event(error={"message": "overloaded"}), DONE),
        stream(token("half"), event(error="overloaded"), DONE),
        stream(token("half"), event(error={"message": "busy", "code": 429}), DONE),
        stream(token("half"), finish("error"), DONE),
        stream(delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]), finish(), DONE),
        Reply((b'{"detail": "odd"}',), content_type="application/json"),
        Reply((b'{"choices": [',), content_type="application/json"),
        Reply((b"<html>oops</html>",), content_type="text/html"),
    ],
    ids=(
        "no-finish no-finish-but-usage nothing malformed wrong-type bad-utf8 error-inside "
        "error-string error-429 finish-error nameless-call json-without-choices half-json html"
    ).split(),
)
async def test_what_is_not_a_whole_answer_may_be_asked_again(
    server: ModelServer, model: OpenAIModel, reply: Reply
) -> None:
    server.then(reply, say("better"))
    error = await failure(model)
    assert isinstance(error, Transient)
    assert "127.0.0.1" in str(error)
    assert (await answer(model)).text == "better"


@pytest.mark.fault("F-15")
@pytest.mark.parametrize("sent", range(5))
async def test_a_reset_at_any_chunk_is_transient_and_what_came_is_a_prefix(
    server: ModelServer, model: OpenAIModel, sent: int
) -> None:
    whole = say("one two three", 4)
    server.then(stream(*whole.steps[:sent], Abort()), whole)
    pieces = []
    with pytest.raises(Transient):
        async for piece in model.stream(ASK):
            assert isinstance(piece, Text)
            pieces.append(piece.text)
    assert "one two three".startswith("".join(pieces))
    assert await answer(model) == Answer("one two three", usage=Usage(7, 4))


@pytest.mark.fault("F-15")
@pytest.mark.parametrize("sent", [6, 7, 8])
async def test_a_reset_after_the_answer_is_whole_loses_nothing_of_it(
    server: ModelServer, model: OpenAIModel, sent: int
) -> None:
    server.then(stream(*say("one two three", 4).steps[:sent], Abort()))
    assert (await answer(model)).text == "one two three"


async def test_a_server_that_falls_silent_is_given_up(server: ModelServer) -> None:
    server.then(stream(Wait()), stream(token("half"), Wait()))
    async with aclosing(OpenAIModel(server_at(server.base_url, KEY, stall_s=0.05))) as model:
        for _ in range(2):
            error = await failure(model)
            assert isinstance(error, Transient)
            assert "nothing for 0.05 s" in str(error)
        await server.idle()


async def test_a_server_that_never_hangs_up_does_not_hold_the_answer(
    server: ModelServer, model: OpenAIModel
) -> None:
    server.then(stream(token("ok"), finish(), usage(1, 1), DONE, Wait()))
    with anyio.fail_after(5):
        assert await answer(model) == Answer("ok", usage=Usage(1, 1))
        await server.idle()


async def test_a_refused_connection_is_transient() -> None:
    async with serve() as server:
        url = server.base_url
    async with aclosing(OpenAIModel(server_at(url, KEY))) as model:
        assert isinstance(await failure(model), Transient)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_busy_or_broken_server_is_transient(
    server: ModelServer, model: OpenAIModel, status: int
) -> None:
    server.then(refuse(status, "not now"))
    error = await failure(model)
    assert isinstance(error, Transient)
    assert error.retry_after_s is None
    assert "not now" in str(error)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({"retry-after-ms": "250", "Retry-After": "7"}, 0.25),
        (
            {
                "Date": "Wed, 21 Oct 2015 07:28:00 GMT",
                "Retry-After": "Wed, 21 Oct 2015 07:28:09 GMT",
            },
            9.0,
        ),
    ],
)
async def test_the_server_says_how_long_to_wait(
    server: ModelServer, model: OpenAIModel, headers: dict[str, str], wait_s: float | None
) -> None:
    server.then(refuse(429, "slow down", headers=headers))
    error = await failure(model)
    assert isinstance(error, Transient)
    assert error.retry_after_s == wait_s


@pytest.mark.parametrize(
    "reply",
    [
        refuse(400, "no", code="context_length_exceeded"),
        refuse(400, "This model's maximum context length is 4096 tokens."),
        refuse(400, "the request exceeds the available context size"),
        refuse(422, "Prompt is too long"),
        refuse(413, "payload too large"),
        stream(token("x"), event(error={"message": "no", "code": "context_length_exceeded"})),
        stream(event(error="context window is full")),
    ],
)
async def test_a_conversation_that_is_too_long_is_an_overflow(
    server: ModelServer, model: OpenAIModel, reply: Reply
) -> None:
    server.then(reply)
    assert isinstance(await failure(model), Overflow)


async def test_a_key_of_one_character_garbles_no_refusal(server: ModelServer) -> None:
    words = "no model is loaded"
    server.then(refuse(400, words))
    async with aclosing(OpenAIModel(server_at(server.base_url, "o"))) as model:
        assert words in str(await failure(model))


@pytest.mark.parametrize(
    ("reply", "status", "hint"),
    [
        (refuse(401, f"Incorrect API key: {KEY}."), "401", "OPENAI_API_KEY"),
        (refuse(403, "not yours"), "403", "OPENAI_API_KEY"),
        (refuse(404, "no such model"), "404", "HOLDFAST_MODEL"),
        (refuse(400, "bad"), "400", "OPENAI_BASE_URL"),
        (refuse(429, "pay first", code="insufficient_quota"), "402", "credit"),
        (Reply((b"<h1>nope</h1>",), 405), "405", "OPENAI_BASE_URL"),
        (Reply((b'{"message": "gone"}',), 410), "410", "OPENAI_BASE_URL"),
        (Reply((), 308, {"Location": "/v2"}), "308", "OPENAI_BASE_URL"),
        (stream(event(error={"code": "invalid_api_key"})), "401", "OPENAI_API_KEY"),
        (stream(event(error={"type": "invalid_request_error"})), "400", "HOLDFAST_MODEL"),
    ],
)
async def test_what_the_server_will_never_take_names_what_to_check(
    server: ModelServer, model: OpenAIModel, reply: Reply, status: str, hint: str
) -> None:
    server.then(reply)
    error = await failure(model)
    assert isinstance(error, Rejected)
    for part in ("127.0.0.1", "model fake", status, hint):
        assert part in str(error)


async def test_a_long_refusal_is_quoted_in_short(server: ModelServer, model: OpenAIModel) -> None:
    server.then(refuse(400, f"{KEY} " * 10_000))
    assert len(str(await failure(model))) < 400


async def test_cancelling_closes_the_connection(server: ModelServer, model: OpenAIModel) -> None:
    server.then(stream(token("one"), Wait()), stream(Wait()))
    async with anyio.create_task_group() as group:
        async for _ in model.stream(ASK):
            group.cancel_scope.cancel()
    async with anyio.create_task_group() as group:  # while not even the headers are there
        group.start_soon(listen, model)
        await server.asked(2)
        group.cancel_scope.cancel()
    with anyio.fail_after(5):
        await server.idle()
    await listen(model)
    assert len(server.connections) == 3


async def test_whole_answers_share_one_connection(server: ModelServer, model: OpenAIModel) -> None:
    server.then(say("a"), refuse(429, "no"), plain("b"), stream(token("c"), finish()))
    for _ in range(5):
        try:
            await listen(model)
        except Transient:
            continue
    assert len(server.requests) == 5
    assert len(server.connections) == 1


async def test_a_given_session_is_used_and_left_open(server: ModelServer) -> None:
    async with aiohttp.ClientSession() as session:
        async with aclosing(OpenAIModel(server_at(server.base_url, KEY), session)) as model:
            await listen(model)
        assert not session.closed


async def test_check_says_where_and_how_many(server: ModelServer, model: OpenAIModel) -> None:
    assert await model.check() == f"openai at {server.base_url} answers, 2 models"


async def test_check_fails_as_asking_would(server: ModelServer, model: OpenAIModel) -> None:
    server.refuse_models = refuse(401, "who are you")
    with pytest.raises(Rejected, match="OPENAI_API_KEY"):
        await model.check()
    server.refuse_models = Reply((b"<html>",), content_type="text/html")
    with pytest.raises(Rejected, match="OPENAI_BASE_URL"):
        await model.check()


async def test_check_gives_up_after_a_second(server: ModelServer, model: OpenAIModel) -> None:
    server.refuse_models = stream(Wait())
    with anyio.fail_after(3), pytest.raises(Transient):
        await model.check()


@pytest.mark.parametrize(
    "url", ["", "localhost", "ftp://host/v1", "http://", "http://u:p@host/v1", "http://[::1/v1"]
)
def test_a_base_url_that_cannot_work_is_refused_at_once(url: str) -> None:
    with pytest.raises(Misconfigured, match="OPENAI_BASE_URL"):
        OpenAIModel(server_at(url, KEY))


@pytest.mark.parametrize("key", ["a\nb", "ключ"])
def test_a_key_that_cannot_be_sent_is_refused_at_once_and_not_shown(key: str) -> None:
    with pytest.raises(Misconfigured, match="OPENAI_API_KEY") as caught:
        OpenAIModel(server_at("http://host/v1", key))
    assert key not in str(caught.value)
