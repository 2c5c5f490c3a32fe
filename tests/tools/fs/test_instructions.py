"""Which files with instructions are read for a workspace, and how."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.session.instructions import MAX_BYTES, InstructionFile
from holdfast.tools.fs.instructions import find_now

pytestmark = pytest.mark.promise("INSTR-01")

SHARED = Path("/dev/shm")  # another file system than the temporary one, on most machines


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with the workspace `sub/deep` in it."""
    root = tmp_path / "user" / "project"
    (root / ".git").mkdir(parents=True)
    (root / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    return root


def found(workspace: Path) -> list[InstructionFile]:
    top = next(p for p in workspace.parents if (p / "home").is_dir())
    return find_now(top / "home", top / "user", str(workspace))


def texts(workspace: Path) -> dict[str, str]:
    return {f.path: f.text for f in found(workspace)}


def test_files_are_read_from_the_root_of_the_repository_down_nearest_last(project: Path) -> None:
    (project.parent / "AGENTS.md").write_text("above the root")
    (project / "AGENTS.md").write_text("root")
    (project / "CLAUDE.md").write_text("root too")
    (project / "sub" / ".holdfast").mkdir()
    (project / "sub" / ".holdfast" / "instructions.md").write_text("middle")
    (project / "sub" / "deep" / "AGENTS.md").write_text("near")
    (project / "sub" / "other").mkdir()
    (project / "sub" / "other" / "AGENTS.md").write_text("not on the way")
    assert list(texts(project / "sub" / "deep").items()) == [
        ("../../AGENTS.md", "root"),
        ("../../CLAUDE.md", "root too"),
        ("../.holdfast/instructions.md", "middle"),
        ("AGENTS.md", "near"),
    ]


def test_without_a_repository_only_the_workspace_is_read(project: Path) -> None:
    (project / ".git").rmdir()
    (project / "AGENTS.md").write_text("above")
    (project / "sub" / "AGENTS.md").write_text("here")
    assert texts(project / "sub") == {"AGENTS.md": "here"}


def test_a_git_file_marks_a_root_too(project: Path) -> None:
    (project / ".git").rmdir()
    (project / ".git").write_text("gitdir: elsewhere")  # a worktree or a submodule
    (project / "AGENTS.md").write_text("root")
    assert texts(project / "sub") == {"../AGENTS.md": "root"}


def test_the_search_never_goes_above_the_user_s_home(project: Path) -> None:
    (project / ".git").rmdir()
    outside = project.parent.parent
    (outside / ".git").mkdir()
    (outside / "AGENTS.md").write_text("above the home")
    assert texts(project) == {}


def test_a_workspace_in_the_holdfast_home_reads_nothing_above_it(tmp_path: Path) -> None:
    own = tmp_path / "home" / "workspaces" / "s"
    own.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / "AGENTS.md").write_text("above")
    (own / "AGENTS.md").write_text("here")
    assert texts(own) == {"AGENTS.md": "here"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_repository_of_another_user_is_no_root(project: Path) -> None:
    (project / "AGENTS.md").write_text("planted")
    os.chown(project / ".git", 4711, 4711)
    assert texts(project / "sub") == {}


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    if not SHARED.is_dir() or SHARED.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here")
    made = Path(tempfile.mkdtemp(dir=SHARED))
    yield made
    shutil.rmtree(made)


def test_the_search_does_not_cross_a_mount(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    assert find_now(tmp_path / "home", Path("/nowhere"), str(shared)) == []
    # `/dev` and `/` are other file systems than `/dev/shm`: a `.git` there would not count.
    assert {p.stat().st_dev for p in (shared, Path("/"))} != {shared.stat().st_dev}


def test_what_is_no_regular_file_of_the_project_is_named_but_not_read(project: Path) -> None:
    secret = project.parent / "secret"
    secret.write_text("a secret")
    (project / "AGENTS.md").symlink_to(secret)
    os.mkfifo(project / "CLAUDE.md")
    (project / ".holdfast").mkdir()
    (project / ".holdfast" / "instructions.md").mkdir()
    files = found(project)
    assert [f.path for f in files] == ["AGENTS.md", "CLAUDE.md", ".holdfast/instructions.md"]
    assert all(f.problem and not f.text and not f.sha256 for f in files)
    assert "a secret" not in str(files)


def test_the_same_text_is_read_once(project: Path) -> None:
    (project / "AGENTS.md").write_text("rules")
    (project / "CLAUDE.md").symlink_to("AGENTS.md")
    (project / "sub" / "AGENTS.md").write_text("rules")
    read = [f for f in found(project / "sub") if f.text]
    assert [f.path for f in read] == ["AGENTS.md"], "the nearest of them"


def test_the_user_s_own_are_first_and_kept_apart(project: Path) -> None:
    home = project.parent.parent / "home"
    (home / "instructions.md").write_text("mine")
    (home / "AGENTS.md").write_text("mine too")
    (project / "AGENTS.md").write_text("theirs")
    assert [(f.path, f.own) for f in found(project)] == [
        (f"{home}/instructions.md", True),
        (f"{home}/AGENTS.md", True),
        ("AGENTS.md", False),
    ]


@pytest.mark.promise("INSTR-03")
def test_all_files_together_have_a_bound_and_the_nearest_get_it_first(project: Path) -> None:
    (project / "AGENTS.md").write_text("far " * MAX_BYTES)
    (project / "sub" / "AGENTS.md").write_text("near " * 1000)
    far, near = found(project / "sub")
    assert near.text == ("near " * 1000).strip()
    assert far.size == 4 * MAX_BYTES
    assert MAX_BYTES < len((far.text + near.text).encode()) + 100 < MAX_BYTES + 300


def test_control_and_direction_characters_are_shown_by_their_number(project: Path) -> None:
    (project / "AGENTS.md").write_bytes(
        b"\xef\xbb\xbfa\r\n\tb\x1b[2J \xe2\x80\xae\xff \xf0\x9f\x9a\x80"
    )
    (file,) = found(project)
    assert file.text == "a\n\tb\\u{1b}[2J \\u{202e}\ufffd \N{ROCKET}"
