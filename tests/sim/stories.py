"""The events of a simulation: the clients, the times of their requests, and the crashes."""

from collections.abc import Sequence
from random import Random

import anyio

from tests.fakes.memory_disk import Disk
from tests.fakes.simloop import SimLoop
from tests.sim.people import Latecomer, Outage, Person, Reader, Writer
from tests.sim.world import DAY_S, PATIENCE_S, Death, World, key_of

HOUR_S = 3600.0
SPANS = (1.0, 60.0, HOUR_S, 7 * DAY_S)  # within which everybody begins to write
GAPS = (0.0, 0.0, 0.001, 0.3, 5.0)  # between messages of somebody who writes


async def live(world: World, people: Sequence[Person], span: float = 0.0) -> None:
    """Let everybody live until nobody has anything left to do, then look at what there is."""
    async with anyio.create_task_group() as outside:
        outside.start_soon(world.supervise)
        for person in people:
            outside.start_soon(person.live)
        ended = await world.until(
            lambda: not world.disk.open and all(p.done() for p in people), 2 * span + PATIENCE_S
        )
        outside.cancel_scope.cancel()
    if not ended:
        waiting = ", ".join(str(p) for p in people if not p.done())
        world.blame(f"never ended: {list(world.disk.open)}, {waiting}")
    if not world.wrong:
        world.check()
        for person in people:
            person.check()


def draw_deaths(random: Random, count: int, turns: int) -> list[Death]:
    """Ways to end. Two at most: a run that is cut three times in a row is given up."""
    return [
        Death(
            turns=random.randrange(random.choice((60, turns))),
            drain_s=random.choice((None, None, 0.0, 1.0)),
            killed_after=random.choice((0, 5, 40)),
            down_s=random.choice((0.0, 0.0, 1.0, 100.0)),
        )
        for _ in range(count)
    ]


async def week(loop: SimLoop, seed: int, disk: Disk | None = None) -> World:
    """Fifty chats, three messages each, two deaths; within a second or a week."""
    random = loop.random
    span = random.choice(SPANS)
    loop.late_s = span / 100
    deaths = draw_deaths(random, 2, 400)
    world = World(loop, seed, deaths, places=random.choice((2, 1_000)), disk=disk)
    people: list[Person] = []
    starts = [random.random() * span for _ in range(50)]
    for chat, start in enumerate(starts):
        people += talk(world, random, chat, start)
    people += [Reader(world, key_of(chat)) for chat in range(3)]
    if random.random() < 0.3:
        after = random.choice(starts) + random.choice(GAPS)
        people.append(Outage(world, after, random.choice((0.01, 1.0, 30.0))))
    await live(world, people, span)
    return world


def talk(world: World, random: Random, chat: int, start: float) -> list[Person]:
    """Three messages in a chat, of one person or of two."""
    shares = random.choice(((3,), (3,), (1, 2)))
    return [
        Writer(
            world,
            key_of(chat),
            "abc"[n],
            [start, *(random.choice(GAPS) for _ in range(share - 1))],
            again=0.2,
        )
        for n, share in enumerate(shares)
    ]


async def resume(loop: SimLoop, seed: int) -> World:
    """Ten chats are cut at work; each gets its next message while the gateway comes back."""
    random = loop.random
    deaths = [
        Death(random.randrange(5, 80), None, 0, random.choice((0.0, 1.0))),
        Death(random.randrange(1, 60), None, 0, 0.0),
    ]
    deaths = deaths[: random.choice((1, 2))]
    world = World(loop, seed, deaths, pauses=(0.0,))  # all of a start is one moment
    await live(world, [Latecomer(world, key_of(chat), random.randrange(40)) for chat in range(10)])
    return world
