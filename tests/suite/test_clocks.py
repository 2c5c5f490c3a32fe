"""No test waits by sleeping, and only the composition root owns a clock.

Both are read off the syntax tree, so that they hold for code no test runs.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SLEEPS = {"time.sleep", "anyio.sleep", "asyncio.sleep", "trio.sleep", "anyio.sleep_until"}
CLOCKS = {
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.clock_gettime",
    "time.clock_gettime_ns",
    "time.sleep",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
}

# Who may read a clock, and why: these are outside, where clocks are taken from.
OWNERS = {
    "holdfast/app/": "the composition root: makes the clocks that everybody else is given",
    "holdfast/host/machine.py": "the real clock itself",
    "holdfast/config/process.py": "read once at start",
    "holdfast/cli/": "a client: how long to wait for the other side is its own business",
}
# Single uses elsewhere that no one waits by, and why.
EXCUSED = {
    "holdfast/journal/sqlite/journal.py time.monotonic": "how old the last look at the disk's free space is",
    "holdfast/tools/fs/tree.py time.monotonic": "bounds a walk in a worker thread; no one waits by it",
    "holdfast/tools/fs/tree.py time.time_ns": "is compared with the times that files have",
    "holdfast/tools/snapshot/scan.py time.time_ns": "the same",
    "holdfast/tools/snapshot/workspace.py time.time_ns": "the same",
}


def names(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Every dotted name that is used, as its full path, whatever it was imported as."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {a.asname or a.name: a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            first, dot, rest = ast.unparse(node).partition(".")
            yield imported.get(first, first) + dot + rest, node


def sleeps(source: str) -> list[int]:
    """Lines that sleep for longer than no time at all and do not say why."""
    lines = source.splitlines()
    tree = ast.parse(source)
    known = {node: name for name, node in names(tree)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and known.get(node.func) in SLEEPS
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
        and "# sleep: " not in "".join(lines[node.lineno - 1 : node.end_lineno])
    ]


def clocks(source: str) -> list[tuple[int, str]]:
    """Every reading of a clock that was not handed in. To name one as a default is to hand it in."""
    tree = ast.parse(source)
    known = {node: name for name, node in names(tree)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [(c.lineno, known[c.func]) for c in calls if known.get(c.func) in CLOCKS]


@pytest.mark.promise("SUITE-02")
def test_no_test_sleeps_to_wait_for_something() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in sleeps(path.read_text())
    ]
    assert not found, "wait for the event, or say why not with `# sleep: …`"


@pytest.mark.promise("SUITE-02")
@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1)",
        "import time as t\nt.sleep(0.01)",
        "from anyio import sleep\nasync def f():\n    await sleep(1)",
        "import asyncio\nasync def f(n):\n    await asyncio.sleep(n)",
    ],
)
def test_a_sleep_is_found(source: str) -> None:
    assert sleeps(source)


@pytest.mark.promise("SUITE-02")
def test_a_sleep_that_says_why_and_a_bare_checkpoint_are_let_pass() -> None:
    assert not sleeps("import time\ntime.sleep(1)  # sleep: the peer has no event to wait for")
    assert not sleeps("import anyio\nasync def f():\n    await anyio.sleep(0)")


@pytest.mark.promise("SUITE-04")
def test_only_the_outside_owns_a_clock() -> None:
    found = [
        f"{place}:{line} {name}"
        for path in sorted((ROOT / "holdfast").rglob("*.py"))
        for place in [path.relative_to(ROOT).as_posix()]
        if not place.startswith(tuple(OWNERS))
        for line, name in clocks(path.read_text())
        if f"{place} {name}" not in EXCUSED
    ]
    assert not found, "take a clock from outside"


@pytest.mark.promise("SUITE-04")
@pytest.mark.parametrize(
    "source",
    [
        "import time\ndeadline = time.monotonic() + 5",
        "from time import time as now\nlater = now() + 5",
        "from datetime import UTC, datetime\ndatetime.now(UTC)",
        "import datetime as d\nd.datetime.now()",
    ],
)
def test_a_module_with_its_own_clock_is_found(source: str) -> None:
    assert clocks(source)
