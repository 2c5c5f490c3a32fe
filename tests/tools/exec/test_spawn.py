"""Commands start at most once, end with all children, and leave a record, despite any kill."""

import fcntl
import os
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest
from anyio.abc import Process as Started

from holdfast.errors import ToolFailed
from holdfast.tools.exec import shim
from holdfast.tools.exec.record import Ended, ExitCause, SpoolReader
from holdfast.tools.exec.spawn import AlreadyClaimed, Execution, NotStarted, Spawner
from holdfast.tools.exec.spawned import SpawnedProcess
from tests import bwrap
from tests.crash.kills import at, failing, with_executed
from tests.tools.exec.nasty import carriers
from tests.tools.keeper import Order

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
NASTY = str(Path(__file__).with_name("nasty.py"))
BWRAP = (
    *(bwrap.program(), "--unshare-all", "--die-with-parent", "--new-session"),
    *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
)
CONFINED = pytest.param(BWRAP, marks=pytest.mark.debian("bwrap"), id="bwrap")
PLAIN = pytest.param((), id="shim alone")
ENV = {"PATH": "/usr/bin:/bin"}

SPEW_S = 3.0

Record = Callable[[str, object], None]


def sh(script: str, *words: str, around: tuple[str, ...] = (), **more: object) -> Execution:
    """A script for a shell; `words` are its $0, $1 …"""
    fields = {"cwd": "/", "env": ENV, "timeout_s": 60.0, **more}
    argv = (*around, "/bin/sh", "-c", script, *words)
    return msgspec.convert({"argv": argv, **fields}, Execution)


@pytest.fixture
async def spawner(tmp_path: Path) -> AsyncIterator[Spawner]:
    it = Spawner(tmp_path / "calls", os.getpid(), time.time)
    yield it
    await it.aclose()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with any of it."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def tail(spool: SpoolReader, limit: int) -> bytes:
    """The last `limit` bytes at most."""
    end, first = spool.bounds()
    at, pieces = max(0, end - limit, first if end > shim.KEPT else 0), list[bytes]()
    while at < end:
        piece, at = spool.output(at, end - at)
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces)


async def run(spawner: Spawner, execution: Execution, call_id: str = "call") -> tuple[Ended, str]:
    process = await spawner.start(call_id, execution)
    return await process.wait(), tail(process.spool, 2**20).decode()


@contextmanager
def fifo(path: Path) -> Iterator[int]:
    """The reading end of a new named pipe."""
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # for writing too: then it never ends
    try:
        yield fd
    finally:
        os.close(fd)


async def heard(fd: int) -> bytes:
    with anyio.fail_after(20):
        await anyio.wait_readable(fd)
    return os.read(fd, 4096)


async def all_gone(token: str, within_s: float = 2) -> float:
    """How long it took until nobody carried `token`, also of those who came meanwhile."""
    began = time.monotonic()
    with anyio.fail_after(within_s):
        while found := carriers(token):
            for pid in found:
                await gone(pid)
    return time.monotonic() - began


async def gone(pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)


class Nasty:
    """A nasty command: what to run, and who of it lives."""

    def __init__(self, folder: Path, around: tuple[str, ...]) -> None:
        self.token = secrets.token_hex(8)
        self.fifo = folder / f"fifo-{self.token}"
        argv = (*around, sys.executable, "-I", NASTY, self.token, str(self.fifo))
        self.execution = Execution(argv, "/", ENV, 60)

    @property
    def alive(self) -> set[int]:
        return carriers(self.token)


class Keeper:
    """A stand-in for the gateway, in a process of its own."""

    def __init__(self, process: Started) -> None:
        self._process = process
        self.pid = process.pid

    async def start(self, call_id: str, execution: Execution, label: str = "") -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        await self._process.stdin.send(
            msgspec.json.encode(Order(call_id, execution, label)) + b"\n"
        )
        answer = b""
        while not answer.endswith(b"\n"):
            answer += await self._process.stdout.receive()
        return answer.decode().strip()

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def keeper(folder: Path, *around: str, where: str = "loop") -> AsyncIterator[Keeper]:
    command = (*around, sys.executable, "-m", "tests.tools.keeper", str(folder), where)
    async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
        yield Keeper(process)
        if process.returncode is None:
            process.kill()


async def test_a_command_runs_and_its_exit_code_and_output_are_known(spawner: Spawner) -> None:
    ended, text = await run(spawner, sh("echo out; echo err >&2; pwd; exit 3", cwd="/usr"))
    assert (ended.exit_code, ended.signal, ended.cause) == (3, None, ExitCause.EXITED)
    assert text == "out\nerr\n/usr\n"
    assert (ended.output_bytes, ended.truncated, ended.survivors) == (len(text), False, ())


async def test_a_command_that_is_not_there_fails_like_in_a_shell(spawner: Spawner) -> None:
    ended, text = await run(spawner, Execution(("/no/such",), "/", ENV, 5))
    assert ended.exit_code == 127
    assert "/no/such: No such file" in text
    ended, text = await run(spawner, Execution(("/bin/true",), "/no/dir", ENV, 5), "second")
    assert (ended.exit_code, "No such file" in text) == (127, True)
    ended, text = await run(spawner, Execution(("/bin/echo", "a\0b"), "/", ENV, 5), "third")
    assert (ended.exit_code, "null byte" in text) == (127, True)
    ended, text = await run(spawner, Execution(("/bin/echo", "x" * 2**18), "/", ENV, 5), "fourth")
    assert (ended.exit_code, "too long" in text) == (127, True)


async def test_it_has_the_given_environment_and_no_file_of_ours(
    spawner: Spawner, tmp_path: Path
) -> None:
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    _, text = await run(spawner, sh("env; ls /proc/self/fd", env={"ONE": "1"}))
    os.close(lock)
    lines = set(text.split())
    names = {line.partition("=")[0] for line in lines if "=" in line}
    assert names == {"ONE", "PWD", shim.MARK}
    assert {line for line in lines if line.isdigit()} == {"0", "1", "2", "3"}  # 3 is the listing


async def test_it_starts_with_every_signal_at_its_default_and_none_blocked(
    spawner: Spawner,
) -> None:
    _, text = await run(spawner, sh("exec grep -E 'Sig(Blk|Ign)' /proc/self/status"))
    # Those from 32 on are the C library's own, and come from whoever started us.
    assert [int(line.split()[1], 16) & 0x7FFFFFFF for line in text.splitlines()] == [0, 0]


async def test_a_descriptor_can_be_passed_on(spawner: Spawner) -> None:
    reading, writing = os.pipe()
    process = await spawner.start(
        "call", sh(f"echo hello > /proc/self/fd/{writing}", pass_fds=(writing,))
    )
    os.close(writing)
    await process.wait()
    assert os.read(reading, 100) == b"hello\n"
    assert os.read(reading, 100) == b""
    os.close(reading)


@pytest.mark.fault("F-05")
async def test_a_call_starts_once(spawner: Spawner, tmp_path: Path) -> None:
    count = sh('echo x >> "$0"', str(tmp_path / "ledger"))
    await run(spawner, count)
    with pytest.raises(AlreadyClaimed):
        await spawner.start("call", count)
    assert (tmp_path / "ledger").read_text() == "x\n"


@pytest.mark.fault("F-05")
async def test_of_two_concurrent_starts_of_one_call_one_is_refused(
    spawner: Spawner, tmp_path: Path
) -> None:
    count = sh('echo x >> "$0"', str(tmp_path / "ledger"))
    refused = []

    async def one(mine: Spawner) -> None:
        try:
            await run(mine, count)
        except AlreadyClaimed:
            refused.append(mine)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(one, Spawner(tmp_path / "calls", os.getpid(), time.time))
    assert len(refused) == 3
    assert (tmp_path / "ledger").read_text() == "x\n"


@pytest.mark.fault("F-05")
@pytest.mark.debian("strace")
@pytest.mark.parametrize(
    ("call", "number", "ran", "then"),
    [
        pytest.param("fsync", 1, 0, "", id="claimed, not yet durable"),
        pytest.param("fsync", 3, 0, "", id="durable"),
        # The last file that a shim reads before it forks. Not `clone`: the keeper uses that for threads
        # where clone3 is denied.
        pytest.param("openat", 1, 0, "", id="before the fork"),
        # A command that is over before its shim has to wait is never waited for.
        pytest.param("poll", 1, 1, "; sleep 1000", id="after the start"),
        pytest.param("fsync", 4, 1, "", id="before the record"),
    ],
)
async def test_a_shim_killed_around_the_start_leaves_a_call_that_never_starts_again(
    spawner: Spawner, tmp_path: Path, call: str, number: int, ran: int, then: str
) -> None:
    count = sh(f'echo x >> "$0"{then}', str(tmp_path / "ledger"))
    path = Path("/proc/vmstat") if call == "openat" else None
    async with keeper(tmp_path, *with_executed(at(call, number, path))) as it:
        await it.start("call", count)
        running = spawner.adopt("call")
        if isinstance(running, SpawnedProcess):
            await running.wait()
        await it.kill()
    await spawner.sweep()
    ended = spawner.adopt("call")
    assert isinstance(ended, Ended)
    assert (ended.cause, ended.exit_code) == (ExitCause.LOST, None)
    with pytest.raises(AlreadyClaimed):
        await spawner.start("call", count)
    ledger = tmp_path / "ledger"
    assert len(ledger.read_text().split() if ledger.exists() else []) <= ran


@pytest.mark.fault("F-06")
@pytest.mark.promise("BACK-10")
async def test_a_result_written_while_the_gateway_was_down_is_adopted(
    spawner: Spawner, tmp_path: Path
) -> None:
    script = 'read line < "$0.go"; echo "$line" | tee -a "$0"'
    order = sh(script, str(tmp_path / "ledger"), detach=True)
    os.mkfifo(tmp_path / "ledger.go")
    async with keeper(tmp_path) as it:
        await it.start("call", order)
        await it.kill()
    assert await spawner.sweep() == []
    running = spawner.adopt("call")
    assert isinstance(running, SpawnedProcess)
    (tmp_path / "ledger.go").write_text("went on\n")
    assert (await running.wait()).exit_code == 0
    again = Spawner(tmp_path / "calls", os.getpid(), time.time)
    assert await again.sweep() == []
    ended = again.adopt("call")
    assert isinstance(ended, Ended)
    assert (ended.exit_code, ended.cause) == (0, ExitCause.EXITED)
    assert tail(again.spool("call"), 100) == b"went on\n"
    with pytest.raises(AlreadyClaimed):
        await again.start("call", order)
    assert (tmp_path / "ledger").read_text() == "went on\n"
    again.forget("call")
    assert again.adopt("call") is None
    assert list((tmp_path / "calls").iterdir()) == []


async def test_the_next_gateway_can_kill_a_detached_command(
    spawner: Spawner, tmp_path: Path
) -> None:
    script = 'echo up > "$0"; sleep 1000 | cat'
    with fifo(tmp_path / "up") as up:
        async with keeper(tmp_path) as it:
            order = sh(script, str(tmp_path / "up"), detach=True)
            pid = int(await it.start("call", order))
            await heard(up)  # it is started when it is forked; now it is the shell, too
            await it.kill()
    running = spawner.adopt("call")
    assert isinstance(running, SpawnedProcess)
    assert (running.pid, os.getsid(pid)) == (pid, pid)
    ended = await running.kill()
    assert (ended.cause, ended.signal) == (ExitCause.KILLED, signal.SIGTERM)
    assert shim.identity(pid) is None


async def test_parents_get_sigterm_before_they_see_their_children_end(
    spawner: Spawner, tmp_path: Path
) -> None:
    many = "for n in $(seq 60); do sleep 1000 & done; "
    script = many + 'echo up > "$0"; sleep 1000; echo outlived; exit 1'
    with fifo(tmp_path / "up") as up:
        for number in range(5):
            process = await spawner.start(str(number), sh(script, str(tmp_path / "up")))
            await heard(up)
            ended = await process.kill()
            assert (ended.signal, tail(process.spool, 100)) == (signal.SIGTERM, b"")


@pytest.mark.promise("STOP-06")
@pytest.mark.parametrize("around", [PLAIN, CONFINED])
async def test_a_command_that_dies_with_the_gateway_is_recorded_as_orphaned(
    spawner: Spawner, tmp_path: Path, around: tuple[str, ...]
) -> None:
    async with keeper(tmp_path) as it:
        await it.start("call", sh("sleep 1000", around=around))
        running = spawner.adopt("call")
        assert isinstance(running, SpawnedProcess)
        await it.kill()
        await running.kill()  # as the sweep of the next gateway would
    assert (await running.wait()).cause is ExitCause.ORPHANED


async def test_a_closed_spawner_lets_commands_run(spawner: Spawner, tmp_path: Path) -> None:
    async with keeper(tmp_path) as it:
        pid = int(await it.start("call", sh("sleep 1000", detach=True)))
        await it.kill()
    running = spawner.adopt("call")
    assert isinstance(running, SpawnedProcess)
    refused = []

    async def wait() -> None:
        try:
            await running.wait()
        except anyio.ClosedResourceError:
            refused.append(running)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await spawner.aclose()
    assert refused == [running]
    assert (running.running, running.end, shim.identity(pid) is None) == (True, None, False)
    again = spawner.adopt("call")
    assert isinstance(again, SpawnedProcess)
    assert spawner.adopt("call") is again
    ended = await again.kill()
    assert (running.running, running.end, await running.wait()) == (False, ended, ended)


@pytest.mark.promise("STOP-06")
async def test_kill_all_spares_only_detached_commands(spawner: Spawner, tmp_path: Path) -> None:
    tokens = [secrets.token_hex(8) for _ in range(4)]
    for token in tokens:
        await spawner.start(token, sh("sleep 1000; :", token))
    stopped = await spawner.start("stopped", sh("sleep 1000; :", tokens[0]))
    os.kill(parent(stopped.pid), signal.SIGSTOP)
    kept = await spawner.start("kept", sh("sleep 1000", detach=True))
    await (await spawner.start("over", sh("exit 0"))).wait()
    ends = await spawner.kill_all()
    assert ends.keys() == {*tokens, "stopped"}
    assert {ended.cause for ended in ends.values()} == {ExitCause.KILLED}
    assert not any(carriers(token) for token in tokens)
    assert kept.running
    assert await spawner.kill_all() == {}
    await kept.kill()


@pytest.mark.promise("STOP-06")
async def test_kill_all_reaches_commands_that_are_starting(spawner: Spawner) -> None:
    token = secrets.token_hex(8)
    ends: list[Ended | None] = []

    async def start() -> None:
        try:
            ends.append(await (await spawner.start("call", sh("sleep 1000; :", token))).wait())
        except NotStarted:
            ends.append(None)

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        await anyio.wait_all_tasks_blocked()
        await spawner.kill_all()
    assert ends[0] is None or ends[0].cause is ExitCause.KILLED
    assert not carriers(token)


@pytest.mark.fault("F-06")
async def test_after_a_restart_every_call_is_known_with_its_label(
    spawner: Spawner, tmp_path: Path
) -> None:
    async with keeper(tmp_path) as it:
        await it.start("over", sh("exit 3"), label="run 1")
        over = spawner.adopt("over")
        if isinstance(over, SpawnedProcess):
            over = await over.wait()
        await it.start("detached", sh("sleep 1000", detach=True), label="run 2")
        await it.start("orphan", sh("sleep 1000"))
        await it.kill()
    (tmp_path / "calls" / "cut").mkdir()
    (tmp_path / "calls" / "cut" / "claim").write_text('{"call_id": "cu')
    await spawner.sweep()
    known = spawner.known()
    said = [(one.call_id, one.label, one.detach, one.ended) for one in known]
    assert said[:2] == [("over", "run 1", False, over), ("detached", "run 2", True, None)]
    assert said[2] == ("orphan", "", False, spawner.adopt("orphan"))
    assert known[0].started_at <= known[1].started_at <= known[2].started_at <= time.time()
    running = spawner.adopt("detached")
    assert isinstance(running, SpawnedProcess)
    await running.kill()


@pytest.mark.fault("F-19")
@pytest.mark.promise("STOP-06")
@pytest.mark.parametrize("around", [PLAIN, CONFINED])
async def test_nothing_nasty_outlives_a_killed_gateway(
    tmp_path: Path, around: tuple[str, ...], record_property: Record
) -> None:
    nasty = Nasty(tmp_path, around)
    with fifo(nasty.fifo) as ready:
        async with keeper(tmp_path) as it:
            await it.start("call", nasty.execution)
            await heard(ready)
            assert len(nasty.alive) >= 6
            await it.kill()
            took = await all_gone(nasty.token)
    record_property("gone_after_s", round(took, 3))


@pytest.mark.fault("F-19")
@pytest.mark.promise("STOP-06")
@pytest.mark.debian("bwrap")
async def test_nothing_nasty_outlives_gateway_and_shim_killed_together(
    spawner: Spawner, tmp_path: Path, record_property: Record
) -> None:
    nasty = Nasty(tmp_path, BWRAP)
    with fifo(nasty.fifo) as ready:
        async with keeper(tmp_path) as it:
            pid = int(await it.start("call", nasty.execution))
            await heard(ready)
            os.kill(parent(pid), signal.SIGKILL)
            await it.kill()
            took = await all_gone(nasty.token)
    record_property("gone_after_s", round(took, 3))
    assert await spawner.sweep() == ["call"]
    ended = spawner.adopt("call")
    assert isinstance(ended, Ended)
    assert ended.cause is ExitCause.LOST


@pytest.mark.fault("F-19")
async def test_the_boot_sweep_finds_what_a_killed_shim_left_without_a_sandbox(
    spawner: Spawner, tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    nasty = Nasty(tmp_path, ())
    with fifo(nasty.fifo) as ready:
        async with keeper(tmp_path) as it:
            pid = int(await it.start("call", nasty.execution))
            await heard(ready)
            os.kill(parent(pid), signal.SIGKILL)
            await it.kill()
    assert await spawner.sweep() == ["call"]
    assert not nasty.alive
    assert bystander.poll() is None


async def test_the_sweep_spares_a_process_with_a_reused_pid(
    spawner: Spawner, tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    process = await spawner.start("call", sh("exit 0"))
    await process.wait()
    (folder,) = (tmp_path / "calls").iterdir()
    (folder / "exit.json").unlink()
    whose, *_ = (folder / "claim").read_text().splitlines()
    (folder / "claim").write_text(f"{whose}\n{bystander.pid} 1\n{bystander.pid} 2\n")
    assert await spawner.sweep() == ["call"]
    assert bystander.poll() is None


async def test_a_killed_shim_is_noticed_and_its_command_ended(
    spawner: Spawner, tmp_path: Path
) -> None:
    nasty = Nasty(tmp_path, ())
    process = await signalled_shim(spawner, nasty, signal.SIGKILL)
    ended = await process.wait()
    assert (ended.cause, ended.survivors) == (ExitCause.LOST, ())
    assert not nasty.alive


@pytest.mark.fault("F-19")
@pytest.mark.debian("strace")
async def test_a_shim_that_fails_takes_its_command_with_it(
    spawner: Spawner, tmp_path: Path
) -> None:
    token = secrets.token_hex(8)
    async with keeper(tmp_path, *with_executed(failing("poll", 1, "EINVAL"))) as it:
        await it.start("call", sh("setsid sleep 1000 & sleep 1000; :", token, env={"T": token}))
        await all_gone(token)
        assert list((tmp_path / "calls").glob("*/exit.json")) == []  # it was nobody else's doing
        await it.kill()
    assert await spawner.sweep() == ["call"]


async def test_a_shim_that_fails_while_it_starts_takes_its_command_with_it(
    spawner: Spawner,
) -> None:
    token = secrets.token_hex(8)
    reading, writing = os.pipe()
    order = sh("sleep 1000; :", token, pass_fds=(writing, writing))  # nothing closes twice
    process = await spawner.start("call", order)
    assert not carriers(token)
    assert (await process.wait()).cause is ExitCause.LOST
    os.close(reading)
    os.close(writing)


async def test_a_stopped_shim_does_not_keep_a_command_from_being_killed(
    spawner: Spawner, tmp_path: Path
) -> None:
    nasty = Nasty(tmp_path, ())
    process = await signalled_shim(spawner, nasty, signal.SIGSTOP)
    ended = await process.kill()
    assert (ended.cause, ended.survivors) == (ExitCause.KILLED, ())
    assert not nasty.alive


async def signalled_shim(spawner: Spawner, nasty: Nasty, number: int) -> SpawnedProcess:
    """Start the command, and send its shim a signal once it runs."""
    with fifo(nasty.fifo) as ready:
        process = await spawner.start("call", nasty.execution)
        await heard(ready)
    os.kill(parent(process.pid), number)
    return process


def parent(pid: int) -> int:
    return shim.processes()[pid][0]


@pytest.mark.fault("F-20")
@pytest.mark.parametrize("around", [PLAIN, CONFINED])
async def test_a_stopped_pipeline_is_dead_soon(
    spawner: Spawner, around: tuple[str, ...], record_property: Record
) -> None:
    took = []
    for number in range(9):
        token = secrets.token_hex(8)
        process = await spawner.start(f"call{number}", sh("sleep 1000 | cat", token, around=around))
        began = time.monotonic()
        ended = await process.kill()
        took.append(time.monotonic() - began)
        assert (ended.cause, ended.survivors) == (ExitCause.KILLED, ())
        assert not carriers(token)
    record_property("p50_s", round(statistics.median(took), 3))
    record_property("worst_s", round(max(took), 3))
    assert statistics.median(took) <= 0.3
    assert max(took) <= 3


@pytest.mark.fault("F-20")
@pytest.mark.parametrize("around", [PLAIN, CONFINED])
async def test_a_command_that_ignores_all_signals_is_dead_within_three_seconds(
    spawner: Spawner, tmp_path: Path, around: tuple[str, ...], record_property: Record
) -> None:
    nasty = Nasty(tmp_path, around)
    with fifo(nasty.fifo) as ready:
        process = await spawner.start("call", nasty.execution)
        await heard(ready)
        began = time.monotonic()
        ended = await process.kill()
        took = time.monotonic() - began
    assert not nasty.alive
    assert (ended.cause, ended.survivors) == (ExitCause.KILLED, ())
    assert took <= 3
    record_property("took_s", round(took, 3))


@pytest.mark.parametrize("around", [PLAIN, CONFINED])
async def test_a_command_that_handles_sigterm_can_clean_up(
    spawner: Spawner, tmp_path: Path, around: tuple[str, ...]
) -> None:
    script = "trap 'echo tidied; exit 5' TERM; echo > \"$0\"; while :; do sleep 0.05; done"
    with fifo(tmp_path / "ready") as ready:
        process = await spawner.start("call", sh(script, str(tmp_path / "ready"), around=around))
        await heard(ready)
        ended = await process.kill()
    assert (ended.exit_code, ended.cause) == (5, ExitCause.KILLED)
    assert tail(process.spool, 100).endswith(b"tidied\n")


async def test_a_start_that_is_cancelled_leaves_nothing(spawner: Spawner) -> None:
    token = secrets.token_hex(8)
    with anyio.move_on_after(0) as scope:
        await spawner.start("call", sh("sleep 1000; :", token))
    assert scope.cancelled_caught
    assert not carriers(token)


async def test_processes_left_by_a_finished_command_are_killed(
    spawner: Spawner,
) -> None:
    token = secrets.token_hex(8)
    ended, text = await run(spawner, sh("setsid sh -c 'sleep 1000; :' $0 & echo done", token))
    assert (ended.exit_code, ended.cause, text) == (0, ExitCause.EXITED, "done\n")
    assert not carriers(token)


async def test_the_time_limit_is_kept_by_the_shim(spawner: Spawner) -> None:
    ended, text = await run(spawner, sh("echo begun; sleep 1000", timeout_s=0.3))
    assert (ended.cause, text) == (ExitCause.TIMEOUT, "begun\n")
    assert 0.3 <= ended.duration_s <= 3


@pytest.mark.fault("F-21")
@pytest.mark.parametrize("around", [PLAIN, CONFINED])
async def test_a_command_lives_on_when_a_worker_thread_ends(
    spawner: Spawner, tmp_path: Path, around: tuple[str, ...]
) -> None:
    os.mkfifo(tmp_path / "go")
    order = sh('read line < "$0"; echo "$line"', str(tmp_path / "go"), around=around)
    async with keeper(tmp_path, where="thread") as it:
        await it.start("call", order)  # and the thread that started it has ended
        running = spawner.adopt("call")
        assert isinstance(running, SpawnedProcess)
        (tmp_path / "go").write_text("alive\n")
        assert (await running.wait()).exit_code == 0
    assert tail(running.spool, 100) == b"alive\n"


@pytest.mark.fault("F-22")
async def test_endless_output_keeps_its_beginning_and_end_in_little_memory(
    spawner: Spawner, tmp_path: Path, record_property: Record
) -> None:
    before = resident_kb()
    process = await spawner.start("call", sh("echo first; exec yes", timeout_s=SPEW_S))
    ended = await process.wait()
    assert (ended.cause, ended.truncated) == (ExitCause.TIMEOUT, True)
    assert ended.output_bytes > 2 * shim.KEPT
    assert resident_kb() - before <= 20 * 1024
    (spool,) = (tmp_path / "calls").glob("*/output")
    assert spool.stat().st_size <= shim.HEAD + shim.RING + shim.HEADER
    assert process.spool.output(0, 8) == (b"first\ny\n", 8)
    assert set(tail(process.spool, 2**20)) == set(b"y\n")
    assert len(tail(process.spool, 2**20)) == 2**20
    data, offset = process.spool.output(shim.HEAD, 100)
    assert offset - len(data) == ended.output_bytes - shim.RING + shim.CHUNK
    assert process.spool.output(ended.output_bytes, 100) == (b"", ended.output_bytes)
    record_property("bytes", ended.output_bytes)


async def test_output_can_be_followed_while_it_is_written(spawner: Spawner, tmp_path: Path) -> None:
    size = shim.KEPT + 3 * shim.RING // 2
    numbers = "".join(f"{n:07}\n" for n in range(size // 8)).encode()
    (tmp_path / "numbers").write_bytes(numbers)
    process = await spawner.start("call", sh(f"cat {tmp_path / 'numbers'}"))
    offset, seen, ended = 0, 0, False
    while not ended or offset < len(numbers):
        ended = isinstance(spawner.adopt("call"), Ended)
        data, then = process.spool.output(offset, 10_000)
        assert data == numbers[then - len(data) : then]
        offset, seen = then, seen + len(data)
        await anyio.lowlevel.checkpoint()
    await process.wait()
    assert offset == len(numbers)
    assert shim.KEPT <= seen <= len(numbers)
    assert tail(process.spool, 50_000) == numbers[-50_000:]


async def test_output_of_up_to_the_cap_is_whole(spawner: Spawner) -> None:
    process = await spawner.start("call", sh(f"yes | head -c {shim.KEPT}"))
    ended = await process.wait()
    assert (ended.output_bytes, ended.truncated) == (shim.KEPT, False)
    assert tail(process.spool, shim.KEPT) == b"y\n" * (shim.KEPT // 2)


@pytest.mark.fault("F-23")
@pytest.mark.parametrize("around", [PLAIN, CONFINED])
async def test_a_tree_over_its_memory_is_killed_for_that(
    spawner: Spawner, around: tuple[str, ...]
) -> None:
    greedy = "x = []\nwhile True: x.append(bytes(1) * 2**20)"
    argv = (*around, sys.executable, "-I", "-S", "-c", greedy)
    ended, _ = await run(spawner, Execution(argv, "/", ENV, 30, memory_mb=150))
    assert ended.cause is ExitCause.MEMORY
    assert ended.exit_code != 0


@pytest.mark.fault("F-23")
async def test_memory_shared_after_a_fork_counts_once(spawner: Spawner) -> None:
    forks = (
        "import os; x = b'x' * (60 * 2**20); r, w = os.pipe()\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        os.close(w); os.read(r, 1); os._exit(0)\n"
        "import time; time.sleep(0.5)"
    )
    argv = (sys.executable, "-I", "-S", "-c", forks)
    ended, _ = await run(spawner, Execution(argv, "/", ENV, 30, memory_mb=150))
    assert (ended.cause, ended.exit_code) == (ExitCause.EXITED, 0)


async def test_twenty_commands_run_side_by_side(spawner: Spawner, tmp_path: Path) -> None:
    """Each waits for the last: they can only end if all twenty run at once."""
    texts = {}
    with fifo(tmp_path / "here") as here:

        async def one(name: str) -> None:
            script = 'echo > "$0/here"; read line < "$0/go-$1"; echo "$1 $line"'
            _, texts[name] = await run(spawner, sh(script, str(tmp_path), name), name)

        async with anyio.create_task_group() as group:
            names = [str(number) for number in range(20)]
            for name in names:
                os.mkfifo(tmp_path / f"go-{name}")
                group.start_soon(one, name)
            arrived = 0
            while arrived < 20:
                arrived += len(await heard(here))
            for name in names:
                await anyio.to_thread.run_sync((tmp_path / f"go-{name}").write_text, "went\n")
    assert texts == {name: f"{name} went\n" for name in names}


@pytest.fixture
def load() -> Iterator[None]:
    """Twice as many busy processes as this machine, or any it was built for, has to spare."""
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(4)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.fault("F-20")
@pytest.mark.promise("STOP-06")
async def test_every_promise_holds_for_twenty_at_once_on_a_busy_machine(
    spawner: Spawner, tmp_path: Path, load: None
) -> None:
    ledger, ends, texts = tmp_path / "ledger", {}, {}

    async def one(number: int) -> None:
        name, token = f"call{number}", secrets.token_hex(8)
        nasty = Nasty(tmp_path, ())
        count = 'echo "$0" >> "$1"; echo "$0 out"; '
        match number % 4:
            case 0:  # ends by itself, and leaves somebody
                script = count + "setsid sleep 1000 & exit 7"
                process = await spawner.start(name, sh(script, name, str(ledger), token))
            case 1:  # is killed at once, started or not
                script = count + "sleep 1000 | cat"
                process = await spawner.start(name, sh(script, name, str(ledger), token))
                await process.kill()
            case 2:  # runs out of time
                script = count + "sleep 1000 | cat"
                order = sh(script, name, str(ledger), token, timeout_s=0.5)
                process = await spawner.start(name, order)
            case _:  # does not want to die
                token = nasty.token
                with fifo(nasty.fifo) as ready:
                    process = await spawner.start(name, nasty.execution)
                    await heard(ready)
                    await process.kill()
        ends[number], texts[number] = await process.wait(), tail(process.spool, 100).decode()
        assert not carriers(token)
        assert process.end == ends[number] == spawner.adopt(name)
        with pytest.raises(AlreadyClaimed):
            await spawner.start(name, sh("true"))

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(one, number)
    causes = (ExitCause.EXITED, ExitCause.KILLED, ExitCause.TIMEOUT, ExitCause.KILLED)
    assert {n: ended.cause for n, ended in ends.items()} == {n: causes[n % 4] for n in range(20)}
    assert {ended.survivors for ended in ends.values()} == {()}
    assert [ends[n].exit_code for n in range(0, 20, 4)] == [7] * 5
    assert [texts[n] for n in range(0, 20, 4)] == [f"call{n} out\n" for n in range(0, 20, 4)]
    ran = ledger.read_text().split()
    assert len(ran) == len(set(ran))
    assert await spawner.kill_all() == {}


async def test_input_can_be_written_and_closed(spawner: Spawner) -> None:
    process = await spawner.start("call", Execution(("/bin/cat",), "/", ENV, 30, stdin=True))
    long = b"a line of many\n" * 20_000  # more than a pipe holds
    await process.write(long)
    await process.close_stdin()
    assert (await process.wait()).exit_code == 0
    assert tail(process.spool, len(long) + 1) == long
    with pytest.raises(ToolFailed):
        await process.write(b"late")


async def test_without_input_a_command_reads_nothing(spawner: Spawner) -> None:
    ended, text = await run(spawner, sh("cat; echo end"))
    assert (ended.exit_code, text) == (0, "end\n")


@pytest.mark.parametrize("around", [PLAIN, CONFINED])
async def test_a_command_can_have_a_pseudo_terminal(
    spawner: Spawner, around: tuple[str, ...]
) -> None:
    script = "test -t 0 && test -t 1 && stty size; read line; echo got $line; cat; echo end"
    process = await spawner.start("call", sh(script, around=around, pty=True))
    await process.write(b"hello\n")
    await process.close_stdin()
    assert (await process.wait()).exit_code == 0
    lines = tail(process.spool, 1000).decode().split("\r\n")
    assert lines[0] == "24 80" or lines[1] == "24 80"  # the echo of what was typed may be first
    assert "got hello" in lines
    assert lines[-2:] == ["end", ""]


async def test_a_terminal_is_hung_up_on_when_stopped(spawner: Spawner) -> None:
    script = "trap '' TERM; trap 'echo hung up; exit 1' HUP; while :; do sleep 0.05; done"
    process = await spawner.start("call", sh(script, pty=True))
    await process.write(b"x")
    ended = await process.kill()
    assert ended.cause is ExitCause.KILLED
    assert ended.duration_s < 2


@pytest.mark.promise("STOP-06")
async def test_a_lock_of_the_gateway_dies_with_it_though_a_command_lives_on(
    spawner: Spawner, tmp_path: Path
) -> None:
    async with keeper(tmp_path) as it:
        await it.start("call", sh("sleep 1000", detach=True))
        await it.kill()
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    running = spawner.adopt("call")
    assert isinstance(running, SpawnedProcess)
    await running.kill()


async def test_an_id_never_becomes_a_path(spawner: Spawner, tmp_path: Path) -> None:
    for call_id in ("../../escape", "/etc/passwd", "", "nul\0", "x" * 5000):
        ended, _ = await run(spawner, sh("true"), call_id)
        assert spawner.adopt(call_id) == ended
    assert set(os.listdir(tmp_path)) == {"calls", "calls.pyc"}


async def test_a_folder_without_a_claim_is_cleared_away(spawner: Spawner, tmp_path: Path) -> None:
    (tmp_path / "calls" / "half").mkdir(parents=True)
    assert await spawner.sweep() == []
    assert list((tmp_path / "calls").iterdir()) == []


def resident_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4
