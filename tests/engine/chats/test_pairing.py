"""Strangers, members and those who were removed: from the first word in a chat to the last."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from holdfast.channels.channel import Doubtful, Later, Outgoing, Sent
from holdfast.channels.channel import SendRefused as Blocked
from holdfast.core.address import ChatType, Groups, Never, Sender
from holdfast.core.approval.approval import Role
from holdfast.core.chat import access
from holdfast.core.chat.access import (
    CODE_S,
    FAILURES,
    LISTED,
    WELCOME,
    WORTH_S,
    AccessDenied,
    AccessGranted,
    Person,
    RefusalCause,
    Source,
)
from holdfast.core.chat.delivery import OnAmbiguous
from holdfast.core.inbox import Mode
from holdfast.core.intents import DoorCapabilities, Principal
from holdfast.core.types import OPERATOR, Owner
from holdfast.engine.chats.inbound import STILL_VALID, Inbound
from holdfast.engine.chats.pairing import Pairing
from holdfast.engine.chats.places import Connected
from holdfast.engine.messenger import Chatting, Messenger
from holdfast.errors import JournalUnavailable, Refused
from holdfast.gateway import ChannelState
from holdfast.journal.audit import AuditEntry
from tests.engine import workshop
from tests.engine.workshop import PATIENCE_S, Told
from tests.fakes.clock import ManualClock
from tests.fakes.hooked import Hooked, said

pytestmark = pytest.mark.anyio

DOOR = DoorCapabilities("cli", answerable=True, late=True)
ME = Principal(OPERATOR, DOOR, frozenset(Role))
EVE, ANN = Sender("hooked", "678"), Sender("hooked", "12345")
USER = frozenset({Role.RUN, Role.APPROVE})


class Place:
    """A gateway's chats on one channel, and the operator beside them."""

    def __init__(
        self, messenger: Messenger, channel: Hooked, clock: ManualClock, audit: list[AuditEntry]
    ) -> None:
        self.chats: Inbound = messenger.chats
        self.book = messenger.book
        self.people: Pairing = messenger.people
        self.channel = channel
        self.clock = clock
        self.audit = audit
        self.audit_is_full = False
        self._number = 0

    def count(self, number: int) -> None:
        """The next update is the one after that."""
        self._number = number

    async def say(self, text: str, user: str = "678", in_: ChatType = ChatType.DIRECT) -> None:
        """Have it taken."""
        self._number += 1
        await self.chats.take("hooked", said(text, user, self._number, in_))

    async def code(self, user: str = "678") -> str:
        """The code that a stranger is shown."""
        before = len(self.channel.sent)
        await self.say("let me in", user)
        (shown,) = self.channel.sent[before:]
        return shown.text.partition("holdfast pair ")[2].rstrip("`")

    async def told(self, number: int) -> str:
        """The message with that number, from 1, once the channel has it."""
        return (await self.channel.delivered(number)).text

    async def settled(self) -> None:
        """Return when nothing is on its way, as the journal has it."""
        with anyio.fail_after(PATIENCE_S):
            while (await self.people.channels(ME))[0].undelivered:
                await anyio.lowlevel.checkpoint()

    async def may_speak(self, sender: Sender = EVE) -> access.Verdict:
        return access.may_speak(await self.book.policy(), sender, ChatType.DIRECT)


@asynccontextmanager
async def opened(directory: Path, *, pairing: bool = True) -> AsyncIterator[Place]:
    channel, clock, audit = Hooked(), ManualClock(), list[AuditEntry]()
    rules = access.PlatformAccess(
        {"12345": frozenset({Role.ADMIN})}, frozenset({ChatType.DIRECT, ChatType.GROUP}), pairing
    )
    connected = Connected(
        channel,
        rules,
        Groups.PER_USER,
        Never(),
        Mode.INTERRUPT,
        OnAmbiguous.RESEND_MARKED,
        progress=False,
    )

    async def note(entry: AuditEntry) -> None:
        if place is not None and place.audit_is_full:
            raise JournalUnavailable("the disk is full")
        audit.append(entry)

    place: Place | None = None

    async with workshop.journaled(directory) as journal:
        made_of = workshop.parts(directory, journal, Told(), clock=clock)
        chatting = Chatting({"hooked": connected}, {})
        made_of = replace(made_of, chatting=chatting, audit=note)
        async with workshop.running(made_of) as service:
            assert service.messenger is not None
            place = Place(service.messenger, channel, clock, audit)
            yield place


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Place]:
    async with opened(tmp_path) as place:
        yield place


@pytest.mark.fault("F-34")
async def test_a_stranger_becomes_a_member_and_after_removal_a_stranger_again(it: Place) -> None:
    code = await it.code()
    assert isinstance(await it.may_speak(), AccessDenied)
    shown = Person(EVE, frozenset(), Source.OFFER, "Eve \\u{202e}evE", it.clock.now() + 600)
    assert await it.people.look_up(ME, code) == shown
    assert isinstance(await it.may_speak(), AccessDenied), "to look is not to let in"

    done = await it.people.pair(ME, code.lower(), USER)
    assert (done.sender, done.roles, done.source) == (EVE, USER, Source.PAIRING)
    assert await it.may_speak() == AccessGranted(USER)
    assert WELCOME in await it.told(2)
    assert it.channel.sent[1].address.chat == "chat-678"
    assert [p.sender for p in await it.people.users(ME)] == [ANN, EVE]

    await it.people.remove(ME, "hooked", "678")
    assert await it.may_speak() == AccessDenied(access.NOT_HERE, RefusalCause.UNKNOWN)
    assert [p.sender for p in await it.people.users(ME)] == [ANN]
    with pytest.raises(Refused, match="No such code"):
        await it.people.pair(ME, code, USER)
    assert await it.code() != code, "they may ask again"


async def test_who_was_let_in_is_so_after_a_restart_and_was_told_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as it:
        await it.people.pair(ME, await it.code(), USER)
        await it.told(2)
        await it.settled()
    async with opened(tmp_path) as it:
        assert await it.may_speak() == AccessGranted(USER)
        await it.settled()
        assert it.channel.sent == []


async def test_a_code_that_waits_is_good_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as it:
        code = await it.code()
    async with opened(tmp_path) as it:
        assert (await it.people.pair(ME, code, USER)).sender == EVE
        assert WELCOME in await it.told(1)


async def test_a_decision_that_cannot_be_audited_has_no_effect(it: Place) -> None:
    code = await it.code()
    it.audit_is_full = True
    with pytest.raises(JournalUnavailable):
        await it.people.pair(ME, code, USER)
    assert isinstance(await it.may_speak(), AccessDenied)
    it.audit_is_full = False
    await it.people.pair(ME, code, USER)
    it.audit_is_full = True
    with pytest.raises(JournalUnavailable):
        await it.people.remove(ME, "hooked", "678")
    assert await it.may_speak() == AccessGranted(USER)


async def test_every_decision_is_in_the_audit(it: Place) -> None:
    with pytest.raises(Refused, match="No such code"):
        await it.people.look_up(ME, "wrong")
    await it.people.pair(ME, await it.code(), USER)
    await it.people.remove(ME, "hooked", "678")
    assert [(e.kind, e.who, e.platform, e.choice, e.result) for e in it.audit] == [
        ("pairing.failed", "operator", "cli", "", ""),
        ("pairing.confirmed", "operator", "cli", "approve, run", "hooked:678"),
        ("user.removed", "operator", "cli", "", "hooked:678"),
    ]


async def test_too_many_wrong_codes_are_refused_with_the_time_to_try_again(it: Place) -> None:
    code = await it.code()
    for n in range(FAILURES):
        with pytest.raises(Refused) as caught:
            await (it.people.look_up(ME, "wrong") if n % 2 else it.people.pair(ME, "no", USER))
        assert caught.value.code == "code_not_found"
    it.clock.advance(90)
    for attempt in (it.people.look_up(ME, code), it.people.pair(ME, code, USER)):
        with pytest.raises(
            Refused, match="10 wrong codes within an hour. Try again in 59 min."
        ) as e:
            await attempt
        assert (e.value.code, e.value.retry_after_s) == ("too_many_codes", 3510.0)
    it.clock.advance(3511)
    assert (await it.people.pair(ME, await it.code(), USER)).sender == EVE


@pytest.mark.parametrize("roles", [frozenset[Role](), frozenset(Role) - {Role.ADMIN}])
async def test_only_the_operator_has_a_say(it: Place, roles: frozenset[Role]) -> None:
    somebody = Principal(Owner("hooked:678"), DOOR, roles)
    code = await it.code()
    for attempt in (
        it.people.look_up(somebody, code),
        it.people.pair(somebody, code, USER),
        it.people.users(somebody),
        it.people.remove(somebody, "hooked", "12345"),
        it.people.channels(somebody),
    ):
        with pytest.raises(Refused) as caught:
            await attempt
        assert caught.value.code == "admin_only"
    assert it.audit == []
    assert (await it.people.pair(ME, code, USER)).sender == EVE


async def test_who_is_on_the_list_is_removed_there(it: Place) -> None:
    with pytest.raises(Refused, match=LISTED) as caught:
        await it.people.remove(ME, "hooked", "12345")
    assert caught.value.code == "user_not_found"
    with pytest.raises(Refused, match="hooked:9 is not paired"):
        await it.people.remove(ME, "hooked", "9")
    assert it.audit == []


async def test_an_offer_can_be_withdrawn(it: Place) -> None:
    code = await it.code()
    await it.people.remove(ME, "hooked", "678")
    with pytest.raises(Refused, match="No such code"):
        await it.people.pair(ME, code, USER)


async def test_without_pairing_a_stranger_is_shown_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, pairing=False) as it:
        await it.say("let me in")
        assert it.channel.sent == []
        assert [p.sender for p in await it.people.users(ME)] == [ANN]


async def test_a_code_is_not_voided_by_the_next_words(it: Place) -> None:
    code = await it.code()
    await it.say("hello?")
    assert [m.text for m in it.channel.sent[1:]] == [STILL_VALID.format(10)]
    await it.say("hello??")
    assert len(it.channel.sent) == 2, "they were told a moment ago"
    it.clock.advance(CODE_S - WORTH_S)
    await it.say("hello???")
    assert STILL_VALID.format(1) in it.channel.sent[2].text
    assert (await it.people.look_up(ME, code)).sender == EVE
    it.clock.advance(1)
    other = await it.code()
    assert (await it.people.look_up(ME, other)).sender == EVE
    with pytest.raises(Refused):
        await it.people.look_up(ME, code)


@pytest.mark.parametrize("trouble", [Later("busy", 1.0), Doubtful("who knows"), Blocked("blocked")])
async def test_a_code_that_may_not_have_arrived_is_replaced(
    it: Place, trouble: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(message: Outgoing) -> Sent:
        return trouble

    with monkeypatch.context() as patch:
        patch.setattr(it.channel, "deliver", fails)
        await it.say("let me in")
    assert (await it.people.look_up(ME, await it.code())).sender == EVE


async def test_a_code_whose_delivery_is_doubtful_is_replaced(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as before:
        await before.code()
    async with opened(tmp_path) as after:
        after.count(10)
        assert (await after.people.look_up(ME, await after.code())).sender == EVE


async def test_no_code_is_shown_in_a_group(it: Place) -> None:
    await it.say("let me in", in_=ChatType.GROUP)
    assert it.channel.sent == []


async def test_the_state_of_the_channels_is_listed(it: Place) -> None:
    it.channel.trouble = "out of reach"
    assert await it.people.channels(ME) == [
        ChannelState(
            "hooked",
            "out of reach",
            ("late", "answerable", "idempotent send"),
            undelivered=0,
            held=0,
        )
    ]
