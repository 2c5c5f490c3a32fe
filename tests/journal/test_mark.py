"""The mark says in its name how far the journal and the audit were."""

from pathlib import Path

import pytest

from holdfast.core.life.evidence import Mark
from holdfast.journal import mark
from holdfast.journal.audit import Audit, AuditEntry

pytestmark = pytest.mark.promise("TIME-03")


def names(home: Path) -> list[str]:
    return sorted(path.name for path in home.iterdir() if path.name.startswith(mark.PREFIX))


def test_a_home_without_a_mark_has_zeros(tmp_path: Path) -> None:
    (tmp_path / "journal.db").touch()
    (tmp_path / f"{mark.PREFIX}of-someone").touch()
    assert mark.read(tmp_path) == mark.read(tmp_path / "none") == Mark()


def test_it_goes_forward_and_there_is_one(tmp_path: Path) -> None:
    mark.advance(tmp_path, Mark(9, 2))
    mark.advance(tmp_path, Mark(10, 1))
    assert mark.read(tmp_path) == Mark(10, 2)
    mark.advance(tmp_path, Mark(3, 3))
    assert mark.read(tmp_path) == Mark(10, 3)
    assert len(names(tmp_path)) == 1


def test_the_highest_of_several_counts_until_one_replaces_them_all(tmp_path: Path) -> None:
    for each in (Mark(9, 7), Mark(100, 2)):
        mark.replace(tmp_path, each)
        kept = names(tmp_path)[0]
        (tmp_path / kept).rename(tmp_path.with_name(kept))
    for path in tmp_path.parent.glob(f"{mark.PREFIX}*"):
        path.rename(tmp_path / path.name)
    assert len(names(tmp_path)) == 2
    assert mark.read(tmp_path) == Mark(100, 7)
    mark.replace(tmp_path, Mark(101, 3))
    assert mark.read(tmp_path) == Mark(101, 3)
    assert len(names(tmp_path)) == 1


def test_a_mark_that_cannot_be_moved_is_no_trouble(tmp_path: Path) -> None:
    mark.advance(tmp_path / "none", Mark(1, 1))
    assert mark.read(tmp_path / "none") == Mark()


def test_every_entry_of_the_audit_moves_it(tmp_path: Path) -> None:
    commits = iter((4, 4, 9))
    audit = Audit(tmp_path / "audit.jsonl", lambda: 0.0, commits=lambda: next(commits))
    for expected in (Mark(4, 1), Mark(4, 2), Mark(9, 3)):
        audit.append(AuditEntry(kind="call.started"))
        assert mark.read(tmp_path) == expected
    audit.close()
