"""The chats: their facts, folded, say who is let in, which session is where, and who waits."""

from typing import get_args

import pytest

from holdfast.core import address
from holdfast.core.address import Address, ChatType, KeyBound, Why
from holdfast.core.approval.approval import Role
from holdfast.core.chat import access
from holdfast.core.chat.chats import (
    EVENTS,
    KEPT,
    Chats,
    Event,
    HomeChosen,
    RestartAsked,
    Returned,
    UpdateTaken,
    evolve,
)
from holdfast.core.inbox import Mode, UpdateRef
from holdfast.core.types import OPERATOR, SessionId
from holdfast.errors import IllegalTransition

CHAT = Address(platform="tg", chat_type=ChatType.DIRECT, chat="7", user="7")
ELSEWHERE = Address(platform="tg", chat_type=ChatType.GROUP, chat="8", user="7")
ASKED = RestartAsked(address=CHAT, reply_to="5", by=OPERATOR)
TAKEN = UpdateTaken(came=UpdateRef(channel="tg", external_id="41", cursor="41"))
BOUND = KeyBound(key=CHAT.key, session_id=SessionId("s"), reason=Why.FIRST)
OFFERED = access.PairingOffered(
    sender=CHAT.sender, name="n", salt="s", digest="d", expires_at=600.0
)
CONFIRMED = access.PairingConfirmed(sender=CHAT.sender, roles=(Role.RUN,), by=OPERATOR)


def fold(*events: Event) -> Chats:
    """What they amount to, one a second."""
    chats = Chats()
    for at, event in enumerate(events):
        chats = evolve(chats, event, float(at))
    return chats


def test_a_key_leads_to_the_session_it_was_bound_to() -> None:
    chats = fold(BOUND, address.BusyModeChosen(key=CHAT.key, mode=Mode.STEER))
    assert address.current(chats.keys, CHAT.key) == "s"
    assert address.busy_mode(chats.keys, CHAT.key) is Mode.STEER
    assert chats == Chats(keys=chats.keys)


def test_who_was_let_in_is_a_member_until_removed() -> None:
    chats = fold(OFFERED, CONFIRMED)
    assert chats.members.roles == {CHAT.sender: frozenset({Role.RUN})}
    assert chats == Chats(members=chats.members)
    chats = evolve(chats, access.UserRemoved(sender=CHAT.sender, by=OPERATOR), 2.0)
    assert chats.members.status(CHAT.sender) is access.MemberStatus.STRANGER
    failed = evolve(chats, access.PairingFailed(by=OPERATOR), 3.0)
    assert failed.members.failed == ((3.0, OPERATOR),)


def test_home_is_what_was_chosen_last() -> None:
    chosen = [HomeChosen(address=a, by=OPERATOR) for a in (CHAT, ELSEWHERE)]
    assert fold().home is None
    assert fold(*chosen) == Chats(home=ELSEWHERE)


def test_a_restart_request_waits_until_the_chat_is_told() -> None:
    assert fold(ASKED) == Chats(waits=ASKED)
    assert fold(ASKED, Returned()) == fold(Returned()) == Chats()


def test_an_update_that_was_taken_changes_nothing_more() -> None:
    before = fold(BOUND, OFFERED, ASKED)
    assert evolve(before, TAKEN, 9.0) == before


def test_impossible_facts_are_refused() -> None:
    with pytest.raises(IllegalTransition):
        fold(CONFIRMED)
    with pytest.raises(IllegalTransition):
        fold(BOUND, BOUND)


def test_all_facts_are_kept_but_updates_which_change_nothing() -> None:
    assert set(EVENTS) == set(get_args(Event))
    assert set(EVENTS) - set(KEPT) == {UpdateTaken}
