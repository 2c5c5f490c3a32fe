"""`holdfast outbox`: what is not sent, and a word to it, from any terminal."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from holdfast.api.auth import Doorway, guard
from holdfast.api.routes import outbox
from holdfast.channels.channel import Doubtful, Later, SendRefused
from holdfast.cli import help
from holdfast.cli.ops.outbox import NOTHING_WAITS
from holdfast.core.approval.approval import Role
from holdfast.core.chat.delivery import DeliveryQueued, DeliveryStatus, OnAmbiguous
from holdfast.core.intents import DoorCapabilities, Principal
from holdfast.core.types import OPERATOR, DeliveryId, RunId
from holdfast.engine.admin.deliveries import DeliveryAdmin
from holdfast.host.lock import SOCKET
from holdfast.journal.audit import AuditEntry
from tests.cli import Place
from tests.engine.postroom import Desk, message, sending
from tests.fakes.channel import Chat
from tests.fakes.clock import ManualClock
from tests.fakes.gateway import ROOT

pytestmark = pytest.mark.anyio

BY = Principal(OPERATOR, DoorCapabilities("cli", answerable=True, late=True), frozenset(Role))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.environ |= {"PYTHONPATH": str(ROOT), "HOLDFAST_MODEL": "scripted/demo"}
    return place


class Office:
    """A door to an outbox, and what the audit was told."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.audit: list[AuditEntry] = []

    async def note(self, entry: AuditEntry) -> None:
        self.audit.append(entry)


@asynccontextmanager
async def office(place: Place, chat: Chat) -> AsyncIterator[Office]:
    """The operator's door to the home of `place`, with an outbox behind it."""
    socket = place.home / SOCKET
    socket.parent.mkdir(mode=0o700, parents=True)
    clock = ManualClock(time.time())
    async with sending(place.root, chat, clock=clock, on_ambiguous=OnAmbiguous.HOLD) as desk:
        it = Office(desk)
        app = web.Application(middlewares=[guard(Doorway(BY))])
        outbox.add_routes(app, DeliveryAdmin(desk.outbox, it.note), BY)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        try:
            await web.UnixSite(runner, str(socket)).start()
            yield it
        finally:
            await runner.cleanup()


async def test_that_nothing_waits_is_said(place: Place) -> None:
    async with office(place, Chat()):
        for args in ((), ("list",), ("--all",)):
            result = await place.holdfast("outbox", *args)
            assert (result.code, result.out, result.err) == (0, f"{NOTHING_WAITS}\n", "")
        assert (await place.holdfast("outbox", "--json")).out == ""


async def test_undelivered_messages_are_listed_with_chat_age_and_reason(place: Place) -> None:
    chat = Chat()
    chat.answer("42", SendRefused("blocked\nby the\x1b user"))
    chat.answer("43", Doubtful("the connection broke"))
    chat.answer("44", anyio.Event())
    async with office(place, chat) as it:
        text = DeliveryQueued(
            delivery_id=DeliveryId("out_1"),
            address=chat.address("42", "7"),
            text="**Hello**\nthere, " + "and on " * 20,
            of_run=RunId("run_1"),
        )
        await it.desk.say("42", text)
        await it.desk.become("out_1", DeliveryStatus.DEAD)
        await it.desk.say("43", message(chat, "43", "out_2"))
        await it.desk.become("out_2", DeliveryStatus.HELD)
        await it.desk.say("44", message(chat, "44", "out_3"), message(chat, "44", "out_4"))
        await it.desk.become("out_3", DeliveryStatus.SENDING)
        listed = await place.holdfast("outbox")
        assert (listed.code, listed.err) == (0, "")
        lines = listed.out.splitlines()
        age = lines[0].split("  ")[-1].removesuffix(", 0 tries")
        assert age.endswith(" s old")
        assert lines[0].startswith("out_4  pending  chat 44  ")
        assert lines[1] == "  “out_4”"
        assert lines[2].startswith("out_3  sending  chat 44  ")
        assert lines[4].startswith("out_2  held  chat 43  ") and lines[4].endswith(", 1 try")
        assert lines[5:7] == ["  it may have arrived: the connection broke", "  “out_2”"]
        assert lines[7].startswith("out_1  dead  chat 42, thread 7  ")
        assert lines[8] == "  blocked by the\\u{1b} user"
        assert lines[9].startswith("  “**Hello** there, and on ") and lines[9].endswith("…”")
        found = [
            json.loads(line)
            for line in (await place.holdfast("outbox", "--json")).out.split("\n")[:-1]
        ]
        assert [(m["delivery_id"], m["status"]) for m in found] == [
            ("out_4", "pending"),
            ("out_3", "sending"),
            ("out_2", "held"),
            ("out_1", "dead"),
        ]
        assert found[3]["run_id"] == "run_1"

        shown = (await place.holdfast("outbox", "show", "out_1")).out
        assert "status   dead\nreason   blocked by the\\u{1b} user\n" in shown
        assert "to       chat 42, thread 7\n" in shown and "run      run_1\n" in shown
        assert shown.endswith(f"text\n  **Hello**\n  there, {'and on ' * 20}\n")
        (line,) = (await place.holdfast("outbox", "show", "out_1", "--json")).out.splitlines()
        assert json.loads(line)["text"] == text.text


async def test_a_given_up_message_is_resent_by_a_prefix_of_its_id(place: Place) -> None:
    chat = Chat()
    chat.answer("42", SendRefused("blocked"), SendRefused("blocked"))
    async with office(place, chat) as it:
        await it.desk.say("42", message(chat, "42", "out_12"), message(chat, "42", "out_13"))
        await it.desk.become("out_13", DeliveryStatus.DEAD)
        unclear = await place.holdfast("outbox", "resend", "out_1")
        assert (unclear.code, unclear.out) == (2, "")
        assert unclear.err == "holdfast: 2 messages match: out_13, out_12\n"
        result = await place.holdfast("outbox", "resend", "out_12")
        assert (result.code, result.out, result.err) == (0, "out_12 will be sent again\n", "")
        await it.desk.become("out_12", DeliveryStatus.SENT)
        assert chat.texts("42") == ["out_12", "out_13", "out_12"]
        assert [(e.kind, e.who, e.what) for e in it.audit] == [
            ("message.resent", "operator", "out_12")
        ]
        again = await place.holdfast("outbox", "resend", "out_12")
        assert (again.code, again.out) == (1, "")
        assert again.err == "holdfast: Message out_12 was sent.\n"


async def test_a_waiting_message_is_dropped(place: Place) -> None:
    chat = Chat()
    chat.answer("42", Later("down", 3600.0))
    async with office(place, chat) as it:
        await it.desk.say("42", message(chat, "42", "out_1"), message(chat, "42", "out_1.1"))
        await it.desk.become("out_1", DeliveryStatus.RETRY)
        result = await place.holdfast("outbox", "drop", "out_1")  # all of an id is no beginning
        assert (result.code, result.out, result.err) == (0, "out_1 dropped\n", "")
        await it.desk.become("out_1.1", DeliveryStatus.SENT)
        assert (await place.holdfast("outbox")).out == f"{NOTHING_WAITS}\n"
        assert "dropped by the operator" in (await place.holdfast("outbox", "--all")).out
        again = await place.holdfast("outbox", "drop", "out_1")
        assert (again.code, again.err) == (1, "holdfast: Message out_1 was given up already.\n")


async def test_a_message_that_is_not_there_is_not_found(place: Place) -> None:
    async with office(place, Chat()) as it:
        for word in ("show", "resend", "drop"):
            unknown = await place.holdfast("outbox", word, "out_0")
            assert (unknown.code, unknown.out) == (1, "")
            assert unknown.err == (
                "holdfast: there is no message out_0; list them: holdfast outbox --all\n"
            )
            unnamed = await place.holdfast("outbox", word)
            assert (unnamed.code, unnamed.out) == (2, "")
            assert f"the ID is missing: holdfast outbox {word} ID" in unnamed.err
        assert it.audit == []


async def test_the_help_says_what_can_be_done(place: Place) -> None:
    assert "outbox" in (await place.holdfast("--help")).out
    text = (await place.holdfast("outbox", "--help")).out
    assert "holdfast outbox resend ID" in text
    assert help.OUTBOX in text


async def test_without_a_gateway_a_word_is_kept_for_the_next_one(place: Place) -> None:
    chat, clock = Chat(), ManualClock(time.time())
    chat.answer("42", SendRefused("blocked"), SendRefused("blocked"))
    place.home.mkdir(mode=0o700)
    async with sending(place.home, chat, clock=clock) as desk:
        await desk.say("42", message(chat, "42", "out_1"), message(chat, "42", "out_2"))
        await desk.become("out_2", DeliveryStatus.DEAD)
    assert (await place.holdfast("outbox")).out.startswith("out_2  dead  chat 42  ")
    resent = await place.holdfast("outbox", "resend", "out_1")
    assert (resent.code, resent.out) == (0, "out_1 will be sent again\n")
    assert "to send the message: holdfast gateway start" in resent.err
    assert (await place.holdfast("outbox", "drop", "out_1")).out == "out_1 dropped\n"
    assert (await place.holdfast("outbox", "resend", "out_2")).code == 0
    async with sending(place.home, chat, clock=clock) as desk:
        await desk.become("out_2", DeliveryStatus.SENT)
        assert chat.texts("42") == ["out_1", "out_2", "out_2"]
