"""A disk that is full, one that is nearly full, and one that fails.

The home is a small tmpfs in a mount namespace of its own, which a child process keeps
alive, so that the gateway can die and come back over it; it is filled and emptied from
outside, through that process's root.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from tests.crash import kills
from tests.crash.evidence import ask_for, begun, endings, facts, lines
from tests.fakes.gateway import GatewayProcess, unstarted
from tests.fakes.model_server import ModelServer, Wait, call, calls, finish, stream, token

pytestmark = pytest.mark.anyio

Record = Callable[[str, object], None]

MOUNT = """
config=$(cat "$1/config.toml") && mount -t tmpfs -o mode=0700,size="$2" none "$1" || exit 1
printf '%s\\n' "$config" > "$1/config.toml"
echo mounted
exec cat
"""


def journal(low_water_mb: int, ballast_mb: int) -> str:
    return f"[journal]\nlow_water_mb = {low_water_mb}\nballast_mb = {ballast_mb}\n"


@dataclass(frozen=True, slots=True)
class Disk:
    """A home on a disk of its own."""

    it: GatewayProcess
    inside: Path  # the home, as it is seen from outside its namespace
    enter: tuple[str, ...]

    async def start(self) -> None:
        await self.it.start(*self.enter)

    def fill(self, leave: int = 0) -> None:
        """Write until nothing, or only `leave` bytes, can be written any more."""
        with (self.inside / "filler").open("ab", buffering=0) as filler:
            try:
                while self.free > leave:
                    filler.write(bytes(min(65536, max(4096, self.free - leave))))
            except OSError:
                pass

    def empty(self) -> None:
        (self.inside / "filler").unlink()

    def use_up_inodes(self) -> None:
        """Make files until no more can be made, though there is room."""
        directory = self.inside / "inodes"
        directory.mkdir()
        with suppress(OSError):
            for number in count():
                (directory / str(number)).touch()
        assert self.free > 2 * 2**20

    def free_inodes(self) -> None:
        shutil.rmtree(self.inside / "inodes")

    @property
    def free(self) -> int:
        figures = os.statvfs(self.inside)
        return figures.f_bavail * figures.f_frsize


@asynccontextmanager
async def small_disk(
    directory: Path, model: ModelServer, config: str, size: str = "4m"
) -> AsyncIterator[Disk]:
    """A gateway, started, whose home is on a disk of `size`."""
    async with unstarted(directory, model.base_url, config) as it:
        mount = ("unshare", "-Urm", "sh", "-c", MOUNT, "sh", str(it.home), size)
        async with await anyio.open_process(mount, stdin=PIPE, stdout=PIPE, stderr=PIPE) as keeper:
            assert keeper.stdout is not None and keeper.stdin is not None
            async for _ in TextReceiveStream(keeper.stdout):
                break
            else:
                pytest.skip("needs user namespaces (unshare -Urm)")
            enter = ("nsenter", "-t", str(keeper.pid), "-U", "-m", "--preserve-credentials")
            disk = Disk(it, Path(f"/proc/{keeper.pid}/root{it.home}"), enter)
            try:
                await disk.start()
                yield disk
            finally:
                with anyio.CancelScope(shield=True):
                    await it.kill()
                    await keeper.stdin.aclose()


async def _refused(it: GatewayProcess) -> str:
    """Why new work is not taken. What is taken meanwhile is kept, as anything that is taken."""
    with anyio.fail_after(1):
        while True:
            status, body = await it.post("/v1/runs", {"input": "one more"})
            if status != 202:
                assert (status, body["error"]["code"]) == (503, "journal_unavailable"), body
                return str(body["error"]["message"])


async def _taken(it: GatewayProcess) -> str:
    """A run that is taken again, soon."""
    with anyio.fail_after(5):
        while True:
            status, body = await it.post("/v1/runs", {"input": "hello"})
            if status == 202:
                return str(body["run_id"])


def _facts(disk: Disk, *kinds: str) -> list[dict[str, Any]]:
    """What its journal holds: of a copy, because SQLite would not find it by that path."""
    with TemporaryDirectory() as copy:
        for part in disk.inside.glob("journal.db*"):
            shutil.copy(part, copy)
        return facts(Path(copy), *kinds)


@pytest.mark.fault("F-30")
async def test_a_disk_that_fills_up_in_mid_turn_refuses_new_work_and_finishes_the_old_after_it(
    tmp_path: Path, model: ModelServer, record_property: Record
) -> None:
    effects, gate = tmp_path / "effects", anyio.Event()
    arguments = ask_for("bump", path=effects, tag="x").partition(" ")[2]
    model.then(stream(token("let me see"), Wait(gate), *calls(call("bump", arguments)).steps))
    async with small_disk(tmp_path, model, journal(0, 0)) as disk:
        it = disk.it
        run_id = await it.run("say:done", session_id="s")
        behind = await it.run("say:me too", session_id="s")
        await begun(it, run_id, "message.delta")
        disk.fill()
        assert "full" in await _refused(it)
        gate.set()
        assert "full" in await _refused(it)
        assert not lines(effects), "nothing is done that could not be written down before"
        assert (await it.get("/health"))[0] == 200
        disk.empty()
        began = time.monotonic()
        last = await it.run("say:and me", session_id="s")  # a wake before it was brought back
        assert (await it.finished(run_id))["output"] == "done"
        took = time.monotonic() - began
        record_property("recovered_s", round(took, 3))
        assert took <= 5, took
        assert (await it.finished(behind))["output"] == "me too"
        assert (await it.finished(last))["output"] == "and me"
        assert (await it.finished(await _taken(it)))["output"] == "echo: hello"
        whole = await it.events(run_id)
        assert endings(whole) == ["run.completed"] and whole.text == "done"
        assert len(lines(effects)) <= 1
        ended = _facts(disk, "run.completed", "run.failed", "run.cancelled")
        assert len(ended) == len(_facts(disk, "run.queued"))


@pytest.mark.fault("F-52")
async def test_without_inodes_a_big_message_is_accepted_like_the_others_of_its_batch(
    tmp_path: Path, model: ModelServer
) -> None:
    big = "say:" + "x" * 100_000
    async with small_disk(tmp_path, model, journal(0, 0), "16m,nr_inodes=300") as disk:
        it = disk.it
        await it.finished(await it.run("hello", session_id="s"))
        disk.use_up_inodes()
        runs: dict[str, str] = {}

        async def post(text: str) -> None:
            runs[await it.run(text, session_id="s")] = text.removeprefix("say:")

        async with anyio.create_task_group() as together:
            for text in [f"say:{number}" for number in range(20)] + [big]:
                together.start_soon(post, text)
        await it.kill()
        disk.free_inodes()
        await disk.start()
        assert {run: (await it.finished(run))["output"] for run in runs} == runs


@pytest.mark.fault("F-30")
async def test_refusals_for_a_full_disk_are_not_held_against_the_queue(
    tmp_path: Path, model: ModelServer
) -> None:
    config = journal(0, 0) + "[limits]\nqueued = 5\n"
    async with small_disk(tmp_path, model, config) as disk:
        disk.fill()
        for _ in range(6):
            await _refused(disk.it)
        disk.empty()
        assert (await disk.it.finished(await _taken(disk.it)))["status"] == "completed"
        _, health = await disk.it.get("/health/detailed")
        assert health["runs"] == {"running": 0, "queued": 0, "waiting": 0}


@pytest.mark.fault("F-30")
async def test_below_the_low_water_mark_nothing_new_is_taken_and_running_work_goes_on(
    tmp_path: Path, model: ModelServer
) -> None:
    gate = anyio.Event()
    model.then(stream(token("slowly "), Wait(gate), token("done"), finish()))
    async with small_disk(tmp_path, model, journal(8, 0), "20m") as disk:
        it = disk.it
        run_id = await it.run("go")
        await begun(it, run_id, "message.delta")
        disk.fill(leave=7 << 20)
        assert "nearly full" in await _refused(it)
        _, health = await it.get("/health/detailed")
        assert "nearly full" in health["checks"]["journal"]
        gate.set()
        assert (await it.finished(run_id))["output"] == "slowly done"
        disk.empty()
        assert (await it.finished(await _taken(it)))["status"] == "completed"


@pytest.mark.fault("F-30")
async def test_the_ballast_is_given_up_so_that_running_work_can_finish_on_a_full_disk(
    tmp_path: Path, model: ModelServer
) -> None:
    gate = anyio.Event()
    model.then(stream(token("on "), Wait(gate), token("ballast"), finish()))
    async with small_disk(tmp_path, model, journal(5, 4), "24m") as disk:
        it = disk.it
        run_id = await it.run("go")
        await begun(it, run_id, "message.delta")
        assert (disk.inside / "ballast").stat().st_size == 4 << 20
        disk.fill()
        gate.set()
        assert (await it.finished(run_id))["output"] == "on ballast"
        assert not (disk.inside / "ballast").exists()
        assert "nearly full" in await _refused(it)


@pytest.mark.fault("F-30")
async def test_a_kill_on_a_full_disk_loses_nothing(tmp_path: Path, model: ModelServer) -> None:
    model.then(stream(token("half"), Wait()))
    async with small_disk(tmp_path, model, journal(0, 0)) as disk:
        it = disk.it
        run_id = await it.run("say:whole")
        await begun(it, run_id, "message.delta")
        disk.fill()
        await it.kill()
        await disk.start()
        assert (await it.status(run_id))["status"] in ("queued", "running")
        assert "full" in await _refused(it)
        disk.empty()
        assert (await it.finished(run_id))["output"] == "whole"


@pytest.mark.fault("F-30")
async def test_a_start_with_no_room_at_all_says_so_and_needs_no_more_than_room(
    tmp_path: Path, model: ModelServer
) -> None:
    async with small_disk(tmp_path, model, journal(0, 0)) as disk:
        run_id = await disk.it.run("tool:hang {}")
        await begun(disk.it, run_id)
        await disk.it.kill()
        (disk.inside / "journal.db-shm").unlink()  # as after a power cut: it is made anew
        disk.fill()
        await disk.it.start(*disk.enter, wait=False)
        assert await disk.it.ended() == 75
        (line,) = disk.it.lines
        assert "journal.db cannot be opened" in line
        disk.empty()
        await disk.start()
        assert (await disk.it.finished(run_id))["status"] == "completed"


@pytest.mark.fault("F-30")
async def test_what_is_due_for_deletion_on_a_full_disk_stops_nothing(
    tmp_path: Path, model: ModelServer
) -> None:
    """Deleting needs room too. It is tried at the start."""
    async with small_disk(tmp_path, model, journal(0, 0)) as disk:
        run_id = await disk.it.run("tokens:100:0.1")
        await disk.it.finished(run_id)
        await disk.it.stop()
        with TemporaryDirectory() as copy:
            for part in disk.inside.glob("journal.db*"):
                shutil.copy(part, copy)
                if part.name != "journal.db":
                    part.unlink()
            with closing(sqlite3.connect(f"{copy}/journal.db")) as old, old:
                old.execute("UPDATE runs SET updated_at = 0")
            # Into the same file: another one would count as put back from a backup.
            shutil.copyfile(f"{copy}/journal.db", disk.inside / "journal.db")
        disk.fill(leave=44 << 10)  # what opening needs, and not what deleting does
        await disk.start()
        assert "full" in await _refused(disk.it)
        disk.empty()
        assert (await disk.it.finished(await _taken(disk.it)))["status"] == "completed"
        assert (await disk.it.status(run_id))["status"] == "completed"


@pytest.mark.fault("F-30")
@pytest.mark.debian("strace")
@pytest.mark.parametrize(("call", "number"), [("fdatasync", 2), ("pwrite64", 10)])
async def test_a_disk_that_fails_ends_the_process_which_recovers_at_the_next_start(
    it: GatewayProcess, tmp_path: Path, call: str, number: int
) -> None:
    """After a failed sync nobody knows what is on the disk: the next start looks."""
    await it.stop()
    await it.start(*kills.failing(call, number, "EIO", it.home / "journal.db-wal"))
    effects = tmp_path / "effects"
    headers = {"Idempotency-Key": "k"}
    body = {"input": ask_for("bump", path=effects, tag="x")}
    with suppress(aiohttp.ClientError):  # it may end before it can say so
        assert (await it.post("/v1/runs", body, headers))[0] in (202, 503)
    assert await it.ended() not in (0, 78)
    assert any("journal" in line for line in it.lines)
    await it.start()
    status, again = await it.post("/v1/runs", body, headers)
    assert status == 202
    assert (await it.finished(again["run_id"]))["status"] == "completed"
    assert len(facts(it.home, "run.queued")) == 1 and len(lines(effects)) <= 1
