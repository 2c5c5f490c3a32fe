"""Long conversations: what a turn and a cold load cost after many turns, the model aside.

In this process: the engine over a real journal, with a model that reads 8,000 tokens and answers at
once. Loading is measured from the checkpoint, and without it, as before there were any.
"""

import sqlite3
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import anyio

from bench.sections import Bench, say
from bench.table import Figure, figure
from holdfast.core.session.compaction import INSTRUCTION
from holdfast.core.types import SessionId, SessionKey, Usage
from holdfast.engine.sessions import Sessions
from holdfast.models.model import Answer, Piece, Request
from tests.engine.workshop import ME, Played, finished, journaled, serving, submit
from tests.fakes.clock import ManualClock

WINDOW = 8_000
COMPARED = 50  # turns
ROUNDS = 7
KEY = SessionKey(ME.owner, SessionId("s"))


def long(bench: Bench) -> Iterator[Figure]:
    """Conversations of more and more turns."""
    for turns in (100, 1_000) if bench.quick else (100, 1_000, 5_000):
        home = bench.home / f"long-{turns}"
        home.mkdir()
        young, old = anyio.run(_talk, home, turns)
        kept, whole = anyio.run(_load, home), anyio.run(_load_without_checkpoint, home)
        say(f"  {turns} turns: load {kept:.2f} ms, without a checkpoint {whole:.1f} ms")
        say(f"  CPU ms of turn 2: {1e3 * young:.2f}, of turn {turns}: {1e3 * old:.2f}")
        yield figure(f"cold load ms after {turns:,} turns", {"holdfast": kept})
        yield figure(f"turn {turns:,} against turn 2, CPU", {"holdfast": old / young})


def _answer(request: Request) -> Iterable[Piece]:
    notes = request.system.startswith(INSTRUCTION[:40])
    return (Answer("notes" if notes else "word " * 60, usage=Usage(0, 5)),)


async def _talk(home: Path, turns: int) -> tuple[float, float]:
    """Have a long conversation; return the CPU seconds of turns in new ones, and at its end.

    Those are measured in turn, so that what else the machine does falls on both.
    """
    young, old = list[float](), list[float]()
    async with serving(home, Played(_answer), window=WINDOW) as service:
        for number in range(turns):
            await finished(service, await submit(service, f"message {number}", "s"))
        for number in range(COMPARED):
            await finished(service, await submit(service, "message 0", f"new {number}"))
            for name, spent in ((f"new {number}", young), ("s", old)):
                began = time.process_time()
                await finished(service, await submit(service, "message", name))
                spent.append(time.process_time() - began)
    return statistics.median(young), statistics.median(old)


async def _load(home: Path) -> float:
    """Return the ms of the fastest of some loads."""
    times = []
    async with journaled(home) as journal:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            async with Sessions(journal, ManualClock()).load(KEY) as loaded:
                assert loaded is not None
                times.append(time.perf_counter() - began)
    return 1e3 * min(times)


async def _load_without_checkpoint(home: Path) -> float:
    with closing(sqlite3.connect(home / "journal.db")) as connection, connection:
        connection.execute("DELETE FROM checkpoints")
    return await _load(home)
