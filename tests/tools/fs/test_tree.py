"""Snapshots of trees: detected changes, accepted changes, and limits."""

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.core.approval.tree import Tree, changed, holds
from holdfast.tools.fs.tree import MOST_FILES, READ_BYTES, digest, look, numbers

pytestmark = pytest.mark.fault("F-33")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "root"
    (found / "sub").mkdir(parents=True)
    (found / "script").write_text("echo good")
    (found / "sub" / "inner").write_text("1")
    (found / "link").symlink_to("script")
    os.mkfifo(found / "pipe")
    return found


def seen(root: Path, *, contents: bool = True, within_s: float = 60.0) -> Tree:
    return look(str(root), within_s, contents=contents)


def unlinked(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("sub/inner")


def turned(root: Path) -> None:
    (root / "script").rename(root / "sub" / "x")
    (root / "script").symlink_to("sub/x")


def in_place(root: Path) -> None:
    """Another content of the same size, with the old times."""
    before = (root / "script").stat()
    (root / "script").write_text("echo evil")
    os.utime(root / "script", ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": in_place,
    "new": lambda root: (root / "sub" / "new").touch(),
    "gone": lambda root: (root / "sub" / "inner").unlink(),
    "renamed": lambda root: (root / "sub" / "inner").rename(root / "sub" / "other"),
    "mode": lambda root: (root / "script").chmod(0o755),
    "directory": lambda root: (root / "sub" / "more").mkdir(),
    "link": unlinked,
    "turned into a link": turned,
}


@pytest.mark.parametrize("contents", [True, False], ids=["contents", "identity"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_noticed_and_named(root: Path, change: str, contents: bool) -> None:
    before = seen(root, contents=contents)
    assert holds((before,), (seen(root, contents=contents),))
    CHANGES[change](root)
    now = seen(root, contents=contents)
    assert not holds((before,), (now,))
    assert changed((before,), (now,)) or change in ("gone", "directory")


def test_the_same_content_at_another_time_is_no_change(root: Path) -> None:
    before = seen(root)
    (root / "script").unlink()
    (root / "script").write_text("echo good")
    os.utime(root / "sub" / "inner")
    assert holds((before,), (seen(root),))
    assert not holds((before,), (seen(root, contents=False),))


def test_a_write_through_a_memory_map_is_noticed_by_content(root: Path) -> None:
    with (root / "script").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[0:1] = b"e"
        before = seen(root)
        memory[5:9] = b"evil"
        assert not holds((before,), (seen(root),))


def test_big_trees_are_not_read(root: Path) -> None:
    with (root / "big").open("wb") as file:
        file.truncate(READ_BYTES)
    before = seen(root)
    assert (before.files, before.content, before.gap) == (3, "", "")
    in_place(root)
    assert not holds((before,), (seen(root),))


def test_too_many_files_and_too_little_time_are_reported(root: Path) -> None:
    assert seen(root, within_s=0).gap
    for number in range(MOST_FILES // 1_000 + 1):
        (root / str(number)).mkdir()
    first = root / "0"
    for number in range(1_000):
        (first / str(number)).symlink_to("x")
    assert not seen(root).gap
    deep = root
    for _ in range(20):
        deep = deep / ("d" * 250)
        try:
            deep.mkdir()
        except OSError:
            break
    below = os.open(deep.parent, os.O_RDONLY)
    try:
        os.mkdir("e" * 250, dir_fd=below)
        further = os.open("e" * 250, os.O_RDONLY, dir_fd=below)
        os.mkdir("f" * 250, dir_fd=further)
        os.close(further)
    finally:
        os.close(below)
    assert seen(root).gap  # a path that is too long: what is below it cannot be seen


def test_a_directory_that_is_not_there_is_an_empty_tree(tmp_path: Path) -> None:
    assert seen(tmp_path / "none").files == 0


def test_a_file_that_is_left_out_may_change_and_nothing_else_may(root: Path) -> None:
    before = look(str(root), 60, ("script",), contents=True)
    in_place(root)
    assert holds((before,), (look(str(root), 60, ("script",), contents=True),))
    (root / "script").unlink()
    (root / "script").mkdir()
    assert holds((before,), (look(str(root), 60, ("script",), contents=True),))
    (root / "script" / "more").touch()
    assert not holds((before,), (look(str(root), 60, ("script",), contents=True),))


def test_the_gateways_own_home_is_not_looked_at(root: Path) -> None:
    own = str(root / "sub")
    before = look(str(root), 60, (), own, contents=True)
    (root / "sub" / "inner").write_text("2")
    assert holds((before,), (look(str(root), 60, (), own, contents=True),))


def test_a_file_elsewhere_that_a_link_leads_to_is_noticed(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("1")
    (root / "out").symlink_to(other)
    (root / "sub" / "up").symlink_to("../../other")
    (root / "nowhere").symlink_to("/nowhere")
    (root / "folder").symlink_to(tmp_path)
    before = seen(root)
    assert holds((before,), (seen(root),))
    other.write_text("2")
    assert not holds((before,), (seen(root),))


def test_the_content_is_that_of_the_file_that_was_found(root: Path) -> None:
    """Whoever exchanges two directories in the middle of a look has not changed any file's time."""
    found, other = root / "script", root / "sub" / "inner"
    os.link(other, root / "same")
    with pytest.raises(OSError, match="replaced"):
        digest(str(found), 9, numbers(other.stat()))
    assert digest(str(root / "same"), 1, numbers(other.stat())) == digest(str(other), 1)


CLOSED = """
import os, sys
from holdfast.core.approval.tree import holds, left_out
from holdfast.tools.fs.tree import look

root, mode = sys.argv[1], int(sys.argv[2], 8)
if os.geteuid() == 0:  # to whom nothing is closed
    os.chown(root, 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
os.makedirs(f"{root}/shut/sub")
os.chmod(f"{root}/shut", mode)
before = look(root, 60.0, contents=True)
after = look(root, 60.0, left_out((before,)).get(root, ()), contents=True)
print(before.but, after.but, holds((before,), (after,)))
os.chmod(f"{root}/shut", 0o755)
after = look(root, 60.0, left_out((before,)).get(root, ()), contents=True)
print(holds((before,), (after,)))
"""


@pytest.mark.parametrize("mode", ["000", "311", "444"])
def test_a_directory_made_unreadable_is_reported_as_not_checked(mode: str) -> None:
    """A process that is in there already can change what is in it; with x anybody who knows it."""
    with TemporaryDirectory(dir="/var/tmp") as folder:  # which others can reach
        argv = (sys.executable, "-c", CLOSED, folder, mode)
        root = Path(__file__).parents[3]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=root)
        assert done.stdout == "('shut/',) ('shut/',) True\nFalse\n", done.stderr
