"""Commands when descriptors, background slots or disk space run out."""

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from holdfast.core.approval.approval import Level
from holdfast.core.redaction import Redactor
from holdfast.core.run.process import ProcessEnd
from holdfast.core.types import Owner, SessionId, SessionKey
from holdfast.errors import ToolFailed
from holdfast.tools.exec import commands
from holdfast.tools.sandbox import proxy
from holdfast.tools.sandbox.sandbox import Sandbox, Unprobed
from holdfast.tools.terminal_arguments import TerminalArguments
from tests.behaviour.hands import until
from tests.fakes.clock import ManualClock
from tests.tools.exec.test_commands import desk, fifo
from tests.tools.sandbox.test_sandbox import SYSTEM, Place, probe

pytestmark = pytest.mark.anyio


@contextmanager
def no_descriptors() -> Iterator[None]:
    """What is open stays open, and nothing more can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Descriptors


@pytest.mark.fault("F-29")
async def test_an_unreadable_end_is_reported_correctly_once_it_can_be_read(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with desk(tmp_path, clock=clock) as it:
        with fifo(it.workspace / "go") as go:
            found = await it.begin("read words < go; echo $words; exit 7")
            with no_descriptors(), anyio.fail_after(20):
                os.write(go, b"last words\n")
                await clock.due_within(commands.AGAIN_S)
        clock.advance(commands.AGAIN_S)
        with anyio.fail_after(20):
            ended = await it.hands.ended(found)
        assert (ended.cause, ended.exit_code, ended.tail) == (ProcessEnd.EXITED, 7, "last words\n")


@pytest.mark.fault("F-29")
async def test_a_killed_shim_is_settled_once_descriptors_are_free(tmp_path: Path) -> None:
    clock = ManualClock()
    async with desk(tmp_path, clock=clock) as it:
        found = await it.begin("echo pid $$; exec sleep 1000")
        await until(lambda: it.hands.output(found).size)
        text, _ = await it.hands.lines(found, 0, ("pid",))
        pid = int(text.split()[1])
        _, shim = _stat(pid)
        with no_descriptors():
            os.kill(shim, 9)
            with anyio.fail_after(20):
                await clock.due_within(commands.AGAIN_S)
        clock.advance(commands.AGAIN_S)
        with anyio.fail_after(20):
            assert (await it.hands.ended(found)).cause is ProcessEnd.LOST
        assert _stat(pid)[0] in ("", "Z")


def _stat(pid: int) -> tuple[str, int]:
    """State and parent of a process; nothing if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[1])


@pytest.mark.fault("F-29")
async def test_output_that_cannot_be_read_now_is_still_unread_afterwards(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("echo one; sleep 1000")
        await it.hands.lines(found, 0, ("one",))
        held = it.hands.output(found)
        size = held.size
        with no_descriptors():
            assert it.hands.unread(found, 1000, over=False) == ("", 0)
            assert held.size == size
            assert held.news(size, 1000, over=False) == ("", 0, size)
        assert it.hands.unread(found, 1000, over=False) == ("one\n", 0)


@pytest.mark.fault("F-29")
async def test_lines_are_still_found_after_looks_that_failed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with desk(tmp_path, clock=clock) as it:
        found = await it.begin("echo ready; sleep 1000")
        told: list[str] = []

        async def watch() -> None:
            told.append((await it.hands.lines(found, 0, ("ready",)))[0])

        async with anyio.create_task_group() as group:
            with no_descriptors():
                group.start_soon(watch)
                await clock.due_within(commands.LOOK_S)
            await until(lambda: it.hands.output(found).size)
            clock.advance(commands.LOOK_S)
        assert told == ["ready"]


async def test_a_command_that_floods_its_proxy_holds_no_more_than_its_connections(
    tmp_path: Path,
) -> None:
    async def ask(host: str, port: int) -> bool:
        return False

    with ExitStack() as ours, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(2 * proxy.CONNECTIONS)
        async with proxy.serve((), ask) as door:
            before = len(os.listdir("/proc/self/fd")) + 1  # for the listener, as they have it
            with socket.socket(fileno=os.dup(door)) as to:
                socket.send_fds(to, [b"."], [listener.fileno()])
            await _accepted(before)
            clients = [socket.socket() for _ in range(proxy.CONNECTIONS + 20)]
            for client in clients:
                ours.enter_context(client)
                client.connect(listener.getsockname())
            await _accepted(before + len(clients) + proxy.CONNECTIONS)
            clients[0].close()  # who leaves makes room for one who waits
            await _accepted(before + len(clients) - 1 + proxy.CONNECTIONS)


async def _accepted(descriptors: int) -> None:
    await until(lambda: len(os.listdir("/proc/self/fd")) == descriptors)
    for _ in range(3):
        await anyio.wait_all_tasks_blocked()
    assert len(os.listdir("/proc/self/fd")) == descriptors


# Places in the background


@pytest.mark.parametrize("whose", ["one session's", "all sessions'"])
async def test_the_number_of_background_processes_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    assert (commands.IN_SESSION, commands.IN_ALL) == (16, 128)
    monkeypatch.setattr(commands, "IN_SESSION" if whose == "one session's" else "IN_ALL", 3)
    others = SessionKey(Owner("operator"), SessionId("two"))
    async with desk(tmp_path) as it:
        first, *_ = [await it.begin("sleep 1000", f"call {n}") for n in range(3)]
        with pytest.raises(ToolFailed, match="process tool"):
            await it.begin("touch started", "one more")
        assert not (it.workspace / "started").exists()
        assert len(it.hands.known()) == 3
        assert (await it.result("echo here", "in the foreground"))["output"] == "here\n"
        if whose == "one session's":
            context = replace(it.context("theirs"), session=others)
            await it.execute(context, TerminalArguments("sleep 1000", background=True))
        await it.hands.kill(first)
        await it.begin("touch started", "after that")


async def test_processes_that_start_at_the_same_time_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "IN_SESSION", 3)
    refused: list[str] = []

    async with desk(tmp_path) as it:

        async def begin(n: int) -> None:
            try:
                await it.begin("sleep 1000", f"call {n}")
            except ToolFailed as error:
                refused.append(str(error))

        async with anyio.create_task_group() as group:
            for n in range(6):
                group.start_soon(begin, n)
        assert len(it.hands.known()) == len(refused) == 3


# A probe that cannot be made


FULL = """
import sys
from pathlib import Path
import anyio
from holdfast.core.approval.approval import Level
from holdfast.tools.sandbox.sandbox import NOT_TESTED, Sandbox, Unprobed

root, what = Path(sys.argv[1]), sys.argv[2]
home, user = root / "home", root / "user"


async def main():
    home.mkdir()
    user.mkdir()
    level = (await Sandbox(home, user, allow_none=True).probe()).level
    sandbox = Sandbox(home, user, allow_none=True)
    fill = {"bytes": fill_bytes, "inodes": fill_inodes}[what]
    fill()
    for _ in range(2):
        try:
            posture = await sandbox.probe()
        except Unprobed as unknown:
            assert "No space left" in str(unknown), unknown
        else:
            print("claimed", posture)
            return
    assert sandbox.posture.note == NOT_TESTED, sandbox.posture
    assert not list(user.iterdir())
    for path in root.glob("fill*"):
        path.unlink()
    print((await sandbox.probe()).level is level)


def fill_bytes():
    with open(root / "fill", "wb", buffering=0) as file:
        for size in (65536, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


def fill_inodes():
    number = 0
    try:
        while True:
            (root / f"fill{number}").touch()
            number += 1
    except OSError:
        pass


anyio.run(main)
"""


@pytest.mark.fault("F-30")
@pytest.mark.debian("bwrap")
@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_on_a_full_disk_no_sandbox_level_is_reported(tmp_path: Path, what: str) -> None:
    mount = 'mount -t tmpfs -o size=2m,nr_inodes=200 none "$1" && exec "$2" -c "$3" "$1" "$4"'
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs user namespaces (unshare -Urm)")
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, FULL, what],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stdout + done.stderr


async def test_without_descriptors_no_sandbox_level_is_reported(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "home", tmp_path, allow_none=False, exec_path=SYSTEM)
    with no_descriptors(), pytest.raises(Unprobed, match="Too many open files"):
        await sandbox.probe()
    assert (await sandbox.probe()).level > Level.L0


async def test_a_command_before_the_sandbox_test_is_refused_with_a_message(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, "L1") as it:
        sandbox = Sandbox(tmp_path / "home", tmp_path / "user", allow_none=True)
        (tmp_path / "home" / "canary").write_text("in the way")
        found = commands.Commands(it.spawner, sandbox, Redactor([]), it.tasks, it.hands.clock)
        for _ in range(2):
            with pytest.raises(Unprobed):
                await found.posture()
        (tmp_path / "home" / "canary").unlink()
        assert (await found.posture()).level > Level.L0


# An interpreter behind links


@pytest.mark.debian("bwrap")
@pytest.mark.parametrize("linked", ["the environment", "the home"])
def test_an_interpreter_behind_links_does_not_lower_the_sandbox_level(
    tmp_path: Path, linked: str
) -> None:
    place = Place(tmp_path, [])
    real = (tmp_path / "elsewhere" if linked == "the environment" else place.user) / "venv"
    (real / "bin").mkdir(parents=True)
    base = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    (real / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    (real / "bin" / "python").symlink_to(base)
    if linked == "the environment":
        link = place.user / "venv"
        link.symlink_to(real)
    else:
        (tmp_path / "me").symlink_to(place.user)
        link = tmp_path / "me" / "venv"
    posture, made = probe(place, str(link / "bin" / "python"))
    assert (posture.level, made) == (Level.L2, "hi\n"), posture.note
