"""Instructions in files: read when a run starts, kept with it, named to its readers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.session.instructions import OWN, PROJECT
from tests.behaviour.desk import Desk, idle
from tests.fakes.gateway import Frame, GatewayProcess, gateway
from tests.fakes.model_server import ModelServer, serve

pytestmark = pytest.mark.anyio


def prompt(server: ModelServer) -> str:
    """The latest one that the server was sent."""
    return str(server.requests[-1].body["messages"][0]["content"])


def named(frames: list[Frame]) -> Iterator[list[str]]:
    for frame in frames:
        if frame.event == "instructions.read":
            yield [file["path"] for file in frame.data["files"]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "sub").mkdir(parents=True)
    (made / ".git").mkdir()
    return made


async def talk(it: GatewayProcess, where: Path, text: str = "say:ok") -> list[Frame]:
    run_id = await it.run(text, session_id="s", workspace=str(where))
    done: dict[str, Any] = await it.finished(run_id)
    assert done["status"] == "completed", done
    return (await it.events(run_id)).frames


@pytest.mark.promise("INSTR-01", "INSTR-02", "INSTR-04")
async def test_a_run_reads_the_files_of_its_project_and_the_user_s_own(
    tmp_path: Path, project: Path
) -> None:
    (project / "AGENTS.md").write_text("Indent with tabs.")
    (project / "sub" / "CLAUDE.md").write_text("Test with pytest.")
    config = f'[gateway]\nworkspace_roots = ["{project}"]\n'
    async with serve() as server, gateway(tmp_path, server.base_url, config=config) as it:
        (it.home / "instructions.md").write_text("Call me Ishmael.")
        where = project / "sub"
        assert list(named(await talk(it, where))) == [
            [f"{it.home}/instructions.md", "../AGENTS.md", "CLAUDE.md"]
        ]
        first = prompt(server)
        order = ["Call me Ishmael.", "Indent with tabs.", "Test with pytest."]
        assert sorted(order, key=first.index) == order
        assert first.index(OWN) < first.index(order[0]) < first.index(PROJECT)
        assert list(named(await talk(it, where))) == [], "the same files are no news"
        assert prompt(server) == first
        (project / "AGENTS.md").write_text("Indent with spaces.")
        (where / "CLAUDE.md").unlink()
        again = await talk(it, where)
        assert list(named(again)) == [[f"{it.home}/instructions.md", "../AGENTS.md"]]
        assert "Indent with spaces." in prompt(server)
        assert "Test with" not in prompt(server)


@pytest.mark.promise("INSTR-05")
async def test_a_run_that_goes_on_after_a_kill_has_the_prompt_it_began_with(
    tmp_path: Path, project: Path
) -> None:
    (project / "AGENTS.md").write_text("Before.")
    config = f'[gateway]\nworkspace_roots = ["{project}"]\n'
    async with serve() as server, gateway(tmp_path, server.base_url, config=config) as it:
        run_id = await it.run("stall:1", session_id="s", workspace=str(project))
        await server.asked(1)
        first = prompt(server)
        await it.kill()
        (project / "AGENTS.md").write_text("After.")
        await it.start()
        await server.asked(2)
        assert prompt(server) == first
        await it.post(f"/v1/runs/{run_id}/stop", {})
        await it.finished(run_id)
        await talk(it, project)
        assert "After." in prompt(server)


@pytest.mark.promise("INSTR-04")
async def test_a_terminal_names_the_files_in_one_line_and_in_status(alone: Desk) -> None:
    (alone.work / "AGENTS.md").write_text("Be brief.")
    async with alone.terminal() as person:
        await person.say("say:hello")
        await person.until("Instructions: AGENTS.md")
        await person.until(idle)
        await person.say("/status")
        await person.until(lambda shown: shown.count("Instructions: AGENTS.md") == 2)
