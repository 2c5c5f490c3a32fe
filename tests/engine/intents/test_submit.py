"""Where a caller may have a session work: below the roots, and never near Holdfast's own things."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from holdfast.core.intents import DoorCapabilities, Principal, Submit
from holdfast.core.types import Owner, SessionId, SessionKey
from holdfast.core.workspace import own
from holdfast.engine.service import Service
from holdfast.errors import Refused
from tests.engine.workshop import ME, Told, journaled, parts, running

pytestmark = pytest.mark.anyio

NETWORK = Principal(
    Owner("me"), DoorCapabilities(platform="api_server", answerable=True, late=False), frozenset()
)
SESSION = SessionId("s")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


@asynccontextmanager
async def serving(home: Path, root: Path) -> AsyncIterator[Service]:
    async with journaled(home) as journal:
        made_of = msgspec.structs.replace(parts(home, journal, Told()), workspace_roots=(root,))
        async with running(made_of) as service:
            yield service


@pytest.mark.parametrize("by", [ME, NETWORK], ids=lambda by: by.platform)
async def test_no_session_works_in_the_home_nor_around_it(
    tmp_path: Path, home: Path, by: Principal
) -> None:
    async with serving(home, tmp_path) as service:
        mine, theirs = (
            Path(own(str(home), SessionKey(by.owner, SessionId(s)))) for s in (SESSION, "t")
        )
        for directory in (mine, theirs, tmp_path / "project"):
            directory.mkdir(parents=True)
        (tmp_path / "link").symlink_to(home)
        around = () if by is ME else (tmp_path,)  # at the operator's own door one may insist
        for bad in (home, home / "blobs", home / "workspaces", theirs, tmp_path / "link", *around):
            with pytest.raises(Refused, match="Holdfast's own home") as refused:
                await service.send(Submit(by, "hi", SESSION, workspace=str(bad)))
            assert (refused.value.code, refused.value.param) == (
                "workspace_not_allowed",
                "workspace",
            )
        await service.send(Submit(by, "hi", SESSION, workspace=str(mine)))
        await service.send(Submit(by, "hi", workspace=str(tmp_path / "project")))


@pytest.mark.parametrize("by", [ME, NETWORK], ids=lambda by: by.platform)
async def test_a_name_that_is_no_unicode_is_refused_before_it_can_be_written_down(
    tmp_path: Path, home: Path, by: Principal
) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    os.mkdir(odd)
    (tmp_path / "link").symlink_to(odd)
    async with serving(home, tmp_path) as service:
        for bad in (odd, str(tmp_path / "link"), "/\ud800"):
            for session in (None, SESSION):
                with pytest.raises(Refused, match="not UTF-8") as refused:
                    await service.send(Submit(by, "hi", session, workspace=bad))
                assert (refused.value.code, refused.value.param) == (
                    "workspace_not_allowed",
                    "workspace",
                )
        await service.send(Submit(by, "hi", SESSION))
