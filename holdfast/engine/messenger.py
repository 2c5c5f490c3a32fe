"""The gateway's side of chats: inbound messages, the outbox, and notices.

Only a gateway has it. A terminal that embeds the engine serves no channel and sends nothing.
"""

import logging
from collections.abc import Mapping, Sequence

import anyio
from anyio.abc import TaskGroup

from holdfast.channels.text import links
from holdfast.commands.command import Command
from holdfast.core.address import Address
from holdfast.core.life.lifecycle import Reason, Recorded
from holdfast.core.types import RunId, Value
from holdfast.engine.chats import inbound, notices
from holdfast.engine.chats.book import ChatBook
from holdfast.engine.chats.inbound import Inbound
from holdfast.engine.chats.outbox import Outbox
from holdfast.engine.chats.pairing import Pairing
from holdfast.engine.chats.places import ChatPlace, Connected
from holdfast.engine.commands.chat import Conversation
from holdfast.engine.commands.deps import CommandDeps, ProcessControl
from holdfast.engine.runs.approvals import Audit

log = logging.getLogger(__name__)

FLUSH_S = 1.5  # for what is queued to go out on the way down
CLOSE_S = 1.0  # for channels to let go of their connections


class Chatting(Value):
    """The channels and commands of a gateway. The composition root fills it."""

    channels: Mapping[str, Connected]
    commands: Mapping[str, Command]


def split(channels: Mapping[str, Connected], platform: str, text: str) -> Sequence[str]:
    """Split a text into the messages that a platform takes; one, if the platform is unknown."""
    connected = channels.get(platform)
    return (text,) if connected is None else connected.channel.split(text)


class Messenger:
    """Hears and speaks in chats."""

    def __init__(
        self,
        having: Chatting,
        commands: CommandDeps,
        tasks: TaskGroup,
        audit: Audit,
        control: ProcessControl | None,
    ) -> None:
        gateway, journal = commands.gateway, commands.journal
        sessions, clock = commands.sessions, commands.clock
        self._channels = having.channels
        self._sessions = sessions
        self._clock = clock
        self._tasks = tasks
        self._listening = anyio.CancelScope()
        self._heard = anyio.Event()  # set once no channel is listened to any more
        self._heard.set()
        outlets = {name: connected.outlet for name, connected in having.channels.items()}
        self.outbox = Outbox(journal, sessions, clock, outlets, tasks, self._home)

        self.book = book = ChatBook(gateway, sessions, clock, having.channels, links.hosts)

        def converse(place: ChatPlace) -> Conversation:
            return Conversation(commands, book, place, control)

        parts = inbound.InboundDeps(gateway, journal, sessions, clock, having.commands, converse)
        self.chats = Inbound(parts, book)
        self.people = Pairing(book, clock, audit, self.outbox.missed)

    async def _home(self) -> Address | None:
        return (await self.book.known()).home

    @property
    def troubles(self) -> dict[str, str]:
        """Each channel, and why nothing can be heard there just now; empty: all is well."""
        return {name: c.channel.trouble for name, c in self._channels.items()}

    @property
    def undelivered(self) -> int:
        """Messages on their way, or held."""
        counts = self.outbox.counts()
        return counts.pending + counts.held

    async def start(self, before: Recorded) -> None:
        """Say what is left to be said, and that we are back; then listen."""
        await self.outbox.start()
        await notices.say_back(self.book, self._clock, before)
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
        await notices.warn(self.book, self._sessions, running, reason)

    async def stop(self) -> None:
        """Hear nothing more, let out what is queued if that is quick, and disconnect."""
        self._listening.cancel()
        await self.outbox.stop(FLUSH_S)
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._heard.wait()
            async with anyio.create_task_group() as group:
                for connected in self._channels.values():
                    group.start_soon(connected.channel.aclose)
