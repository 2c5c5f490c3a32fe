"""A kill at any moment of a snapshot: the store stays usable, and no change is lost or invented."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.tools.snapshot.places import Place, place, state

pytestmark = pytest.mark.anyio

KILLED = -signal.SIGKILL


async def work(root: Path, kill_at: int, where: str) -> None:
    """Be the gateway: run one command, and die at the given step of the look `where`."""
    steps, armed = 0, False

    def clock() -> float:
        nonlocal steps
        steps += armed
        if armed and steps > kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0.0

    it = Place(root, monotonic=clock)
    await it.snapshots.begin(it.context("earlier"))
    await it.snapshots.finish(it.context("earlier"))
    it.snapshots.settled(it.context("earlier"))
    by_a_person(it)
    armed = where == "begin"
    await it.snapshots.begin(it.context())
    by_the_command(it)
    armed = where == "finish"
    await it.snapshots.finish(it.context())
    if where == "end":
        os.kill(os.getpid(), signal.SIGKILL)


def by_a_person(it: Place) -> None:
    for n in range(6):
        it.put(f"d{n % 2}/person-{n}", f"person {n}\n")


def by_the_command(it: Place) -> None:
    for n in range(0, 6, 2):
        it.put(f"d{n % 2}/person-{n}", f"command {n}\n")
    it.put("new/command", "new\n")
    (it.work / "d1/person-1").unlink()


@pytest.mark.promise("SNAP-06")
@pytest.mark.parametrize("step", [0, 1, 3, 6, 9])
async def test_a_kill_in_the_look_before_a_command_leaves_a_usable_store(
    tmp_path: Path, step: int
) -> None:
    await _killed(tmp_path, step, "begin")
    async with place(tmp_path) as it:
        found = await it.during(lambda: by_the_command(it), "next")
        assert {change.path for change in found.changes} == CHANGED
        assert it.content(found.changes[0]) == (b"person 0\n", b"command 0\n")


@pytest.mark.promise("SNAP-06")
@pytest.mark.parametrize("step", [0, 2, 4, 6, 8, "end"])
async def test_a_kill_in_or_after_the_look_behind_a_command_loses_no_change(
    tmp_path: Path, step: int | str
) -> None:
    where = "end" if step == "end" else "finish"
    await _killed(tmp_path, step if isinstance(step, int) else 0, where)
    async with place(tmp_path) as it:
        found = await it.snapshots.finish(it.context())
        assert {change.path for change in found.changes} == CHANGED
        assert not found.gap
        now = state(it.work)
        for change in found.changes:
            after = now.get(change.path)
            assert it.content(change)[1] == (after and after[1])
        it.snapshots.settled(it.context())
        again = await it.during(lambda: None, "next")
        assert (again.changes, again.beside) == ((), False)


CHANGED = {"d0/person-0", "d0/person-2", "d0/person-4", "new/command", "d1/person-1"}


async def _killed(root: Path, step: int, where: str) -> None:
    script = (
        "import sys, anyio; from pathlib import Path; from tests.tools.snapshot.test_kill import work;"
        "anyio.run(work, Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])"
    )
    command = [sys.executable, "-c", script, str(root), str(step), where]
    done = await anyio.run_process(command, check=False, stderr=subprocess.PIPE)
    assert done.returncode == KILLED, done.stderr.decode()
