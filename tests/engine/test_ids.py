"""Ids: distinct, and in the order of time."""

from holdfast.engine.ids import Ids
from tests.fakes.clock import ManualClock


def test_ids_rise_with_time() -> None:
    clock = ManualClock()
    ids = Ids(clock)
    made = []
    for _ in range(50):
        made.append((ids.session(), ids.run()))
        clock.advance(0.002)
    assert made == sorted(made)


def test_ids_of_the_same_millisecond_rise_too() -> None:
    ids = Ids(ManualClock())
    made = [ids.run() for _ in range(500)]
    assert made == sorted(made)


def test_ids_are_distinct_for_longer_than_randomness_is_read_at_once() -> None:
    ids = Ids(ManualClock())
    made = [name for _ in range(1_000) for name in (ids.session(), ids.run(), ids.input())]
    assert len(set(made)) == len(made)
    assert {len(name) for name in made} == {36, 27}
