"""A message that arrives exactly during an automatic resume."""

import pytest

from holdfast.core.inbox import InputAdmitted
from holdfast.core.run.run import RunResumed
from tests.sim import seeds, stories
from tests.sim.world import World

ENOUGH = 20  # seeds, of which one can say that they have met everything


def met(world: World) -> int:
    """How many chats got their next message in the millisecond in which their run went on."""
    count = 0
    for key in world.admitted:
        records = world.disk.sessions[key].records
        said = [r.at for r in records if isinstance(r.fact, InputAdmitted)]
        resumed = [r.at for r in records if isinstance(r.fact, RunResumed)]
        count += any(abs(a - b) < 0.001 for a in said[1:] for b in resumed)
    return count


@pytest.mark.fault("F-11")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("some", seeds.chunks(), ids=str)
def test_a_message_in_the_moment_of_a_resume_is_the_next_turn_of_one_agent(some: range) -> None:
    together = sum(met(seeds.play(seed, stories.resume)) for seed in some)
    assert together > len(some) or len(some) < ENOUGH
