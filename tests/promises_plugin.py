"""Which test proves what, and what became of it.

A test says so with `@pytest.mark.promise("RUN-01")` or `@pytest.mark.fault("F-01")`; an
id that no sheet in docs/ has is an error. `--promises-json=PATH` records every test with
its ids and its outcome for scripts/promises.py. A test that needs a Debian package says
`@pytest.mark.debian("strace")` and is skipped, with the package's name, where it is not
there; `"bwrap"` stands for a sandbox at L2, with whichever bubblewrap. `--strict-skips` makes every skip a failure that tests/allowed_skips.txt does not
name with its reason. All of it works under xdist: ids travel with the reports.
"""

import json
import shutil
from pathlib import Path

import pytest

from scripts.promises import SHEETS, read_sheets
from tests import bwrap

_IDS = "ids"
_NEEDS = "needs the Debian package"
_PROGRAMS = {"bubblewrap": "bwrap"}  # where the name of the package is another
_ALLOWED = Path(__file__).parent / "allowed_skips.txt"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast")
    group.addoption("--promises-json", metavar="PATH", help="record ids and outcomes there")
    group.addoption("--strict-skips", action="store_true", help="fail on skips not allowed")
    group.addoption(
        "--package-skips",
        type=int,
        default=0,
        metavar="N",
        help="with --strict-skips: allow N more, each for a Debian package that is not there",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "debian(package): skip where the package's program is not")
    if not hasattr(config, "workerinput"):  # reports of all workers arrive here
        config.pluginmanager.register(Recorder(config), "holdfast-recorder")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = read_sheets(SHEETS)
    unknown = []
    for item in items:
        marks = [m for name in ("promise", "fault") for m in item.iter_markers(name)]
        ids = sorted({str(i) for mark in marks for i in mark.args})
        unknown += [f"{item.nodeid}: {i}" for i in ids if i not in known]
        item.user_properties.append((_IDS, ids))
    if unknown:
        raise pytest.UsageError("ids that docs/ does not know: " + ", ".join(unknown))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("debian"):
        for package in mark.args:
            if package == "bwrap":
                if why := bwrap.missing():
                    pytest.skip(f"{_NEEDS} bubblewrap, or L2 without it: {why}")
            elif shutil.which(_PROGRAMS.get(package, package)) is None:
                pytest.skip(f"{_NEEDS} {package}")


def allowed_skips(text: str) -> dict[str, str]:
    """Test id → reason. A line without a reason allows nothing."""
    lines = (line.partition("  ") for line in text.splitlines() if not line.startswith("#"))
    return {test.strip(): why.strip() for test, _, why in lines if why.strip()}


class Recorder:
    """Outcome of every test: passed only if its set-up and tear-down passed too."""

    def __init__(self, config: pytest.Config) -> None:
        self._path: str | None = config.getoption("--promises-json")
        self._strict: bool = config.getoption("--strict-skips")
        self._packages: int = config.getoption("--package-skips")
        self._tests: dict[str, dict[str, object]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        entry = self._tests.setdefault(report.nodeid, {"id": report.nodeid, "outcome": "passed"})
        entry["ids"] = dict(report.user_properties).get(_IDS, [])
        if report.failed:
            entry["outcome"] = "failed"
        elif report.skipped and entry["outcome"] == "passed":
            entry["outcome"] = "skipped"
            where = report.longrepr
            entry["reason"] = where[2] if isinstance(where, tuple) else "expected to fail"

    def _not_allowed(self) -> list[str]:
        if not self._strict:
            return []
        allowed = allowed_skips(_ALLOWED.read_text()) if _ALLOWED.exists() else {}
        skipped = {
            test: str(entry["reason"])
            for test, entry in self._tests.items()
            if entry["outcome"] == "skipped" and not {test, test.partition("[")[0]} & allowed.keys()
        }
        lacking = [test for test, reason in skipped.items() if _NEEDS in reason]
        if len(lacking) <= self._packages:
            for test in lacking:
                del skipped[test]
        return [f"{test}: {reason}" for test, reason in skipped.items()]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._not_allowed() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._path is not None:
            path = Path(self._path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"tests": list(self._tests.values())}, indent=1))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._not_allowed():
            terminalreporter.write_line(f"SKIP NOT ALLOWED {line}", red=True)
