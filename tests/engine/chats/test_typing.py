"""What a chat sees of work in progress: while it goes on, not too often, and never last."""

from pathlib import Path

import anyio
import pytest

from holdfast.channels.channel import Later
from holdfast.core.chat.delivery import DeliveryQueued, DeliveryStatus
from holdfast.core.inbox import InputAdmitted, InputPromoted
from holdfast.core.messages import Proposal
from holdfast.core.run.call import CallAsked, CallCleared, CallSettled, CallStarted, Outcome
from holdfast.core.run.run import (
    ModelAnswered,
    Origin,
    RunCancelled,
    RunQueued,
    RunResumed,
    RunStarted,
    StopAsked,
)
from holdfast.core.types import CallId, DeliveryId, Fact, InputId, RequestId, RunId, Usage
from holdfast.engine.chats.typing import CHANGE_EVERY_S, TYPING_EVERY_S
from tests.engine.postroom import Desk, message, sending
from tests.engine.workshop import turn
from tests.fakes.channel import Chat

pytestmark = pytest.mark.anyio

RUN = RunId("r")
CALLS = tuple(CallId(f"c{n}") for n in range(9))


async def begin(desk: Desk, chat: Chat, place: str = "a", *, progress: bool = False) -> None:
    """A run that works for the chat, with calls to make."""
    origin = Origin(platform=chat.name, address=chat.address(place), progress=progress)
    calls = tuple(Proposal(c, "terminal", "{}") for c in CALLS)
    await desk.say(
        place,
        InputAdmitted(input_id=InputId("i"), run_id=RUN, text="go"),
        RunQueued(run_id=RUN, input_id=InputId("i"), origin=origin),
        RunStarted(run_id=RUN),
        InputPromoted(input_id=InputId("i"), run_id=RUN),
        ModelAnswered(run_id=RUN, turn=1, text="", calls=calls),
    )


def started(number: int, preview: str) -> Fact:
    return CallStarted(run_id=RUN, call_id=CALLS[number], tool="terminal", preview=preview)


def progress(chat: Chat) -> DeliveryQueued:
    """What is queued with the first call."""
    return message(chat, "a", f"pro_{RUN}")


async def first_step(desk: Desk, chat: Chat) -> None:
    """A run that works for the chat, whose first step is shown there."""
    await begin(desk, chat, progress=True)
    await desk.say("a", started(0, "one"), progress(chat))
    await desk.become(f"pro_{RUN}", DeliveryStatus.SENT)


def ended() -> list[Fact]:
    """The run stops: nothing of it is open any more."""
    settled = (
        CallSettled(run_id=RUN, call_id=c, tool="terminal", outcome=Outcome.ABORTED, text="")
        for c in CALLS
    )
    return [
        StopAsked(run_id=RUN, reason="enough"),
        *settled,
        RunCancelled(run_id=RUN, reason="enough", usage=Usage()),
    ]


async def test_typing_is_shown_while_a_run_is_active(tmp_path: Path) -> None:
    chat = Chat(typing=True)
    async with sending(tmp_path, chat) as desk:
        await begin(desk, chat)
        for n in (1, 2, 3):
            await chat.typed_times(n)
            await desk.due(TYPING_EVERY_S)
            if n < 3:
                desk.clock.advance(TYPING_EVERY_S)
        await desk.say("a", *ended())
        await turn(3)
        desk.clock.advance(TYPING_EVERY_S)
        await turn(3)
        assert chat.typed == [chat.address("a")] * 3


async def test_no_typing_is_shown_while_a_run_waits(tmp_path: Path) -> None:
    chat = Chat(typing=True)
    async with sending(tmp_path, chat) as desk:
        await begin(desk, chat)
        await chat.typed_times(1)
        await desk.due(TYPING_EVERY_S)
        asks = (CallAsked(run_id=RUN, call_id=c, request_id=RequestId(c)) for c in CALLS)
        await desk.say("a", *asks)
        await turn(3)
        desk.clock.advance(TYPING_EVERY_S)
        await turn(3)
        assert len(chat.typed) == 1
        await desk.say("a", CallCleared(run_id=RUN, call_id=CALLS[0]), RunResumed(run_id=RUN))
        await chat.typed_times(2)


async def test_typing_is_not_shown_if_the_platform_cannot(tmp_path: Path) -> None:
    chat = Chat(typing=False)
    async with sending(tmp_path, chat) as desk:
        await begin(desk, chat)
        await turn(3)
        assert chat.typed == []


async def test_progress_is_shown_at_intervals_and_only_the_newest(tmp_path: Path) -> None:
    chat = Chat()
    async with sending(tmp_path, chat) as desk:
        await begin(desk, chat, progress=True)
        await desk.say("a", started(0, "ls"), progress(chat))
        await desk.become(f"pro_{RUN}", DeliveryStatus.SENT)
        await desk.say("a", started(1, "make"))
        await desk.say("a", started(2, "make\n   test"))
        await desk.due(CHANGE_EVERY_S)
        assert len(chat.sent) == 1
        desk.clock.advance(CHANGE_EVERY_S)
        shown = await chat.came(2)
        assert (shown.edit, shown.text) == ("m1", "Working, step 3: terminal: make test")
        await turn(5)
        assert len(chat.sent) == 2  # nothing newer
        await desk.say("a", started(3, "git push"))
        await desk.passes(CHANGE_EVERY_S)
        assert (await chat.came(3)).text == "Working, step 4: terminal: git push"
        names = [m.delivery_id for m in chat.sent]
        assert names == [f"pro_{RUN}", f"pro_{RUN}.3", f"pro_{RUN}.4"], "none is dropped as known"


async def test_a_platform_that_wants_fewer_changes_gets_fewer(tmp_path: Path) -> None:
    chat = Chat()
    async with sending(tmp_path, chat) as desk:
        await first_step(desk, chat)
        chat.answer("a", Later("slow down", 100.0))
        desk.clock.advance(CHANGE_EVERY_S)
        await desk.say("a", started(1, "two"))
        await chat.came(2)
        await desk.say("a", started(2, "three"))
        await desk.due(100.0)
        desk.clock.advance(CHANGE_EVERY_S)
        await turn(5)
        assert len(chat.sent) == 2
        desk.clock.advance(100.0)
        assert "step 3" in (await chat.came(3)).text


async def test_a_call_that_shows_itself_is_no_step(tmp_path: Path) -> None:
    chat = Chat()
    async with sending(tmp_path, chat) as desk:
        await first_step(desk, chat)
        desk.clock.advance(CHANGE_EVERY_S)
        asks = CallStarted(run_id=RUN, call_id=CALLS[1], tool="ask", preview="which?", quiet=True)
        await desk.say("a", asks)
        await turn(5)
        assert len(chat.sent) == 1
        await desk.say("a", started(2, "two"))
        assert (await chat.came(2)).text == "Working, step 2: terminal: two"


async def test_without_progress_or_edits_nothing_is_shown(tmp_path: Path) -> None:
    for chat, wanted in ((Chat(), False), (Chat(edits=False), True)):
        directory = tmp_path / f"{wanted}"
        directory.mkdir()
        async with sending(directory, chat) as desk:
            await begin(desk, chat, progress=wanted)
            await desk.say("a", started(0, "one"))
            desk.clock.advance(CHANGE_EVERY_S)
            await desk.say("a", started(1, "two"))
            desk.clock.advance(CHANGE_EVERY_S)
            await turn(5)
            assert chat.sent == []


async def test_the_last_word_comes_after_a_change_that_is_on_its_way(tmp_path: Path) -> None:
    chat, gate = Chat(), anyio.Event()
    async with sending(tmp_path, chat) as desk:
        await first_step(desk, chat)
        chat.answer("a", gate)
        desk.clock.advance(CHANGE_EVERY_S)
        await desk.say("a", started(1, "two"))
        await chat.came(2)
        last = message(chat, "a", "done", edits=f"pro_{RUN}")
        await desk.say("a", started(2, "three"), *ended(), last)
        await desk.say("b", message(chat, "b", "other"))
        await desk.become("other", DeliveryStatus.SENT)
        assert chat.texts("a")[2:] == []
        gate.set()
        await desk.become("done", DeliveryStatus.SENT)
        desk.clock.advance(CHANGE_EVERY_S)
        await turn(5)
        assert chat.texts("a")[2:] == ["done"]  # and "three" is never shown


async def test_a_message_of_before_a_restart_is_changed_too(tmp_path: Path) -> None:
    chat = Chat()
    async with sending(tmp_path, chat) as desk:
        await first_step(desk, chat)
    async with sending(tmp_path, chat) as desk:
        await desk.say("a", started(1, "two"))
        assert (await chat.came(2)).edit == "m1"


async def test_no_change_is_made_after_the_last_word_was_said(tmp_path: Path) -> None:
    chat = Chat()
    async with sending(tmp_path, chat) as desk:
        await first_step(desk, chat)
    async with sending(tmp_path, chat) as desk:
        told = desk.pause()
        await desk.say("a", started(1, "two"))
        await desk.read(1)  # what the platform calls the message is being looked up
        await desk.say("a", *ended(), message(chat, "a", "done", edits=f"pro_{RUN}"))
        told.set()
        await desk.become("done", DeliveryStatus.SENT)
        await turn(5)
        assert chat.texts("a")[1:] == ["done"]


async def test_on_the_way_down_nothing_more_is_shown(tmp_path: Path) -> None:
    chat = Chat(typing=True)
    async with sending(tmp_path, chat) as desk:
        await begin(desk, chat, progress=True)
        await chat.typed_times(1)
        await desk.say("a", started(0, "one"), progress(chat))
        await desk.become(f"pro_{RUN}", DeliveryStatus.SENT)
        await desk.say("a", started(1, "two"))
        await desk.due(CHANGE_EVERY_S)
        await desk.outbox.stop(1.0)
        desk.clock.advance(TYPING_EVERY_S)
        await turn(5)
        assert (len(chat.typed), len(chat.sent)) == (1, 1)
        assert (await desk.outbox.find(DeliveryId(f"pro_{RUN}"))).now.status is DeliveryStatus.SENT
