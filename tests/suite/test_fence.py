"""The leak fence works: each kind of leak, in a real test in a real pytest, is detected."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BARE = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
pytestmark = pytest.mark.promise("SUITE-01")

OFFENDERS = """
import asyncio, atexit, os, signal, subprocess, sys, tempfile, threading, time
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"

kept = []

def test_thread():
    threading.Thread(target=threading.Event().wait, daemon=True, name="left").start()

def test_fd():
    kept.append(os.open("/dev/null", os.O_RDONLY))

def test_pipe():
    kept.append(os.pipe())

def test_child():
    kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    kept.pop().stdin.close()

def test_environ_added():
    os.environ["LEFT"] = "1"

def test_environ_removed():
    del os.environ["HOME"]

def test_cwd():
    os.chdir("/")

def test_signal():
    signal.signal(signal.SIGUSR1, lambda *_: None)

def test_atexit():
    atexit.register(int)

def test_global():
    time.time = lambda: 0.0

def test_temp_file():
    tempfile.NamedTemporaryFile(delete=False).close()

async def test_task():
    kept.append(asyncio.get_running_loop().create_task(asyncio.Event().wait()))

@pytest.fixture
async def leaky():
    yield
    kept.append(asyncio.get_running_loop().create_task(asyncio.Event().wait()))

async def test_task_of_a_fixture(leaky):
    pass

@pytest.fixture(scope="module")
def wide():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process

def test_innocent_with_a_wide_fixture(wide, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("GONE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    with tempfile.TemporaryDirectory():
        pass

async def test_innocent_that_awaits(tmp_path):
    await asyncio.to_thread(os.getpid)
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(os.getpid))
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
"""

CAUGHT = {
    "test_thread": "thread left",
    "test_fd": "file descriptor",
    "test_pipe": "file descriptor",
    "test_child": "child process",
    "test_environ_added": "environment variable LEFT",
    "test_environ_removed": "environment variable HOME",
    "test_cwd": "working directory /",
    "test_signal": "handler of SIGUSR1",
    "test_atexit": "atexit handler",
    "test_global": "patched time.time",
    "test_temp_file": "temporary file",
    "test_task": "task ",
    "test_task_of_a_fixture": "task ",
}
INNOCENT = ("test_innocent_with_a_wide_fixture", "test_innocent_that_awaits")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Test → everything pytest says of it in its summary."""
    folder = tmp_path_factory.mktemp("offenders")
    (folder / "test_offenders.py").write_text(OFFENDERS)
    options = ["-p", "tests.fence", "-p", "anyio", "-p", "no:cacheprovider", "-rA"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--anyio-mode=auto", "test_offenders.py"],
        cwd=folder,
        env={**os.environ, **BARE, "COLUMNS": "500"},
        capture_output=True,
        text=True,
    )
    said: dict[str, str] = {}
    for line in run.stdout.partition("short test summary info")[2].splitlines():
        outcome, _, rest = line.partition(" test_offenders.py::")
        name, _, reason = rest.partition(" - ")
        said[name] = f"{said.get(name, '')}{outcome} {reason}\n"
    return said


@pytest.mark.parametrize("name", CAUGHT)
def test_a_test_that_leaves_something_behind_is_an_error(
    outcomes: dict[str, str], name: str
) -> None:
    assert "ERROR" in outcomes[name]
    assert CAUGHT[name] in outcomes[name]


def test_a_leak_is_not_blamed_on_another_test(outcomes: dict[str, str]) -> None:
    for name, kind in CAUGHT.items():
        left = outcomes[name].partition("left behind: ")[2]
        assert all(kind in part for part in left.split("; ")), outcomes[name]


@pytest.mark.parametrize("name", INNOCENT)
def test_a_test_that_clears_up_passes(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name].startswith("PASSED")
    assert "ERROR" not in outcomes[name]


def test_a_test_that_hangs_is_killed_by_the_timeout(tmp_path: Path) -> None:
    (tmp_path / "test_endless.py").write_text(
        "import threading\ndef test_endless(): threading.Event().wait()\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_timeout", "--timeout=0.2", "-q"],
        cwd=tmp_path,
        env={**os.environ, **BARE},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert "Timeout" in run.stdout


def test_every_test_has_a_hard_time_limit(request: pytest.FixtureRequest) -> None:
    assert 0 < float(request.config.getini("timeout")) <= 120
