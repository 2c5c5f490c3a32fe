"""The table of promises is correct: it fails where it should."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts.promises import SHEETS, read_sheets, table, tally, verdict
from scripts.registry_hosts import offences
from tests.promises_plugin import allowed_skips

ROOT = Path(__file__).parents[2]


def test_the_sheets_hold_every_promise_and_the_forty_faults() -> None:
    """New ids may come; of those that were given none goes."""
    ids = Counter(promise.partition("-")[0] for promise in read_sheets(SHEETS))
    given = {"RUN": 25, "STOP": 15, "BACK": 12, "LATE": 9, "HALT": 9, "SUITE": 4, "F": 40}
    assert ids >= Counter(given)


@pytest.mark.parametrize(
    ("state", "outcomes", "good"),
    [
        ("kept", ["passed"], True),
        ("kept", ["passed", "skipped"], True),
        ("kept", ["skipped"], False),
        ("kept", [], False),
        ("kept", ["passed", "failed"], False),
        ("owed", [], True),
        ("owed", ["passed"], True),
        ("owed", ["failed"], False),
    ],
)
def test_kept_means_shown_by_a_passing_test(state: str, outcomes: list[str], good: bool) -> None:
    word = verdict(state, Counter(outcomes), strict=True)
    assert word.startswith("!") is not good


def test_a_skipped_test_shows_nothing_but_fails_only_where_all_must_run() -> None:
    assert verdict("kept", Counter(["skipped"]), strict=False) == "not shown here: skipped"


def test_an_unknown_id_fails_the_table() -> None:
    lines, good = table({}, tally([{"ids": ["RUN-99"], "outcome": "passed"}]), strict=False)
    assert not good
    assert any("RUN-99" in line and "unknown" in line for line in lines)


def test_an_allowed_skip_needs_a_reason() -> None:
    assert allowed_skips("# c\na.py::x  no kernel support\nb.py::y\n") == {
        "a.py::x": "no kernel support"
    }


def run_pytest(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_marked.py").write_text(source)
    plugins = ["-p", "tests.promises_plugin", "-p", "no:cacheprovider"]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *plugins,
            f"--basetemp={folder / 'tmp'}",
            *options,
            "test_marked.py",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )


MARKED = """
import pytest
@pytest.fixture
def falls(): yield; pytest.fail("in tear-down")
@pytest.mark.promise("RUN-01", "RUN-02")
def test_good(): pass
@pytest.mark.promise("RUN-03")
def test_bad(falls): pass
@pytest.mark.fault("F-01")
@pytest.mark.debian("no-such-package")
def test_skipped(): pass
"""


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "1"]])
def test_outcomes_are_recorded_with_their_ids_also_by_workers(
    tmp_path: Path, workers: list[str]
) -> None:
    run_pytest(tmp_path, MARKED, "--promises-json=out/results.json", *workers)
    tests = json.loads((tmp_path / "out" / "results.json").read_text())["tests"]
    found = {t["id"].partition("::")[2]: (t["ids"], t["outcome"]) for t in tests}
    assert found == {
        "test_good": (["RUN-01", "RUN-02"], "passed"),
        "test_bad": (["RUN-03"], "failed"),
        "test_skipped": (["F-01"], "skipped"),
    }


def test_a_skip_names_the_package_and_fails_where_skips_are_not_allowed(tmp_path: Path) -> None:
    source = "import pytest\n@pytest.mark.debian('no-such-package')\ndef test_it(): pass\n"
    lenient = run_pytest(tmp_path, source, "-rs")
    assert lenient.returncode == 0
    assert "needs the Debian package no-such-package" in lenient.stdout
    assert run_pytest(tmp_path, source, "--strict-skips").returncode == 1
    assert run_pytest(tmp_path, source, "--strict-skips", "--package-skips=1").returncode == 0
    other = source.replace("debian('no-such-package')", "skip(reason='none')")
    assert run_pytest(tmp_path, other, "--strict-skips", "--package-skips=1").returncode == 1


def test_an_id_that_no_sheet_has_stops_the_run(tmp_path: Path) -> None:
    source = "import pytest\n@pytest.mark.promise('RUN-99')\ndef test_it(): pass\n"
    run = run_pytest(tmp_path, source)
    assert run.returncode == 4
    assert "RUN-99" in run.stderr


def test_a_lock_file_with_an_address_or_an_index_is_found(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("--index-url x\na==1 \\\n    --hash=sha256:00\nb @ https://mirror/b.whl\n")
    assert [line.split(":")[1] for line in offences(lock)] == ["1", "4"]
