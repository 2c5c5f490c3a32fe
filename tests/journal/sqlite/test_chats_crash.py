"""Whenever the process ends: a cursor never moved without its input, nor the other way round."""

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from holdfast.core.types import DeliveryId
from holdfast.journal.blobs import Blobs
from tests.crash import kills
from tests.crash.evidence import THOROUGH, noted
from tests.engine.workshop import journaled
from tests.fakes.gateway import ROOT
from tests.journal.chatter import UPDATES, chatter
from tests.journal.conformance_chats import names

pytestmark = pytest.mark.anyio

FRAME, HEADER = 4096 + 24, 32  # bytes of the WAL: a page of it, and what comes before the first


def _facts(directory: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(directory / "journal.db")) as connection:
        rows = connection.execute("SELECT data, blob FROM events")
        blobs = Blobs(directory)
        return [msgspec.json.decode(blobs.get(blob) if blob else data) for data, blob in rows]


async def _taken(directory: Path) -> int:
    """How many updates were taken; all that is kept of them belongs together."""
    async with journaled(directory) as journal:
        found = _facts(directory)
        came = [f["came"] for f in found if "came" in f]
        numbers = sorted(int(c["cursor"]) for c in came)
        assert numbers == list(range(1, len(came) + 1))
        assert await journal.cursor("tg") == (str(len(came)) if came else "")
        for number in range(1, UPDATES + 1):
            assert await journal.seen("tg", f"u{number}") is (number in numbers)
            answer = await journal.delivery(DeliveryId(f"d{number}"))
            assert (answer is not None) is (number in numbers)
        sent = [f["delivery_id"] for f in found if f["kind"] == "delivery.sent"]
        waiting = [f"d{number}" for number in numbers if f"d{number}" not in sent]
        assert names(await journal.undelivered()) == waiting
    return len(came)


async def test_wherever_the_file_was_cut_off_cursors_and_inputs_belong_together(
    tmp_path: Path,
) -> None:
    (tmp_path / "whole").mkdir()
    async with journaled(tmp_path / "whole") as journal:
        await chatter(journal)
        shutil.copytree(tmp_path / "whole", tmp_path / "cut")  # as a crash would leave it
    wal = (tmp_path / "cut" / "journal.db-wal").read_bytes()
    taken = []
    for end in range(HEADER, len(wal) + 1, FRAME):
        for torn in (0, FRAME // 2):
            copy = tmp_path / f"{end + torn}"
            copy.mkdir()
            for name in ("journal.db", "blobs"):
                if (there := tmp_path / "cut" / name).is_file():
                    shutil.copy(there, copy)
                elif there.is_dir():
                    shutil.copytree(there, copy / name)
            (copy / "journal.db-wal").write_bytes(wal[: end + torn])
            with noted(f"cut off at {end + torn} of {len(wal)}"):
                taken.append(await _taken(copy))
            shutil.rmtree(copy)
    assert taken == sorted(taken)
    assert set(taken) == set(range(UPDATES + 1))


@pytest.mark.debian("strace")
@pytest.mark.timeout(300)
async def test_a_kill_between_two_writes_keeps_cursors_and_inputs_together(tmp_path: Path) -> None:
    number, through = 1, False
    taken = []
    while not through:
        directory = tmp_path / str(number)
        directory.mkdir()
        async with journaled(directory):
            pass  # so that what is written is not the schema
        command = [*kills.at("pwrite64", number), sys.executable, "-m", "tests.journal.chatter"]
        with noted(f"killed at write {number}"):
            ended = await anyio.run_process(
                [*command, str(directory)], cwd=ROOT, check=False, stderr=None
            )
            through = ended.returncode == 0
            told = ended.stdout.decode().split()
            taken.append(await _taken(directory))
            assert taken[-1] in (len(told), len(told) + 1), "what was durable is there"
        number += 3 if THOROUGH else 10
    assert taken[-1] == UPDATES
    assert len(set(taken)) > 3
