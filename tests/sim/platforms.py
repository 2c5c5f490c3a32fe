"""Two platforms for simulations, and the channels that speak to them.

A `Polled` one is like Telegram: one numbered stream of updates, handed out again until a later
poll confirms them and sometimes after that; what is sent twice is there twice. A `Pushed` one
calls us, chat by chat and all at once, until it is told that we have it, sometimes twice at the
same time; what is sent again under the same id is there once. Both are slow, say "later", lose
answers before and after the effect, and hang. Neither gives a message trouble for ever.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence

import anyio
from typing_extensions import override

from holdfast.channels.channel import (
    Accepted,
    ChannelCapabilities,
    Doubtful,
    Incoming,
    Later,
    Outgoing,
    Sent,
    Take,
)
from holdfast.core.address import Address, ChatType
from holdfast.core.types import DeliveryId
from holdfast.errors import Transient
from tests.sim.world import Process, World

SLOW_S = (0.0, 0.0, 0.0, 0.0, 0.05, 1.0, 20.0)
AGAIN_S = (0.05, 1.0, 30.0)  # after a push that was not taken
TROUBLES = 5  # tries of one message that may come to nothing
BATCH = 8
KEPT_S = 86_400.0  # an update
FATES = ("later", "lost", "hung", "doubled", "stuck")  # the latter two: after it has arrived


class Platform:
    """Chats in which messages arrive."""

    name = ""
    idempotent = False
    edits = False

    def __init__(self, world: World, trouble: float) -> None:
        self.world = world
        self.arrived: list[Outgoing] = []  # of each message the first copy
        self.copies: Counter[DeliveryId] = Counter()
        self.watchers: dict[str, Callable[[Outgoing], None]] = {}  # by chat
        self.taken: set[str] = set()  # what was said there and is in the journal
        self.closed_until = 0.0
        self._trouble = trouble  # how probably something goes wrong with a try
        self._tries: Counter[DeliveryId] = Counter()
        self._accepted: dict[DeliveryId, Process] = {}

    def address(self, chat: str) -> Address:
        return Address(platform=self.name, chat_type=ChatType.DIRECT, chat=chat, user=chat)

    def post(
        self, chat: str, text: str, *, pressed: str = "", edited: bool = False, of: str = ""
    ) -> str:
        """Somebody writes something, or presses a button; what the platform calls that.

        `of`: the message that is edited, as its update is called; empty: one that nobody knows.
        """
        raise NotImplementedError

    async def pass_(self, process: Process) -> None:
        """On the way there or back; whoever is dead meanwhile never arrives."""
        await asyncio.sleep(self.world.random.choice(SLOW_S))  # sleep: in virtual time
        if process is not self.world.process:
            await anyio.sleep_forever()

    async def deliver(self, process: Process, message: Outgoing) -> Sent:
        await self.pass_(process)
        self._tries[message.delivery_id] += 1
        fate = self._fate(message)
        if fate == "later":
            return Later("not now", self.world.random.choice((0.0, 1.0, 30.0)))
        if fate == "lost":
            return Doubtful("the line broke")
        if fate == "hung":
            await anyio.sleep_forever()
        name = self._arrive(process, message)
        if fate == "doubled":
            return Doubtful("the answer was lost")
        if fate == "stuck":
            await anyio.sleep_forever()
        await self.pass_(process)
        self._accepted[message.delivery_id] = process
        return Accepted(name)

    def _fate(self, message: Outgoing) -> str:
        random = self.world.random
        if self.world.loop.time() < self.closed_until:
            return random.choice(("later", "lost"))  # 429, or a 502 that hides nothing
        troubled = self._tries[message.delivery_id] <= TROUBLES and random.random() < self._trouble
        return random.choice(FATES) if troubled else ""

    def _arrive(self, process: Process, message: Outgoing) -> str:
        """It is there, for everybody to see; what the platform calls it."""
        name = message.delivery_id
        if self._accepted.get(name) is process and not message.edit:
            self.world.blame(f"{name} was accepted, and is sent again by the same process")
        if message.edit:
            return message.edit
        self.copies[name] += 1
        self._look(message)
        if self.copies[name] == 1:
            self.arrived.append(message)
            if (watch := self.watchers.get(message.address.chat)) is not None:
                watch(message)
        return f"m_{name}"

    def _look(self, message: Outgoing) -> None:
        """Whether this copy may be here."""
        if self.copies[message.delivery_id] > 1 and not message.repeated:
            self.world.blame(f"an unmarked copy of {message}")

    def done(self) -> bool:
        """Whether all that was said there was taken."""
        raise NotImplementedError


class Polled(Platform):
    """Like Telegram."""

    name = "polled"
    edits = True

    def __init__(self, world: World, trouble: float) -> None:
        super().__init__(world, trouble)
        self._updates: list[Incoming] = []
        self._said_at: list[float] = []
        self._came = asyncio.Event()

    @override
    def post(
        self, chat: str, text: str, *, pressed: str = "", edited: bool = False, of: str = ""
    ) -> str:
        number = str(len(self._updates) + 1)
        self._said_at.append(self.world.loop.time())
        self._updates.append(
            Incoming(
                external_id=f"u{number}",
                cursor=number,
                address=self.address(chat),
                name=chat,
                text=text,
                message_id="" if pressed else of.removeprefix("u") or number,
                pressed=pressed,
                edited=edited,
            )
        )
        self._came.set()
        return f"u{number}"

    async def poll(self, process: Process, offset: int) -> Sequence[Incoming]:
        """What comes from `offset` on: all before it is confirmed by that."""
        await self.pass_(process)
        self._confirm(offset)
        while offset > len(self._updates):
            self._came.clear()
            await self._came.wait()
        if (chance := self.world.random.random()) < self._trouble / 2:
            raise Transient("the line is bad")
        first = self._lost_offset(offset) if chance > 1 - self._trouble else offset
        return self._updates[first - 1 : first + self.world.random.randrange(BATCH)]

    def _lost_offset(self, offset: int) -> int:
        """Where it begins again when it has forgotten what was confirmed. Nothing is kept long."""
        first, now = offset, self.world.loop.time()
        while first > max(1, offset - 3) and now - self._said_at[first - 2] < KEPT_S:
            first -= 1
        return first

    def _confirm(self, offset: int) -> None:
        for update in self._updates[max(0, offset - BATCH) : offset - 1]:
            if update.external_id not in self.taken:
                self.world.blame(f"{update.external_id} is confirmed, and was not taken")

    def look_at_cursor(self) -> None:
        """After each write: what lies before the cursor is taken, and nothing behind it."""
        cursor = int(self.world.disk.cursors.get(self.name) or 0)
        for update in self._updates[max(0, cursor - BATCH) : cursor + BATCH]:
            taken = update.external_id in self.taken
            if taken is not (int(update.cursor) <= cursor):
                self.world.blame(f"the cursor is at {cursor}; {update.external_id} {taken=}")

    @override
    def done(self) -> bool:
        return int(self.world.disk.cursors.get(self.name) or 0) == len(self._updates)


class Pushed(Platform):
    """Calls us."""

    name = "pushed"
    idempotent = True

    def __init__(self, world: World, trouble: float) -> None:
        super().__init__(world, trouble)
        self._queues: dict[str, deque[Incoming]] = {}
        self._came: dict[str, asyncio.Event] = {}
        self._count = 0
        self.hears: Hears | None = None  # whom it calls

    @override
    def post(
        self, chat: str, text: str, *, pressed: str = "", edited: bool = False, of: str = ""
    ) -> str:
        self._count += 1
        name = f"p{self._count}"
        at = self.address(chat)
        own = of or name
        said = Incoming(name, "", at, chat, text, message_id=own, pressed=pressed, edited=edited)
        self._queues.setdefault(chat, deque()).append(said)
        self._came.setdefault(chat, asyncio.Event()).set()
        return name

    async def carry(self, chat: str) -> None:
        """For as long as the world lasts: hand over what is said in a chat, one after another."""
        queue, came = self._queues.setdefault(chat, deque()), asyncio.Event()
        came = self._came.setdefault(chat, came)
        while True:
            while not queue:
                came.clear()
                await came.wait()
            async with anyio.create_task_group() as tries:
                if self.world.random.random() < self._trouble:
                    tries.start_soon(self._insist, queue[0])  # twice at once
                await self._insist(queue[0])
            if self.world.random.random() < self._trouble:
                await self._insist(queue[0])  # the answer was lost
            queue.popleft()

    async def _insist(self, incoming: Incoming) -> None:
        while True:
            try:
                if await self.world.visit(lambda _: self._push(incoming)):
                    return
            except Transient:
                pass
            await asyncio.sleep(self.world.random.choice(AGAIN_S))  # sleep: in virtual time

    async def _push(self, incoming: Incoming) -> bool:
        if self.hears is None or self.hears.take is None:
            return False
        await self.hears.take(incoming)
        if incoming.external_id not in self.taken:
            self.world.blame(f"{incoming.external_id} is acknowledged, and was not taken")
        return True

    @override
    def _look(self, message: Outgoing) -> None:
        if message.repeated:
            self.world.blame(f"marked, where a copy is dropped anyway: {message}")

    @override
    def done(self) -> bool:
        return not any(self._queues.values())


class _Wire:
    """A channel of one process."""

    trouble = ""

    def __init__(self, platform: Platform, process: Process) -> None:
        self.name = platform.name
        self.capabilities = ChannelCapabilities(
            late=True,
            answerable=True,
            edits=platform.edits,
            buttons=True,
            threads=False,
            typing=False,
            attachments=False,
            alerts=False,
            max_length=4096,
            idempotent_send=platform.idempotent,
        )
        self._to = platform
        self._process = process

    def split(self, text: str) -> tuple[str, ...]:
        return (text,)

    async def deliver(self, message: Outgoing) -> Sent:
        return await self._to.deliver(self._process, message)

    async def show_typing(self, address: Address) -> None:
        """Nobody looks."""

    async def aclose(self) -> None:
        """Nothing is held."""


class Polls(_Wire):
    """Asks a `Polled` platform for updates."""

    def __init__(self, platform: Polled, process: Process) -> None:
        super().__init__(platform, process)
        self._platform = platform

    async def receive(self, cursor: str, take: Take) -> None:
        offset = int(cursor or 0) + 1
        while True:
            try:
                for update in await self._platform.poll(self._process, offset):
                    await take(update)
                    offset = max(offset, int(update.cursor) + 1)
            except Transient:
                await self._process.world.clock.sleep(1.0)


class Hears(_Wire):
    """Is called by a `Pushed` platform."""

    take: Take | None = None

    def __init__(self, platform: Pushed, process: Process) -> None:
        super().__init__(platform, process)
        platform.hears = self

    async def receive(self, cursor: str, take: Take) -> None:
        self.take = take
        try:
            await anyio.sleep_forever()
        finally:
            self.take = None
