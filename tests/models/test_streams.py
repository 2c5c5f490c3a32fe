"""Streams of every provider: however the bytes are cut, and wherever the stream breaks off."""

import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from holdfast.core.messages import Assistant, Message, ToolResult, User
from holdfast.errors import HoldfastError, Misconfigured, Overflow, Rejected, Transient
from holdfast.models.model import Answer, ListedModel, Piece, RemoteModel, Request, Text, ToolSpec
from holdfast.models.peer import Peer
from tests.fakes.gateway import ROOT
from tests.fakes.model_server import (
    SETTINGS,
    Abort,
    ModelServer,
    Reply,
    Wait,
    serve,
    server_at,
    stream,
)
from tests.models.wires import REMOTES, Remote

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret-0123456789"
ASK = Request("fake", "", [User("hello")], [])
TOOLS = (ToolSpec("ls", "lists", {"type": "object", "properties": {"path": {"type": "string"}}}),)


@pytest.fixture(params=REMOTES, ids=lambda remote: str(remote.name))
def remote(request: pytest.FixtureRequest) -> Remote:
    found: Remote = request.param
    return found


@pytest.fixture
async def server(remote: Remote) -> AsyncIterator[ModelServer]:
    async with serve(lambda ask: remote.wire.say("hello"), wire=remote.wire) as server:
        yield server


@pytest.fixture
async def model(remote: Remote, server: ModelServer) -> AsyncIterator[RemoteModel]:
    there = server_at(server.base_url, KEY, provider=remote.name)
    async with aclosing(remote.create(there)) as model:
        yield model


async def listen(model: RemoteModel, request: Request = ASK) -> list[Piece]:
    return [piece async for piece in model.stream(request)]


async def answer(model: RemoteModel, request: Request = ASK) -> Answer:
    last = (await listen(model, request))[-1]
    assert isinstance(last, Answer)
    return last


async def failure(model: RemoteModel) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        await listen(model)
    assert KEY not in str(caught.value)
    return caught.value


def whole(reply: Reply) -> bytes:
    return b"".join(step for step in reply.steps if isinstance(step, bytes))


def parse(remote: Remote, *pieces: bytes) -> tuple[str, Answer]:
    """The text and reasoning handed on, and the answer, of a stream that arrives in these pieces."""
    parser = remote.parser(Peer(remote.name, "host", "m", "", SETTINGS))
    told = [piece for data in pieces for piece in parser.feed(data)] + parser.end()
    return "".join(piece.text for piece in told), parser.answer(ASK)


def test_an_answer_does_not_depend_on_where_its_bytes_are_cut(remote: Remote) -> None:
    wire = whole(remote.wire.say("grün 日本 🌊", 4, reasoning="hm, ö"))
    told, expected = parse(remote, wire)
    assert told == "hm, ögrün 日本 🌊"
    assert (expected.text, expected.reasoning) == ("grün 日本 🌊", "hm, ö")
    for at in range(len(wire)):
        assert parse(remote, wire[:at], wire[at:]) == (told, expected)
    assert parse(remote, *(bytes([byte]) for byte in wire)) == (told, expected)


def test_calls_do_not_depend_on_where_their_bytes_are_cut(remote: Remote) -> None:
    wire = whole(remote.wire.call([("ls", '{"path":"ä"}'), ("cat", '{"path":"b"}')]))
    for at in range(len(wire) + 1):
        calls = parse(remote, wire[:at], wire[at:])[1].calls
        assert [(c.tool, c.arguments) for c in calls] == [
            ("ls", '{"path":"ä"}'),
            ("cat", '{"path":"b"}'),
        ]


def test_a_stream_cut_at_any_byte_is_cut_or_has_lost_nothing(remote: Remote) -> None:
    reply = remote.wire.say("one two three", 4, reasoning="let me see")
    wire, kept = whole(reply), 0
    for at in range(len(wire)):
        try:
            _, found = parse(remote, wire[:at])
        except Transient:
            assert not kept, "a longer prefix is not less complete"
        else:
            assert found.text == "one two three"
            kept += 1
    assert kept


def test_bytes_after_the_end_change_nothing(remote: Remote) -> None:
    wire = whole(remote.wire.say("one two", 2))
    assert parse(remote, wire, b"data: {broken\n\n", b"\n{broken\n") == parse(remote, wire)


async def test_a_malformed_chunk_is_transient(
    remote: Remote, server: ModelServer, model: RemoteModel
) -> None:
    first, *rest = remote.wire.say("hello", 2).steps
    for junk in (b"data: {broken\n\n{broken\n", b'data: "no"\n\n"no"\n', b"data: \xff\n\n\xff\n"):
        server.then(stream(first, junk, *rest))
        assert isinstance(await failure(model), Transient)
    assert (await answer(model)).text == "hello"


@pytest.mark.parametrize(
    "remote", [r for r in REMOTES if r.name != "openai"], indirect=True, ids=lambda r: str(r.name)
)
async def test_an_empty_body_is_no_answer(remote: Remote, server: ModelServer) -> None:
    server.then(Reply((), length=0))
    async with aclosing(remote.create(server_at(server.base_url))) as model:
        assert isinstance(await failure(model), Transient)


@pytest.mark.fault("F-15")
async def test_a_reset_at_any_chunk_is_transient_or_has_lost_nothing(
    remote: Remote, server: ModelServer, model: RemoteModel
) -> None:
    reply = remote.wire.say("one two three", 4)
    outcomes = []
    for sent in range(len(reply.steps)):
        server.then(stream(*reply.steps[:sent], Abort()))
        told = []
        try:
            async for piece in model.stream(ASK):
                told.append(piece)
        except Transient:
            assert "one two three".startswith("".join(p.text for p in told))
            assert all(isinstance(piece, Text) for piece in told)
            outcomes.append(False)
        else:
            assert told[-1].text == "one two three"
            outcomes.append(True)
    assert outcomes == sorted(outcomes)
    assert not outcomes[0]


async def test_a_silent_server_is_given_up(remote: Remote, server: ModelServer) -> None:
    server.then(stream(Wait()), stream(remote.wire.token("half"), Wait()))
    there = server_at(server.base_url, KEY, stall_s=0.05, provider=remote.name)
    async with aclosing(remote.create(there)) as model:
        for _ in range(2):
            assert isinstance(await failure(model), Transient)
        await server.idle()


async def test_a_server_that_never_hangs_up_does_not_hold_the_answer(
    remote: Remote, server: ModelServer, model: RemoteModel
) -> None:
    server.then(stream(*remote.wire.say("ok", 1).steps, Wait()))
    with anyio.fail_after(5):
        assert (await answer(model)).text == "ok"
        await server.idle()


async def test_whole_answers_share_one_connection(
    remote: Remote, server: ModelServer, model: RemoteModel
) -> None:
    for _ in range(3):
        await listen(model)
    assert len(server.requests) == 3
    assert len(server.connections) == 1


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (408, "timeout", Transient),
        (429, "slow down", Transient),
        (500, "oops", Transient),
        (503, "overloaded", Transient),
        (529, "overloaded", Transient),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", Overflow),
        (400, "The input token count (9) exceeds the maximum number of tokens allowed", Overflow),
        (413, "too large", Overflow),
        (400, "bad", Rejected),
        (401, f"wrong key {KEY}", Rejected),
        (403, "not yours", Rejected),
        (404, "no such model", Rejected),
    ],
)
async def test_the_type_of_an_error_says_who_acts_next(
    remote: Remote,
    server: ModelServer,
    model: RemoteModel,
    status: int,
    message: str,
    kind: type[HoldfastError],
) -> None:
    server.then(remote.wire.refuse(status, message))
    error = await failure(model)
    assert type(error) is kind
    assert str(status) in str(error)


async def test_the_key_is_in_its_header_and_nowhere_else(
    remote: Remote, server: ModelServer, model: RemoteModel
) -> None:
    await listen(model)
    (seen,) = server.requests
    headers = {name.lower(): value for name, value in seen.headers.items()}
    assert headers.pop(remote.key_header.lower()) == remote.key_prefix + KEY
    assert KEY not in f"{headers} {seen.path} {seen.body}"


async def test_without_a_key_none_is_sent(remote: Remote, server: ModelServer) -> None:
    async with aclosing(remote.create(server_at(server.base_url, ""))) as model:
        await listen(model)
    assert remote.key_header not in server.requests[0].headers


async def test_ids_of_calls_are_new_in_the_conversation(
    remote: Remote, server: ModelServer, model: RemoteModel
) -> None:
    reply = remote.wire.call([("ls", "{}"), ("ls", "{}")])
    said: list[Message] = [User("hi")]
    for _ in range(3):
        server.then(reply)
        found = await answer(model, Request("fake", "", said, TOOLS))
        assert len(found.calls) == 2
        said.append(Assistant(found.text, found.calls, found.opaque))
        said += [ToolResult(call.call_id, "none") for call in found.calls]
    ids = [call.call_id for m in said if isinstance(m, Assistant) for call in m.calls]
    assert len(set(ids)) == len(ids) == 6
    assert all(ids)


async def test_a_huge_conversation_arrives_whole(server: ModelServer, model: RemoteModel) -> None:
    await listen(model, Request("fake", "", [User("ü" * 1_500_000)], []))
    assert "ü" * 1_500_000 in str(server.requests[0].body)


async def test_a_limit_of_the_answer_reaches_the_server(
    remote: Remote, server: ModelServer, model: RemoteModel
) -> None:
    await listen(model, Request("fake", "", [User("hi")], [], max_output=321))
    body: Any = server.requests[0].body
    for name in remote.limit:
        body = body[name]
    assert body == 321


async def test_models_are_listed_with_their_windows(
    remote: Remote, server: ModelServer, model: RemoteModel
) -> None:
    assert await model.list_models() == [
        ListedModel("fake-small", remote.window),
        ListedModel("fake-large", remote.window),
    ]
    assert await model.check() == f"{remote.name} at {server.base_url} answers, 2 models"


async def test_a_list_fails_as_asking_would(
    remote: Remote, server: ModelServer, model: RemoteModel
) -> None:
    server.refuse_models = remote.wire.refuse(401, "who are you")
    with pytest.raises(Rejected, match=SETTINGS.key):
        await model.check()
    server.refuse_models = Reply((b"<html>",), content_type="text/html")
    with pytest.raises(Rejected, match=SETTINGS.url):
        await model.list_models()


@pytest.mark.parametrize("url", ["", "localhost", "ftp://host", "http://u:p@host"])
def test_a_base_url_that_cannot_work_is_refused_at_once(remote: Remote, url: str) -> None:
    with pytest.raises(Misconfigured, match=SETTINGS.url):
        remote.create(server_at(url, KEY))


async def test_a_provider_imports_no_other(remote: Remote) -> None:
    code = f"import holdfast.models.{remote.name}, sys; print(*sys.modules)"
    done = await anyio.run_process([sys.executable, "-c", code], cwd=ROOT)
    loaded = set(done.stdout.decode().split())
    others = {f"holdfast.models.{other.name}" for other in REMOTES if other is not remote}
    assert f"holdfast.models.{remote.name}" in loaded
    assert not others & loaded


def test_no_two_providers_have_the_same_name() -> None:
    assert not any(a.name == b.name for a, b in itertools.combinations(REMOTES, 2))
