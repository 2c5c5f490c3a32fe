"""A week in a minute: fifty chats through crashes, restarts, redeliveries and a full disk.

Whatever the order: nothing accepted is lost, nothing is done twice, every chat keeps its order.
"""

import pytest

from tests.sim import seeds, stories


@pytest.mark.timeout(600)
@pytest.mark.parametrize("some", seeds.chunks(), ids=str)
def test_fifty_chats_lose_nothing_and_double_nothing(some: range) -> None:
    for seed in some:
        world = seeds.play(seed, stories.week)
        assert sum(len(facts) for facts in world.admitted.values()) == 150
        assert len(world.lives) > 1
