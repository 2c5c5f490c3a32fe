"""The tree: the state of all files below a directory at one moment, in two digests.

An approval is bound to the trees whose files can change what a command does: the workspace and
the home of its sandbox. The words of a command do not show which files it will read (`make`,
`sh *.sh`, `python -m tool`), so no file in them may change between the question and the start.
If all contents could be read, the contents are compared. Otherwise each file's inode, size and
times are compared, and no command can set back the time of the last change. (A running process
can write through mapped memory, which does not change the time until the kernel writes it back;
the question mentions such processes.) A tree that is too big or cannot be read is not checked,
and the question says so.

Some files change by themselves, such as those of an editor or a log. When such a change has kept
an approved command from starting, exactly those files are left out of the session's next request
(`learn`), and the question names them. If there are many of them, the tree is not checked.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.core.types import Fact

MOST_LEFT_OUT = 20
RESTLESS = "many files there change by themselves"
TICK_NS = 20_000_000  # a file's time may be behind the clock by so much


class Tree(Fact, omit_defaults=True):
    """The state of a directory. `gap` says why it is not checked; empty: it is checked."""

    path: str
    files: int = 0
    identity: str = ""  # of all names, kinds, modes, inodes, sizes and times
    content: str = ""  # of all names, kinds, modes and contents; empty: too much to read
    gap: str = ""
    but: tuple[str, ...] = ()  # files below it that are left out
    looked_ns: int = 0  # when the state was read
    newest: tuple[tuple[int, str], ...] = ()  # the last changes, with their times; not recorded


def holds(bound: tuple[Tree, ...], now: tuple[Tree, ...]) -> bool:
    """Tell if all trees in `bound` are unchanged. A tree that was not checked then is not now."""
    return all(_same_in(tree, now) for tree in bound)


def changed(bound: tuple[Tree, ...], now: tuple[Tree, ...]) -> tuple[str, ...]:
    """Return the names of some files that changed since `bound`, as far as they are known."""
    return tuple(name for tree in bound for name in _changed(tree, now))


def _changed(bound: Tree, now: tuple[Tree, ...]) -> tuple[str, ...]:
    newest = [one for tree in now if tree.path == bound.path for one in tree.newest]
    since = bound.looked_ns - TICK_NS
    return () if bound.gap else tuple(name for at, name in newest if at > since)


def _same_in(bound: Tree, now: tuple[Tree, ...]) -> bool:
    found = [tree for tree in now if tree.path == bound.path]
    return bool(bound.gap) or (len(found) == 1 and _same(bound, found[0]))


LeftOut = Mapping[str, tuple[str, ...]]  # the path of a tree → names below it


def left_out(trees: tuple[Tree, ...]) -> LeftOut:
    """Return the files that are left out of `trees`, for the next look at them."""
    return {tree.path: tree.but for tree in trees if tree.but}


def learn(known: LeftOut, bound: tuple[Tree, ...], now: tuple[Tree, ...]) -> LeftOut:
    """Return the files to leave out from now on, after `bound` was found changed."""
    more = {tree.path: _changed(tree, now) for tree in bound if not _same_in(tree, now)}
    names = {path: {*known.get(path, ()), *found} for path, found in more.items()}
    return {**known, **{path: tuple(sorted(found)) for path, found in names.items() if found}}


def drop_restless(trees: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """Mark each tree with too many files left out as not checked."""
    return tuple(
        Tree(path=tree.path, gap=RESTLESS) if len(tree.but) > MOST_LEFT_OUT else tree
        for tree in trees
    )


def for_journal(trees: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """Return the trees without the fields that are not recorded."""
    return tuple(replace(tree, newest=()) for tree in trees)


def _same(before: Tree, now: Tree) -> bool:
    if now.gap or now.but != before.but:
        return False
    if before.content and now.content:
        return before.content == now.content
    return before.identity == now.identity
