"""A week of chats in a minute, on two platforms that hand over twice, lose answers and hang.

Whatever the order: nothing said is lost, nothing is read or answered twice, no copy of an answer
goes unmarked, every chat keeps its order, and what was approved is done once. A seed in ten has
fifty chats, the others have eight or twenty.
"""

import os
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path
from time import process_time

import pytest

from holdfast.core.address import Why
from holdfast.core.approval.approval import ApprovalDenied, ApprovalExpired
from holdfast.core.inbox import InputSuperseded
from holdfast.core.run.run import RunCancelled, RunResumed
from tests.sim import seeds
from tests.sim.chat_stories import play
from tests.sim.chat_world import ChatWorld

ENOUGH = 25  # seeds, of which one can say that they have met everything
ROOT = Path(__file__).parents[2]
SOME = range(6)
WANTED = {"copies", "acted", "lives", "RunCancelled", "InputSuperseded", "RunResumed"}
WANTED |= {"ApprovalDenied", "ApprovalExpired", Why.IDLE, Why.DAILY, Why.NEW, Why.SUSPENDED}


def met(world: ChatWorld) -> Counter[str]:
    """What happened that may go wrong."""
    kinds = (ApprovalDenied, ApprovalExpired, InputSuperseded, RunCancelled, RunResumed)
    found = Counter(type(r.fact).__name__ for r in world.disk.log if isinstance(r.fact, kinds))
    found.update(str(b.reason) for b in world.bound)
    found["copies"] = world.polled.copies.total() - len(world.polled.copies)
    found["held"] = len(world.held)
    found["acted"] = world.acted.total()
    found["lives"] = len(world.lives) - 1
    return found


@pytest.mark.promise("LATE-09", "STOP-14", "BACK-05")
@pytest.mark.fault("F-07", "F-08", "F-09", "F-10")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("some", seeds.chunks(40), ids=str)
def test_chats_lose_nothing_and_double_nothing(some: range) -> None:
    begun, all_met = process_time(), Counter[str]()
    for seed in some:
        all_met += met(play(seed))
    took_ms = (process_time() - begun) / len(some) * 1000
    sys.stdout.write(f"{took_ms:.0f} ms a seed, {dict(all_met)}\n")
    if some.start == 0 and len(some) >= ENOUGH:  # always the same: it cannot fail by chance
        assert set(all_met) >= WANTED


def digest(seed: int) -> str:
    """Everything that was committed, under that seed."""
    return sha256(repr(play(seed).disk.log).encode()).hexdigest()


def test_the_same_seed_is_the_same_chats_in_any_process() -> None:
    code = "from tests.sim.test_chats import *; print(*map(digest, SOME))"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True
    )
    assert done.stdout.decode().split() == [digest(seed) for seed in SOME]
