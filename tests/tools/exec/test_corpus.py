"""Commands that run without approval, on the path of every command: parse, plan, decide.

The corpora are text: one command a line, a comment above each kind. The workspace holds what an
attacker would put there: links that lead out, a named pipe, names that look like flags.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from holdfast.core.approval.approval import (
    ApprovalMode,
    Decision,
    ExecutionContext,
    Ground,
    Level,
    MayRun,
    MustAsk,
    Posture,
    Role,
    RunDoor,
    RunPrincipal,
)
from holdfast.core.approval.decision import decide_execution
from holdfast.core.approval.execution import execution_hash
from holdfast.core.approval.families import family
from holdfast.core.approval.harmless import HARMLESS as RULES
from holdfast.core.approval.rules import CommandPlace, OutputRule, Permission
from holdfast.core.types import OPERATOR, SessionId, SessionKey
from holdfast.tools.exec import plan
from holdfast.tools.exec.shell import parse
from holdfast.tools.sandbox.sandbox import CommandProfile, Sandbox
from holdfast.tools.terminal_arguments import TerminalArguments
from holdfast.tools.tool import Judge, ToolDenied
from tests.tools.exec.test_commands import Desk, WallClock

pytestmark = pytest.mark.anyio

CORPUS = Path(__file__).with_name("corpus")
LEAST_HOSTILE, LEAST_HARMLESS = 1_000, 100


def commands(name: str) -> list[str]:
    """The commands of a corpus."""
    lines = (CORPUS / name).read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("# ")]


HOSTILE, HARMLESS = commands("hostile.txt"), commands("harmless.txt")
AFTER_GRANTS = commands("granted.txt")
LEAST_AFTER_GRANTS = 300


def furnish(workspace: Path) -> None:
    """Fill a workspace with files, and with what leads out of it."""
    for path in ("src/main.py", "tests/test_main.py", "d2/x", "node_modules/x.js"):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text("def main(): pass\n")
    for path in ("notes.txt", "a.txt", "b.txt", "log.txt", "README.md", "data.csv", ".hidden"):
        (workspace / path).write_text("b,2\na,1\n")
    for path in ("x.sh", "bin/ls"):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text("#!/bin/sh\nid > pwned\n")
        (workspace / path).chmod(0o755)
    (workspace / "twin").hardlink_to(workspace / "b.txt")
    (workspace / ".git" / "hooks").mkdir(parents=True)
    (workspace / "d1").mkdir()
    os.mkfifo(workspace / "pipe")
    leads_to = {
        **{"slash": "/", "etc": "/etc", "passwd": "/etc/passwd", "up": "..", "chain": "slash"},
        **{"cwd": "/proc/self/cwd", "root": "/proc/self/root", "fd": "/dev/fd", "loop": "loop"},
        **{"zero": "/dev/zero", "7": "/etc/passwd", "-n": "/etc/passwd", "src/deep": "../slash"},
        **{"d1/x": "/etc/passwd", "inside": "src", "abs": str(workspace / "src")},
    }
    for name, target in leads_to.items():
        (workspace / name).symlink_to(target)


class SystemDesk(Desk):
    """One whose programs are the system's own, where the system has them."""

    def sandboxed(self, root: Path, rung: str) -> Sandbox:  # type: ignore[explicit-override]
        path = ["/usr/bin", "/bin"]
        return Sandbox(root / "home", root / "user", allow_none=False, exec_path=path)


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Desk]:
    async with anyio.create_task_group() as tasks:
        made = SystemDesk(tmp_path, "", tasks, WallClock())
        furnish(made.workspace)
        yield made
        await made.spawner.aclose()
        tasks.cancel_scope.cancel()


def context(workspace: Path) -> ExecutionContext:
    return ExecutionContext(
        principal=RunPrincipal(OPERATOR, frozenset(Role)),
        session=SessionKey(OPERATOR, SessionId("s")),
        door=RunDoor("terminal", True, 600.0),
        mode=ApprovalMode.ASK,
        cautious=False,
        level=Level.L2,
        workspace=str(workspace),
        grants=(),
        standing=(),
        open_prompts=0,
        now=0.0,
    )


async def decided(it: Desk, command: str) -> Decision:
    """What becomes of `command`, with every program of the table where a system has it."""
    found = await it.terminal.permit(it.context(), TerminalArguments(command))
    assert isinstance(found, Judge)
    there = {rule.exe: f"/usr/bin/{rule.exe}" for rule in RULES}
    programs = {**there, **found.request.programs}
    return decide_execution(replace(found.request, programs=programs), context(it.workspace))


def test_the_corpora_have_the_documented_sizes() -> None:
    assert len(set(HOSTILE)) >= LEAST_HOSTILE and len(set(HARMLESS)) >= LEAST_HARMLESS
    assert not set(HOSTILE) & set(HARMLESS)


@pytest.mark.fault("F-32")
@pytest.mark.promise("ASK-01")
async def test_no_command_of_the_hostile_corpus_runs_unasked(it: Desk) -> None:
    assert [text for text in HOSTILE if not isinstance(await decided(it, text), MustAsk)] == []


FAMILIES = (
    *("git status", "git add x", "make test", "pytest -q", "npm test", "node x.js", "python x.py"),
    *("jq . x", "curl -s localhost", "docker ps", "mkdir x", "touch x", "tree", "ruff check ."),
    *("pip list", "cargo test", "go test", "tsc", "python3 -m x"),
)


def granted(workspace: Path) -> ExecutionContext:
    """A session whose person has allowed every family, and output into files."""
    place = CommandPlace(str(workspace), str(workspace))
    rules: list[Permission] = [OutputRule(workspace=str(workspace))]
    for text in FAMILIES:
        argv = tuple(text.split())
        rule = family(argv, (), f"/usr/bin/{argv[0]}", place)
        assert rule is not None, text
        rules.append(rule)
    return replace(context(workspace), standing=tuple(rules))


async def decided_with_grants(it: Desk, command: str) -> Decision:
    """What becomes of `command` if everything that questions offer was granted before."""
    found = await it.terminal.permit(it.context(), TerminalArguments(command))
    assert isinstance(found, Judge)
    names = {text.split()[0] for text in FAMILIES} | {rule.exe for rule in RULES}
    programs = {**found.request.programs, **{name: f"/usr/bin/{name}" for name in names}}
    return decide_execution(replace(found.request, programs=programs), granted(it.workspace))


@pytest.mark.fault("F-32")
@pytest.mark.promise("ASK-05", "ASK-06")
async def test_no_attack_on_what_was_granted_runs_unasked(it: Desk) -> None:
    texts = [text.replace("WORKSPACE", str(it.workspace)) for text in AFTER_GRANTS]
    assert len(set(texts)) >= LEAST_AFTER_GRANTS
    found = [(text, await decided_with_grants(it, text)) for text in texts]
    assert [text for text, decision in found if not isinstance(decision, MustAsk)] == []


@pytest.mark.promise("ASK-05", "ASK-06")
@pytest.mark.parametrize(
    "text",
    [
        *("pytest -q 2>&1 | tail -5", "cat a.txt > new.txt", "ls >> log.txt 2>&1", "git status -s"),
        *("git log --oneline -5 | head", "cd src && pytest -x > out.log", "npm run build -- --all"),
        *("CI=1 npm test", "PYTHONPATH=src python -m report", "make test && git add -A; ls"),
        *("git commit -m 'a message'", "curl -s localhost:3000 | jq . > out.json", "ls > 'a b'"),
    ],
)
async def test_what_was_granted_runs_unasked_in_any_plain_line(it: Desk, text: str) -> None:
    assert await decided_with_grants(it, text) == MayRun(Ground.GRANTED)
    assert isinstance(await decided(it, text), MustAsk)


@pytest.mark.promise("ASK-06")
async def test_a_link_put_in_the_place_of_an_output_file_is_noticed_at_the_start(it: Desk) -> None:
    asked = TerminalArguments("cat a.txt > new.txt")
    found = await it.terminal.permit(it.context(), asked)
    assert isinstance(found, Judge)
    judged = it.context(execution=execution_hash(found.request))
    (it.workspace / "new.txt").symlink_to(".git/config")
    assert isinstance(await it.terminal.run(judged, asked), ToolDenied)
    assert not (it.workspace / ".git" / "config").exists()


async def test_every_command_of_the_harmless_corpus_runs_unasked(it: Desk) -> None:
    texts = [text.replace("WORKSPACE", str(it.workspace)) for text in HARMLESS]
    assert [text for text in texts if await decided(it, text) != MayRun(Ground.HARMLESS)] == []


def test_every_program_of_the_table_is_in_both_corpora() -> None:
    for corpus in (HOSTILE, HARMLESS):
        words = {word for text in corpus for word in text.split()}
        assert {rule.exe for rule in RULES} - words == set()


@pytest.mark.promise("ASK-02")
@pytest.mark.parametrize("text", ["cat src/main.py", "cd src && cat main.py", "cat new"])
async def test_a_link_that_is_put_there_after_the_decision_is_noticed_at_the_start(
    it: Desk, text: str
) -> None:
    assert await decided(it, text) == MayRun(Ground.HARMLESS)
    found = await it.terminal.permit(it.context(), TerminalArguments(text))
    assert isinstance(found, Judge)
    judged = it.context(execution=execution_hash(found.request))
    path = it.workspace / text.replace("cd src && cat main.py", "cat src/main.py").split()[-1]
    path.unlink(missing_ok=True)
    path.symlink_to("/etc/passwd")
    assert isinstance(await it.terminal.run(judged, TerminalArguments(text)), ToolDenied)


@pytest.mark.promise("ASK-02")
@pytest.mark.parametrize("text", ["diff new a.txt", "diff a.txt new", "cd src; diff a.txt new"])
async def test_a_directory_that_is_put_there_after_the_decision_is_noticed_at_the_start(
    it: Desk, text: str
) -> None:
    assert await decided(it, text) == MayRun(Ground.HARMLESS)  # of a directory, links are followed
    found = await it.terminal.permit(it.context(), TerminalArguments(text))
    assert isinstance(found, Judge)
    judged = it.context(execution=execution_hash(found.request))
    folder = it.workspace / ("src/new" if "cd" in text else "new")
    folder.mkdir()
    (folder / "a.txt").symlink_to("/etc/passwd")
    assert isinstance(await it.terminal.run(judged, TerminalArguments(text)), ToolDenied)


@pytest.mark.promise("ASK-02")
async def test_a_session_directory_that_is_a_link_is_resolved(it: Desk) -> None:
    for cwd, expected in (("inside", str(it.workspace / "src")), ("slash", str(it.workspace))):
        context = it.context(cwd=str(it.workspace / cwd))
        found = await it.terminal.permit(context, TerminalArguments("ls"))
        assert isinstance(found, Judge) and found.request.cwd == expected


@pytest.mark.promise("ASK-01")
async def test_a_bash_on_the_path_of_a_workspace_does_not_run_what_is_not_asked_about(
    it: Desk,
) -> None:
    folder = it.workspace / "bin"
    (folder / "bash").symlink_to(it.workspace / "x.sh")
    path = os.pathsep.join([str(folder), "/usr/bin", "/bin"])
    profile = CommandProfile(str(it.workspace))
    literal = plan.make("echo x", str(it.workspace), profile, path, "", moved=False)
    assert literal.bash in ("/bin/bash", "/usr/bin/bash")
    script = plan.make("echo $x", str(it.workspace), profile, path, "", moved=False)
    assert script.bash == str(folder / "bash")
    assert script.bash in plan.files(script)


class BusyboxDesk(Desk):
    """One whose `grep` is busybox, as on Alpine: with `-r` that reads through links to files."""

    def sandboxed(self, root: Path, rung: str) -> Sandbox:  # type: ignore[explicit-override]
        folder = root / "bin"
        folder.mkdir()
        (folder / "busybox").write_text("#!/bin/sh\n")
        (folder / "busybox").chmod(0o755)
        (folder / "grep").symlink_to("busybox")
        path = [str(folder), "/usr/bin", "/bin"]
        return Sandbox(root / "home", root / "user", allow_none=False, exec_path=path)


@pytest.mark.promise("ASK-02")
async def test_a_grep_that_is_busybox_is_asked_about_before_it_reads_directories(
    tmp_path: Path,
) -> None:
    async with anyio.create_task_group() as tasks:
        it = BusyboxDesk(tmp_path, "", tasks, WallClock())
        found = await it.terminal.permit(it.context(), TerminalArguments("grep -r x"))
        assert isinstance(found, Judge)
        request = replace(found.request, programs={"grep": "/bin/grep"})  # where Alpine has it
        assert isinstance(decide_execution(request, context(it.workspace)), MustAsk)
        request = replace(request, what=parse("grep x"))
        assert decide_execution(request, context(it.workspace)) == MayRun(Ground.HARMLESS)
        await it.spawner.aclose()
        tasks.cancel_scope.cancel()


class ContainerDesk(SystemDesk):
    """One whose commands run in a container, with the programs of its image."""

    def sandboxed(self, root: Path, rung: str) -> Sandbox:  # type: ignore[explicit-override]
        class Contained(Sandbox):
            async def probe(self) -> Posture:  # type: ignore[explicit-override]
                return Posture(Level.L3, (), (), "")

        path = ["/usr/bin", "/bin"]
        return Contained(root / "home", root / "user", allow_none=True, exec_path=path)


@pytest.mark.promise("ASK-02")
async def test_in_a_container_grep_is_asked_about_before_it_reads_directories(
    tmp_path: Path,
) -> None:
    async with anyio.create_task_group() as tasks:
        it = ContainerDesk(tmp_path, "", tasks, WallClock())  # the image may have busybox
        assert isinstance(await decided(it, "grep -r x"), MustAsk)
        assert await decided(it, "grep x") == MayRun(Ground.HARMLESS)
        await it.spawner.aclose()
        tasks.cancel_scope.cancel()


async def test_a_link_that_may_not_be_read_is_no_reason_to_fail(it: Desk) -> None:
    assert isinstance(await decided(it, "cat /proc/1/exe"), MustAsk)
