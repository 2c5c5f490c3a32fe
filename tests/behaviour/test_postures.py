"""With a weaker sandbox, or none, everything works and the weakness is reported."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import anyio
import pytest

from holdfast.tools.sandbox import bwrap
from tests.behaviour.hands import approve, audit, command, does, output
from tests.bwrap import hide_package
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

NEEDED = "bash sh cat echo ls sleep head env touch true".split()


@pytest.fixture
def without_bwrap(tmp_path: Path) -> str:
    """A PATH on which there is no bubblewrap."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in NEEDED:
        where = shutil.which(name)
        assert where is not None
        (folder / name).symlink_to(where)
    return str(folder)


@pytest.fixture
async def it(
    tmp_path: Path, model: ModelServer, without_bwrap: str
) -> AsyncIterator[GatewayProcess]:
    async with gateway(
        tmp_path, model.base_url, PATH=without_bwrap, PYTHONPATH=hide_package(tmp_path)
    ) as process:
        yield process


async def test_without_bubblewrap_commands_run_at_what_is_left_and_say_so(
    it: GatewayProcess, tmp_path: Path
) -> None:
    run_id = await it.run(command("echo hello"))
    assert (await output(it, run_id))["output"] == "hello\n"
    level = (await it.events(run_id)).frames[0].data["sandbox"]
    assert level == "L1"
    _, health = await it.get("/health/detailed")
    assert health["sandbox"]["level"] == "L1"
    assert bwrap.MISSING in health["sandbox"]["note"]
    asking = await it.run(command("touch made"))
    question = await approve(it, asking)
    assert "Sandbox: L1" in question["description"]
    assert (await output(it, asking))["exit_code"] == 0
    (tmp_path / "secret").write_text("hush")
    told = await does(it, command(f"cat {tmp_path}/secret {it.home}/config.toml"))
    assert "hush" not in told["output"]
    assert "plugins" not in told["output"]


@pytest.mark.debian("bwrap")
async def test_a_weaker_sandbox_than_before_pauses_work_until_the_operator_accepts_it(
    tmp_path: Path, model: ModelServer, without_bwrap: str
) -> None:
    async with gateway(tmp_path, model.base_url) as it:
        await output(it, await it.run(command("echo strong")))
        await it.stop()
        it.environment |= {"PATH": without_bwrap, "PYTHONPATH": hide_package(tmp_path)}
        await it.start()
        run_id = await it.run(command("echo weak"))
        with anyio.fail_after(20):
            while not (  # noqa: ASYNC110  health is asked
                paused := (await it.get("/health/detailed"))[1]["paused"]
            ):
                await anyio.sleep(0.02)  # sleep: health is asked, it does not tell
        assert "holdfast sandbox accept" in paused
        assert (await it.status(run_id))["status"] == "queued"
        assert (await it.post("/v1/sandbox/accept"))[0] == 403  # not by the API's key
        connector = aiohttp.UnixConnector(str(it.home / "run" / "front.sock"))
        async with aiohttp.ClientSession(connector=connector) as operator:
            async with operator.post("http://localhost/v1/sandbox/accept") as response:
                assert response.status == 200
        assert (await output(it, run_id))["output"] == "weak\n"
        assert "sandbox.accepted" in [e["kind"] for e in audit(it)]
