"""What snapshots cost: a command in a workspace of 50,000 files, with and without them."""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import anyio

from bench.hands import TRUE, Shop
from bench.processes import Broken
from bench.sections import Bench, say
from bench.table import Figure, figure
from holdfast.tools.snapshot.snapshots import NOT_RECORDED, Snapshots

FILES, FOLDERS = 50_000, 2_500
LINES = "a line of a source file, about as long as most of them are\n" * 20


def snapshots(bench: Bench) -> Iterator[Figure]:
    """The same command in turn, by a terminal with snapshots and by one without."""
    if "holdfast" in bench.names:
        yield from anyio.run(_measure, bench)


async def _measure(bench: Bench) -> list[Figure]:
    home, work = bench.home / "snapshots-home", bench.home / "snapshots-work"
    home.mkdir()
    _fill(work)
    rounds = 5 if bench.quick else 15
    async with anyio.create_task_group() as tasks:
        kept = Snapshots(home)
        recorded = Shop(home, tasks, work, kept)
        plain = Shop(home.with_name("snapshots-plain"), tasks, work)
        await plain.run(TRUE)
        first = await _timed(recorded, TRUE)
        without, same, edit = [], [], []
        for n in range(rounds):
            without.append(await _timed(plain, TRUE))
            same.append(await _timed(recorded, TRUE))
            edit.append(await _timed(recorded, f"echo {n} >> a7/b7/f3.py", changes=1))
        await kept.aclose()
        tasks.cancel_scope.cancel()
    bare = statistics.median(without)
    say(f"  without snapshots {bare:.0f} ms, with them {statistics.median(same):.0f} ms")
    return [
        figure("first command in 50,000 files, ms over one without snapshot", _over(first, bare)),
        figure(
            "command in 50,000 files, ms p50 over one without snapshot",
            _over(statistics.median(same), bare),
        ),
        figure(
            "command that edits one of 50,000 files, the same", _over(statistics.median(edit), bare)
        ),
    ]


def _over(measured: float, bare: float) -> dict[str, float]:
    return {"holdfast": measured - bare}


async def _timed(shop: Shop, command: str, changes: int = 0) -> float:
    began = time.perf_counter()
    done = await shop.run(command)
    took = (time.perf_counter() - began) * 1e3
    if len(done.changes) != changes or NOT_RECORDED in done.text:
        raise Broken(f"{command} changed {done.changes}: {done.text}")
    return took


def _fill(work: Path) -> None:
    each = FILES // FOLDERS
    for n in range(FOLDERS):
        folder = work / f"a{n // 50}" / f"b{n % 50}"
        folder.mkdir(parents=True)
        for m in range(each):
            (folder / f"f{m}.py").write_text(f"# {n} {m}\n{LINES}")
