"""What every provider promises, whichever it is (holdfast.models.model)."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core.messages import Assistant, Message, ToolResult, User
from holdfast.errors import Overflow, Rejected, Transient
from holdfast.models.model import Answer, Model, Piece, Reasoning, Request, Text, ToolSpec
from holdfast.models.offline import Offline
from holdfast.models.scripted import Scripted
from tests.fakes.model_server import (
    Ask,
    Reply,
    Wait,
    refuse,
    say,
    serve,
    server_at,
    stream,
    token,
)
from tests.models.builtin.test_builtin import model_of
from tests.models.wires import REMOTES, Remote

pytestmark = pytest.mark.anyio

TOOLS = tuple(
    ToolSpec(name, "", {"type": "object", "properties": {"path": {"type": "string"}}})
    for name in ("list_files", "read_file")
)


@dataclass(frozen=True, slots=True)
class Case:
    """A provider, and the words that make it do something. Empty words: it never does."""

    model: Model
    model_name: str
    text: str
    call: str
    hang: str
    fail: dict[type[Exception], str]
    settled: Callable[[], Awaitable[None]]  # nobody serves it any more

    def ask(self, *messages: Message) -> Request:
        return Request(self.model_name, "you are", messages, TOOLS)


@asynccontextmanager
async def remote(provider: Remote) -> AsyncIterator[Case]:
    wire = provider.wire

    def play(ask: Ask) -> Reply:
        match ask.messages[-1].text:
            case "think":
                return wire.say("a longer answer", 5, reasoning="let me see")
            case "two calls":
                return wire.call([("list_files", "{}"), ("read_file", '{"path": "a.txt"}')])
            case "hang":
                return stream(wire.token("one"), Wait())
            case "busy":
                return wire.refuse(503, "busy")
            case "long":
                return wire.refuse(400, "the input exceeds the context window")
            case "never":
                return wire.refuse(404, "never")
            case _:
                return wire.say("done")

    fail: dict[type[Exception], str] = {Transient: "busy", Overflow: "long", Rejected: "never"}
    async with serve(play, wire=wire) as server:
        async with aclosing(
            provider.create(server_at(server.base_url, provider=provider.name))
        ) as model:
            yield Case(model, "fake", "think", "two calls", "hang", fail, server.idle)


@asynccontextmanager
async def scripted(tmp_path: Path) -> AsyncIterator[Case]:
    def rule(when: str, *steps: dict[str, Any]) -> dict[str, Any]:
        return {"when": f"^{when}$", "turns": [steps, [{"do": "say", "text": "done"}]]}

    say = {"do": "say", "text": "some "}
    rules = [
        rule("think", {"do": "think", "text": "hm"}, say, {"do": "say", "text": "words"}),
        rule("two calls", *({"do": "call", "tool": t.name} for t in TOOLS)),
        rule("hang", say, {"do": "wait", "seconds": 1}),
        *(rule(a, {"do": "fail", "as": a}) for a in ("transient", "overflow", "rejected")),
    ]
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"rules": rules}))
    fail: dict[type[Exception], str] = {
        Transient: "transient",
        Overflow: "overflow",
        Rejected: "rejected",
    }

    async def forever(_: float) -> None:
        await anyio.sleep_forever()

    async with aclosing(Scripted(forever)) as model:
        yield Case(model, str(path), "think", "two calls", "hang", fail, anyio.lowlevel.checkpoint)


@asynccontextmanager
async def offline(tmp_path: Path) -> AsyncIterator[Case]:
    async with aclosing(Offline()) as model:
        settled = anyio.lowlevel.checkpoint
        yield Case(model, "", "tell me a story", "list the files here", "", {}, settled)


@asynccontextmanager
async def builtin(tmp_path: Path) -> AsyncIterator[Case]:
    def turn(ask: Ask) -> Reply:
        match ask.messages[-1].text:
            case "think":
                return say(json.dumps({"answer": "a longer answer"}), 5)
            case "call":
                return say(json.dumps({"tool": "list_files", "args": {"path": "."}}))
            case "hang":
                return stream(token('{"answer": "one'), Wait())
            case "busy":
                return refuse(503, "busy")
            case "long":
                return refuse(400, "the input exceeds the context window")
            case "never":
                return refuse(400, "never")
            case _:
                return say(json.dumps({"answer": "done"}))

    fail: dict[type[Exception], str] = {Transient: "busy", Overflow: "long", Rejected: "never"}
    async with serve(turn) as server:
        address = server.base_url.removesuffix("/v1")
        async with model_of(tmp_path, "--relay", address) as (model, _):
            yield Case(model, "fake", "think", "call", "hang", fail, server.idle)


Opener = Callable[[Path], AbstractAsyncContextManager[Case]]


def opener(provider: Remote) -> Opener:
    return lambda tmp_path: remote(provider)


OPENERS: dict[str, Opener] = {
    **{provider.name: opener(provider) for provider in REMOTES},
    "builtin": builtin,
    "scripted": scripted,
    "offline": offline,
}


@pytest.fixture(params=OPENERS)
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    async with OPENERS[request.param](tmp_path) as case:
        yield case


ONLINE = pytest.mark.parametrize(
    "case", [name for name in OPENERS if name != "offline"], indirect=True
)
"""Providers that wait for a server, and can fail."""


async def listen(case: Case, *messages: Message) -> list[Piece]:
    return [piece async for piece in case.model.stream(case.ask(*messages))]


async def test_pieces_add_up_to_the_one_answer_which_comes_last(case: Case) -> None:
    *pieces, last = await listen(case, User(case.text))
    assert isinstance(last, Answer)
    assert not any(isinstance(piece, Answer) for piece in pieces)
    assert last.text == "".join(p.text for p in pieces if isinstance(p, Text))
    assert last.reasoning == "".join(p.text for p in pieces if isinstance(p, Reasoning))
    assert last.text
    assert all(piece.text for piece in pieces)


async def test_calls_have_ids_of_their_own_and_name_offered_tools(case: Case) -> None:
    last = (await listen(case, User(case.call)))[-1]
    assert isinstance(last, Answer)
    assert last.calls
    ids = {proposal.call_id for proposal in last.calls}
    assert len(ids) == len(last.calls)
    assert all(ids)
    assert {p.tool for p in last.calls} <= {tool.name for tool in TOOLS}
    assert all(isinstance(json.loads(p.arguments), dict) for p in last.calls)


async def test_results_of_calls_are_followed_by_an_answer(case: Case) -> None:
    first = (await listen(case, User(case.call)))[-1]
    assert isinstance(first, Answer)
    results = [ToolResult(proposal.call_id, "a.txt") for proposal in first.calls]
    asked = Assistant(first.text, first.calls, first.opaque)
    last = (await listen(case, User(case.call), asked, *results))[-1]
    assert isinstance(last, Answer)
    assert last.text
    assert not last.calls


async def test_the_same_request_gets_the_same_text_again(case: Case) -> None:
    assert await listen(case, User(case.text)) == await listen(case, User(case.text))


async def test_requests_do_not_disturb_each_other(case: Case) -> None:
    alone = (await listen(case, User(case.text)))[-1]
    found: list[Piece] = []

    async def ask() -> None:
        found.append((await listen(case, User(case.text)))[-1])

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(ask)
    assert found == [alone] * 20


async def test_one_who_stops_listening_leaves_nothing_behind(case: Case) -> None:
    async for _ in case.model.stream(case.ask(User(case.hang or case.text))):
        break
    with anyio.fail_after(5):
        await case.settled()


@ONLINE
async def test_cancelling_while_nothing_comes_leaves_nothing_behind(case: Case) -> None:
    with anyio.CancelScope() as scope:
        async for _ in case.model.stream(case.ask(User(case.hang))):
            scope.cancel()
    assert scope.cancelled_caught
    with anyio.fail_after(5):
        await case.settled()


@ONLINE
@pytest.mark.parametrize("kind", [Transient, Overflow, Rejected])
async def test_the_type_of_a_failure_says_who_acts_next(case: Case, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await listen(case, User(case.fail[kind]))


async def test_check_says_in_one_line_who_it_is(case: Case) -> None:
    line = await case.model.check()
    assert line.startswith(case.model.name)
    assert "\n" not in line
