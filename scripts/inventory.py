"""The inventory of tests: none is removed but with the behaviour it proves (SUITE-03).

tests/inventory.txt lists every test function. One that is listed and gone must stand in
tests/removed.txt with its reason; `--write` (make inventory) adds the new ones, and drops
only those that do.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
INVENTORY = ROOT / "tests" / "inventory.txt"
REMOVED = ROOT / "tests" / "removed.txt"


def existing(root: Path) -> set[str]:
    """Every test function below `root`/tests, as file::[Class::]name."""
    return {
        f"{path.relative_to(root).as_posix()}::{name}"
        for path in (root / "tests").rglob("*.py")
        for name in _tests(ast.parse(path.read_text()))
    }


def _tests(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    for child in node.body:
        match child:
            case ast.ClassDef():
                yield from (f"{child.name}::{name}" for name in _tests(child))
            case ast.FunctionDef() | ast.AsyncFunctionDef() if child.name.startswith("test"):
                yield child.name
            case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("Test"):
                yield name  # a state machine of Hypothesis as a test case
            case _:
                pass


def listed(path: Path) -> set[str]:
    """The tests an inventory names."""
    return set(path.read_text().split()) if path.exists() else set()


def removed(path: Path) -> set[str]:
    """The tests a ledger gives a reason for: id, two spaces, why."""
    lines = path.read_text().splitlines() if path.exists() else []
    parts = (line.partition("  ") for line in lines if not line.startswith("#"))
    return {test for test, _, why in parts if why.strip()}


def main() -> int:
    parser = argparse.ArgumentParser(description="check the inventory of tests")
    parser.add_argument("--write", action="store_true", help="bring it up to date")
    arguments = parser.parse_args()
    now, before, explained = existing(ROOT), listed(INVENTORY), removed(REMOVED)
    if gone := sorted(before - now - explained):
        print("removed without a reason in tests/removed.txt:", *gone, sep="\n  ")
        return 1
    if arguments.write:
        INVENTORY.write_text("".join(f"{test}\n" for test in sorted(now)))
    elif new := sorted(now - before):
        print(f"{len(new)} tests are not in the inventory (make inventory), first {new[0]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
