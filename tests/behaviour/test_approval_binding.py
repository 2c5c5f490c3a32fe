"""An approval covers exactly what was shown: a command with changed files does not run.

Through the public door, on the sandbox that this machine has: the model asks for a line, the test
changes a file that the line comes to run, then answers.
"""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.core.session.answers import CHANGED_TEXT
from holdfast.tools.sandbox.mounts import interpreter
from tests.behaviour.hands import approve, asked, audit, command, does, started, until
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer, call, calls, say

pytestmark = pytest.mark.anyio

BIG = 9 * 2**20


class Case:
    """A line, and the file that it comes to run though it need not name it plainly."""

    def __init__(self, line: str, file: str = "x.sh", text: str = "", **asked: object) -> None:
        self.line, self.file, self.asked = line, file, asked
        self.text = text or "#!/bin/sh\necho {} > {}/effect\n"


PYTHON = "open('{1}/effect', 'w').write('{0}')\n"
CASES = {
    "quoted": Case('sh "deploy prod.sh" 2>&1', "deploy prod.sh"),
    "quoted, unsandboxed": Case('sh "deploy prod.sh" 2>&1', "deploy prod.sh", unsandboxed=True),
    "pushd": Case("pushd sub && sh x.sh", "sub/x.sh"),
    "chained cd": Case("cd sub && cd deep && sh x.sh 2>&1", "sub/deep/x.sh"),
    "chained cd, unsandboxed": Case(
        "cd sub && cd deep && sh x.sh 2>&1", "sub/deep/x.sh", unsandboxed=True
    ),
    "escaped space": Case(r"sh deploy\ prod.sh", "deploy prod.sh"),
    "glob": Case("sh x*.sh"),
    "glob, unsandboxed": Case("sh x*.sh", unsandboxed=True),
    "read and write": Case("sh 0<>x.sh"),
    "env -C": Case("env -C sub sh x.sh", "sub/x.sh"),
    "sh -c cd": Case("sh -c 'cd sub && sh x.sh'", "sub/x.sh"),
    "home": Case("sh ~/x.sh", "~/x.sh"),
    "home by variable": Case('sh "$HOME"/x.sh', "~/x.sh"),
    "big": Case("sh x.sh", text="#!/bin/sh\necho {} > {}/effect\nexit\n".ljust(BIG, "#")),
    "source": Case(". ./x.sh; true"),
    "input": Case("bash < x.sh"),
    "here-document": Case("bash <<E\nsh x*.sh\nE"),
    "xargs": Case("echo sub/x.sh | xargs sh", "sub/x.sh"),
    "variable": Case("f=x; sh $f.sh"),
    "make": Case("make", "Makefile", "all:\n\techo {} > {}/effect\n"),
    "module": Case(f"{interpreter()} -m tool", "tool.py", PYTHON),
    "imported": Case(f"PYTHONPATH=sub {interpreter()} -c 'import tool'", "sub/tool.py", PYTHON),
    "named": Case("sh x.sh"),
}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
async def it(tmp_path: Path, work: Path, model: ModelServer) -> AsyncIterator[GatewayProcess]:
    config = f'[gateway]\nworkspace_roots = ["{work}"]\n'
    async with gateway(tmp_path, model.base_url, config) as process:
        yield process


class Asked:
    """A case whose question waits, in a workspace of its own."""

    def __init__(self, case: Case, workspace: Path, file: Path, run_id: str) -> None:
        self.case, self.workspace, self.file, self.run_id = case, workspace, file, run_id

    def write(self, word: str) -> None:
        """Have it leave another word; the size and the time of the file stay as they are."""
        before = self.file.stat()
        self.file.write_text(self.case.text.format(word, self.workspace))
        os.utime(self.file, ns=(before.st_atime_ns, before.st_mtime_ns))


async def ask_all(it: GatewayProcess, work: Path) -> dict[str, Asked]:
    """Every case, each with a file that would leave the word `good`."""
    found = {}
    for number, (name, case) in enumerate(CASES.items()):
        workspace = work / str(number)
        (workspace / "sub" / "deep").mkdir(parents=True)
        file = workspace / case.file
        if case.file.startswith("~/"):
            await does(it, command(f"touch ~/made{number}"), workspace=str(workspace))
            (made,) = (it.home / "caches").glob(f"*/made{number}")
            file = made.parent / case.file[2:]
        file.write_text(case.text.format("good", workspace))
        run_id = await it.run(command(case.line, **case.asked), workspace=str(workspace))
        found[name] = Asked(case, workspace, file, run_id)
    for one in found.values():
        await asked(it, one.run_id)
    return found


def effect(work: Path) -> str:
    found = work / "effect"
    return found.read_text().strip() if found.exists() else ""


@pytest.mark.fault("F-33")
@pytest.mark.promise("RUN-28")
async def test_a_file_that_was_changed_before_the_answer_does_not_run(
    it: GatewayProcess, work: Path
) -> None:
    cases = await ask_all(it, work)
    for one in cases.values():
        one.write("evil")
        await approve(it, one.run_id)
    told = {name: (await it.finished(one.run_id))["output"] for name, one in cases.items()}
    ran = {name: effect(one.workspace) for name, one in cases.items()}
    assert ran == dict.fromkeys(CASES, "")
    assert [name for name, text in told.items() if CHANGED_TEXT not in text] == []
    for one in cases.values():
        assert not started(await it.events(one.run_id))
        kinds = [entry["kind"] for entry in audit(it, one.run_id)]
        assert kinds == ["call.asked", "approval.answer", "call.denied"]


@pytest.mark.fault("F-10")
async def test_an_unchanged_command_runs_after_a_restart_too(
    it: GatewayProcess, work: Path
) -> None:
    cases = await ask_all(it, work)
    await it.kill()
    for one in cases.values():
        one.write("good")  # the same content, at another time
    await it.start()
    for one in cases.values():
        await approve(it, one.run_id)
        await it.finished(one.run_id)
    ran = {name: effect(one.workspace) for name, one in cases.items()}
    assert ran == dict.fromkeys(CASES, "good")


@pytest.mark.fault("F-33")
@pytest.mark.promise("RUN-28")
@pytest.mark.parametrize("later", ["write_file", "terminal"])
async def test_later_calls_of_the_turn_wait_while_an_approval_does(
    it: GatewayProcess, model: ModelServer, work: Path, later: str
) -> None:
    (work / "x.sh").write_text("echo good >> effect\n")
    line = {"command": "sh x*.sh"}
    other = {"command": "cp /dev/null x.sh; echo evil >> effect"}
    file = {"path": "x.sh", "content": "echo evil >> effect\n"}
    second = call("write_file", json.dumps(file), index=1, call_id="two")
    if later == "terminal":
        second = call("terminal", json.dumps(other), index=1, call_id="two")
    model.then(calls(call("terminal", json.dumps(line), call_id="one"), second), say("over"))
    run_id = await it.run("do both", workspace=str(work))
    first = await asked(it, run_id)
    status = await it.status(run_id)
    assert status["status"] == "waiting_for_approval"
    assert not started(await it.events(run_id, until="approval.request"))
    await it.kill()
    await it.start()
    await approve(it, run_id)
    if later == "terminal":
        await until(lambda: effect(work))
        assert effect(work) == "good"
        stream = await it.events(run_id, after=first["seq"], until="approval.request")
        question = next(f.data for f in stream.frames if f.event == "approval.request")
        await it.post(f"/v1/approvals/{question['request_id']}", {"choice": "once"})
    await it.finished(run_id)
    assert effect(work).splitlines()[0] == "good"
    assert started(await it.events(run_id)) == ["terminal", later]


@pytest.mark.promise("RUN-28")
async def test_a_file_that_changes_by_itself_is_left_out_when_it_is_asked_again(
    it: GatewayProcess, work: Path
) -> None:
    log, script = work / "log", work / "x.sh"
    log.write_text("1")
    script.write_text("echo good > effect\n")
    line = command("sh x*.sh")
    for told in ("", str(log.name)):
        run_id = await it.run(line, workspace=str(work), session_id="s")
        question = await asked(it, run_id)
        assert f"in {work} but {told}" in question["description"] if told else True
        log.write_text(log.read_text() + "1")
        await approve(it, run_id)
        await it.finished(run_id)
        assert effect(work) == ("good" if told else "")
    (work / "effect").unlink()
    run_id = await it.run(line, workspace=str(work), session_id="s")
    await asked(it, run_id)
    script.write_text("echo evil > effect\n")  # all others are still checked
    await approve(it, run_id)
    assert CHANGED_TEXT in (await it.finished(run_id))["output"]
    assert effect(work) == ""


@pytest.mark.fault("F-33")
@pytest.mark.promise("RUN-28")
async def test_a_file_that_another_run_writes_is_never_left_out(
    it: GatewayProcess, work: Path
) -> None:
    (work / "Makefile").write_text("all:\n\techo good > effect\n")
    for again in range(2):
        run_id = await it.run(command("make"), workspace=str(work), session_id="s")
        question = await asked(it, run_id)
        assert f"all 1 in {work}," in question["description"]
        evil = writing("Makefile", f"all:\n\techo evil {again} > effect\n")
        await it.finished(await it.run(evil, workspace=str(work)))
        await approve(it, run_id)
        assert CHANGED_TEXT in (await it.finished(run_id))["output"]
    assert effect(work) == ""


def replace(folder: Path) -> None:
    folder.rename(folder.parent / "old")
    folder.mkdir()


def writing(path: str, text: str) -> str:
    return f"tool:write_file {json.dumps({'path': path, 'content': text})}"


@pytest.mark.fault("F-33")
@pytest.mark.promise("RUN-28")
@pytest.mark.parametrize(
    "who", ["another session", "a background process", "a new directory", "a hard link"]
)
async def test_a_command_does_not_run_if_any_program_changed_a_file_meanwhile(
    it: GatewayProcess, work: Path, who: str
) -> None:
    script = work / "x.sh"
    script.write_text("echo good > effect\n")
    if who == "a background process":
        flip = "until test -e go; do sleep 0.05; done; echo 'echo evil > effect' > x.sh; touch gone"
        await does(it, command(flip, background=True), workspace=str(work), session_id="b")
    run_id = await it.run(command("sh x*.sh"), workspace=str(work))
    question = await asked(it, run_id)
    if who == "another session":
        await it.finished(await it.run(writing("x.sh", "echo evil > effect"), workspace=str(work)))
    elif who == "a hard link":
        (work.parent / "outside").hardlink_to(script)
        (work.parent / "outside").write_text("echo evil > effect\n")
    elif who == "a background process":
        assert "Processes at work there" in question["description"]
        (work / "go").touch()
        await until(lambda: (work / "gone").exists())
    else:
        replace(work)
        script.write_text("echo evil > effect\n")
    await approve(it, run_id)
    assert CHANGED_TEXT in (await it.finished(run_id))["output"]
    assert effect(work) == ""


@pytest.mark.fault("F-33", "F-10")
@pytest.mark.promise("RUN-28")
async def test_a_change_between_the_answer_and_a_start_after_a_kill_is_noticed(
    tmp_path: Path, work: Path, model: ModelServer
) -> None:
    config = f'[gateway]\nworkspace_roots = ["{work}"]\n[limits]\nrunning = 1\n'
    (work / "x.sh").write_text("echo good > effect\n")
    async with gateway(tmp_path, model.base_url, config) as it:
        run_id = await it.run(command("sh x*.sh"), workspace=str(work))
        await asked(it, run_id)
        blocker = await it.run("tool:hang {}")  # takes the only place: nothing begins meanwhile
        await it.events(blocker, until="tool.started")
        await approve(it, run_id)
        await it.kill()
        (work / "x.sh").write_text("echo evil > effect\n")
        await it.start()
        assert CHANGED_TEXT in (await it.finished(run_id))["output"]
        assert effect(work) == ""


@pytest.mark.fault("F-33")
@pytest.mark.promise("RUN-28")
async def test_of_two_approved_commands_one_does_not_run_on_files_that_the_other_changed(
    it: GatewayProcess, work: Path
) -> None:
    (work / "x.sh").write_text("echo good >> effect\n")
    runs = [await it.run(command("sh x*.sh"), workspace=str(work)) for _ in range(2)]
    for run_id in runs:
        await asked(it, run_id)
    for run_id in runs:
        question = await approve(it, run_id)
        await it.finished(run_id)
        again = {"choice": "once", "request_id": question["request_id"]}
        assert (await it.post(f"/v1/runs/{run_id}/approval", again))[0] == 409
    assert effect(work) == "good"
    assert CHANGED_TEXT in (await it.finished(runs[1]))["output"]


@pytest.mark.promise("RUN-28")
@pytest.mark.parametrize(
    "line", ["make -f x.mk", "make -fx.mk", "make -f x.mk -C .", "env -C . make --file=x.mk"]
)
async def test_a_permission_for_the_session_ends_with_a_change_of_a_file_that_the_line_names(
    it: GatewayProcess, work: Path, line: str
) -> None:
    (work / "x.mk").write_text("all:\n\techo good > effect\n")
    await approve(
        it, first := await it.run(command(line), workspace=str(work), session_id="s"), "session"
    )
    await it.finished(first)
    assert effect(work) == "good"
    await it.finished(await it.run(command(line), workspace=str(work), session_id="s"))
    await it.finished(await it.run(writing("x.mk", "all:\n\techo evil > effect\n"), session_id="s"))
    question = await asked(it, await it.run(command(line), workspace=str(work), session_id="s"))
    assert "x.mk" in question["description"]
    assert effect(work) == "good"
