"""Every test in the inventory exists, or tests/removed.txt says why not."""

from pathlib import Path

import pytest

from scripts.inventory import INVENTORY, REMOVED, ROOT, existing, listed, removed

pytestmark = pytest.mark.promise("SUITE-03")


def test_every_listed_test_exists_or_was_removed_for_a_reason() -> None:
    assert not listed(INVENTORY) - existing(ROOT) - removed(REMOVED)


def test_functions_methods_coroutines_and_machines_are_listed_and_nothing_else(
    tmp_path: Path,
) -> None:
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    (tmp_path / "tests" / "deep" / "test_it.py").write_text(
        "def test_one(): ...\nasync def test_two(): ...\ndef helper(): ...\n"
        "class TestThree:\n    def test_four(self): ...\nTestFive = Machine.TestCase\n"
    )
    names = {"test_one", "test_two", "TestThree::test_four", "TestFive"}
    assert existing(tmp_path) == {f"tests/deep/test_it.py::{name}" for name in names}


def test_a_removal_without_a_reason_does_not_count(tmp_path: Path) -> None:
    ledger = tmp_path / "removed.txt"
    ledger.write_text("# why\ntests/a.py::test_a  the route is gone\ntests/a.py::test_b\n")
    assert removed(ledger) == {"tests/a.py::test_a"}
