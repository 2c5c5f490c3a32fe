"""Whenever the process ends: an approval is listed exactly while its request waits."""

import shutil
import sqlite3
import sys
from contextlib import closing, nullcontext
from pathlib import Path

import anyio
import msgspec
import pytest

from holdfast.journal.journal import Conflict
from tests.crash import kills
from tests.crash.evidence import THOROUGH, noted
from tests.engine.workshop import journaled
from tests.fakes.gateway import ROOT
from tests.journal.asker import ANSWER, prepare
from tests.journal.conformance import KEY
from tests.journal.conformance_approvals import A, names

pytestmark = [pytest.mark.anyio, pytest.mark.debian("strace")]

STEP = 1 if THOROUGH else 3


def _durable(directory: Path) -> list[str]:
    """What the journal holds of the request and its answers."""
    with closing(sqlite3.connect(directory / "journal.db")) as connection:
        rows = connection.execute("SELECT data FROM events WHERE kind LIKE 'approval.%'")
        return [msgspec.json.decode(data)["kind"] for (data,) in rows]


async def _check(directory: Path, told: list[str]) -> list[str]:
    """What must hold after a kill, whatever the process had `told` of; what is durable."""
    async with journaled(directory) as journal:
        found = _durable(directory)
        assert len(found) in (len(told), len(told) + 1), "what was durable is there"
        waits = found == ["approval.requested"]
        assert await names(journal) == ([A] if waits else [])
        assert (await journal.approval(A) is not None) is waits
        row = await journal.stream_of(KEY)
        assert row is not None
        with nullcontext() if waits else pytest.raises(Conflict):
            await journal.append(row.stream, 4, 9.0, [ANSWER], []).wait()
        assert await names(journal) == []
    assert _durable(directory).count("approval.granted") == (1 if found else 0)
    return found


@pytest.mark.fault("F-10")
@pytest.mark.timeout(120)
async def test_a_kill_at_each_write_lists_an_approval_exactly_while_it_waits(
    tmp_path: Path,
) -> None:
    (tmp_path / "0").mkdir()
    await prepare(tmp_path / "0")
    number, through = 1, False
    states = []
    while not through:
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "0", directory)
        wrapper = kills.at("pwrite64", number, directory / "journal.db-wal")
        command = [*wrapper, sys.executable, "-m", "tests.journal.asker", str(directory)]
        with noted(f"killed at write {number}"):
            ended = await anyio.run_process(command, cwd=ROOT, check=False, stderr=None)
            through = ended.returncode == 0
            states.append(len(await _check(directory, ended.stdout.decode().split())))
        number += STEP
    assert states == sorted(states)
    assert set(states) == {0, 1, 2}
