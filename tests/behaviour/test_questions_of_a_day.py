"""How often a day's work asks: 60 commands of a web developer and a data person, in one session.

The person answers as a sensible one would: with the rule for the session where one is offered,
once otherwise, and no to every host. The programs that a bare machine lacks are stubs.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.figures import note
from tests.behaviour.hands import command
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

DAY = [
    line
    for line in Path(__file__).with_name("day.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("# ")
]
MOST_ASKED, MOST_SANDBOXED = 20, 6
STUB = "#!/bin/sh\nexit 0\n"
INSTALLER = """#!/bin/bash
[[ $1 = install ]] || exit 0
exec 3<>"/dev/tcp/127.0.0.1/${http_proxy##*:}"
printf 'GET http://packages.invalid/ HTTP/1.1\\r\\nHost: packages.invalid\\r\\n\\r\\n' >&3
read -r line <&3 && echo "$line"
"""
STUBS = "node jq docker make pytest python curl".split()


def furnish(work: Path) -> None:
    for path in (
        *("src/app.js", "scripts/report.js", "web/package.json", "package.json", "dist/x.js"),
        *("data/sales.csv", "data/more.csv", "clean.py", "requirements.txt", "log.txt", "Makefile"),
    ):
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text("b,2\na,1\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(work), *words], env=_identity(), check=True)


def _identity() -> dict[str, str]:
    who = {
        f"GIT_{role}_{part}": "x" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")
    }
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **who}


def programs(folder: Path) -> str:
    """A PATH on which every program of the day is found."""
    folder.mkdir()
    texts = dict.fromkeys(STUBS, STUB) | dict.fromkeys(("npm", "pip"), INSTALLER)
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return os.pathsep.join([str(folder), os.environ["PATH"]])


async def questions_of(it: GatewayProcess, work: Path, text: str) -> list[dict[str, Any]]:
    """Run one command of the day; what it asked."""
    run_id = await it.run(
        command(text.replace("WORKSPACE", str(work))), workspace=str(work), session_id="day"
    )
    questions: list[dict[str, Any]] = []
    after = 0
    while True:
        stream = await it.events(run_id, after, until="approval.request")
        if "approval.request" not in stream.names:
            return questions
        question = stream.frames[-1].data
        after = stream.frames[-1].id
        questions.append(question)
        offered = "session" in question["choices"]
        choice = "session" if offered else "once"
        if question["command"].startswith("connect to "):
            choice = "deny"
        body = {"choice": choice, "request_id": question["request_id"]}
        status, answer = await it.post(f"/v1/runs/{run_id}/approval", body)
        assert status == 200, answer


@pytest.mark.debian("bwrap")
@pytest.mark.promise("ASK-04")
@pytest.mark.parametrize(("mode", "most"), [("ask", MOST_ASKED), ("sandboxed", MOST_SANDBOXED)])
async def test_a_day_of_sixty_commands_asks_seldom(
    tmp_path: Path, model: ModelServer, mode: str, most: int
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    furnish(work)
    config = f'[gateway]\nworkspace_roots = ["{work}"]\n[approval]\nmode = "{mode}"\n'
    path = programs(tmp_path / "bin")
    async with gateway(tmp_path, model.base_url, config, PATH=path) as it:
        asked = [(text, await questions_of(it, work, text)) for text in DAY]
    count = sum(len(questions) for _, questions in asked)
    for text, questions in asked:
        for question in questions:
            note(f"{text}: {question['command']} {question['choices']}\n{question['description']}")
    note(f"{mode}: {len(DAY)} commands, {count} questions")
    assert len(DAY) == 60
    assert count <= most
