"""The outbox under whatever a platform answers and wherever it is cut: explored."""

import tempfile
from collections import defaultdict
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from holdfast.channels.channel import Accepted, Doubtful, Later, Outgoing, SendRefused, Sent
from holdfast.core.chat.delivery import DeliveryStatus, OnAmbiguous
from holdfast.core.types import DeliveryId
from holdfast.engine.chats.queues import ANSWER_S
from tests.engine.postroom import message, sending
from tests.fakes.channel import PATIENCE_S, Chat
from tests.fakes.clock import ManualClock

CRASH = "crash"  # the platform has it, and nobody hears of that
ANSWERS = (Accepted("x"), Later("busy", 0.0), SendRefused("no"), Doubtful("?"), CRASH)
ENDS = {DeliveryStatus.SENT, DeliveryStatus.HELD, DeliveryStatus.DEAD}


class Hasty(ManualClock):
    """Time passes as soon as somebody waits for it, but for whoever only fears a silence."""

    @override
    async def sleep(self, seconds: float) -> None:
        if seconds >= ANSWER_S:
            await anyio.sleep_forever()
        self.advance(seconds)
        await anyio.lowlevel.checkpoint()


class Platform(Chat):
    """Answers by a script, and knows what has arrived."""

    def __init__(self, script: list[Sent | str]) -> None:
        super().__init__()
        self.script = script
        self.crashed = anyio.Event()
        self.arrived: defaultdict[str, list[Outgoing]] = defaultdict(list)

    @override
    async def deliver(self, message: Outgoing) -> Sent:
        answer = self.script.pop() if self.script else Accepted("x")
        if not isinstance(answer, Later | SendRefused):
            self.arrived[message.address.chat].append(message)
        if isinstance(answer, str):
            self.crashed.set()
            await anyio.sleep_forever()
        assert not isinstance(answer, str)
        return answer


async def _live(directory: Path, platform: Platform, how: OnAmbiguous, queue: list[str]) -> None:
    """One process: to the end of all messages, or to a crash."""
    platform.crashed = anyio.Event()
    async with (
        sending(directory, platform, clock=Hasty(), on_ambiguous=how) as desk,
        anyio.create_task_group() as either,
    ):

        async def crash() -> None:
            await platform.crashed.wait()
            either.cancel_scope.cancel()

        either.start_soon(crash)
        for n, chat in enumerate(queue):
            name = f"{n:02}{chat}"
            if await desk.journal.delivery(DeliveryId(name)) is None:
                await desk.say(chat, message(platform, chat, name))
        for n, chat in enumerate(queue):
            await desk.become(f"{n:02}{chat}", *ENDS)
        either.cancel_scope.cancel()


async def _explore(script: list[Sent | str], how: OnAmbiguous, queue: list[str]) -> None:
    platform = Platform(script)
    with tempfile.TemporaryDirectory() as directory, anyio.fail_after(PATIENCE_S):
        for _ in range(1 + script.count(CRASH)):
            await _live(Path(directory), platform, how, queue)
        await _live(Path(directory), platform, how, queue)  # with nothing left to do
        async with sending(Path(directory), platform, start=False) as desk:
            last = [await desk.become(f"{n:02}{chat}", *ENDS) for n, chat in enumerate(queue)]
    for arrived in platform.arrived.values():
        first = list(dict.fromkeys(m.text for m in arrived))
        assert first == sorted(first), "in order"
        seen: set[str] = set()
        for copy in arrived:
            assert copy.repeated or copy.text not in seen, "no copy without its mark"
            seen.add(copy.text)
            assert how is OnAmbiguous.RESEND_MARKED or not copy.repeated
    everything = {m.text for some in platform.arrived.values() for m in some}
    for found in last:
        assert found.status is not DeliveryStatus.SENT or found.id in everything
        assert found.status is DeliveryStatus.SENT or found.reason


@pytest.mark.promise("LATE-09")
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(ANSWERS), max_size=8).filter(lambda s: s.count(CRASH) <= 2),
    st.sampled_from(OnAmbiguous),
    st.lists(st.sampled_from("ab"), min_size=1, max_size=5),
)
def test_nothing_is_lost_and_no_copy_goes_without_its_mark(
    script: list[Sent | str], how: OnAmbiguous, queue: list[str]
) -> None:
    anyio.run(_explore, script, how, queue)
