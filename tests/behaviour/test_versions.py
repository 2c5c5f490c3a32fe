"""What write_file replaces can be undone for 30 days, and a new file has the user's permissions."""

import json
import os
import stat
import time
from pathlib import Path

import pytest

from holdfast.journal.versions import DAY_S, DIRECTORY, VersionsUsage, usage
from tests.behaviour.hands import until
from tests.fakes.gateway import GatewayProcess

pytestmark = pytest.mark.anyio


async def _write(it: GatewayProcess, path: Path, content: str) -> None:
    call = f"tool:write_file {json.dumps({'path': str(path), 'content': content})}"
    done = await it.finished(await it.run(call, session_id="s"))
    assert done["status"] == "completed", done


async def _counted(it: GatewayProcess) -> str:
    """What doctor says of the versions."""
    report = json.loads((await it.holdfast("doctor", "--json")).stdout)
    return str(next(c["finding"] for c in report["checks"] if c["name"] == "versions"))


async def test_a_version_that_write_file_replaced_is_kept_for_30_days_and_counted(
    it: GatewayProcess,
) -> None:
    for content in ("first", "second", "third"):
        await _write(it, Path("a.txt"), content)
    kept = {path.read_bytes(): path for path in (it.home / DIRECTORY).iterdir()}
    assert set(kept) == {b"first", b"second", b"third"}
    assert (await _counted(it)).startswith("3 versions")
    await it.stop()
    for former, days in ((b"first", 30.1), (b"second", 29.9)):
        at = time.time() - days * DAY_S
        os.utime(kept[former], (at, at))
    await it.start()
    await until(lambda: not kept[b"first"].exists())
    assert usage(it.home) == VersionsUsage(2, len("second") + len("third"))
    assert kept[b"second"].read_bytes() == b"second"
    assert (await _counted(it)).startswith("2 versions")


async def test_a_file_that_a_tool_makes_has_the_users_umask(it: GatewayProcess) -> None:
    await _write(it, Path("new.txt"), "x")
    (made,) = it.home.rglob("new.txt")
    users = os.umask(0o022)
    os.umask(users)
    assert stat.S_IMODE(made.stat().st_mode) == 0o666 & ~users
