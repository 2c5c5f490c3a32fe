"""Diffs: right for every input, as git writes them, and bounded for hostile ones."""

import re
import subprocess
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.text import diff
from holdfast.core.text.diff import CUT, MAX_LINE, LineCounts, Version, count, unified

pytestmark = pytest.mark.promise("EDIT-02")

REGULAR = 0o100644
BOUND_S = 5.0  # a busy machine; quadratic work takes minutes
RANGE = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")

lines = st.lists(st.sampled_from([b"a", b"b", b"c", b"", b"\r", b"d\xff"]), max_size=30)
texts = st.builds(lambda parts, end: b"\n".join(parts) + end, lines, st.sampled_from([b"", b"\n"]))


def shown(old: bytes | None, new: bytes | None, room: int = diff.MAX_TEXT) -> diff.Diff:
    return unified("a.txt", Version(old, REGULAR), Version(new, REGULAR), room)


def applied(old: bytes, text: str) -> tuple[str, str]:
    """The old and the new version, as the diff tells them; what it leaves out comes from `old`."""
    rest = re.findall(r"[^\n]*\n|[^\n]+\Z", old.decode(errors="replace"))
    at, mark, before, after = 0, "", list[str](), list[str]()
    for line in re.findall(r"[^\n]*\n", text.partition("+++ b/a.txt\n")[2]):
        if found := RANGE.match(line):
            start = int(found[1]) - (found[2] != "0")
            assert int(found[3]) - (found[4] != "0") == len(after) + start - at
            before += rest[at:start]
            after += rest[at:start]
            at = start
        elif line == diff.NO_LINE_END:
            for side in [before] * (mark in " -") + [after] * (mark in " +"):
                side[-1] = side[-1].removesuffix("\n")
        else:
            mark = line[0]
            if mark in " -":
                before.append(line[1:])
                at += 1
            if mark in " +":
                after.append(line[1:])
    return "".join(before + rest[at:]), "".join(after + rest[at:])


@given(texts, texts)
def test_a_diff_leads_from_the_old_to_the_new_version(old: bytes, new: bytes) -> None:
    found = shown(old, new)
    minus = len(re.findall(r"^-(?!-- a/)", found.text, re.MULTILINE))
    plus = len(re.findall(r"^\+(?!\+\+ b/)", found.text, re.MULTILINE))
    assert (found.counts.added, found.counts.removed) == (plus, minus)
    assert found.counts == count(old, new)
    assert not found.cut
    if old != new and old and new:
        told = applied(old, found.text)
        assert told == (old.decode(errors="replace"), new.decode(errors="replace"))


@given(texts, texts)
def test_the_counts_fit_the_length(old: bytes, new: bytes) -> None:
    counts = count(old, new)
    assert counts.added - counts.removed == _count(new) - _count(old)


def _count(text: bytes) -> int:
    return text.count(b"\n") + (text != b"" and not text.endswith(b"\n"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"a\nb\nc\n", b"a\nB\nc\n"),
        (b"", b"one\ntwo"),
        (b"one", b"one\n"),
        (b"x\n" * 50 + b"end", b"y\n" + b"x\n" * 49 + b"z\nend"),
        (b"a\n" * 9 + b"m\n" + b"b\n" * 9, b"a\n" * 8 + b"m\n" + b"b\n" * 12),
        (b"\r\nx\r\n", b"\r\ny\r\n"),
        (None, b"new\n"),
        (b"old\n", None),
    ],
)
def test_git_applies_it(old: bytes | None, new: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    if old is not None:
        path.write_bytes(old)
    (tmp_path / "the.diff").write_text(shown(old, new).text, newline="")
    apply = ["git", "-c", "core.whitespace=cr-at-eol", "apply", "--unidiff-zero", "the.diff"]
    subprocess.run(apply, cwd=tmp_path, check=True)
    assert (path.read_bytes() if path.exists() else None) == new


def test_new_replaced_deleted_and_executable_files_look_different() -> None:
    assert shown(None, b"x\n").text == (
        "diff --git a/a.txt b/a.txt\nnew file mode 100644\n"
        "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+x\n"
    )
    assert shown(b"x", None).text == (
        "diff --git a/a.txt b/a.txt\ndeleted file mode 100644\n"
        "--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n" + diff.NO_LINE_END
    )
    run = unified("a", Version(b"x", REGULAR), Version(b"x", 0o100755))
    assert run.text == "diff --git a/a b/a\nold mode 100644\nnew mode 100755\n"
    assert run.counts == LineCounts()


def test_a_name_cannot_pretend_to_be_a_line_of_the_diff() -> None:
    text = unified('a"\n+++ b/other', Version(b"x\n"), Version(b"y\n")).text
    assert text.count("\n+++ ") == 1
    assert text.startswith('diff --git "a/a\\"\\n+++ b/other" ')


def test_a_binary_file_has_no_lines() -> None:
    found = shown(b"\0\1", b"\0\2")
    assert found.counts == count(b"", b"x\0") == LineCounts(binary=True)
    assert found.text.endswith("Binary files a/a.txt and b/a.txt differ\n")


def test_hunks_that_are_near_are_one() -> None:
    old = [b"%d\n" % n for n in range(40)]
    near, far = list(old), list(old)
    near[10] = near[17] = far[10] = far[18] = b"new\n"
    assert shown(b"".join(old), b"".join(near)).text.count("@@ -") == 1
    assert shown(b"".join(old), b"".join(far)).text.count("@@ -") == 2


BIG = 10 * 1024 * 1024
HOSTILE = {
    "10 MB, one line changed": (b"line\n" * (BIG // 5), b"line\n" * (BIG // 10) + b"x\n" * 9),
    "10 MB, all different": (b"ab\n" * (BIG // 3), b"cd\n" * (BIG // 3)),
    "100k other lines": (
        b"".join(b"%d\n" % n for n in range(100_000)),
        b"".join(b"%d\n" % -n for n in range(100_000)),
    ),
    "100k lines turned around": (
        b"".join(b"%d\n" % n for n in range(100_000)),
        b"".join(b"%d\n" % n for n in reversed(range(100_000))),
    ),
    "few different lines, many times": (
        b"".join(b"%d\n" % (n * n % 7) for n in range(90_000)),
        b"".join(b"%d\n" % (n * n * n % 11) for n in range(90_000)),
    ),
    "one anchor after the other": (
        b"".join(b"%d\n" % min(n, 90_000 - n) for n in range(90_000)),
        b"".join(b"%d\n" % min(n + 1, 90_000 - n) for n in range(90_000)),
    ),
    "one line of 5 MB": (b"x" * 5_000_000, b"x" * 4_999_999 + b"y"),
    "60 MB of line ends": (b"\n" * 30_000_000, b"\n" * 29_000_000 + b"a"),
    "binary": (b"\0" * BIG, b"\0" * BIG + b"1"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_takes_bounded_time_and_room(name: str) -> None:
    old, new = HOSTILE[name]
    begun = perf_counter()
    found = shown(old, new)
    assert perf_counter() - begun < BOUND_S
    assert len(found.text) <= diff.MAX_TEXT + 2 * MAX_LINE
    assert found.counts == count(old, new)
    assert found.counts.added - found.counts.removed == (
        0 if found.counts.binary else _count(new) - _count(old)
    )


def test_what_does_not_fit_is_cut_and_said() -> None:
    assert shown(b"a\n" * 100, b"b\n" * 100, room=200).cut
    long = shown(b"", "é".encode() * 100_000)
    assert long.cut
    assert f"+{'é' * MAX_LINE}{CUT}\n" in long.text
    assert shown(b"", b"x" * (diff.MAX_BYTES + 1)).cut
