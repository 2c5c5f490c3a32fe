"""The leak fence: no test leaves anything behind (SUITE-01).

Around every test it looks at the process: threads, file descriptors, child processes,
environment, working directory, signal and atexit handlers, well-known globals. What
was not there before and is there after is a leak, and the test an error. TMPDIR is a
directory that only the tests of this process see; no test leaves a file there. Async
tests are also looked at from inside their loop, after their fixtures have ended and
before the loop does.

The fence is set up first and torn down last among a test's own fixtures; what wider
fixtures made stands before it and is not the test's. What it finds it clears away as
far as it can, so that the next test is not accused of it.
"""

import asyncio
import atexit
import builtins
import datetime
import gc
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# A cancelled task, or the idle worker of a loop that has closed, ends a moment later.
GRACE_S = 1.0

_HAS_PROC = Path("/proc/self/fd").is_dir()
_GLOBALS = (
    (asyncio, "sleep"),
    (builtins, "open"),
    (datetime, "datetime"),
    (os, "environ"),
    (os, "kill"),
    (random, "random"),
    (socket, "getaddrinfo"),
    (socket, "socket"),
    (subprocess, "Popen"),
    (tempfile, "tempdir"),
    (time, "monotonic"),
    (time, "sleep"),
    (time, "time"),
)
_OURS = frozenset({"PYTEST_CURRENT_TEST"})  # pytest itself rewrites it in every phase
_SIGNALS = signal.valid_signals() - {signal.SIGALRM}  # the hard time limit's, gone after a failure


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a test may not change for good."""

    threads: frozenset[threading.Thread]
    fds: Mapping[str, str]
    children: frozenset[int]
    environ: Mapping[str, str]
    cwd: str
    signals: Mapping[int, Any]
    globals: tuple[object, ...]
    exits: int
    temp: frozenset[str]


def look() -> Surroundings:
    """The process as it is now."""
    return Surroundings(
        threads=frozenset(threading.enumerate()),
        fds=_open_fds(),
        children=_children(),
        environ={k: v for k, v in os.environ.items() if k not in _OURS},
        cwd=os.getcwd(),
        signals={number: signal.getsignal(number) for number in _SIGNALS},
        globals=tuple(getattr(module, name) for module, name in _GLOBALS),
        exits=atexit._ncallbacks(),  # noqa: SLF001 — there is no public count
        temp=frozenset(os.listdir(tempfile.gettempdir())),
    )


def leaks(before: Surroundings) -> list[str]:
    """One line for each thing left since `before`, which is cleared away if it can be."""
    _join(before)
    after = look()
    if after.fds.items() - before.fds.items():
        gc.collect()  # a dropped file closes when it is collected; when that is, is chance
        after = look()
    patched = _patched(before, after)  # first: the rest relies on what it restores
    return [
        *patched,
        *(f"thread {t.name}" for t in after.threads - before.threads),
        *(f"file descriptor {fd} → {to}" for fd, to in _new_fds(before, after)),
        *(f"child process {pid}: {_end(pid)}" for pid in after.children - before.children),
        *_environ(before, after),
        *_cwd(before, after),
        *_signals(before, after),
        *(["atexit handler"] if after.exits > before.exits else []),
        *_temp(before, after),
    ]


def _open_fds() -> dict[str, str]:
    if not _HAS_PROC:
        return {}
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the one that listed the directory
            continue
    return found


def _new_fds(before: Surroundings, after: Surroundings) -> list[tuple[str, str]]:
    new = after.fds.items() - before.fds.items()
    return sorted((fd, to) for fd, to in new if to != "/dev/urandom")  # the interpreter keeps it


def _children() -> frozenset[int]:
    if not _HAS_PROC:
        return frozenset()
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as listing:
                found.update(map(int, listing.read().split()))
        except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            continue
    return frozenset(found)


def _join(before: Surroundings) -> None:
    deadline = time.monotonic() + GRACE_S
    for thread in threading.enumerate():
        if thread not in before.threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _end(pid: int) -> str:
    name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return name.strip() or "ended, but nobody waited for it"


def _environ(before: Surroundings, after: Surroundings) -> list[str]:
    changed = sorted({k for k, _ in before.environ.items() ^ after.environ.items()})
    for name in changed:
        if name in before.environ:
            os.environ[name] = before.environ[name]
        else:
            del os.environ[name]
    return [f"environment variable {name}" for name in changed]


def _cwd(before: Surroundings, after: Surroundings) -> list[str]:
    if after.cwd == before.cwd:
        return []
    os.chdir(before.cwd)
    return [f"working directory {after.cwd}"]


def _signals(before: Surroundings, after: Surroundings) -> list[str]:
    changed = [n for n, handler in after.signals.items() if handler != before.signals[n]]
    for number in changed:
        signal.signal(number, before.signals[number])
    return [f"handler of {signal.Signals(number).name}" for number in changed]


def _temp(before: Surroundings, after: Surroundings) -> list[str]:
    left = sorted(after.temp - before.temp)
    for path in (Path(tempfile.gettempdir(), name) for name in left):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return [f"temporary file {name}" for name in left]


def _patched(before: Surroundings, after: Surroundings) -> list[str]:
    found = []
    for (module, name), was, now in zip(_GLOBALS, before.globals, after.globals, strict=True):
        if now is not was:
            setattr(module, name, was)
            found.append(f"patched {module.__name__}.{name}")
    return found


@pytest.fixture(scope="session", autouse=True)
def temp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The TMPDIR of this process's tests. Its path is short: sockets are made below it."""
    weakref.finalize(tmp_path_factory, int).detach()  # the first one registers with atexit
    folder = tmp_path_factory.getbasetemp() / "t"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def fence(temp: Path) -> Iterator[None]:
    """Fail the test that leaves something behind."""
    before = look()
    yield
    if found := leaks(before):
        pytest.fail("this test left behind: " + "; ".join(found), pytrace=False)


@pytest.fixture
async def task_fence(fence: None) -> AsyncIterator[None]:
    """Fail the async test that leaves a task running when its fixtures have ended."""
    before = _tasks()
    yield
    if left := _tasks() - before:
        _, left = await asyncio.wait(left, timeout=GRACE_S)
    if left:
        names = "; ".join(f"task {task.get_name()}: {task.get_coro()!r}" for task in left)
        pytest.fail(f"this test left behind: {names}", pytrace=False)


def _tasks() -> set[asyncio.Task[Any]]:
    plugin = "TestRunner._call_in_runner_task"  # anyio's own, a new one for every fixture
    return {t for t in asyncio.all_tasks() if plugin not in repr(t.get_coro())}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test that has a loop the fence inside it, next to the outer one."""
    for item in items:
        names = getattr(item, "fixturenames", [])
        if "anyio_backend" in names and "task_fence" not in names:
            names.insert(names.index("fence") + 1, "task_fence")
