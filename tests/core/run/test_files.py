"""Changes of files as facts, and their net effect."""

import pytest

from holdfast.core.run.files import (
    ChangeKind,
    FileChange,
    Happened,
    changed,
    combine,
    describe,
    find_out,
    listed,
    named,
)
from holdfast.core.types import CallId, RunId

pytestmark = pytest.mark.promise("EDIT-01")

CREATED, REPLACED, PATCHED, DELETED = ChangeKind
REGULAR, EXECUTABLE = 0o100644, 0o100755


def change(path: str, kind: ChangeKind, before: str, after: str, mode: int = REGULAR) -> FileChange:
    return FileChange(
        path=path,
        kind=kind,
        added=1,
        removed=2,
        before=before,
        after=after,
        mode_before=REGULAR if before else 0,
        mode_after=mode if after else 0,
    )


def test_a_change_becomes_a_fact_of_its_call() -> None:
    made = change("a", PATCHED, "1", "2")
    fact = changed(RunId("r"), CallId("c"), made)
    assert (fact.run_id, fact.call_id) == ("r", "c")
    assert combine([fact]) == combine([made]) == [made]


@pytest.mark.parametrize(
    ("changes", "net"),
    [
        ([("1", "2", PATCHED), ("2", "3", PATCHED)], ("1", "3", PATCHED)),
        ([("1", "2", PATCHED), ("2", "3", REPLACED)], ("1", "3", REPLACED)),
        ([("", "2", CREATED), ("2", "3", PATCHED)], ("", "3", CREATED)),
        ([("1", "2", PATCHED), ("2", "", DELETED)], ("1", "", DELETED)),
        ([("1", "", DELETED), ("", "2", CREATED)], ("1", "2", REPLACED)),
    ],
)
def test_several_changes_of_one_file_are_one(
    changes: list[tuple[str, str, ChangeKind]], net: tuple[str, str, ChangeKind]
) -> None:
    (found,) = combine([change("a", kind, before, after) for before, after, kind in changes])
    assert (found.before, found.after, found.kind) == net
    assert (found.added, found.removed) == (0, 0)  # of the net change they are not known


def test_a_file_that_is_as_it_was_is_left_out_and_the_others_are_in_order() -> None:
    made = [
        change("z", PATCHED, "1", "2"),
        change("b", PATCHED, "1", "2"),
        change("a", CREATED, "", "5"),
        change("b", REPLACED, "2", "1"),
        change("gone", CREATED, "", "6"),
        change("gone", DELETED, "6", ""),
        change("run", REPLACED, "7", "7", EXECUTABLE),
    ]
    assert [c.path for c in combine(made)] == ["a", "run", "z"]


def test_a_change_in_one_line() -> None:
    assert describe(change("a.py", PATCHED, "1", "2")) == "+1 −2 a.py"
    assert describe(change("a\n.py", CREATED, "", "2")) == "+1 −2 a\\u{a}.py (new)"
    assert describe(change("a.py", DELETED, "1", "")) == "+1 −2 a.py (deleted)"
    binary = FileChange("a.png", REPLACED, binary=True)
    assert describe(binary) == "binary a.png (replaced)"


@pytest.mark.promise("EDIT-06")
@pytest.mark.parametrize(
    ("now", "happened"), [("1", Happened.NO), ("2", Happened.YES), ("", Happened.UNKNOWN)]
)
def test_the_present_content_tells_whether_a_change_happened(now: str, happened: Happened) -> None:
    assert find_out(change("a", PATCHED, "1", "2"), now) is happened


@pytest.mark.promise("EDIT-05")
def test_changes_are_listed_for_the_audit() -> None:
    made = [("a", CREATED, "", "1"), ("b\n", PATCHED, "1", "2"), ("c", DELETED, "3", "")]
    facts = [changed(RunId("r"), CallId("c"), change(*one)) for one in made]
    assert listed(facts, 3) == "created - 1 a\npatched 1 2 b\\u{a}\ndeleted 3 - c"
    assert listed(facts, 1) == "created - 1 a\nand 2 more"
    assert named(facts, 2) == "created a, patched b\\u{a}, and 1 more"
    assert named(facts, 3) == "created a, patched b\\u{a}, deleted c"
