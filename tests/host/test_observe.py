"""The log holds nobody up: not even where nobody reads it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LINES = 20_000

# Says more than any pipe holds, then that it has come this far; then waits to be read.
TALKER = f"""
import sys
from holdfast.host import observe
observe.setup("info")
for n in range({LINES}):
    observe.log.info("line", extra={{"n": n, "text": "x" * 200}})
observe.flush(0.01)
print("done", flush=True)
sys.stdin.readline()
observe.flush(20.0)
observe.log.warning("last \\udce9 words")
observe.flush(20.0)
"""


@pytest.mark.timeout(60)
def test_an_unread_log_blocks_nothing_and_counts_dropped_lines() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TALKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as talker:
        assert talker.stdout is not None
        try:
            assert talker.stdout.readline() == "done\n"  # with nobody at stderr
            _, said = talker.communicate("\n")
        finally:
            talker.kill()
    assert talker.returncode == 0
    lines = [json.loads(line) for line in said.splitlines()]
    kept = [line["n"] for line in lines if line["message"] == "line"]
    assert kept == sorted(kept) and kept[:100] == list(range(100))
    assert lines[-1]["message"].startswith("last")
    dropped = [line["dropped"] for line in lines if "dropped" in line]
    assert len(kept) < LINES and len(kept) + sum(dropped) == LINES


REPEATING = """
import logging
from holdfast.host import observe
observe.setup("info")
for n in range(1000):
    logging.getLogger("asyncio").error("out of system resource")
    observe.log.info("ours")
logging.getLogger("asyncio").error("something else")
"""


@pytest.mark.fault("F-29")
def test_a_library_that_repeats_itself_is_logged_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REPEATING], capture_output=True, text=True, check=True, timeout=30
    )
    said = [json.loads(line)["message"] for line in done.stderr.splitlines()]
    assert [m for m in said if m != "ours"] == ["out of system resource", "something else"]
    assert said.count("ours") == 1000


def test_the_last_lines_are_written_at_an_ordinary_exit() -> None:
    words = 'from holdfast.host import observe; observe.setup("info"); observe.log.info("bye")'
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=30
    )
    assert json.loads(done.stderr)["message"] == "bye"


def test_without_a_stderr_the_log_goes_nowhere_and_never_into_what_got_its_number(
    tmp_path: Path,
) -> None:
    words = (
        "from holdfast.host import observe; observe.setup('info'); import os; "
        f"file = open({str(tmp_path / 'file')!r}, 'w'); assert file.fileno() == 2; "
        "observe.log.info('bye'); observe.flush(5.0); print('well')"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout == "well\n"
    assert (tmp_path / "file").read_text() == ""
