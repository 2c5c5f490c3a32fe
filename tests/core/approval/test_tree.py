"""Trees: what counts as unchanged, and what is said of what changed."""

import pytest
from msgspec.structs import replace

from holdfast.core.approval.tree import (
    MOST_LEFT_OUT,
    RESTLESS,
    TICK_NS,
    Tree,
    changed,
    drop_restless,
    for_journal,
    holds,
    learn,
    left_out,
)

SECOND = 10**9
SMALL = Tree(path="/w", files=1, identity="i", content="c", looked_ns=SECOND)
BIG = Tree(path="/h", files=9, identity="i", looked_ns=SECOND)
GAP = Tree(path="/g", gap="too big")


@pytest.mark.fault("F-33")
@pytest.mark.parametrize(
    ("bound", "now", "same"),
    [
        (SMALL, SMALL, True),
        (SMALL, replace(SMALL, identity="j"), True),  # the same content at another time
        (SMALL, replace(SMALL, content="d"), False),
        (SMALL, replace(SMALL, content="d", identity="i"), False),
        (SMALL, replace(SMALL, content=""), True),  # not read again, but nothing was touched
        (SMALL, replace(SMALL, content="", identity="j"), False),
        (SMALL, Tree(path="/w", gap="no time"), False),
        (SMALL, BIG, False),  # another one
        (BIG, replace(BIG, content="c"), True),
        (BIG, replace(BIG, identity="j"), False),
        (SMALL, replace(SMALL, but=("x",)), False),  # something else was looked at
        (GAP, replace(GAP, gap="", identity="x"), True),  # nobody said that it is checked
    ],
)
def test_a_tree_holds_if_its_contents_do_or_nothing_was_touched(
    bound: Tree, now: Tree, same: bool
) -> None:
    assert holds((bound,), (now,)) is same
    assert holds((GAP, bound), (now, GAP)) is same


def test_a_tree_that_is_not_there_any_more_does_not_hold() -> None:
    assert not holds((SMALL,), ())
    assert holds((), (SMALL,))


def test_files_changed_since_the_last_look_are_named() -> None:
    newest = ((2 * SECOND, "new"), (SECOND - TICK_NS + 1, "close"), (SECOND - TICK_NS, "old"))
    now = (replace(SMALL, newest=newest), replace(GAP, newest=newest))
    assert changed((SMALL, GAP), now) == ("new", "close")
    assert for_journal(now)[0] == SMALL


def test_a_file_that_changes_by_itself_is_left_out_from_then_on() -> None:
    now = replace(SMALL, content="d", newest=((2 * SECOND, "log"),))
    learned = learn({"/h": ("a",)}, (SMALL, BIG, GAP), (now, BIG))
    assert learned == {"/h": ("a",), "/w": ("log",)}
    again = learn(learned, (SMALL,), (replace(now, newest=((2 * SECOND, "b"),)),))
    assert again["/w"] == ("b", "log")
    assert learn({}, (SMALL,), (replace(now, newest=()),)) == {}  # nobody knows what it was
    assert left_out((replace(SMALL, but=("log",)), BIG)) == {"/w": ("log",)}


def test_a_tree_with_many_self_changing_files_is_not_checked() -> None:
    names = tuple(map(str, range(MOST_LEFT_OUT + 1)))
    assert drop_restless((replace(SMALL, but=names[1:]),))[0].gap == ""
    assert drop_restless((replace(SMALL, but=names), BIG)) == (Tree(path="/w", gap=RESTLESS), BIG)
