"""What commands cost: the sandbox and the shim around one, stopping one, waiting for a yes."""

import json
import os
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio

from bench.processes import Contestant, rss_mb, serving
from bench.sections import Bench, say
from bench.table import Figure, figure
from holdfast.tools.sandbox import Profile, Sandbox
from holdfast.tools.spawn import Execution, Process, Spawner

TRUE = "/usr/bin/true"
WAITING = 100
PARALLEL = 20


def hands(bench: Bench) -> Iterator[Figure]:
    """Commands by themselves, then a gateway that has them run."""
    if "holdfast" not in bench.names:
        return
    yield from anyio.run(_alone, bench)
    contestant = bench.contestant("holdfast", "hands")
    with serving(contestant) as running:
        yield from anyio.run(_through_the_door, bench, contestant, running.pid)


class _Shop:
    """A spawner and a sandbox, as the gateway has them."""

    def __init__(self, home: Path) -> None:
        self._spawner = Spawner(home / "calls", os.getpid(), time.time)
        self.sandbox = Sandbox(home, Path.home(), allow_none=False)
        self._workspace = home.with_name("hands-work")
        self._workspace.mkdir()
        self._count = 0

    async def start(self, *argv: str) -> Process:
        self._count += 1
        work = str(self._workspace)
        confined = self.sandbox.confine(Profile(work), argv, work)
        try:
            order = Execution(
                confined.argv, confined.cwd, confined.env, 60.0, pass_fds=confined.pass_fds
            )
            return await self._spawner.start(f"call-{self._count}", order)
        finally:
            confined.close()


async def _alone(bench: Bench) -> list[Figure]:
    home = bench.home / "hands-alone"
    home.mkdir()
    shop = _Shop(home)
    posture = await shop.sandbox.probe()
    say(f"  {posture.note}")
    bare, ours, stops = [], [], []
    for n in range(15 if bench.quick else 60):
        began = time.perf_counter()
        subprocess.run([TRUE], check=True)  # noqa: ASYNC221  the bare one, as bare as can be
        bare.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        await (await shop.start(TRUE)).wait()
        ours.append((time.perf_counter() - began) * 1e3)
        if n % 3 == 0:
            process = await shop.start("/bin/sh", "-c", "sleep 1000 | cat")
            began = time.perf_counter()
            await process.kill()
            stops.append((time.perf_counter() - began) * 1e3)
    begun = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(PARALLEL):
            group.start_soon(_one, shop)
    took = (time.perf_counter() - begun) * 1e3
    cost = statistics.median(ours) - statistics.median(bare)
    return [
        figure("sandboxed true, ms p50 over a bare one", {"holdfast": cost}),
        figure("stop to tree dead, ms p50", {"holdfast": statistics.median(stops)}),
        figure("stop to tree dead, ms worst", {"holdfast": max(stops)}),
        figure(f"{PARALLEL} commands at once, ms until all ended", {"holdfast": took}),
    ]


async def _one(shop: _Shop) -> None:
    await (await shop.start(TRUE)).wait()


@asynccontextmanager
async def _client(contestant: Contestant) -> AsyncIterator[aiohttp.ClientSession]:
    key = {"Authorization": f"Bearer {contestant.key}"}
    base = f"http://127.0.0.1:{contestant.port}"
    async with aiohttp.ClientSession(base, headers=key) as client:
        yield client


async def _through_the_door(bench: Bench, contestant: Contestant, pid: int) -> list[Figure]:
    async with _client(contestant) as client:
        await _finished(client, await _run(client, "echo warm"))
        before = rss_mb(pid)
        runs = [await _run(client, "make all") for _ in range(WAITING)]
        for run_id in runs:
            await _until(client, run_id, "waiting_for_approval")
        waiting = rss_mb(pid) - before
        async with client.get("/health/detailed") as response:
            driven = (await response.json())["runs"]["running"]
        for run_id in runs:
            await (await client.post(f"/v1/runs/{run_id}/stop")).read()
        before = rss_mb(pid)
        seconds = 5 if bench.quick else 20
        run_id = await _run(client, "yes", timeout=seconds)
        await _until(client, run_id, "waiting_for_approval")
        await (await client.post(f"/v1/runs/{run_id}/approval", json={"choice": "once"})).read()
        await _finished(client, run_id)
        spewing = rss_mb(pid) - before
    return [
        figure(f"{WAITING} runs waiting for approval, MB", {"holdfast": waiting}),
        figure(f"{WAITING} runs waiting for approval, tasks", {"holdfast": float(driven)}),
        figure("yes for 20 s, MB", {"holdfast": spewing}),
    ]


async def _run(client: aiohttp.ClientSession, command: str, **more: object) -> str:
    words = f"tool:terminal {json.dumps({'command': command, **more})}"
    while True:
        async with client.post("/v1/runs", json={"input": words}) as response:
            if response.status == 202:
                return str((await response.json())["run_id"])
        await anyio.sleep(0.02)  # it serves before it takes work


async def _until(client: aiohttp.ClientSession, run_id: str, status: str) -> None:
    with anyio.fail_after(60):
        while True:
            async with client.get(f"/v1/runs/{run_id}") as response:
                if (await response.json())["status"] == status:
                    return
            await anyio.sleep(0.01)


async def _finished(client: aiohttp.ClientSession, run_id: str) -> None:
    async with client.get(f"/v1/runs/{run_id}/events") as response:
        await response.read()
