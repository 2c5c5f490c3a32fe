"""Former versions of files: kept for a while, then gone, and nothing else with them."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.journal.blobs import Blobs
from holdfast.journal.versions import DAY_S, Versions, VersionsUsage, usage
from tests.crash import kills
from tests.fakes.gateway import ROOT

PRUNE = """
import sys, time
from pathlib import Path
from holdfast.journal.versions import DAY_S, Versions
Versions(Path(sys.argv[1]), 30 * DAY_S, time.time).prune()
"""


def test_a_version_goes_when_it_is_too_old_and_one_that_was_put_again_stays(
    tmp_path: Path,
) -> None:
    now = 1_000.0
    kept = Versions(tmp_path, 30 * DAY_S, lambda: now)
    old, again = kept.put(b"old"), kept.put(b"again")
    now += 20 * DAY_S
    assert kept.put(b"again") == again
    assert kept.prune() == VersionsUsage()
    now += 10 * DAY_S
    assert kept.prune() == VersionsUsage(1, 3)
    assert kept.get(again) == b"again"
    with pytest.raises(KeyError):
        kept.get(old)
    assert usage(tmp_path) == VersionsUsage(1, 5)


def test_versions_that_the_journal_needs_are_kept(tmp_path: Path) -> None:
    now = 1_000.0
    name = Blobs(tmp_path).put(b"the same")
    kept = Versions(tmp_path, DAY_S, lambda: now)
    assert kept.put(b"the same") == name
    now += 2 * DAY_S
    assert kept.prune() == VersionsUsage(1, 8)
    assert Blobs(tmp_path).get(name) == b"the same"


def test_a_home_without_any_has_none(tmp_path: Path) -> None:
    assert usage(tmp_path) == VersionsUsage()


@pytest.mark.debian("strace")
def test_a_prune_that_is_killed_loses_nothing_young_and_the_next_one_finishes(
    tmp_path: Path,
) -> None:
    """Killed before each removal; a version that was put again is as young as that."""
    for removed in range(3):
        _kill_a_prune(tmp_path / str(removed), removed)


def _kill_a_prune(tmp_path: Path, removed: int) -> None:
    now = time.time() - 31 * DAY_S
    kept = Versions(tmp_path, 30 * DAY_S, lambda: now)
    for text in (b"old 1", b"old 2", b"old 3", b"again"):
        kept.put(text)
    now = time.time() - 29 * DAY_S
    young = {kept.put(text): text for text in (b"again", b"young 1", b"young 2")}
    command = [sys.executable, "-c", PRUNE, str(tmp_path)]
    cut = [*kills.at("unlink,unlinkat", removed + 1), *command]
    ended = subprocess.run(cut, cwd=ROOT, timeout=60, check=False)
    assert ended.returncode != 0, "it was killed"
    assert usage(tmp_path).count == len(young) + 3 - removed
    assert {name: kept.get(name) for name in young} == young
    subprocess.run(command, cwd=ROOT, timeout=60, check=True)
    assert usage(tmp_path).count == len(young)
    assert {name: kept.get(name) for name in young} == young
