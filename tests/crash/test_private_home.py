"""A home that others can write to is refused; one that others can read is made private."""

import os
import stat
from pathlib import Path

import pytest

from holdfast.cli.exits import Code
from tests.fakes.gateway import GatewayProcess, gateway, unstarted

pytestmark = pytest.mark.anyio


async def _refused(it: GatewayProcess) -> str:
    """What it says to the home, and that it ends as over any bad setting."""
    await it.start(wait=False)
    assert await it.ended() == Code.CONFIG
    (line,) = it.lines
    assert not (it.home / "journal.db").exists()
    return line


@pytest.mark.promise("API-05")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
async def test_a_home_that_others_may_write_in_is_refused_and_can_be_mended(
    tmp_path: Path, mode: int
) -> None:
    async with unstarted(tmp_path) as it:
        it.home.chmod(mode)
        said = await _refused(it)
        assert str(it.home) in said and "holdfast doctor --fix" in said
        it.home.chmod(0o700)
        await it.start()


@pytest.mark.promise("API-05")
async def test_a_home_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    async with unstarted(tmp_path) as it:
        os.chown(it.home, 12345, -1)
        assert "12345" in await _refused(it)
        os.chown(it.home, 0, -1)


@pytest.mark.promise("API-05")
async def test_a_home_that_others_can_read_becomes_private(tmp_path: Path) -> None:
    async with unstarted(tmp_path) as it:
        it.home.chmod(0o755)
        await it.start()
        await it.finished(await it.run("hello"))
        assert stat.S_IMODE(it.home.stat().st_mode) == 0o700
        for name in ("journal.db", "journal.db-wal"):
            assert stat.S_IMODE((it.home / name).stat().st_mode) == 0o600, name


async def test_a_shared_parent_is_fine(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o1777)
    async with gateway(tmp_path) as it:
        assert (await it.get("/health/ready"))[0] == 200
