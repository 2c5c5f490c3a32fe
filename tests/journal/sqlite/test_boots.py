"""What a start finds out about the journal's file."""

import shutil
from pathlib import Path

import pytest

from holdfast.journal.sqlite.boots import file_number


@pytest.mark.promise("TIME-03")
def test_a_copy_has_another_number_than_the_file_it_was_made_from(tmp_path: Path) -> None:
    first, second = tmp_path / "journal.db", tmp_path / "copy.db"
    first.write_bytes(b"x")
    shutil.copy2(first, second)
    assert file_number(first) == first.stat().st_ino != file_number(second)


@pytest.mark.promise("TIME-03")
def test_inode_numbers_are_ignored_on_file_systems_that_change_them() -> None:
    assert file_number(Path("/proc/self/status")) == 0
