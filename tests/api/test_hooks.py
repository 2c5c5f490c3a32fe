"""Hooks: what comes in over HTTP for a channel, at the door that all requests come through."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio
import pytest
from yarl import URL

from holdfast.api.auth import LOCAL_HOSTS, Doorway, key_hash
from holdfast.api.routes import hooks
from holdfast.api.server import application, listen_tcp, serving
from holdfast.channels.channel import Hook, HookAnswer
from holdfast.core.approval.approval import Role
from holdfast.core.intents import DoorCapabilities, Principal
from holdfast.core.types import OPERATOR
from tests.behaviour.wire import SECURITY
from tests.engine import workshop
from tests.engine.workshop import Told
from tests.fakes.channel import Chat
from tests.fakes.hooked import Hooked

pytestmark = pytest.mark.anyio

NETWORK = Principal(OPERATOR, DoorCapabilities("api_server", True, False), frozenset({Role.RUN}))
DOOR = Doorway(
    NETWORK,
    key_hash("a-key-of-16-characters"),
    LOCAL_HOSTS | {"chat.example.org"},
    frozenset({"https://app.example.org"}),
)
BODY_S = 0.3


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Network:
    """The network's door, with one channel that hears there and two that do not."""

    def __init__(self, url: str, channel: Hooked, client: aiohttp.ClientSession) -> None:
        self.url = url
        self.channel = channel
        self.client = client

    async def ask(
        self,
        method: str = "POST",
        path: str = "/hooks/hooked",
        data: bytes | AsyncIterator[bytes] = b"hello",
        **headers: str,
    ) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        url = URL(self.url + path, encoded=True)
        async with self.client.request(method, url, data=data, headers=sent) as response:
            body = await response.read()
            fields = {name.lower(): value for name, value in response.headers.items()}
        assert SECURITY.items() <= fields.items()
        return Answer(response.status, fields, body)


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Network]:
    channel, deaf = Hooked(), Hooked()
    deaf.path = ""
    async with workshop.serving(tmp_path, Told()) as service:
        app = application(service, DOOR, 10 * 1024 * 1024, 30.0, None)
        hooks.add_routes(app, [channel, deaf, Chat("silent")], BODY_S)
        async with serving(app) as runner, aiohttp.ClientSession() as client:
            port = await listen_tcp(runner, "127.0.0.1", 0)
            yield Network(f"http://127.0.0.1:{port}", channel, client)


async def test_a_request_is_handed_to_its_channel_without_a_key(it: Network) -> None:
    it.channel.answer = lambda hook: HookAnswer(202, b"taken", "text/x-taken")
    answer = await it.ask(X_Signature="abc", Content_Type="application/x-www-form-urlencoded")
    assert (answer.status, answer.body) == (202, b"taken")
    assert answer.headers["content-type"].startswith("text/x-taken")
    (hook,) = it.channel.heard
    assert hook.body == b"hello"
    assert hook.headers["x-signature"] == "abc"


async def test_a_hook_that_the_channel_refuses_is_refused(it: Network) -> None:
    it.channel.answer = lambda hook: HookAnswer(401, b"wrong signature")
    assert (await it.ask()).status == 401


async def test_a_channel_that_breaks_asks_for_another_try(
    it: Network, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(hook: Hook) -> HookAnswer:
        raise RuntimeError("broken")

    it.channel.answer = break_down
    answer = await it.ask()
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert b"broken" not in answer.body
    assert "a hook broke" in caplog.text


async def test_there_are_no_other_hooks_and_no_other_methods(it: Network) -> None:
    for path in ("/hooks/", "/hooks/silent", "/hooks/other", "/hooks/hooked/more"):
        assert (await it.ask(path=path)).status == 404
        assert (await it.ask("GET", path)).status == 404
    for method in ("GET", "PUT", "DELETE"):
        answer = await it.ask(method)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert it.channel.heard == []


async def test_the_way_to_the_hooks_leads_nowhere_else(it: Network) -> None:
    ways = ("/hooks/../v1/runs", "/hooks/..%2fv1/runs", "/hooks/%2e%2e/v1/runs", "/hooks//v1/runs")
    for path in ways:
        assert (await it.ask("GET", path)).status in (401, 404)
    for path in ("/v1/runs", "/hooks", "/Hooks/hooked", "//hooks/hooked"):
        assert (await it.ask("GET", path)).status == 401


async def test_host_and_origin_count_as_everywhere(it: Network) -> None:
    assert (await it.ask(Host="chat.example.org")).status == 200
    assert (await it.ask(Host="evil.example")).status == 421
    assert (await it.ask(Origin="https://evil.example")).status == 403
    assert (await it.ask(path="/hooks/hooked?token=x")).status == 400
    assert len(it.channel.heard) == 1


async def test_a_body_has_a_limit_whether_its_length_is_told_or_not(it: Network) -> None:
    async def pieces(number: int) -> AsyncIterator[bytes]:
        for _ in range(number):
            yield b"x" * (hooks.LIMIT // 8)

    assert (await it.ask(data=b"x" * hooks.LIMIT)).status == 200
    assert (await it.ask(data=pieces(8))).status == 200
    assert [len(hook.body) for hook in it.channel.heard] == [hooks.LIMIT] * 2
    for too_much in (b"x" * (hooks.LIMIT + 1), pieces(9)):
        answer = await it.ask(data=too_much)
        assert answer.status == 413
        assert b"body_too_large" in answer.body
    assert (await it.ask(Content_Encoding="gzip")).status == 415
    assert len(it.channel.heard) == 2


async def test_a_body_that_does_not_come_is_not_waited_for(it: Network) -> None:
    never = anyio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield b"x"
        await never.wait()

    answer = await it.ask(data=stuck())
    assert answer.status == 408
    assert it.channel.heard == []
