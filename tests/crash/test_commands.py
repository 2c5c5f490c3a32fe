"""kill -9 around a command: it runs at most once, and its known state is reported."""

import secrets
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from holdfast.tools.terminal_result import ENDED_WITH_GATEWAY
from tests.behaviour.figures import note
from tests.behaviour.hands import (
    approve,
    asked,
    carrying,
    command,
    does,
    gone,
    output,
    running,
    told_late,
    until,
)
from tests.crash import kills
from tests.crash.evidence import facts
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]

# Deaf to TERM and hang-ups: itself, a session of its own, a daemon, a nohup, a job.
NASTY = """\
trap '' TERM HUP INT
stay='trap "" TERM HUP INT; while :; do sleep 1000; done'
setsid sh -c "$stay" TOKEN &
(setsid sh -c "$stay" TOKEN &)
nohup sh -c "$stay" TOKEN > /dev/null &
sh -c "$stay" TOKEN &
sleep 0.2; echo up
while :; do sleep 1000; done
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
async def it(tmp_path: Path, work: Path, model: ModelServer) -> AsyncIterator[GatewayProcess]:
    config = f'[gateway]\nworkspace_roots = ["{work}"]\n'
    async with gateway(tmp_path, model.base_url, config) as process:
        yield process


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def appears(folder: Path, pattern: str) -> None:
    await until(lambda: list(folder.glob(pattern)))


async def changed(it: GatewayProcess, run_id: str) -> list[tuple[str, str]]:
    """The files that a run changed, as its readers see it."""
    stream = await it.events(run_id)
    frames = [f.data for f in stream.frames if f.event == "file.changed"]
    return [(data["path"], data["kind"]) for data in frames if data["path"] != "go"]


@pytest.mark.fault("F-06")
@pytest.mark.promise("BACK-10")
@pytest.mark.promise("SNAP-06")
async def test_a_result_written_while_the_gateway_was_gone_is_adopted_and_not_run_again(
    it: GatewayProcess, work: Path
) -> None:
    script = "echo x >> effect; while [ ! -e go ]; do sleep 0.02; done; echo the result"
    run_id = await it.run(command(script), workspace=str(work))
    await approve(it, run_id)
    await appears(work, "effect")
    it.signal(signal.SIGSTOP)  # it sees and writes nothing any more
    (work / "go").touch()
    await appears(it.home / "calls", "*/exit.json")
    await it.kill()
    await it.start()
    told = await output(it, run_id)
    assert (told["exit_code"], told["output"]) == (0, "the result\n")
    assert lines(work / "effect") == ["x"]
    assert (await it.events(run_id)).names.count("tool.started") == 1
    assert await changed(it, run_id) == [("effect", "created")]
    await it.stop()
    assert not list((it.home / "calls").iterdir()), "evidence that was adopted is let go"


@pytest.mark.fault("F-05")
@pytest.mark.promise("BACK-10")
@pytest.mark.promise("SNAP-06")
async def test_a_command_cut_in_the_middle_is_unknown_with_what_it_wrote(
    it: GatewayProcess, work: Path
) -> None:
    token = secrets.token_hex(8)
    script = f"echo x >> effect; echo so far; sleep 1000; : {token}"
    run_id = await it.run(command(script), workspace=str(work))
    await approve(it, run_id)
    await it.events(run_id, until="tool.progress")
    await it.kill()
    await gone(token, within_s=2)
    await it.start()
    done = await it.finished(run_id)
    assert ENDED_WITH_GATEWAY in done["output"]
    assert "so far" in done["output"]
    assert lines(work / "effect") == ["x"]
    assert await changed(it, run_id) == [("effect", "created")]


@pytest.mark.fault("F-05")
@pytest.mark.debian("strace")
@pytest.mark.parametrize(
    ("call", "workers"),
    [
        pytest.param("memfd_create", True, id="recorded, nothing prepared"),
        pytest.param("memfd_create", False, id="before the spawn"),
        pytest.param("pidfd_open", False, id="just after the spawn"),
    ],
)
async def test_killed_around_the_spawn_it_ran_once_at_most_and_that_is_told(
    it: GatewayProcess, work: Path, call: str, *, workers: bool
) -> None:
    """A worker makes the filter for the sandbox before the loop makes the job for the shim."""
    run_id = await it.run(command("echo x >> effect"), workspace=str(work))
    await asked(it, run_id)  # the sandbox has been probed by then
    async with kills.attached(it, call, 1, workers=workers):
        try:
            await approve(it, run_id)
        except aiohttp.ClientError:
            pass  # it died before it could answer
        await it.ended()
    assert len(facts(it.home, "call.started", run_id=run_id)) == 1
    prepared = list((it.home / "calls").glob("*"))
    assert bool(prepared) is not workers
    await it.start()
    done = await it.finished(run_id)
    ran = lines(work / "effect")
    assert ran in ([], ["x"])
    assert done["status"] == "completed"
    assert (await it.events(run_id)).names.count("tool.started") == 1
    told = done["output"]
    assert ENDED_WITH_GATEWAY in told or "Not started" in told or '"exit_code":0' in told
    assert "Not started" in told or not workers
    if "Not started" in told:
        assert ran == []


@pytest.mark.fault("F-19")
@pytest.mark.promise("STOP-06")
@pytest.mark.parametrize("also_shim", [False, True], ids=["gateway", "gateway and shim"])
async def test_nothing_nasty_survives_a_killed_gateway(
    it: GatewayProcess, work: Path, *, also_shim: bool
) -> None:
    token = secrets.token_hex(8)
    run_id = await it.run(command(NASTY.replace("TOKEN", token)), workspace=str(work))
    await approve(it, run_id)
    await it.events(run_id, until="tool.progress")  # all of it is up
    alive = await running(token)
    assert len(alive) >= 5
    shims = kills.shims(it.pid) if also_shim else []
    assert bool(shims) is also_shim
    began = time.monotonic()
    for pid in shims:
        kills.kill(pid)
    await it.kill()
    await gone(token, within_s=2)
    note(f"all dead {1000 * (time.monotonic() - began):.0f} ms after kill -9")
    await it.start()
    done = await it.finished(run_id)
    assert ("watched over this command" if also_shim else ENDED_WITH_GATEWAY) in done["output"]


@pytest.mark.promise("STOP-05", "STOP-06")
async def test_a_shutdown_ends_commands_that_ignore_term(it: GatewayProcess, work: Path) -> None:
    token = secrets.token_hex(8)
    script = f"trap '' TERM HUP INT; echo ready; while :; do sleep 1; done; : {token}"
    run_id = await it.run(command(script), workspace=str(work))
    await approve(it, run_id)
    await it.events(run_id, until="tool.progress")
    began = time.monotonic()
    assert await it.stop() == 0
    took = time.monotonic() - began
    assert not carrying(token)
    assert took <= 10
    note(f"SIGTERM to exit with a command that ignores it: {took:.1f} s")
    await it.start()
    assert (await it.finished(run_id))["status"] == "completed"


@pytest.mark.promise("STOP-06", "BACK-10")
async def test_a_detached_process_outlives_the_gateway_and_is_attached_again(
    it: GatewayProcess, work: Path
) -> None:
    script = "echo x >> effect; while [ ! -e go ]; do sleep 0.02; done; echo went on"
    text = command(script, background=True, notify_on_complete=True, detach=True)
    told = await does(it, text, workspace=str(work), session_id="s", late="events")
    await appears(work, "effect")
    await it.kill()
    await it.start()
    (work / "go").touch()
    said = await told_late(it, "s", "has ended")
    assert told["process_id"] in said
    assert "exit code 0" in said
    assert "went on" in said
    assert lines(work / "effect") == ["x"]
