"""Where a terminal lets a run work. What it says about a home is told in test_command.py."""

import os
from pathlib import Path

import pytest

from holdfast.cli import workspace
from holdfast.config import load
from tests.cli import Place

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("inside", "relation"), [("", "is"), ("blobs", "lies in"), ("workspaces/theirs", "lies in")]
)
async def test_nothing_in_our_own_home_is_a_workspace(
    place: Place, inside: str, relation: str
) -> None:
    path = place.home / inside
    path.mkdir(parents=True)
    for insisting in ((), ("--workspace", str(path), "--yes")):
        result = await place.holdfast("run", "hi", *insisting, cwd=path)
        assert (result.code, result.out) == (2, "")
        assert f"cannot be a workspace: it {relation} Holdfast's own home" in result.err


async def test_a_name_that_is_no_unicode_is_refused_in_one_line(place: Place) -> None:
    odd = os.fsdecode(os.fsencode(place.work) + b"/caf\xe9")
    os.mkdir(odd)
    result = await place.holdfast("run", "hi", cwd=Path(odd))
    assert (result.code, result.out) == (2, "")
    assert "cannot be a workspace: its name is not UTF-8;" in result.err
    assert result.err.count("\n") == 1


def test_a_directory_that_somebody_else_names_is_one_only_if_nobody_has_to_be_asked(
    place: Place,
) -> None:
    config = load(place.environ, {})
    link, ssh = place.work / "link", place.root / ".ssh"
    for made in (ssh, place.root / ".config" / "gh", place.home / "workspaces" / "x"):
        made.mkdir(parents=True)
    (place.work / "file").touch()
    link.symlink_to(ssh)
    assert workspace.unasked(config, str(place.work)) == str(place.work)
    for no in (ssh, link, place.root / ".config", place.root, place.root.parent, Path("/")):
        assert workspace.unasked(config, str(no)) == "", no
    for no in (place.home, place.home / "workspaces" / "x", place.work / "file"):
        assert workspace.unasked(config, str(no)) == "", no
    for named in ("", ".", "/no/such/place", "a\0b", "~", "x" * 5000):
        assert workspace.unasked(config, named) == "", named
