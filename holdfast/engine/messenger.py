"""The gateway's side of chats, in one: what is heard, what is said, and that it goes and comes.

Only a gateway has it. A terminal that embeds the engine hears no channel and sends nothing.
"""

import logging
from collections.abc import Mapping, Sequence

import anyio
from anyio.abc import TaskGroup

from holdfast.channels import addresses
from holdfast.commands.command import Command
from holdfast.core import delivery
from holdfast.core.events import Record
from holdfast.core.lifecycle import Reason, Recorded
from holdfast.core.types import RunId, Value
from holdfast.engine import chats, dialogue, notices
from holdfast.engine.chats import Chats, Connected, Place
from holdfast.engine.clock import Clock
from holdfast.engine.conversation import Conversation
from holdfast.engine.dialogue import Control
from holdfast.engine.lanes import Outlet
from holdfast.engine.outbox import Outbox
from holdfast.engine.people import People
from holdfast.engine.permits import Audit
from holdfast.engine.sessions import Sessions
from holdfast.gateway import Gateway
from holdfast.journal.journal import Journal

log = logging.getLogger(__name__)

FLUSH_S = 1.5  # for what is queued to go out on the way down
CLOSE_S = 1.0  # for channels to let go of their connections


class Chatting(Value):
    """What a gateway has for chats. The composition root fills it."""

    channels: Mapping[str, Connected]
    commands: Mapping[str, Command]


def split(channels: Mapping[str, Connected], platform: str, text: str) -> Sequence[str]:
    """The messages that a text takes on a platform; one, if nobody knows it."""
    connected = channels.get(platform)
    return (text,) if connected is None else connected.channel.split(text)


class Messenger:
    """Hears and speaks in chats."""

    def __init__(
        self,
        having: Chatting,
        gateway: Gateway,
        journal: Journal,
        sessions: Sessions,
        clock: Clock,
        tasks: TaskGroup,
        model: str,
        audit: Audit,
    ) -> None:
        self._channels = having.channels
        self._sessions = sessions
        self._clock = clock
        self._tasks = tasks
        self._listening = anyio.CancelScope()
        self._heard = anyio.Event()  # set once nobody listens any more
        self._heard.set()
        self.control: Control | None = None  # of the process, where it can be restarted
        outlets = {
            name: Outlet(
                c.channel,
                delivery.Policy(c.channel.capabilities.idempotent_send, c.on_ambiguous),
            )
            for name, c in having.channels.items()
        }
        self.outbox = Outbox(journal, sessions, clock, outlets, tasks)

        def converse(found: Chats, place: Place) -> Conversation:
            parts = dialogue.Parts(gateway, journal, sessions, clock, model)
            return Conversation(parts, found, place, self.control)

        parts = chats.Parts(
            gateway, journal, sessions, clock, addresses.hosts, having.commands, converse
        )
        self.chats = Chats(parts, having.channels)
        self.people = People(self.chats, clock, audit, self.outbox.missed)

    @property
    def troubles(self) -> dict[str, str]:
        """Each channel, and why nothing can be heard there just now; empty: all is well."""
        return {name: c.channel.trouble for name, c in self._channels.items()}

    @property
    def undelivered(self) -> int:
        """Messages on their way, or held."""
        counts = self.outbox.counts()
        return counts.pending + counts.held

    def committed(self, records: Sequence[Record]) -> None:
        """On the loop, after every commit."""
        self.outbox.committed(records)

    async def start(self, before: Recorded) -> None:
        """Say what is left to be said, and that we are back; then listen."""
        await self.outbox.start()
        await notices.say_back(self.chats, self._clock, before)
        self._heard = anyio.Event()
        self._tasks.start_soon(self._listen)

    async def _listen(self) -> None:
        try:
            with self._listening:
                async with anyio.create_task_group() as group:
                    for name in self._channels:
                        group.start_soon(self.chats.listen, name)
        finally:
            self._heard.set()

    async def warn(self, running: Sequence[RunId | None], reason: Reason) -> None:
        """Tell the chats whose runs will be cut."""
        await notices.warn(self.chats, self._sessions, running, reason)

    async def stop(self) -> None:
        """Hear nothing more, let out what is queued if that is quick, and disconnect."""
        self._listening.cancel()
        await self.outbox.stop(FLUSH_S)
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._heard.wait()
            async with anyio.create_task_group() as group:
                for connected in self._channels.values():
                    group.start_soon(connected.channel.aclose)
