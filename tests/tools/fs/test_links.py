"""The gateway never writes through a link that a command created."""

import os
from pathlib import Path

import pytest

from holdfast.core.approval.approval import Level
from holdfast.errors import ToolFailed
from holdfast.tools.sandbox.sandbox import CommandProfile
from tests.bwrap import NOWHERE
from tests.tools.sandbox.test_sandbox import SYSTEM, Place, no_bwrap  # noqa: F401 — a fixture

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]


@pytest.fixture(params=[Level.L2, Level.L1], ids=["L2", "L1"])
async def place(request: pytest.FixtureRequest, tmp_path: Path, no_bwrap: list[str]) -> Place:  # noqa: F811
    weak = request.param is Level.L1
    found = Place(tmp_path, no_bwrap, NOWHERE) if weak else Place(tmp_path, SYSTEM)
    posture = await found.sandbox.probe()
    assert posture.level is request.param, posture.note
    (found.user / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    return found


@pytest.mark.fault("F-36")
async def test_a_link_at_the_place_of_gits_settings_is_not_written_through(place: Place) -> None:
    target = place.home / "planted"
    place.sh(f"rm -f ~/.gitconfig && ln -s {target} ~/.gitconfig")
    assert place.sh("true").returncode == 0
    assert target.name not in os.listdir(place.home)
    for name in ("tmp", ".config"):
        place.sh(f"rm -rf ~/{name} && ln -s {target}-{name} ~/{name}")
    assert place.sh("true").returncode == 0
    assert not [name for name in os.listdir(place.home) if name.startswith(target.name)]


async def test_commits_bear_the_users_name(place: Place) -> None:
    done = place.sh(
        "git init -q . && git commit -q --allow-empty -m one && git log --format='%an %ae'"
    )
    assert done.stdout == "Ada ada@example.org\n", done.stderr


@pytest.mark.fault("F-36")
async def test_a_home_whose_temporary_directory_is_something_else_still_works(
    place: Place,
) -> None:
    place.sh("rm -rf ~/tmp && echo file > ~/tmp")
    assert place.sh("echo on").stdout == "on\n"


@pytest.mark.fault("F-36")
async def test_a_workspace_that_became_a_link_is_refused(place: Place) -> None:
    inner = place.one / "inner"
    inner.mkdir()
    place.sh(f"rmdir inner && ln -s {place.two} inner")
    with pytest.raises(ToolFailed, match="is not the directory"):
        place.sh("touch there", CommandProfile(str(inner)))
    assert not (place.two / "there").exists()
