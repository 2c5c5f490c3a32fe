"""Files that the user's programs run by themselves change only with the user's approval."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.behaviour.hands import approve, audit, command, does
from tests.fakes.gateway import gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

SANDBOXED = '[approval]\nmode = "sandboxed"\n'


def rooted(folder: Path) -> str:
    return f'[gateway]\nworkspace_roots = ["{folder}"]\n'


def writes(path: str, content: str) -> str:
    return f"tool:write_file {json.dumps({'path': path, 'content': content})}"


@pytest.mark.fault("F-44")
@pytest.mark.parametrize("mode", ["", SANDBOXED], ids=["ask", "sandboxed"])
async def test_a_file_tool_asks_and_a_refusal_leaves_nothing(
    tmp_path: Path, model: ModelServer, mode: str
) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    async with gateway(tmp_path, model.base_url, rooted(tmp_path) + mode) as it:
        for path in (".git/config", ".vscode/tasks.json"):
            run_id = await it.run(writes(path, "evil\n"), workspace=str(workspace))
            await approve(it, run_id, "deny")
            await it.finished(run_id)
            assert list(workspace.iterdir()) == []
        run_id = await it.run(writes(".envrc", "export A=1\n"), workspace=str(workspace))
        question = await approve(it, run_id)
        assert "| export A=1" in question["command"]
        await it.finished(run_id)
        assert (workspace / ".envrc").read_text() == "export A=1\n"
        run_id = await it.run(writes(".envrc", "x"), workspace=str(workspace), answerable=False)
        await it.finished(run_id)
        assert (workspace / ".envrc").read_text() == "export A=1\n"
        assert audit(it, run_id)[-1]["kind"] == "call.denied"


@pytest.mark.fault("F-44")
@pytest.mark.debian("bwrap")
async def test_a_command_without_approval_cannot_make_git_run_anything(
    tmp_path: Path, model: ModelServer
) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    async with gateway(tmp_path, model.base_url, rooted(tmp_path) + SANDBOXED) as it:
        where = {"workspace": str(workspace)}
        evil = "git init -q . && printf '#!/bin/sh\\ntouch pwned\\n' > evil && chmod +x evil && "
        done = await does(it, command(evil + "git config core.fsmonitor ./evil"), **where)
        assert ".git/config" in done["note"]
        _status(workspace)
        assert not (workspace / "pwned").exists()
        done = await does(it, command("git config core.fsmonitor ./evil; git commit -m x"), **where)
        assert done["exit_code"] != 0
        _status(workspace)
        assert not (workspace / "pwned").exists()


def _status(workspace: Path) -> None:
    subprocess.run(["git", "-C", str(workspace), "status"], capture_output=True, check=False)
