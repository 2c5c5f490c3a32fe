"""A channel's work is cancelled while it deals with a message: nothing of that is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from typing_extensions import override

from holdfast.channels.channel import Incoming, Take
from holdfast.commands.command import Command
from holdfast.core.address import ChatType, Groups, Never
from holdfast.core.approval.approval import Role
from holdfast.core.chat import access
from holdfast.core.chat.delivery import OnAmbiguous
from holdfast.core.inbox import Mode
from holdfast.core.intents import DoorCapabilities, Principal
from holdfast.core.types import Owner
from holdfast.engine.chats.inbound import OFFER_S
from holdfast.engine.chats.places import Connected
from holdfast.engine.messenger import Chatting, Messenger
from holdfast.engine.service import Service
from holdfast.gateway import CommandTarget as Conversation
from tests.engine import workshop
from tests.engine.workshop import PATIENCE_S, Told, turn
from tests.fakes import channel as fake

pytestmark = [pytest.mark.anyio, pytest.mark.promise("STOP-01")]

POINTS = (*range(0, 200, 20), *range(200, 2000, 200))  # turns of the loop before it is cut
AT_LAST = -1  # after the answer
ADA, EVE = "ada", "eve"
OF_ADA = Principal(
    Owner("chat:ada"), DoorCapabilities("chat", answerable=True, late=True), frozenset(Role)
)


class Heard(fake.Chat):
    """Hands on what the test says was said, one after another, again after each start."""

    def __init__(self, *said: Incoming) -> None:
        super().__init__()
        self.listening = 0
        self._out, self._said = anyio.create_memory_object_stream[Incoming](inf)
        for one in said:
            self.say(one)

    def say(self, incoming: Incoming) -> None:
        self._out.send_nowait(incoming)

    @override
    async def receive(self, cursor: str, take: Take) -> None:
        self.listening += 1
        try:
            async for incoming in self._said:
                await take(incoming)
        finally:
            self.listening -= 1

    @override
    async def aclose(self) -> None:
        self._out.close()
        self._said.close()


def incoming(channel: fake.Chat, text: str, user: str, number: int = 1) -> Incoming:
    at = replace(channel.address(user), user=user)
    return Incoming(external_id=f"{user}:{number}", cursor="", address=at, name=user, text=text)


async def _ping(chat: Conversation, rest: str) -> str:
    return "pong"


PING = Command("ping", "", "Is anybody there?", Role.RUN, _ping)


@asynccontextmanager
async def chatting(directory: Path, channel: Heard) -> AsyncIterator[tuple[Service, Messenger]]:
    rules = access.PlatformAccess(
        {ADA: frozenset(Role)}, frozenset({ChatType.DIRECT}), pairing=True
    )
    said = (rules, Groups.PER_USER, Never(), Mode.QUEUE, OnAmbiguous.RESEND_MARKED)
    connected = Connected(channel, *said, progress=False)
    async with workshop.journaled(directory) as journal:
        made_of = workshop.parts(directory, journal, Told())
        made_of = replace(made_of, chatting=Chatting({channel.name: connected}, {"ping": PING}))
        try:
            async with workshop.running(made_of) as service:
                assert service.messenger is not None
                yield service, service.messenger
        finally:
            await channel.aclose()


async def _check_nothing_is_left(messenger: Messenger, channel: Heard) -> None:
    """No task listens or sends, and nothing that was in flight still holds what others need."""
    assert not channel.listening
    assert messenger.outbox.counts().lanes == 0
    await _is_free(messenger, channel)


async def _is_free(messenger: Messenger, channel: Heard) -> None:
    """Somebody is heard at once. Nobody could cut that short: so it is measured."""
    begun = anyio.current_time()
    await messenger.chats.take(channel.name, incoming(channel, "/ping", ADA, 99))
    assert anyio.current_time() - begun < OFFER_S / 2


async def test_a_code_that_cannot_be_shown_blocks_no_one(tmp_path: Path) -> None:
    channel = Heard()
    async with chatting(tmp_path, channel) as (_, messenger):
        before = asyncio.all_tasks()
        channel.answer(EVE, anyio.Event())  # the platform does not answer
        channel.say(incoming(channel, "let me in", EVE))
        assert "holdfast pair" in (await channel.came(1, EVE)).text
        with anyio.fail_after(OFFER_S / 2):
            await messenger.stop()
        assert not asyncio.all_tasks() - before
        await _check_nothing_is_left(messenger, channel)


async def test_other_messages_are_taken_while_a_code_cannot_be_shown(
    tmp_path: Path,
) -> None:
    """As of a platform that calls us: each message comes by itself."""
    channel = Heard()
    async with chatting(tmp_path, channel) as (_, messenger):
        channel.answer(EVE, anyio.Event())
        async with anyio.create_task_group() as group:
            let_me_in = incoming(channel, "let me in", EVE)
            group.start_soon(messenger.chats.take, channel.name, let_me_in)
            await channel.came(1, EVE)
            await _is_free(messenger, channel)
            group.cancel_scope.cancel()


async def test_an_answer_that_is_not_taken_is_cut_and_goes_out_after_the_next_start(
    tmp_path: Path,
) -> None:
    channel = Heard()
    async with chatting(tmp_path, channel) as (_, messenger):
        before = asyncio.all_tasks()
        channel.answer(ADA, anyio.Event())
        channel.say(incoming(channel, "/ping", ADA))
        await channel.came(1, ADA)
        with anyio.fail_after(PATIENCE_S):
            await messenger.stop()
        assert not asyncio.all_tasks() - before
        await _check_nothing_is_left(messenger, channel)
    again = Heard()
    async with chatting(tmp_path, again):
        assert (await again.came(1, ADA)).repeated
        assert not (await again.came(2, ADA)).repeated  # that of the check
    assert again.texts(ADA) == ["pong", "pong"]


@pytest.mark.parametrize("text", ["do something", "/ping"])
async def test_a_message_is_handled_once_wherever_it_is_cut(tmp_path: Path, text: str) -> None:
    """The platform hands it on again after the start, as it would."""
    points = (*POINTS, AT_LAST) if text == "/ping" else POINTS
    heard: set[int] = set()  # how many messages were sent before the cut
    for point in points:
        place = tmp_path / str(point)
        place.mkdir()
        channel = Heard()
        said = incoming(channel, text, ADA)
        async with chatting(place, channel) as (_, messenger):
            channel.say(said)
            await (channel.came(1) if point == AT_LAST else turn(point))
            with anyio.fail_after(PATIENCE_S):
                await messenger.stop()
            heard.add(len(channel.sent))
            await _check_nothing_is_left(messenger, channel)
        again = Heard(said, incoming(channel, "/ping", ADA, 2))
        async with chatting(place, again) as (service, _):
            expected = {"cmd_chat_ada:99.0", "cmd_chat_ada:2.0"}
            expected |= {"cmd_chat_ada:1.0"} if text == "/ping" else set()
            await again.came(len(expected) - len(channel.sent))
            runs = service.health().running + service.health().queued
            assert runs == (0 if text == "/ping" else 1), point
        sent = [m.delivery_id for m in (*channel.sent, *again.sent) if not m.repeated]
        assert sorted(sent) == sorted(expected), point
    assert heard == ({0, 1} if text == "/ping" else {0}), "cut before and after"
