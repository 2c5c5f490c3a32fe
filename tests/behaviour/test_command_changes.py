"""What commands change in the workspace: in the events, in the diff and after a stop."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.hands import approve, command, does, output, until
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
async def it(tmp_path: Path, work: Path, model: ModelServer) -> AsyncIterator[GatewayProcess]:
    config = f'[gateway]\nworkspace_roots = ["{work}"]\n[sandbox]\nallow_none = true\n'
    async with gateway(tmp_path, model.base_url, config) as process:
        yield process


async def changed(it: GatewayProcess, run_id: str) -> list[dict[str, Any]]:
    """The changes of files that the readers of a finished run see."""
    stream = await it.events(run_id)
    return [f.data for f in stream.frames if f.event == "file.changed"]


@pytest.mark.promise("SNAP-01")
async def test_the_files_that_a_command_changes_are_events_and_a_diff(
    it: GatewayProcess, work: Path
) -> None:
    (work / "a.txt").write_text("one\ntwo\n")
    (work / "old.txt").write_text("old\n")
    script = "echo three >> a.txt; rm old.txt; mkdir d; echo new > d/new.txt"
    run_id = await it.run(command(script), workspace=str(work), session_id="s")
    await approve(it, run_id)
    assert (await output(it, run_id))["exit_code"] == 0
    found = await changed(it, run_id)
    assert [(f["path"], f["kind"], f["added"], f["removed"]) for f in found] == [
        ("a.txt", "replaced", 1, 0),
        ("d/new.txt", "created", 1, 0),
        ("old.txt", "deleted", 0, 1),
    ]
    status, body = await it.get(f"/v1/runs/{run_id}/diff")
    assert status == 200
    assert "+three\n" in body["data"][0]["diff"]
    assert (body["added"], body["removed"]) == (2, 1)


async def test_a_command_that_only_reads_takes_no_snapshot(it: GatewayProcess, work: Path) -> None:
    (work / "a.txt").write_text("one\n")
    await does(it, command("cat a.txt"), workspace=str(work))
    assert not (it.home / "snapshots").exists()


@pytest.mark.promise("SNAP-06")
async def test_what_a_stopped_command_had_changed_is_recorded(
    it: GatewayProcess, work: Path
) -> None:
    (work / "a.txt").write_text("one\n")
    script = "echo two > a.txt; mkfifo up; sleep 1000"
    run_id = await it.run(command(script), workspace=str(work), session_id="s")
    await approve(it, run_id)
    await until((work / "up").exists)
    status, _ = await it.post(f"/v1/runs/{run_id}/stop", {})
    assert status in (200, 202)
    done = await it.finished(run_id)
    assert done["status"] == "cancelled"
    (found,) = await changed(it, run_id)
    assert (found["path"], found["kind"]) == ("a.txt", "replaced")
