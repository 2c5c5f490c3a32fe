"""What is particular to Ollama's own API: lines, whole calls, the context size, its errors."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from holdfast.core.messages import Assistant, Image, Message, Proposal, System, ToolResult, User
from holdfast.core.types import CallId, Usage
from holdfast.errors import HoldfastError, Overflow, Rejected, Transient
from holdfast.models.model import Answer, ListedModel, Request, ToolSpec
from holdfast.models.ollama import CONTEXT_TOKENS, OllamaModel
from tests.fakes.model_server import ModelServer, Reply, serve, server_at
from tests.fakes.ollama import WIRE, finish, line, piece, refuse, reply, say, token, tool_call

pytestmark = pytest.mark.anyio

ASK = Request("qwen3:8b", "", [User("hello")], [])


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with serve(lambda ask: say("done"), wire=WIRE) as server:
        yield server


@pytest.fixture
async def model(server: ModelServer) -> AsyncIterator[OllamaModel]:
    async with aclosing(OllamaModel(server_at(server.base_url, provider="ollama"))) as model:
        yield model


async def answer(model: OllamaModel, request: Request = ASK) -> Answer:
    last = [piece async for piece in model.stream(request)][-1]
    assert isinstance(last, Answer)
    return last


async def failure(model: OllamaModel) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        await answer(model)
    return caught.value


async def test_a_conversation_reaches_the_server_in_its_own_form(
    server: ModelServer, model: OllamaModel
) -> None:
    proposal = Proposal(CallId("c1"), "ls", '{"path": "."}')
    messages: list[Message] = [
        System("be kind"),
        User("hi", (Image("image/png", b"a picture"),)),
        Assistant("", (proposal,)),
        ToolResult(CallId("c1"), "a.txt"),
        Assistant("there is a.txt"),
        User("thanks"),
    ]
    tool = ToolSpec("ls", "lists", {"type": "object", "properties": {}})
    await answer(model, Request("qwen3:8b", "you are", messages, [tool]))
    (seen,) = server.requests
    assert seen.path == "/api/chat"
    assert "Authorization" in seen.headers
    assert seen.body == {
        "model": "qwen3:8b",
        "stream": True,
        "truncate": False,
        "shift": False,
        "options": {"num_ctx": CONTEXT_TOKENS},
        "messages": [
            {"role": "system", "content": "you are"},
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hi", "images": ["YSBwaWN0dXJl"]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "c1", "function": {"name": "ls", "arguments": {"path": "."}}}
                ],
            },
            {"role": "tool", "content": "a.txt", "tool_name": "ls", "tool_call_id": "c1"},
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


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/api/"])
async def test_the_base_url_may_end_with_the_version(server: ModelServer, suffix: str) -> None:
    async with aclosing(OllamaModel(server_at(server.base_url + suffix))) as model:
        assert (await answer(model)).text == "done"


async def test_calls_come_whole_with_or_without_ids(
    server: ModelServer, model: OllamaModel
) -> None:
    both = [tool_call("ls", {"path": "."}, id="a"), tool_call("cat", '{"path": "b"}')]
    server.then(reply(token("I look."), piece(tool_calls=both), finish()))
    first, second = (await answer(model)).calls
    assert first == Proposal(CallId("a"), "ls", '{"path":"."}')
    assert (second.tool, second.arguments) == ("cat", '{"path": "b"}')
    assert second.call_id not in ("", "a")


async def test_thoughts_that_led_to_calls_go_back_with_the_results(
    server: ModelServer, model: OllamaModel
) -> None:
    server.then(
        reply(
            piece(thinking="h"),
            piece(thinking="m"),
            piece(tool_calls=[tool_call("ls", {})]),
            finish(),
        )
    )
    first = await answer(model)
    assert first.reasoning == "hm"
    asked = Assistant(first.text, first.calls, first.opaque)
    result = ToolResult(first.calls[0].call_id, "a")
    await answer(model, Request("qwen3:8b", "", [User("hi"), asked, result], []))
    assert server.requests[-1].body["messages"][1]["thinking"] == "hm"
    server.then(say("yes", reasoning="hm"))
    assert (await answer(model)).opaque == ""


async def test_usage_is_that_of_the_last_line(server: ModelServer, model: OllamaModel) -> None:
    server.then(say("a b c", 3), reply(token("cached"), line(done=True, done_reason="stop")))
    assert (await answer(model)).usage == Usage(7, 3)
    assert (await answer(model)).usage == Usage()


async def test_the_last_line_needs_no_newline(server: ModelServer, model: OllamaModel) -> None:
    server.then(reply(token("ok"), finish().rstrip()))
    assert (await answer(model)).text == "ok"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refuse(404, "model 'qwen3:8b' not found"), Rejected),
        (refuse(400, "qwen3:8b does not support tools"), Rejected),
        (refuse(400, "prompt too long; exceeded max context length by 3 tokens"), Overflow),
        (refuse(500, "model requires more system memory (9 GiB) than is available"), Transient),
        (refuse(503, "server busy, please try again"), Transient),
        (reply(token("a"), line(error="an error was encountered while running")), Transient),
        (reply(token("a"), line(error="exceeded max context length by 3 tokens")), Overflow),
        (reply(token("a")), Transient),
        (reply(piece(thinking="hm"), finish(reason="length")), Transient),
        (reply(piece(tool_calls=[tool_call("", {})]), finish()), Transient),
        (reply(b"<html>\n"), Transient),
    ],
)
async def test_the_servers_errors_say_who_acts_next(
    server: ModelServer, model: OllamaModel, reply: Reply, kind: type[HoldfastError]
) -> None:
    server.then(reply)
    assert type(await failure(model)) is kind


async def test_a_missing_model_is_told_with_the_command_that_gets_it(
    server: ModelServer, model: OllamaModel
) -> None:
    server.then(refuse(404, "model 'qwen3:8b' not found"))
    assert "ollama pull qwen3:8b" in str(await failure(model))


async def test_a_window_is_what_the_model_can_read_and_the_requests_ask_for(
    server: ModelServer,
) -> None:
    server.models = ["one"]
    async with aclosing(OllamaModel(server_at(server.base_url), num_ctx=4_000)) as model:
        assert await model.list_models() == [ListedModel("one", 4_000)]
        await answer(model)
    assert server.requests[0].body["options"] == {"num_ctx": 4_000}
