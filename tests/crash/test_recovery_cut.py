"""A recovery that is killed at any write or sync gets the same result as any other."""

import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.crash import kills
from tests.crash.evidence import (
    THOROUGH,
    UNKNOWN,
    ask_for,
    begun,
    endings,
    facts,
    lines,
    noted,
)
from tests.fakes.gateway import GatewayProcess, gateway, unstarted
from tests.fakes.model_server import Ask, ModelServer, Reply, react, say

pytestmark = [pytest.mark.anyio, pytest.mark.debian("strace")]

State = dict[str, Any]


def _unstalled(ask: Ask) -> Reply:
    """The model after the restart: what stalled before is said whole."""
    words = next(m.text for m in reversed(ask.messages) if m.role == "user")
    return say("xx and the rest") if words.endswith("stall:2") else react(ask)


async def _cut_home(directory: Path, model: ModelServer) -> list[str]:
    """A home whose process was killed at work: in a call, in an answer, with one queued."""
    effects = directory / "effects"
    async with gateway(directory, model.base_url) as it:
        both = ask_for("bump", path=effects, tag="a") + "\ntool:hang {}"
        runs = [
            await it.run(both, session_id="calls"),
            await it.run("say:after it", session_id="calls"),
            await it.run("stall:2", session_id="answers"),
        ]
        first = await it.events(runs[0], until="tool.completed")
        bumped = next(f.id for f in first.frames if f.event == "tool.completed")
        await it.events(runs[0], after=bumped, until="tool.started")
        await begun(it, runs[2], "message.delta")
        await it.kill()
    assert len(lines(effects)) == 1
    return runs


async def _finish(it: GatewayProcess, runs: list[str]) -> bool:
    """Whether all of them came to an end; False: the process did first."""
    try:
        return all([endings(await it.events(run_id)) for run_id in runs])
    except aiohttp.ClientError:
        return False


async def _state(it: GatewayProcess, runs: list[str]) -> State:
    """Everything a client can see of the runs and their sessions, and what readers are left with."""
    state: State = {}
    for run_id in runs:
        stream = await it.events(run_id)
        assert endings(stream) == ["run.completed"], stream.names
        assert stream.names.count("run.started") == 1, stream.names
        done = await it.status(run_id)
        settled = facts(it.home, "call.settled", run_id=run_id)
        outcomes = [(f["tool"], f["outcome"]) for f in settled]
        state[run_id] = (done["status"], done["output"], done["usage"], stream.text, outcomes)
    for session in ("calls", "answers"):
        _, state[session] = await it.get(f"/api/sessions/{session}/messages")
    return state


def _put_back(kept: Path, home: Path) -> None:
    """Make the home what it was. The journal stays the same file: a copy would be a restore."""
    for path in home.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "journal.db":
            path.unlink()
    shutil.copytree(kept, home, dirs_exist_ok=True, ignore=shutil.ignore_patterns("journal.db"))
    with (home / "journal.db").open("r+b") as journal:
        journal.write((kept / "journal.db").read_bytes())
        journal.truncate()


async def _recover(directory: Path, model: ModelServer, runs: list[str]) -> State:
    async with gateway(directory, model.base_url) as it:
        assert await _finish(it, runs)
        return await _state(it, runs)


@pytest.mark.fault("F-02")
@pytest.mark.promise("BACK-10")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", ["fdatasync", "pwrite64"])
async def test_a_kill_during_recovery_changes_nothing_about_where_it_ends(
    tmp_path: Path, model: ModelServer, call: str
) -> None:
    step = 6 if call == "pwrite64" and not THOROUGH else 1
    runs = await _cut_home(tmp_path, model)
    model.otherwise = _unstalled
    home, kept = tmp_path / "home", tmp_path / "kept"
    shutil.copytree(home, kept, ignore=shutil.ignore_patterns("*.sock"))
    undisturbed = await _recover(tmp_path, model, runs)
    assert UNKNOWN in undisturbed[runs[0]][1] and undisturbed[runs[2]][3] == "xx and the rest"
    number, through = 1, False
    while not through:
        _put_back(kept, home)
        with noted(f"recovery killed at {call} {number}"):
            async with unstarted(tmp_path, model.base_url) as it:
                wal = it.home / "journal.db-wal"
                await it.start(*kills.at(call, number, wal), wait=False)
                through = await it.comes_up() and await _finish(it, runs)
                if not through:
                    await it.ended()
                    await it.start()
                    assert await _finish(it, runs)
                assert await _state(it, runs) == undisturbed
        number += step
    assert number > 2 * step, "there was something to be killed at"
    assert len(lines(tmp_path / "effects")) == 1
