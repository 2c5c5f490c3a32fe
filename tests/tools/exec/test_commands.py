"""`Commands` with real commands: their output, their ends and their records."""

import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from anyio.abc import TaskGroup
from msgspec.structs import replace

from holdfast.core.approval.approval import Level, Posture
from holdfast.core.approval.execution import execution_hash
from holdfast.core.redaction import REDACTED, Redactor
from holdfast.core.run.process import BackgroundProcess as Journaled
from holdfast.core.run.process import ProcessEnd, ProcessStarted, id_for
from holdfast.core.run.run import Origin
from holdfast.core.types import CallId, Owner, ProcessId, RunId, SessionId, SessionKey
from holdfast.tools import terminal, tool
from holdfast.tools.exec import shim
from holdfast.tools.exec.commands import Commands
from holdfast.tools.exec.live_process import CommandClock
from holdfast.tools.exec.output import MARGIN
from holdfast.tools.exec.spawn import Spawner
from holdfast.tools.sandbox.sandbox import Sandbox
from holdfast.tools.terminal_arguments import TerminalArguments
from holdfast.tools.tool import Context, Done, Judge, Outcome
from tests.bwrap import NOWHERE

pytestmark = pytest.mark.anyio

SECRET = "sesame-4711-open-the-door"
RUN = RunId("run_1")
KEY = SessionKey(Owner("operator"), SessionId("one"))
PROGRAMS = "bash cat head env seq sleep sh stty python3 yes tr mkfifo mkdir rm grep ls tail".split()
L2 = pytest.param("L2", marks=pytest.mark.debian("bwrap"))
RUNGS = pytest.mark.parametrize("rung", [L2, "L1", "L0"])


class WallClock:
    """The real one."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)  # sleep: it is the clock


class Bare(Sandbox):
    """A machine on which nothing holds."""

    async def probe(self) -> Posture:  # type: ignore[explicit-override]
        return self.posture


class NoBlobs:
    def put(self, data: bytes) -> str:
        raise AssertionError("a command keeps nothing")


async def nobody(host: str) -> bool:
    return False


class Desk:
    """Hands with a workspace, and the tools of a session."""

    def __init__(self, root: Path, rung: str, tasks: TaskGroup, clock: CommandClock) -> None:
        self.root, self.tasks = root, tasks
        self.workspace = root / "home" / "workspaces" / "one"
        self.workspace.mkdir(parents=True, exist_ok=True)
        (root / "user").mkdir(exist_ok=True)
        self.spawner = Spawner(root / "calls", os.getpid(), time.time)
        self.sandbox = self.sandboxed(root, rung)
        self.hands = Commands(self.spawner, self.sandbox, Redactor([SECRET]), tasks, clock)
        (self.terminal,) = terminal.tools(self.hands)
        self.said: list[str] = []
        self.processes: dict[ProcessId, Journaled] = {}

    def sandboxed(self, root: Path, rung: str) -> Sandbox:
        return _sandbox(root, rung)

    def context(self, call: str = "call", **other: Any) -> Context:
        fields: dict[str, Any] = {
            "session": KEY,
            "run_id": RUN,
            "turn": 1,
            "call_id": CallId(call),
            "workspace": self.workspace,
            "blobs": NoBlobs(),
            "cwd": str(self.workspace),
            "origin": Origin(platform="cli", late=True),
            "processes": self.processes,
            "hosts": (),
            "execution": "",
            "trees": (),
            "progress": self.said.append,
            "may_reach": nobody,
        }
        return Context(**(fields | other))

    async def run(self, command: str, call: str = "call", **asked: Any) -> Outcome:
        """Run it as a call of its own."""
        return await self.execute(self.context(call), TerminalArguments(command, **asked))

    async def execute(self, context: Context, asked: TerminalArguments) -> Outcome:
        """Have it judged, and then run, as the engine does."""
        judge = await self.terminal.permit(context, asked)
        assert isinstance(judge, Judge)
        judged = replace(context, execution=execution_hash(judge.request))
        return await self.terminal.run(judged, asked)

    async def result(self, command: str, call: str = "call", **asked: Any) -> dict[str, Any]:
        return read(await self.run(command, call, **asked))

    async def begin(self, command: str, call: str = "call", **asked: Any) -> ProcessId:
        """Start it in the background, and write it down as the engine would."""
        outcome = await self.run(command, call, background=True, **asked)
        assert isinstance(outcome, Done)
        assert outcome.background is not None
        b = outcome.background
        started = ProcessStarted(
            process_id=b.process_id, started_by=RUN, call_id=CallId(call), command=b.command
        )
        self.processes[b.process_id] = Journaled(started, time.time())
        return b.process_id


@contextmanager
def fifo(path: Path) -> Iterator[int]:
    """A new named pipe, open at both ends, so that nobody waits for the other one."""
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def read(outcome: Outcome) -> dict[str, Any]:
    assert isinstance(outcome, Done), outcome
    found = msgspec.json.decode(outcome.text)
    assert isinstance(found, dict)
    return found


def _sandbox(root: Path, rung: str) -> Sandbox:
    """The real one, on a machine that has what this rung needs and no more."""
    folder = root / "bin"
    folder.mkdir(exist_ok=True)
    for program in PROGRAMS:
        found, link = shutil.which(program, path="/usr/bin:/bin"), folder / program
        if found and not link.is_symlink():
            link.symlink_to(found)
    kind = Bare if rung == "L0" else Sandbox
    path = ["/usr/bin", "/bin"] if rung == "L2" else [str(folder)]
    site = None if rung == "L2" else NOWHERE
    return kind(root / "home", root / "user", allow_none=rung == "L0", exec_path=path, site=site)


@asynccontextmanager
async def desk(
    root: Path, rung: str = "L0", clock: CommandClock | None = None
) -> AsyncIterator[Desk]:
    async with anyio.create_task_group() as tasks:
        found = Desk(root, rung, tasks, clock or WallClock())
        assert (await found.hands.posture()).level is Level[rung]
        try:
            yield found
        finally:
            with anyio.CancelScope(shield=True):
                await found.hands.kill_all()
                await found.spawner.aclose()
            tasks.cancel_scope.cancel()


async def test_commands_implement_the_engines_interface(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        hands: tool.RunsCommands = it.hands
        assert hands.known() == []


async def test_the_sandbox_is_tested_once(tmp_path: Path) -> None:
    tried: list[int] = []

    class Counting(Bare):
        async def probe(self) -> Posture:  # type: ignore[explicit-override]
            tried.append(1)
            await anyio.lowlevel.checkpoint()
            return self.posture

    async with anyio.create_task_group() as tasks:
        sandbox = Counting(tmp_path, tmp_path, allow_none=True)
        spawner = Spawner(tmp_path / "calls", os.getpid(), time.time)
        hands = Commands(spawner, sandbox, Redactor([]), tasks, WallClock())
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(hands.posture)
    assert tried == [1]


async def test_the_end_of_a_process_is_reported_with_its_last_output(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin(f"seq 3000; echo {SECRET}; exit 3")
        ended = await it.hands.ended(found)
        assert (ended.cause, ended.exit_code, ended.process_id) == (ProcessEnd.EXITED, 3, found)
        assert ended.tail.endswith(f"\n3000\n{REDACTED}\n")
        assert len(ended.tail) <= 4096
        assert ended == await it.hands.ended(found)


async def test_a_process_without_a_record_is_lost(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        assert (await it.hands.ended(ProcessId("proc_no"))).cause is ProcessEnd.LOST


async def test_records_name_session_and_process_until_they_are_removed(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("true")
        await it.hands.ended(found)
        assert it.hands.known() == [(KEY, found)]
        assert found == id_for(RUN, 1, CallId("call"))
        it.hands.forget(found)
        assert it.hands.known() == []


@pytest.mark.promise("LATE-05")
async def test_a_process_killed_at_shutdown_ended_because_of_the_restart(tmp_path: Path) -> None:
    async with desk(tmp_path) as first:
        found = await first.begin("echo begun; sleep 1000")
        await first.hands.lines(found, 0, ("begun",))
    async with desk(tmp_path) as second:
        await second.hands.sweep()
        ended = await second.hands.ended(found)
        assert (ended.cause, ended.tail) == (ProcessEnd.RESTART, "begun\n")


async def test_a_process_that_exited_without_a_gateway_counts_as_exited(tmp_path: Path) -> None:
    async with desk(tmp_path) as first:
        found = await first.begin("exit 4")
        await first.hands.ended(found)
    async with desk(tmp_path) as second:
        ended = await second.hands.ended(found)
        assert (ended.cause, ended.exit_code) == (ProcessEnd.EXITED, 4)


@pytest.mark.promise("STOP-06")
async def test_a_detached_process_is_taken_up_again_and_killed_on_request(tmp_path: Path) -> None:
    async with desk(tmp_path) as first:
        found = await first.begin("sleep 1000", detach=True)
    async with desk(tmp_path) as second:
        await second.hands.sweep()
        async with anyio.create_task_group() as group:
            group.start_soon(second.hands.ended, found)  # as the engine does
            await anyio.lowlevel.checkpoint()
            assert [live.id for live in second.hands.mine(KEY)] == [found]
            assert (await second.hands.kill(found)).cause is ProcessEnd.KILLED
    os.waitpid(-1, 0)  # noqa: ASYNC222 — it has ended; a real successor is not its parent


async def test_matching_lines_are_reported_completely(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        script = "printf 'ready one\\nother\\nready t'; cat; sleep 1000"  # written at once
        found = await it.begin(script, stdin_open=True)
        with anyio.fail_after(20):
            assert await it.hands.lines(found, 0, ("ready", "never")) == ("ready one", 16)
            async with anyio.create_task_group() as group:
                group.start_soon(it.hands.write, found, f"wo {SECRET}\n".encode())
                text, offset = await it.hands.lines(found, 16, ("ready",))
        assert text == f"ready two {REDACTED}"
        assert offset == it.hands.output(found).size


async def test_the_number_and_length_of_reported_lines_is_limited(tmp_path: Path) -> None:
    script = "python3 -c \"print('hit' + 'x' * 9000); print('hit\\n' * 100)\"; cat"
    async with desk(tmp_path) as it:
        found = await it.begin(script)
        with anyio.fail_after(20):
            text, offset = await it.hands.lines(found, 0, ("hit",))
        assert len(text.split("\n")) == 20
        assert max(map(len, text.split("\n"))) == 500
        assert offset > 9000


async def test_without_matching_lines_nothing_is_reported(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("echo other")
        await it.hands.ended(found)
        with anyio.move_on_after(0.1) as scope:
            await it.hands.lines(found, 0, ("ready",))
        assert scope.cancelled_caught


async def test_reading_much_output_leaves_time_for_other_tasks(tmp_path: Path) -> None:
    class Noting(WallClock):
        def __init__(self) -> None:
            self.slept = anyio.Event()

        async def sleep(self, seconds: float) -> None:  # type: ignore[explicit-override]
            self.slept.set()
            await super().sleep(seconds)

    clock, turns = Noting(), 0

    async def count(scope: anyio.CancelScope) -> None:
        nonlocal turns
        while not clock.slept.is_set():  # from here on there is no more to read
            turns += 1
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    async with desk(tmp_path, clock=clock) as it:
        found = await it.begin("yes | head -c 4000000")
        await it.hands.ended(found)
        clock.slept = anyio.Event()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(count, group.cancel_scope)
                await it.hands.lines(found, 0, ("ready",))
    assert turns > 50  # it was read in more than 60 parts


async def test_a_last_line_without_an_end_counts_once_the_process_is_over(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("printf ready")
        await it.hands.ended(found)
        assert await it.hands.lines(found, 0, ("ready",)) == ("ready", 5)


async def test_parts_of_an_output_add_up_to_the_clean_whole(tmp_path: Path) -> None:
    text = f"ä {SECRET}{SECRET[:9]} é {SECRET}\n{SECRET[:-1]}\n€ {SECRET[:5]}"
    (tmp_path / "text").write_text(text)
    async with desk(tmp_path) as it:
        found = await it.begin(f"cat {tmp_path / 'text'}")
        await it.hands.ended(found)
        output = it.hands.output(found)
        for size in (1, 2, 3, 7, 20, 1000):
            parts, at = [], 0
            while at < output.size:
                part, begin, at = output.page(at, size, over=True)
                assert begin == at - min(size, len(text.encode()) - begin)
                parts.append(part)
            assert "".join(parts) == Redactor([SECRET]).clean(text)


async def test_no_half_secret_shows_beside_dropped_output(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        total = (shim.KEPT + 3 * shim.CHUNK) // len(SECRET) * len(SECRET)
        script = f"yes {SECRET} | tr -d '\\n' | head -c {total}"
        await it.hands.ended(await it.begin(script))
        output = it.hands.output(id_for(RUN, 1, CallId("call")))
        for start in (0, shim.HEAD - 10, shim.HEAD, shim.HEAD + 5, total - 100):
            part, begin, stop = output.page(start, 1000, over=True)
            assert "sesame" not in part.replace(REDACTED, "")
            assert start <= begin <= stop
        _, begin, _ = output.page(shim.HEAD, 1000, over=True)
        assert begin == total - shim.RING + shim.CHUNK + MARGIN


@pytest.mark.fault("F-33")
async def test_processes_that_can_write_to_a_workspace_are_counted(tmp_path: Path) -> None:
    async with desk(tmp_path, "L1") as it:
        here = str(it.workspace)
        await it.begin("cat", "one", stdin_open=True)
        counted = [it.hands.beside(place) for place in (here, f"{here}/sub", str(tmp_path))]
        assert (counted, it.hands.beside(f"{here}-other")) == ([1, 1, 1], 0)
        await it.begin("sleep 1000", "two", unsandboxed=True)
        assert (it.hands.beside(here), it.hands.beside(f"{here}-other")) == (2, 1)
        reading = TerminalArguments("sleep 900", background=True)
        await it.execute(it.context("three", unasked=True), reading)
        assert it.hands.beside(here) == 2
