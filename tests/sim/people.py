"""The clients in a simulation: writers that retry until accepted, readers that miss nothing.

Each has `live`, which is a task of its own for as long as the world lasts, `done`, which says
whether it has nothing left to do, and `check`, which blames the world at the end.
"""

from asyncio import sleep
from collections.abc import Sequence
from typing import Protocol

import anyio
from typing_extensions import override

from holdfast.core.intents import RequestKey, Submit, Submitted
from holdfast.core.types import RunId, SessionKey
from holdfast.engine.service import Service
from holdfast.errors import JournalUnavailable, Refused
from tests.sim.world import ME, World

LATER = frozenset({"gateway_starting", "gateway_draining", "queue_full"})
RETRY_S = (0.0, 0.05, 1.0)


class Person(Protocol):
    """Somebody outside. To add one, write this and give it to `week`."""

    async def live(self) -> None: ...

    def done(self) -> bool: ...

    def check(self) -> None: ...


class Writer:
    """Sends its messages one after another, each until it is accepted, some once more."""

    retry_s: Sequence[float] = RETRY_S  # how long after it was told to come later

    def __init__(
        self, world: World, key: SessionKey, name: str, gaps: Sequence[float], again: float
    ) -> None:
        self._world = world
        self._key = key
        self._gaps = gaps
        self._again = again  # how probably a message is delivered once more
        self.texts = [f"{key.session_id} {name}{n}" for n in range(len(gaps))]
        self.accepted: dict[str, RunId] = {}
        self._left = len(gaps)

    async def live(self) -> None:
        random = self._world.random
        async with anyio.create_task_group() as twice:
            for gap, text in zip(self._gaps, self.texts, strict=True):
                await sleep(gap)  # sleep: in virtual time
                if random.random() < self._again:
                    self._left += 1
                    twice.start_soon(self._repeat, text, random.choice((0.0, 0.001, 1.0, 60.0)))
                await self._insist(text)
                self._left -= 1

    async def _repeat(self, text: str, after: float) -> None:
        """The same message again, whatever became of the first."""
        await sleep(after)  # sleep: in virtual time
        await self._insist(text)
        self._left -= 1

    async def _insist(self, text: str) -> None:
        asked = RequestKey("sim", text, text)
        intent = Submit(ME, text, self._key.session_id, request_key=asked)
        while True:
            try:
                reply = await self._world.visit(lambda service: service.send(intent))
            except JournalUnavailable:
                await sleep(5.0)  # sleep: as it is told to, in virtual time
            except Refused as refused:
                if refused.code not in LATER:
                    self._world.blame(f"{text} was refused: {refused.code}")
                await sleep(self._world.random.choice(self.retry_s))  # sleep: virtual
            else:
                if reply is not None:
                    return self._take(text, reply)

    def _take(self, text: str, reply: Submitted) -> None:
        before = self.accepted.setdefault(text, reply.run_id)
        if before != reply.run_id:
            self._world.blame(f"{text} is two runs")

    @override
    def __str__(self) -> str:
        return f"the writer of {self.texts}, of which were accepted {list(self.accepted)}"

    def done(self) -> bool:
        return not self._left

    def check(self) -> None:
        """What was accepted is there once, under the run that was named, in its order."""
        facts = [f for f in self._world.admitted.get(self._key, ()) if f.text in self.accepted]
        if [f.text for f in facts] != self.texts:
            self._world.blame(f"{self.texts} became {[f.text for f in facts]}")
        for fact in facts:
            if fact.run_id != self.accepted[fact.text]:
                self._world.blame(f"{fact.text} was accepted as another run")


class Latecomer(Writer):
    """Writes once, and again at the very moment the gateway comes back."""

    retry_s = (0.0,)

    def __init__(self, world: World, key: SessionKey, turns: int) -> None:
        super().__init__(world, key, "a", (0.0, 0.0), again=0.0)
        self._turns = turns

    @override
    async def live(self) -> None:
        async with anyio.create_task_group() as both:
            both.start_soon(self._insist, self.texts[0])
            await self._world.born(2)
            for _ in range(self._turns):
                await sleep(0)
            both.start_soon(self._insist, self.texts[1])
        self._left = 0

    @override
    def check(self) -> None:
        """Nobody said in which order they were sent: both are there, once each."""
        facts = self._world.admitted.get(self._key, ())
        if {f.text: f.run_id for f in facts} != self.accepted or len(facts) != 2:
            self._world.blame(f"{self.accepted} became {facts}")


class Outage:
    """The disk is full for a while."""

    def __init__(self, world: World, after: float, lasts: float) -> None:
        self._world = world
        self._after = after
        self._lasts = lasts

    async def live(self) -> None:
        await sleep(self._after)  # sleep: in virtual time
        self._world.disk.full = True
        await sleep(self._lasts)  # sleep: in virtual time
        self._world.disk.full = False

    def done(self) -> bool:
        return not self._world.disk.full

    def check(self) -> None:
        """What it must not do is seen by others."""


class Reader:
    """Reads a whole session from its cursor on, through every restart."""

    def __init__(self, world: World, key: SessionKey) -> None:
        self._world = world
        self._key = key
        self._seen: list[int] = []

    async def live(self) -> None:
        while True:
            try:
                await self._world.visit(self._follow)
            except Refused as refused:
                if refused.code != "session_not_found":
                    self._world.blame(f"a reader was refused: {refused.code}")
            await self._world.clock.sleep(self._world.random.choice((0.2, 5.0)))

    async def _follow(self, service: Service) -> None:
        after = self._seen[-1] if self._seen else 0
        async with service.follow_session(ME, self._key.session_id, after) as batches:
            async for batch in batches:
                self._seen += (r.seq for r in batch)

    @override
    def __str__(self) -> str:
        return f"the reader of {self._key.session_id} at {self._seen[-1:]}"

    def done(self) -> bool:
        stream = self._world.disk.sessions.get(self._key)
        head = stream.records[-1].seq if stream else 0
        return not head or bool(self._seen and self._seen[-1] >= head)

    def check(self) -> None:
        """Every number once, in order; of what is still there, every one."""
        if sorted(set(self._seen)) != self._seen:
            self._world.blame(f"a reader of {self._key.session_id} read {self._seen}")
        records = self._world.disk.sessions[self._key].records
        if lost := {r.seq for r in records} - set(self._seen):
            self._world.blame(f"a reader of {self._key.session_id} missed {lost}")
