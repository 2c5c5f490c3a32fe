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
import anyio.abc
from msgspec.structs import replace

from bench.processes import Broken, Contestant, rss_mb, serving
from bench.sections import Bench, say
from bench.table import Figure, figure
from holdfast.core.approval.execution import execution_hash
from holdfast.core.redaction import Redactor
from holdfast.core.run.run import Origin
from holdfast.core.types import OPERATOR, CallId, RunId, SessionId, SessionKey
from holdfast.host.machine import SystemClock
from holdfast.journal.blobs import Blobs
from holdfast.tools import terminal
from holdfast.tools.exec.commands import Commands
from holdfast.tools.exec.spawn import Spawner
from holdfast.tools.sandbox.sandbox import Sandbox
from holdfast.tools.snapshot.snapshots import Snapshots
from holdfast.tools.terminal_arguments import TerminalArguments
from holdfast.tools.tool import Context, Done, Judge

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


class Shop:
    """The terminal tool, as the gateway has it: judged, confined, with its way to the proxy."""

    def __init__(
        self,
        home: Path,
        tasks: anyio.abc.TaskGroup,
        workspace: Path | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        spawner = Spawner(home / "calls", os.getpid(), time.time)
        sandbox = Sandbox(home, Path.home(), allow_none=False)
        self.hands = Commands(spawner, sandbox, Redactor(()), tasks, SystemClock())
        (self._terminal,) = terminal.tools(self.hands, snapshots=snapshots)
        self._workspace = workspace or home.with_name("hands-work")
        self._workspace.mkdir(exist_ok=True)
        self._blobs = Blobs(home)
        self._count = 0

    async def run(self, command: str) -> Done:
        """One command, from its judgement to its result."""
        self._count += 1
        context = self._context()
        asked = TerminalArguments(command)
        judge = await self._terminal.permit(context, asked)
        assert isinstance(judge, Judge)
        judged = replace(context, execution=execution_hash(judge.request))
        outcome = await self._terminal.run(judged, asked)
        if not isinstance(outcome, Done):
            raise Broken(f"{command} gave {outcome}")
        if self._terminal.settled is not None:
            self._terminal.settled(judged)
        return outcome

    def _context(self) -> Context:
        return Context(
            session=SessionKey(OPERATOR, SessionId("bench")),
            run_id=RunId("run"),
            turn=self._count,
            call_id=CallId("call"),
            workspace=self._workspace,
            blobs=self._blobs,
            cwd=str(self._workspace),
            origin=Origin(platform="cli"),
            processes={},
            hosts=(),
            execution="",
            trees=(),
            progress=lambda text: None,
            may_reach=_nobody,
        )

    async def stop(self, command: str) -> float:
        """How many ms it takes from the stop of a command at work to its end."""
        took = 0.0

        async def stopped() -> None:
            nonlocal took
            await anyio.sleep(0.2)  # until it is at work
            took = time.perf_counter()
            scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(stopped)
            with anyio.CancelScope() as scope:
                await self.run(command)
        return (time.perf_counter() - took) * 1e3


async def _nobody(host: str) -> bool:
    return False


async def _alone(bench: Bench) -> list[Figure]:
    home = bench.home / "hands-alone"
    home.mkdir()
    async with anyio.create_task_group() as tasks:
        shop = Shop(home, tasks)
        say(f"  {(await shop.hands.posture()).note}")
        figures = await _measure(shop, 15 if bench.quick else 60)
        tasks.cancel_scope.cancel()
    return figures


async def _measure(shop: Shop, rounds: int) -> list[Figure]:
    bare, ours, stops = [], [], []
    for n in range(rounds):
        began = time.perf_counter()
        subprocess.run([TRUE], check=True)  # noqa: ASYNC221  the bare one, as bare as can be
        bare.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        await shop.run(TRUE)
        ours.append((time.perf_counter() - began) * 1e3)
        if n % 3 == 0:
            stops.append(await shop.stop("sleep 1000 | cat"))
    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(PARALLEL):
            group.start_soon(shop.run, TRUE)
    together = (time.perf_counter() - began) * 1e3
    cost = statistics.median(ours) - statistics.median(bare)
    return [
        figure("sandboxed true, ms p50 over a bare one", {"holdfast": cost}),
        figure("stop to tree dead, ms p50", {"holdfast": statistics.median(stops)}),
        figure("stop to tree dead, ms worst", {"holdfast": max(stops)}),
        figure(f"{PARALLEL} commands at once, ms until all ended", {"holdfast": together}),
    ]


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
