"""kill -9 at every step of a write: what is recorded is what happened to the file."""

import hashlib
from pathlib import Path

import aiohttp
import pytest

from tests.crash import kills
from tests.crash.evidence import ask_for, endings, facts, noted
from tests.fakes.gateway import GatewayProcess
from tests.fakes.model_server import ModelServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.debian("strace"),
    pytest.mark.promise("EDIT-06"),
    pytest.mark.fault("F-05"),
]

ORDER = ["unknown", "failed", "ok"]  # not announced; not replaced; replaced


def _contents(tag: str) -> tuple[str, str]:
    """The content before and after, unlike any other: a version that is there is not written."""
    return f"the old {tag}\n", f"the new {tag}\n"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _put(path: Path, text: str) -> None:
    path.write_text(text)


def _read(path: Path) -> str:
    return path.read_text()


async def _workspace(it: GatewayProcess) -> Path:
    """The workspace of the session `s`, which exists afterwards."""
    await it.finished(await it.run(ask_for("list_files"), session_id="s"))
    _, session = await it.get("/api/sessions/s")
    return Path(session["workspace"])


async def _walk(it: GatewayProcess, text: str) -> tuple[str, bool]:
    """The run's id, and whether it got to its end."""
    run_id = ""
    try:
        run_id = await it.run(text, session_id="s")
        return run_id, bool(endings(await it.events(run_id)))
    except aiohttp.ClientError:
        return run_id, False


async def _check(it: GatewayProcess, run_id: str, path: Path) -> str:
    """What must hold afterwards; returns the outcome of the call."""
    assert (await it.finished(run_id))["status"] == "completed"
    (settled,) = facts(it.home, "call.settled", run_id=run_id)
    changed = facts(it.home, "file.changed", run_id=run_id)
    old, new = _contents(path.name)
    if settled["outcome"] == "ok":
        hashes = [(fact["before"], fact["after"]) for fact in changed]
        assert (hashes, _read(path)) == ([(_hash(old), _hash(new))], new)
    else:  # cut before it was announced, or before the file was replaced
        assert (changed, _read(path)) == ([], old)
        announced = facts(it.home, "file.changing", run_id=run_id)
        assert settled["outcome"] == ("failed" if announced else "unknown")
    _, diff = await it.get(f"/v1/runs/{run_id}/diff")
    assert [one["after"] for one in diff["data"]] == [fact["after"] for fact in changed]
    return str(settled["outcome"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("tool", "call", "expected"),
    [("write_file", "fsync", {"unknown", "failed", "ok"}), ("patch", "renameat", {"failed", "ok"})],
)
async def test_a_kill_at_any_step_of_a_write_leaves_a_record_of_what_happened(
    it: GatewayProcess, model: ModelServer, tool: str, call: str, expected: set[str]
) -> None:
    workspace = await _workspace(it)
    outcomes: list[str] = []
    through = False
    while not through:
        number = len(outcomes) + 1
        path = workspace / f"{number}.txt"
        old, new = _contents(path.name)
        _put(path, old)
        change = {"content": new} if tool == "write_file" else {"old": "old", "new": "new"}
        with noted(f"killed at {call} {number} of {tool}"):
            async with kills.attached(it, call, number, workers=True):
                run_id, through = await _walk(it, ask_for(tool, path=path.name, **change))
                if not through:
                    await it.ended()
            if not through:
                await it.start()
            outcomes.append(await _check(it, run_id, path))
    assert set(outcomes) == expected
    assert outcomes == sorted(outcomes, key=ORDER.index)


async def test_a_stopped_run_records_what_its_interrupted_write_has_done(
    it: GatewayProcess, model: ModelServer
) -> None:
    """The kill comes after the rename; then the run is stopped before it goes on."""
    workspace = await _workspace(it)
    path = workspace / "a.txt"
    old, new = _contents(path.name)
    _put(path, old)
    async with kills.attached(it, "fsync", 1, workspace):  # of the directory, after the rename
        run_id, _ = await _walk(it, ask_for("write_file", path="a.txt", content=new))
        await it.ended()
    assert _read(path) == new
    settings = it.home / "config.toml"
    _put(settings, _read(settings) + '[recovery]\non_start = "wait"\n')
    await it.start()
    await it.post(f"/v1/runs/{run_id}/stop")
    assert (await it.finished(run_id))["status"] == "cancelled"
    (fact,) = facts(it.home, "file.changed", run_id=run_id)
    assert (fact["before"], fact["after"]) == (_hash(old), _hash(new))
