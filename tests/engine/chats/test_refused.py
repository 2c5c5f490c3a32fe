"""A channel that its platform refuses is tried again, later each time."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace
from typing_extensions import override

from holdfast import plugins
from holdfast.channels.channel import Take
from holdfast.core.address import ChatType, Groups, Never
from holdfast.core.chat import access
from holdfast.core.chat.delivery import OnAmbiguous
from holdfast.core.inbox import Mode
from holdfast.engine.chats.inbound import LONGEST_REFUSED_S
from holdfast.engine.chats.places import Connected
from holdfast.engine.messenger import Chatting
from holdfast.errors import Misconfigured
from tests.engine import workshop
from tests.engine.workshop import PATIENCE_S, Told
from tests.fakes.channel import Chat
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio


class Noting(ManualClock):
    """A clock that notes which task sleeps for how long."""

    def __init__(self) -> None:
        super().__init__()
        self.naps: dict[int, list[float]] = {}
        self._slept = anyio.Event()

    @override
    async def sleep(self, seconds: float) -> None:
        self.naps.setdefault(anyio.get_current_task().id, []).append(seconds)
        self._slept.set()
        self._slept = anyio.Event()
        await super().sleep(seconds)

    async def slept(self, task: int, times: int) -> None:
        """Return when that task has gone to sleep that often."""
        with anyio.fail_after(PATIENCE_S):
            while len(self.naps.get(task, ())) < times:
                await self._slept.wait()


class Refused(Chat):
    """A channel that its platform refuses, always."""

    listener = 0  # the task

    @override
    async def receive(self, cursor: str, take: Take) -> None:
        self.listener = anyio.get_current_task().id
        raise Misconfigured("the token is refused", "set another one")


@pytest.mark.promise("CHAT-03")
async def test_the_wait_after_a_refusal_doubles_up_to_a_bound(tmp_path: Path) -> None:
    platform, clock = Refused(), Noting()
    rules = access.PlatformAccess({}, frozenset(ChatType), pairing=True)
    connected = Connected(
        platform,
        rules,
        Groups.PER_USER,
        Never(),
        Mode.INTERRUPT,
        OnAmbiguous.RESEND_MARKED,
        progress=False,
    )
    async with workshop.journaled(tmp_path) as journal:
        made_of = workshop.parts(tmp_path, journal, Told(), clock=clock)
        chatting = Chatting({"chat": connected}, plugins.find_commands())
        async with workshop.running(replace(made_of, chatting=chatting)):
            with anyio.fail_after(PATIENCE_S):
                while not platform.listener:
                    await anyio.lowlevel.checkpoint()
            for times in range(1, 12):
                await clock.slept(platform.listener, times)
                clock.advance(LONGEST_REFUSED_S)
    waits = clock.naps[platform.listener][:11]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, LONGEST_REFUSED_S, LONGEST_REFUSED_S]
