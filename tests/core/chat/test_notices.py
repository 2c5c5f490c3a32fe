"""Who is warned before the gateway goes, and who hears that it is back."""

import pytest

from holdfast.core.address import Address, ChatType
from holdfast.core.chat.chats import Chats, RestartAsked, Returned
from holdfast.core.chat.delivery import DeliveryQueued
from holdfast.core.chat.notices import (
    BACK_RESTORED,
    QUIET_S,
    Trouble,
    returned,
    undelivered,
    unheard,
    warnings,
)
from holdfast.core.life.lifecycle import Reason, Recorded, ReportedState
from holdfast.core.types import DeliveryId, Owner


def chat(name: str, thread: str = "", user: str = "") -> Address:
    return Address(
        platform="telegram", chat_type=ChatType.GROUP, chat=name, thread=thread, user=user
    )


HOME = chat("home")
ASKED = RestartAsked(address=chat("admin", "7"), reply_to="42", by=Owner("telegram:1"))
STOPPED = Recorded(state=ReportedState.STOPPED, booted_at=1_000.0)
DIED = Recorded(state=ReportedState.RUNNING, booted_at=1_000.0, orderly=False)
SIGNALLED = Recorded(state=ReportedState.RUNNING, booted_at=1_000.0)


def told(facts: object) -> list[tuple[Address, str]]:
    assert isinstance(facts, tuple)
    return [(f.address, f.reply_to) for f in facts if isinstance(f, DeliveryQueued)]


@pytest.mark.promise("STOP-15")
@pytest.mark.parametrize(
    ("reason", "head", "tail"),
    [
        (Reason.SIGNAL, "Gateway shutting down", "interrupted"),
        (Reason.STOP, "Gateway shutting down", "interrupted"),
        (Reason.RESTART, "Gateway restarting", "try to resume"),
    ],
)
def test_every_busy_chat_and_thread_is_warned_once_and_the_home(
    reason: Reason, head: str, tail: str
) -> None:
    busy = [chat("a", user="1"), chat("a", user="2"), chat("a", "t"), chat("b")]
    found = warnings(busy, reason, Chats(home=HOME), "x")
    assert told(found) == [(p, "") for p in (chat("a"), chat("a", "t"), chat("b"), HOME)]
    assert all(head in f.text and tail in f.text and f.perishable for f in found)
    assert ["Your task" in f.text for f in found] == [True, True, True, False]
    assert "Tasks in other chats" in found[-1].text
    assert len({f.delivery_id for f in found}) == 4


@pytest.mark.promise("STOP-15")
def test_a_home_that_is_busy_is_warned_once() -> None:
    (busy,) = warnings([HOME], Reason.SIGNAL, Chats(home=HOME), "x")
    assert (told((busy,)), "Your task" in busy.text) == ([(HOME, "")], True)
    assert told(warnings([chat("a")], Reason.SIGNAL, Chats(), "x")) == [(chat("a"), "")]


@pytest.mark.promise("STOP-08")
def test_a_restart_from_a_chat_is_answered_there_and_not_in_the_home_chat() -> None:
    chats = Chats(home=HOME, waits=ASKED)
    found = warnings([chat("a"), chat("admin", "7", "1")], Reason.RESTART, chats, "x")
    assert told(found) == [(chat("a"), ""), (chat("admin", "7"), "42")]
    assert told(warnings([chat("a")], Reason.RESTART, chats, "x")) == [(chat("a"), "")]
    assert told(warnings([HOME], Reason.RESTART, chats, "x"))[0] == (HOME, "")
    # A signal that comes before that restart is nobody's: then the home hears of it.
    assert told(warnings([chat("a")], Reason.SIGNAL, chats, "x"))[1] == (HOME, "")


@pytest.mark.promise("STOP-08")
@pytest.mark.promise("STOP-15")
def test_without_active_runs_no_chat_is_warned() -> None:
    assert warnings([], Reason.RESTART, Chats(home=HOME, waits=ASKED), "x") == ()
    assert warnings([], Reason.SIGNAL, Chats(home=HOME), "x") == ()


@pytest.mark.promise("STOP-09")
def test_after_a_restart_asked_for_in_a_chat_only_that_chat_is_told() -> None:
    facts = returned(Chats(home=HOME, waits=ASKED), STOPPED, 1_001.0, "x")
    assert isinstance(facts[0], Returned)
    assert told(facts) == [(chat("admin", "7"), "42")]
    assert not any(isinstance(f, DeliveryQueued) and f.perishable for f in facts)


@pytest.mark.promise("STOP-09")
def test_after_any_other_start_the_home_chat_is_told() -> None:
    assert told(returned(Chats(home=HOME), STOPPED, 1_001.0, "x")) == [(HOME, "")]
    assert told(returned(Chats(home=HOME), SIGNALLED, 1_001.0, "x")) == [(HOME, "")]
    assert told(returned(Chats(home=HOME), DIED, 1_000.0 + QUIET_S, "x")) == [(HOME, "")]


def test_the_first_start_and_one_that_died_young_say_nothing() -> None:
    assert returned(Chats(home=HOME), Recorded(), 1_001.0, "x") == ()
    assert returned(Chats(home=HOME), DIED, 1_001.0, "x") == ()
    assert returned(Chats(), STOPPED, 1_001.0, "x") == ()


LOST = DeliveryQueued(delivery_id=DeliveryId("out_1"), address=chat("a"), text="an answer")


@pytest.mark.promise("CHAT-01")
def test_the_home_chat_is_told_once_a_day_of_each_trouble_on_a_platform() -> None:
    def name(trouble: Trouble, at: float) -> str:
        found = undelivered(LOST, trouble, "down", HOME, at)
        assert found is not None
        assert (found.address, "down" in found.text) == (HOME, True)
        return found.delivery_id

    a_day = 86_400.0
    assert name(Trouble.HELD, 0.0) == name(Trouble.HELD, a_day - 1)
    days = {name(trouble, day * a_day) for trouble in Trouble for day in (0, 1)}
    assert len(days) == 2 * len(Trouble)


def test_there_are_no_notices_without_a_home_chat_or_about_notices() -> None:
    assert undelivered(LOST, Trouble.LATE, "down", None, 0.0) is None
    notice = undelivered(LOST, Trouble.LATE, "down", HOME, 0.0)
    assert notice is not None
    assert undelivered(notice, Trouble.HELD, "down", HOME, 0.0) is None


@pytest.mark.promise("CHAT-03")
def test_the_home_chat_is_told_once_a_day_that_a_platform_refuses_us() -> None:
    assert unheard("telegram", "no", None, 0.0) is None
    found = [unheard("telegram", "no", HOME, at) for at in (0.0, 86_399.0, 86_400.0)]
    assert len({f.delivery_id for f in found if f is not None}) == 2
    assert {f.address for f in found if f is not None} == {HOME}


@pytest.mark.promise("TIME-03")
def test_after_a_restore_only_the_home_chat_is_told() -> None:
    restored = Recorded(booted_at=1_000.0, restored_at=1_001.0, orderly=False)
    over, said = returned(Chats(home=HOME, waits=ASKED), restored, 1_002.0, "n")
    assert over == Returned()
    assert isinstance(said, DeliveryQueued)
    assert (said.address, said.text) == (HOME, BACK_RESTORED)
    assert returned(Chats(), restored, 1_002.0, "n") == ()
