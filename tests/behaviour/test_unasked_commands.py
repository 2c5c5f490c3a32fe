"""Commands that run without approval, over HTTP, in a workspace that an attacker prepared."""

from pathlib import Path

import pytest

from tests.behaviour.hands import approve, asked, command, output, started
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer
from tests.tools.exec.test_corpus import HOSTILE, furnish

pytestmark = pytest.mark.anyio

SAMPLE = sorted({*HOSTILE[::25], *HOSTILE[:3], "cat slash/etc/passwd", "ls slash/root"})
SECRET = "outside of the workspace"


def configured(work: Path) -> str:
    return f'[gateway]\nworkspace_roots = ["{work}"]\n'


async def begins(it: GatewayProcess, work: Path, text: str) -> str:
    return await it.run(command(text), workspace=str(work))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    furnish(made)
    (tmp_path / "secret.txt").write_text(SECRET)
    return made


@pytest.mark.fault("F-32")
@pytest.mark.promise("ASK-01")
async def test_a_sample_of_the_hostile_corpus_needs_approval_over_http(
    tmp_path: Path, work: Path, model: ModelServer
) -> None:
    async with gateway(tmp_path, model.base_url, configured(work)) as it:
        runs = {text: await begins(it, work, text) for text in SAMPLE}
        for text, run_id in runs.items():
            stream = await it.events(run_id, until="approval.request")
            assert "approval.request" in stream.names, text
            assert not started(stream), text
    assert not (work / "pwned").exists()


@pytest.mark.promise("ASK-02")
async def test_a_link_that_stays_inside_is_read_and_one_that_leads_out_is_asked_about(
    tmp_path: Path, work: Path, model: ModelServer
) -> None:
    async with gateway(tmp_path, model.base_url, configured(work)) as it:
        told = await output(it, await begins(it, work, "cat inside/main.py"))
        assert (told["exit_code"], told["output"]) == (0, "def main(): pass\n")
        question = await asked(it, await begins(it, work, "cat up/secret.txt"))
        assert question["command"] == "cat up/secret.txt"


@pytest.mark.promise("ASK-03")
async def test_a_tool_is_told_that_no_person_was_asked(it: GatewayProcess) -> None:
    harmless = await it.finished(await it.run('tool:ground {"path": "pwd"}'))
    assert "unasked: True" in harmless["output"]
    run_id = await it.run('tool:ground {"path": "make"}')
    await approve(it, run_id)
    assert "unasked: False" in (await it.finished(run_id))["output"]
