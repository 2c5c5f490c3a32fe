"""The events of a chat simulation: the users, their messages, and the crashes."""

from pathlib import Path
from random import Random

import pytest

from holdfast.core.address import Daily, Idle, Never
from holdfast.core.inbox import Mode
from holdfast.engine.runs import calls
from tests.fakes.simloop import SimLoop
from tests.sim import seeds
from tests.sim.chat_world import ChatWorld, Setting
from tests.sim.chats import Act, Closure, Operator, Talker
from tests.sim.people import Outage, Person
from tests.sim.stories import GAPS, HOUR_S, SPANS, live
from tests.sim.world import DAY_S, Death

SIZES = (8,) * 6 + (20,) * 3 + (50,)  # chats; a world of fifty is as dear as eight of the small
LONG_GAPS = (*GAPS, 2 * HOUR_S, DAY_S)
TURNS = (60, 400, 2_000)


def play(seed: int) -> ChatWorld:
    """Live through chats under that seed. A failure says which it was."""
    with pytest.MonkeyPatch.context() as patch:  # a call has a workspace, and is timed: not here
        patch.setattr(Path, "mkdir", lambda *_, **__: None)
        patch.setattr(calls, "perf_counter", float)
        return seeds.play(seed, chats)


async def chats(loop: SimLoop, seed: int) -> ChatWorld:
    """Some chats on two platforms, two or three messages each, up to three deaths."""
    random = loop.random
    span = random.choice(SPANS)
    loop.late_s = span / 200
    reset = random.choice((Never(), Idle(random.choice((0.05, 60.0))), Daily(4, 3_600.0)))
    setting = Setting(random.choice(tuple(Mode)), reset, random.random() < 0.5)
    deaths = draw_deaths(random)
    places, trouble = random.choice((2, 1_000)), random.choice((0.0, 0.1, 0.3))
    world = ChatWorld(loop, seed, deaths, setting, places, trouble)
    people: list[Person] = [Operator(world)]
    for chat in range(random.choice(SIZES)):
        platform = random.choice(world.platforms)
        mode, acts = draw_acts(random, setting.busy, span, len(deaths) + 1)
        people.append(Talker(world, platform, chat, mode, acts))
    if random.random() < 0.3:
        del deaths[2:]  # an end that cannot be written down is one more crash
        after = random.random() * min(span, 60.0)
        people.append(Outage(world, after, random.choice((0.01, 1.0, 30.0))))
    if random.random() < 0.3:
        lasts = random.choice((1.0, 100.0, HOUR_S / 6, HOUR_S / 2))
        people.append(Closure(random.choice(world.platforms), random.random() * span, lasts))
    await live(world, people, span)
    return world


def draw_deaths(random: Random) -> list[Death]:
    """Ways to end: two crashes at most, since what is cut three times in a row is given up."""
    ends = [
        Death(
            turns=random.randrange(random.choice(TURNS)),
            drain_s=random.choice((None, None, 0.0, 1.0)),
            killed_after=random.choice((0, 5, 40)),
            down_s=random.choice((0.0, 0.0, 1.0, 100.0)),
        )
        for _ in range(random.choice((1, 2, 2)))
    ]
    orderly = Death(random.randrange(random.choice(TURNS)), random.choice((0.0, 5.0)), 0, 0.0)
    ends.insert(random.randrange(len(ends) + 1), orderly)
    return ends


def draw_acts(random: Random, busy: Mode, span: float, lives: int) -> tuple[Mode | None, list[Act]]:
    """What somebody does in a chat, and in which mode; None: in two, which keep the order."""
    acts: list[Act] = []
    gaps = LONG_GAPS if span > DAY_S else GAPS
    mode: Mode | None = busy
    if (chance := random.random()) < 0.4:
        mode = random.choice(tuple(Mode))
        acts.append(Act(random.random() * span, f"/busy {mode}"))
    elif chance < 0.55:
        mode = None
    for _ in range(random.choice((2, 2, 3))):
        gap = random.choice(gaps) if acts else random.random() * span
        born = random.randrange(2, lives + 1) if acts and random.random() < 0.2 else 0
        said = Act(
            gap if not born else span / 4 + 5.0,
            how="" if mode else random.choice(("/steer ", "/interrupt ")),
            acts=random.random() < (0.1 if mode else 0.3),
            edited=bool(acts) and random.random() < 0.1,
            touched=random.random() < 0.2,
            at_birth=born,
            turns=random.randrange(40),
        )
        acts.append(said)
        if random.random() < 0.15:
            command = random.choice(("/status", "/status", "/new", "/stop"))
            acts.append(Act(random.choice(gaps), command))
    return mode, acts
