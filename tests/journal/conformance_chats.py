"""What every journal must do for chats: cursors, updates taken, messages on their way.

Run through by subclassing `ChatSuite`, like `JournalSuite`. The tests speak the protocol only.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import get_args

import msgspec
import pytest

from holdfast.core.address import Address, ChatType
from holdfast.core.chat import delivery as machine
from holdfast.core.chat.chats import UpdateTaken
from holdfast.core.chat.delivery import (
    TRANSITIONS,
    Delivery,
    DeliveryQueued,
    DeliveryStatus,
    SendAbandoned,
    SendAccepted,
    SendDeferred,
    SendDoubted,
    SendHeld,
    SendReleased,
    SendStarted,
)
from holdfast.core.inbox import InputAdmitted, UpdateRef
from holdfast.core.run import run as runs
from holdfast.core.types import DeliveryId, Fact, InputId, RunId, SessionId, SessionKey
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Journal, Outbound
from tests.journal.conformance import KEY, ME, RUN, accept, admitted, opened, queued

DAY_S = 86_400.0
CHAT = Address(platform="tg", chat_type=ChatType.DIRECT, chat="7")


def came(number: int, channel: str = "tg", cursor: str | None = None) -> UpdateRef:
    """Update `number`; its cursor is the same unless it is given."""
    moved = str(number) if cursor is None else cursor
    return UpdateRef(channel=channel, external_id=f"u{number}", cursor=moved, message_id="m")


def said(number: int, channel: str = "tg", cursor: str | None = None) -> InputAdmitted:
    """Words that came with update `number`."""
    return InputAdmitted(
        input_id=InputId(f"in{number}"),
        run_id=RunId(f"run_{number}"),
        text="hi",
        came=came(number, channel, cursor),
    )


def message(name: str, text: str = "hello") -> DeliveryQueued:
    return DeliveryQueued(delivery_id=DeliveryId(name), address=CHAT, text=text)


def fate(kind: type[machine.Event], name: str, number: int) -> machine.Event:
    """A fact of that kind about the message; `number` tells it from others."""
    id_ = DeliveryId(name)
    if kind is SendStarted:
        return SendStarted(delivery_id=id_)
    if kind is SendAccepted:
        return SendAccepted(delivery_id=id_, external_id=f"x{number}")
    if kind is SendDeferred:
        return SendDeferred(delivery_id=id_, reason=f"r{number}", due_at=float(number))
    if kind is SendReleased:
        return SendReleased(delivery_id=id_, at=float(number))
    for other in (SendDoubted, SendHeld, SendAbandoned):
        if kind is other:
            return other(delivery_id=id_, reason=f"r{number}")
    raise AssertionError(kind)


def walk(random: Random, name: str) -> list[machine.Event]:
    """What may become of a message, as far as its machine allows."""
    now, facts = Delivery(DeliveryId(name)), list[machine.Event]()
    for number in range(1, 1 + random.randrange(12)):
        allowed = [kind for status, kind in TRANSITIONS if status is now.status]
        if not allowed:
            break
        facts.append(fate(random.choice(allowed), name, number))
        now = machine.evolve(now, facts[-1])
    return facts


class Scribe:
    """Appends to one new session, each time a second later, and knows its head."""

    def __init__(self, journal: Journal, key: SessionKey = KEY, at: float = 0.0) -> None:
        self._journal = journal
        self._key = key
        self._row = journal.open_stream(key)
        self._head = 0
        self.at = at

    async def says(self, *facts: Fact) -> float:
        """Have them on disk, in one append; when."""
        self.at += 1.0
        if self._head == 0:
            facts = (opened(self._key), *facts)
        pending = self._journal.append(self._row.stream, self._head, self.at, facts, [])
        self._head = pending.seq
        await pending.wait()
        return self.at


async def live_randomly(journal: Journal, seed: int) -> dict[str, tuple[Delivery, float]]:
    """Messages of three sessions, each with a fate; what their machine makes of each, and when."""
    random = Random(seed)
    scribes = [Scribe(journal, SessionKey(ME, SessionId(f"s{n}")), n / 10) for n in range(3)]
    expected: dict[str, tuple[Delivery, float]] = {}
    histories: list[tuple[Scribe, list[Fact]]] = []
    for number in range(40):
        name = f"d{number:02d}"
        histories.append((scribes[number % 3], [message(name), *walk(random, name)]))
    while histories:
        scribe, facts = random.choice(histories[:5])
        some = [facts.pop(0) for _ in range(min(len(facts), 1 + random.randrange(3)))]
        at = await scribe.says(*some)
        for fact in some:
            if isinstance(fact, DeliveryQueued):
                before = Delivery(fact.delivery_id, queued_at=at)
                expected[fact.delivery_id] = (before, at)
            elif isinstance(fact, get_args(machine.Event)):
                before, _ = expected[fact.delivery_id]
                expected[fact.delivery_id] = (machine.evolve(before, fact), at)
        histories = [(scribe, left) for scribe, left in histories if left]
    return expected


def names(messages: list[Outbound]) -> list[str]:
    return [m.now.id for m in messages]


class ChatSuite:
    """The promises, one test each."""

    def make(self, directory: Path) -> AbstractAsyncContextManager[Journal]:
        """A journal over `directory`, which may hold one already."""
        raise NotImplementedError

    def make_full(self, directory: Path) -> AbstractAsyncContextManager[Journal]:
        """A journal whose commits fail for lack of space."""
        raise NotImplementedError

    @pytest.fixture
    async def journal(self, tmp_path: Path) -> AsyncIterator[Journal]:
        async with self.make(tmp_path) as made:
            yield made

    async def test_a_channel_nobody_heard_of_has_no_cursor_and_has_seen_nothing(
        self, journal: Journal
    ) -> None:
        assert await journal.cursor("tg") == ""
        assert not await journal.seen("tg", "u1")
        assert await journal.undelivered() == []
        assert await journal.deliveries(frozenset(DeliveryStatus), 10) == []
        assert await journal.delivery(DeliveryId("d")) is None

    async def test_an_input_moves_the_cursor_of_its_channel_and_no_other(
        self, journal: Journal
    ) -> None:
        scribe = Scribe(journal)
        await scribe.says(said(1))
        assert await journal.cursor("tg") == "1"
        assert await journal.cursor("other") == ""
        assert await journal.seen("tg", "u1")
        assert not await journal.seen("tg", "u2")
        assert not await journal.seen("other", "u1")

    async def test_an_update_that_is_no_input_moves_it_too(self, journal: Journal) -> None:
        await Scribe(journal).says(UpdateTaken(came=came(5)))
        assert await journal.cursor("tg") == "5"
        assert await journal.seen("tg", "u5")

    async def test_the_cursor_is_that_of_the_update_taken_last_even_if_it_is_smaller(
        self, journal: Journal
    ) -> None:
        mine, other = Scribe(journal), Scribe(journal, SessionKey(ME, SessionId("s2")), at=100.0)
        await other.says(said(900))
        await mine.says(said(7))  # by a clock that is behind
        assert await journal.cursor("tg") == "7"
        await mine.says(said(8), UpdateTaken(came=came(3)))
        assert await journal.cursor("tg") == "3"

    async def test_an_update_of_a_channel_without_a_stream_leaves_the_cursor(
        self, journal: Journal
    ) -> None:
        scribe = Scribe(journal)
        await scribe.says(said(1))
        await scribe.says(said(2, cursor=""))
        assert await journal.cursor("tg") == "1"
        assert await journal.seen("tg", "u2")

    async def test_of_a_message_the_words_taken_last_are_known_within_their_retention(
        self, journal: Journal
    ) -> None:
        def words(
            number: int, digest: str, place: str = "here", message_id: str = "7"
        ) -> UpdateRef:
            return msgspec.structs.replace(
                came(number), place=place, message_id=message_id, digest=digest
            )

        scribe = Scribe(journal)
        assert await journal.message_digest("here", "7") == ""
        await scribe.says(UpdateTaken(came=words(1, "a")))
        await scribe.says(UpdateTaken(came=words(2, "z", "there")))
        await scribe.says(UpdateTaken(came=words(3, "y", message_id="8")))
        assert await journal.message_digest("here", "7") == "a"
        await scribe.says(UpdateTaken(came=words(4, "b")), UpdateTaken(came=came(5)))
        assert await journal.message_digest("here", "7") == "b"
        assert await journal.message_digest("there", "7") == "z"
        await journal.prune(deltas_before=0, keys_before=1e12)
        assert await journal.message_digest("here", "7") == ""

    async def test_an_input_that_did_not_come_through_a_chat_moves_nothing(
        self, journal: Journal
    ) -> None:
        await accept(journal)
        assert await journal.cursor("") == ""
        assert not await journal.seen("", "")

    async def test_cursors_and_messages_are_there_after_opening_again(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as before:
            await Scribe(before).says(said(1), message("d"))
        async with self.make(tmp_path) as after:
            assert await after.cursor("tg") == "1"
            assert await after.seen("tg", "u1")
            assert names(await after.undelivered()) == ["d"]

    async def test_a_commit_that_failed_moved_no_cursor_and_queued_nothing(
        self, tmp_path: Path
    ) -> None:
        async with self.make_full(tmp_path) as journal:
            row = journal.open_stream(KEY)
            facts = (opened(), said(1), message("d"), admitted(text="x" * 50_000), queued())
            run = runs.queue(queued(), 1.0)
            pending = journal.append(row.stream, 0, 1.0, facts, [run])
            with pytest.raises(JournalUnavailable):
                await pending.wait()
            assert await journal.run(RUN) is None
            assert await journal.cursor("tg") == ""
            assert not await journal.seen("tg", "u1")
            assert await journal.undelivered() == []

    async def test_a_message_is_pending_from_when_it_was_queued(self, journal: Journal) -> None:
        queued_at = await Scribe(journal).says(message("d"))
        found = await journal.delivery(DeliveryId("d"))
        now = Delivery(DeliveryId("d"), queued_at=queued_at)
        assert found == Outbound(message("d"), now, KEY, queued_at)
        assert await journal.undelivered() == [found]

    async def test_a_big_message_comes_back_whole(self, journal: Journal) -> None:
        big = message("d", "ü" * 300_000)
        await Scribe(journal).says(big)
        (found,) = await journal.undelivered()
        assert found.queued == big

    async def test_messages_wait_in_the_order_they_were_queued_whatever_their_session(
        self, journal: Journal
    ) -> None:
        mine, other = Scribe(journal), Scribe(journal, SessionKey(ME, SessionId("s2")), at=100.0)
        await other.says(message("c"))
        await mine.says(message("b"), message("d"))  # by a clock that is behind
        await other.says(message("a"))
        assert names(await journal.undelivered()) == ["c", "b", "d", "a"]
        await mine.says(fate(SendStarted, "b", 1), fate(SendDeferred, "b", 2))
        assert names(await journal.undelivered()) == ["c", "b", "d", "a"]

    async def test_what_is_sent_or_given_up_waits_no_more_and_can_be_found(
        self, journal: Journal
    ) -> None:
        scribe = Scribe(journal)
        await scribe.says(*map(message, "abcd"))
        await scribe.says(fate(SendStarted, "a", 1), fate(SendAccepted, "a", 42))
        await scribe.says(fate(SendAbandoned, "b", 1), fate(SendHeld, "c", 1))
        assert names(await journal.undelivered()) == ["c", "d"]
        assert names(await journal.deliveries(frozenset({DeliveryStatus.SENT}), 10)) == ["a"]
        bad = frozenset({DeliveryStatus.DEAD, DeliveryStatus.HELD})
        assert names(await journal.deliveries(bad, 10)) == ["c", "b"]
        assert names(await journal.deliveries(bad, 1)) == ["c"]
        assert await journal.deliveries(frozenset(), 10) == []
        sent = await journal.delivery(DeliveryId("a"))
        assert sent is not None and sent.now.external_id == "x42"
        await scribe.says(fate(SendReleased, "b", 9))
        assert names(await journal.undelivered()) == ["b", "c", "d"]

    async def test_a_message_queued_twice_is_one_and_spoils_nothing(self, journal: Journal) -> None:
        scribe = Scribe(journal)
        await scribe.says(message("d"), fate(SendStarted, "d", 1))
        await scribe.says(message("d", "again"), said(1))
        (found,) = await journal.undelivered()
        assert (found.queued.text, found.now.status) == ("hello", DeliveryStatus.SENDING)
        assert await journal.cursor("tg") == "1"

    async def test_what_the_machine_does_not_allow_changes_nothing(self, journal: Journal) -> None:
        scribe = Scribe(journal)
        await scribe.says(message("d"), fate(SendAbandoned, "d", 1))
        before = await journal.delivery(DeliveryId("d"))
        await scribe.says(fate(SendAccepted, "d", 2), fate(SendStarted, "nobody", 1))
        assert await journal.delivery(DeliveryId("d")) == before
        assert journal.state() == "ok"

    @pytest.mark.parametrize("seed", range(5))
    async def test_the_outbox_says_what_the_machine_makes_of_the_facts(
        self, journal: Journal, seed: int
    ) -> None:
        expected = await live_randomly(journal, seed)
        for name, (now, updated_at) in expected.items():
            found = await journal.delivery(DeliveryId(name))
            assert found is not None
            assert (found.now, found.updated_at) == (now, updated_at)
        waiting = {name for name, (now, _) in expected.items() if not now.status.final}
        assert set(names(await journal.undelivered())) == waiting
        assert len({now.status for now, _ in expected.values()}) > 4  # a bit of everything

    async def test_pruning_forgets_what_was_taken_and_sent_a_week_ago_and_no_cursor(
        self, journal: Journal
    ) -> None:
        old, young = Scribe(journal), Scribe(journal, SessionKey(ME, SessionId("s2")), at=DAY_S)
        for number, scribe in enumerate((old, young)):
            sent, dead, held = (f"{name}{number}" for name in ("sent", "dead", "held"))
            await scribe.says(said(9 - number), *map(message, (sent, dead, held)))
            await scribe.says(
                fate(SendStarted, sent, 1), fate(SendAccepted, sent, 2),
                fate(SendAbandoned, dead, 1), fate(SendHeld, held, 1),
            )  # fmt: skip
        known = frozenset(DeliveryStatus)

        async def prune(now: float) -> list[str]:
            """As it is asked for: request keys are kept for a day."""
            await journal.prune(deltas_before=now, keys_before=now - DAY_S)
            return sorted(names(await journal.deliveries(known, 10)))

        assert await prune(7 * DAY_S) == ["dead0", "dead1", "held0", "held1", "sent0", "sent1"]
        assert await journal.seen("tg", "u9")
        assert await prune(7 * DAY_S + 60) == ["dead0", "dead1", "held0", "held1", "sent1"]
        assert not await journal.seen("tg", "u9")
        assert await journal.seen("tg", "u8")
        assert await prune(30 * DAY_S) == ["dead0", "dead1", "held0", "held1"]
        assert await prune(30 * DAY_S + 60) == ["dead1", "held0", "held1"]
        assert await prune(1e12) == ["held0", "held1"]
        assert await journal.cursor("tg") == "8"
        assert names(await journal.undelivered()) == ["held0", "held1"]
