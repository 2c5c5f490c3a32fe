"""A test that hangs fails, and the suite goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HANGING = """
import anyio, pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
async def process():
    async with await anyio.open_process(["cat"]) as it:
        yield it

async def test_hangs(process):
    await process.wait()

async def test_comes_after_it(process):
    await process.stdin.send(b"x")
"""


@pytest.mark.promise("SUITE-01")
def test_an_async_test_that_hangs_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    plugins = ("tests.limits", "anyio", "pytest_timeout", "no:cacheprovider")
    options = [word for name in plugins for word in ("-p", name)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--anyio-mode=auto", "--timeout=5"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert "1 failed, 1 passed" in run.stdout, run.stdout
    assert "await process.wait()" in run.stdout, "it shows where it waited"
