"""Commits in another home have the user's name, and nothing else of the user's settings."""

import os
from pathlib import Path

import pytest

from holdfast.tools.sandbox import environment

THEIRS = """\
[core]
\tpager = ./evil.sh
\tname = nobody
[User]
\tname = "Ada Lovelace" ; the first
\temail = ada@example.org
[credential "https://example.org"]
\thelper = store
"""


def introduce(user: Path, home: Path) -> None:
    fd = os.open(home, os.O_RDONLY)
    try:
        environment.introduce(str(user), fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("where", [".gitconfig", ".config/git/config"])
def test_only_name_and_email_are_copied(tmp_path: Path, where: str) -> None:
    user, home = tmp_path / "user", tmp_path / "home"
    (user / where).parent.mkdir(parents=True)
    (user / where).write_text(THEIRS)
    home.mkdir()
    introduce(user, home)
    told = (home / ".gitconfig").read_text()
    assert told == '[user]\n\tname = "Ada Lovelace"\n\temail = "ada@example.org"\n'
    (home / ".gitconfig").write_text("[user]\n\tname = other\n")
    introduce(user, home)
    assert "other" in (home / ".gitconfig").read_text()


def test_without_a_name_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    introduce(tmp_path / "user", tmp_path / "home")
    assert not (tmp_path / "home" / ".gitconfig").exists()


def test_a_link_in_its_place_is_left_alone(tmp_path: Path) -> None:
    user, home = tmp_path / "user", tmp_path / "home"
    user.mkdir()
    home.mkdir()
    (user / ".gitconfig").write_text(THEIRS)
    (home / ".gitconfig").symlink_to(tmp_path / "elsewhere")
    introduce(user, home)
    assert not (tmp_path / "elsewhere").exists()
