"""Commits made in a home that is not the user's own bear the user's name, and nothing else of theirs."""

from pathlib import Path

import pytest

from holdfast.tools.gitconfig import introduce

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


@pytest.mark.parametrize("where", [".gitconfig", ".config/git/config"])
def test_only_name_and_address_are_passed_on(tmp_path: Path, where: str) -> None:
    user, home = tmp_path / "user", tmp_path / "home"
    (user / where).parent.mkdir(parents=True)
    (user / where).write_text(THEIRS)
    home.mkdir()
    introduce(str(user), str(home))
    told = (home / ".gitconfig").read_text()
    assert told == '[user]\n\tname = "Ada Lovelace"\n\temail = "ada@example.org"\n'
    (home / ".gitconfig").write_text("[user]\n\tname = other\n")
    introduce(str(user), str(home))
    assert "other" in (home / ".gitconfig").read_text()


def test_who_has_no_name_gets_none(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    introduce(str(tmp_path / "user"), str(tmp_path / "home"))
    assert not (tmp_path / "home" / ".gitconfig").exists()
