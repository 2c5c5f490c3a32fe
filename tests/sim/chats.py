"""The participants of chats: users who write and press buttons, an operator, a closed platform."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import anyio
from typing_extensions import override

from holdfast.channels.channel import Outgoing
from holdfast.core.address import Why
from holdfast.core.chat.delivery import DeliveryStatus
from holdfast.core.inbox import Mode
from holdfast.core.types import DeliveryId
from holdfast.engine.service import Service
from holdfast.errors import JournalUnavailable, Refused
from tests.sim.chat_world import ChatWorld
from tests.sim.listener import heard, mark
from tests.sim.platforms import Platform, Pushed
from tests.sim.world import ME

PRESS_AFTER_S = (0.0, 0.3, 5.0, 100.0)


class Act(NamedTuple):
    """What somebody does, so long after what they did before."""

    gap: float
    text: str = ""  # a command; empty: the next message
    how: str = ""  # a command before a message: which mode it is for
    acts: bool = False  # a message that has the model act
    edited: bool = False
    touched: bool = False  # and edited at once, with the same words
    at_birth: int = 0  # not after the gap, but when a process with that number is born
    turns: int = 0  # of the loop after that


class Talker:
    """Writes in one chat, and presses the buttons that are shown there."""

    def __init__(
        self,
        world: ChatWorld,
        platform: Platform,
        chat: int,
        mode: Mode | None,
        acts: Sequence[Act],
    ) -> None:
        self._world = world
        self._platform = platform
        self._chat = chat
        self._name = f"u{chat}"
        self._mode = mode  # None: now steer, now interrupt
        self._acts = acts
        self._said: list[str] = []  # what the platform calls them
        self._commands: list[str] = []
        self._dropped = 0  # so many of the first messages may have been stopped
        self._busy = 1
        self._asked: list[Outgoing] = []  # messages with buttons, not looked at yet
        self._shown = asyncio.Event()
        world.people.append(self._name)
        platform.watchers[self._name] = self._see

    def _see(self, message: Outgoing) -> None:
        if message.buttons:
            self._asked.append(message)
            self._shown.set()

    async def live(self) -> None:
        async with anyio.create_task_group() as tasks:
            if isinstance(self._platform, Pushed):
                tasks.start_soon(self._platform.carry, self._name)
            if any(act.acts for act in self._acts):
                tasks.start_soon(self._press)
            for act in self._acts:
                await self._wait(act)
                self._do(act)
            self._busy -= 1

    async def _wait(self, act: Act) -> None:
        if act.at_birth:
            with anyio.move_on_after(act.gap):
                await self._world.born(act.at_birth)
                for _ in range(act.turns):
                    await asyncio.sleep(0)
        else:
            await asyncio.sleep(act.gap)  # sleep: in virtual time

    def _do(self, act: Act) -> None:
        if act.text:
            self._commands.append(self._platform.post(self._name, act.text))
            if act.text in ("/stop", "/new"):
                self._dropped = len(self._said)
            return
        text = act.how + mark(self._chat, len(self._said) + 1) + (" act" if act.acts else "")
        said = self._platform.post(self._name, text, edited=act.edited)
        self._said.append(said)
        if act.touched:  # a reaction: the platform says it was edited
            self._world.touched.add(self._platform.post(self._name, text, edited=True, of=said))

    async def _press(self) -> None:
        """Press a button of each question, sometimes another one too; sometimes none."""
        random = self._world.random
        while True:
            while not self._asked:
                self._shown.clear()
                await self._shown.wait()
            self._busy += 1
            message = self._asked.pop(0)
            buttons = [b.data for row in message.buttons for b in row]
            for data in random.choices(buttons, weights=(3, 1), k=random.choice((0, 1, 1, 1, 2))):
                await asyncio.sleep(random.choice(PRESS_AFTER_S))  # sleep: in virtual time
                self._platform.post(self._name, "", pressed=data)
            self._busy -= 1

    @override
    def __str__(self) -> str:
        return f"chat {self._chat} ({self._mode}) with {self._said} and {self._commands}"

    def done(self) -> bool:
        return not self._busy

    def check(self) -> None:
        """Everything was taken, read and answered, but for what the person stopped."""
        self._check_taken()
        kept = set(range(self._dropped + 1, len(self._said) + 1))
        if lost := kept - set(self._world.read.get(self._chat, ())):
            self._world.blame(f"{self}: never read: {lost}")
        answers = [
            (found, message.delivery_id)
            for message in self._platform.arrived
            if message.address.chat == self._name and (found := heard(message.text)) is not None
        ]
        named = [n for found, _ in answers for n in found]
        in_turn = [n for found, name in answers if name not in self._world.held for n in found]
        if len(set(named)) != len(named):
            self._world.blame(f"{self}: answered twice: {named}")
        if sorted(in_turn) != in_turn:
            self._world.blame(f"{self}: answered out of turn: {named}")
        if self._mode is not None and (left := kept - set(named)):
            self._world.blame(f"{self}: never answered: {left}")
        if self._mode is Mode.QUEUE and any(len(found) > 1 for found, _ in answers):
            self._world.blame(f"{self}: answered together: {named}")

    def _check_taken(self) -> None:
        for number, name in enumerate(self._said, 1):
            if not self._world.taken(self._platform, name):
                self._world.blame(f"{self}: {number} never came")
        for name in self._commands:
            if not self._platform.copies[DeliveryId(f"cmd_{self._platform.name}_{name}.0")]:
                self._world.blame(f"{self}: the command {name} was not answered")
        key = self._platform.address(self._name).place.key
        fresh = sum(b.key == key and b.reason is Why.NEW for b in self._world.bound)
        asked = sum(act.text == "/new" for act in self._acts)
        first = sum(b.key == key and b.reason is Why.FIRST for b in self._world.bound)
        if fresh + first not in (asked, asked + 1) or first != 1:
            self._world.blame(f"{self}: {fresh} fresh starts for {asked}")


class Operator:
    """Has what is held sent after all."""

    def __init__(self, world: ChatWorld) -> None:
        self._world = world

    async def live(self) -> None:
        while True:
            await self._world.clock.sleep(60.0)
            found = [
                o for o in self._world.disk.outbox.values() if o.now.status is DeliveryStatus.HELD
            ]
            for one in found:
                await self._release(one.now.id)

    async def _release(self, name: DeliveryId) -> None:
        async def errand(service: Service) -> None:
            await service.delivery_admin.resend(ME, name)

        try:
            await self._world.visit(errand)
        except (JournalUnavailable, Refused):
            return  # later, or somebody else has

    @override
    def __str__(self) -> str:
        world = self._world
        waits = [o.now for o in world.disk.outbox.values() if not o.now.status.final]
        return f"{waits}, not taken on {[p.name for p in world.platforms if not p.done()]}"

    def done(self) -> bool:
        world = self._world
        return all(p.done() for p in world.platforms) and world.quiet()

    def check(self) -> None:
        """It is not what matters here."""


class Closure:
    """A platform takes nothing for a while."""

    def __init__(self, platform: Platform, after: float, lasts: float) -> None:
        self._platform = platform
        self._after = after
        self._lasts = lasts

    async def live(self) -> None:
        await asyncio.sleep(self._after)  # sleep: in virtual time
        self._platform.closed_until = self._platform.world.loop.time() + self._lasts

    def done(self) -> bool:
        return True

    def check(self) -> None:
        """What it must not do is seen by others."""
