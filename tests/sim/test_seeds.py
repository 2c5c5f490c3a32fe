"""The simulation itself: a seed determines everything, and a fault is detected."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from typing_extensions import override

from holdfast.core.run.run import RunCompleted, RunQueued
from tests.fakes.memory_disk import Batch, Disk
from tests.fakes.simloop import SimLoop
from tests.sim import seeds, stories
from tests.sim.world import World

ROOT = Path(__file__).parents[2]
SOME = range(8)


def digest(seed: int) -> str:
    """Everything that was committed, under that seed."""
    worlds = (seeds.play(seed, story) for story in (stories.week, stories.resume))
    return sha256(b"".join(repr(w.disk.log).encode() for w in worlds)).hexdigest()


def digest_elsewhere(hash_seed: str) -> list[str]:
    """The same in another process, whose sets have another order."""
    code = "from tests.sim.test_seeds import *; print(*map(digest, SOME))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True
    )
    return done.stdout.decode().split()


def test_the_same_seed_is_the_same_world_in_any_process() -> None:
    here = [digest(seed) for seed in SOME]
    assert here == [digest(seed) for seed in SOME] == digest_elsewhere("1")
    assert len(set(here)) == len(SOME)


class NoKeys(Disk):
    """Forgets under which names requests came."""

    @override
    def write(self, batch: Batch) -> None:
        super().write(batch)
        self.requests.clear()


class NoQueue(Disk):
    """Loses every seventh accepted run, and says it was written."""

    @override
    def write(self, batch: Batch) -> None:
        kept = [r for r in batch.records if not isinstance(r.fact, RunQueued) or r.stream % 7]
        lost = {r.fact.run_id for r in batch.records if isinstance(r.fact, RunQueued)} - {
            r.fact.run_id for r in kept if isinstance(r.fact, RunQueued)
        }
        batch.records = kept
        for run_id in lost:
            del batch.runs[run_id]
        super().write(batch)


class Twice(Disk):
    """Forgets that runs have ended."""

    @override
    def write(self, batch: Batch) -> None:
        ended = {r.fact.run_id for r in batch.records if isinstance(r.fact, RunCompleted)}
        batch.records = [r for r in batch.records if not isinstance(r.fact, RunCompleted)]
        for run_id in ended:
            del batch.runs[run_id]
        super().write(batch)


@pytest.mark.parametrize("disk", [NoKeys, NoQueue, Twice])
def test_a_lying_disk_is_detected_and_the_seed_is_printed(disk: type[Disk]) -> None:
    async def story(loop: SimLoop, seed: int) -> World:
        return await stories.week(loop, seed, disk())

    with pytest.raises(AssertionError, match=r"seed \d+; again: HOLDFAST_SIM_SEED="):
        for seed in SOME:
            seeds.play(seed, story)
