"""Where a terminal lets a run work. What it says about a home is told in test_command.py."""

import os
from pathlib import Path

import pytest

from tests.cli import Place

pytestmark = pytest.mark.anyio


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
