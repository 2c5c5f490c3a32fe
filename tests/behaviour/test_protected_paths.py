"""A repository that names programs, and an agent that works in it: none of them runs outside.

Each planted program leaves a mark outside of the workspace, where a confined command cannot write.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.behaviour.hands import approve, command, does, started
from tests.fakes.gateway import gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

WORK = (
    "git status",
    "git diff",
    "git log -p -1",
    "git show --stat HEAD",
    "echo y >> f && git add -A && git commit -qm two",
    "git checkout -q -b topic && git checkout -q -",
)
NEW = (".envrc", ".vscode/tasks.json", ".idea/x.xml", ".github/workflows/x.yml", ".bashrc", ".exrc")
THERE = (".git/hooks/pre-commit", ".git/config", ".git/modules/sub/config", ".git/config.worktree")


def git(work: Path, *words: str, check: bool = True) -> None:
    """Use git as the user does, with the settings of the repository."""
    who = {f"GIT_{r}_{p}": "x" for r in ("AUTHOR", "COMMITTER") for p in ("NAME", "EMAIL")}
    home = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **who}
    options = ("-c", "protocol.file.allow=always")
    subprocess.run(
        ["git", "-C", str(work), *options, *words], env=home, check=check, capture_output=True
    )


def program(root: Path, mark: Path) -> str:
    """A program that leaves its mark wherever it can write it."""
    path = root / "evil.sh"
    path.write_text(f'#!/bin/sh\necho "$0" >> {mark}\ncat\n')
    path.chmod(0o755)
    return str(path)


def hook(work: Path, evil: str) -> None:
    for name in ("pre-commit", "post-commit", "post-checkout", "post-index-change"):
        (work / ".git" / "hooks" / name).symlink_to(evil)


def hooks_path(work: Path, evil: str) -> None:
    (work / "hooks").mkdir()
    (work / "hooks" / "post-index-change").symlink_to(evil)
    git(work, "config", "core.hooksPath", "hooks")


def drivers(work: Path, evil: str) -> None:
    (work / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    for key in ("filter.x.clean", "filter.x.smudge", "diff.x.textconv", "diff.x.command"):
        git(work, "config", key, evil)


def included(work: Path, evil: str) -> None:
    (work / "shared").write_text(f"[core]\n\tfsmonitor = {evil}\n")
    git(work, "config", "include.path", "../shared")


def submodule(work: Path, evil: str) -> None:
    other = work.parent / f"{work.name}-other"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "x")
    git(work, "submodule", "add", "-q", str(other), "sub")
    git(work, "commit", "-qm", "sub")
    with (work / ".git/modules/sub/config").open("a") as file:
        file.write(f"[core]\n\tfsmonitor = {evil}\n")


def worktree(work: Path, evil: str) -> None:
    git(work, "config", "extensions.worktreeConfig", "true")
    git(work, "config", "--worktree", "core.fsmonitor", evil)


def setting(key: str) -> Callable[[Path, str], None]:
    return lambda work, evil: git(work, "config", key, evil)


PLANTS: dict[str, Callable[[Path, str], None]] = {
    "hook": hook,
    "hooks-path": hooks_path,
    "attributes": drivers,
    "include": included,
    "submodule": submodule,
    "worktree": worktree,
    **{
        key: setting(key)
        for key in ("core.fsmonitor", "core.pager", "core.editor", "diff.external")
    },
    **{key: setting(key) for key in ("core.sshCommand", "gpg.program", "core.askPass")},
}


def repository(work: Path) -> None:
    work.mkdir()
    git(work, "init", "-q")
    (work / "f").write_text("x\n")
    git(work, "add", ".")
    git(work, "commit", "-qm", "one")


@pytest.mark.debian("bwrap")
@pytest.mark.fault("F-44")
@pytest.mark.promise("PATH-01")
async def test_nothing_that_a_repository_names_runs_outside_of_the_sandbox(
    tmp_path: Path, model: ModelServer
) -> None:
    mark = tmp_path / "mark"
    evil = program(tmp_path, mark)
    config = f'[gateway]\nworkspace_roots = ["{tmp_path}"]\n[approval]\nmode = "sandboxed"\n'
    for name, plant in PLANTS.items():
        repository(tmp_path / name)
        plant(tmp_path / name, evil)
    mark.unlink(missing_ok=True)  # planting may have run some
    async with gateway(tmp_path, model.base_url, config) as it:
        for name in PLANTS:
            for text in WORK:
                done = await it.finished(
                    await it.run(command(text), workspace=str(tmp_path / name), session_id=name)
                )
                assert done["status"] == "completed"
                assert not mark.exists(), (name, text, mark.read_text())
    git(tmp_path / "core.fsmonitor", "status")
    assert mark.exists()  # the planted programs do run where a person uses git


@pytest.mark.debian("bwrap")
@pytest.mark.fault("F-44")
@pytest.mark.promise("PATH-02")
async def test_a_command_leaves_nothing_that_the_user_s_programs_run(
    tmp_path: Path, model: ModelServer
) -> None:
    work, mark = tmp_path / "work", tmp_path / "mark"
    repository(work)
    submodule(work, "false")
    evil = program(work, mark)
    config = f'[gateway]\nworkspace_roots = ["{tmp_path}"]\n[approval]\nmode = "sandboxed"\n'
    before = {path: (work / path).read_bytes() for path in THERE if (work / path).exists()}
    async with gateway(tmp_path, model.base_url, config) as it:
        for path in (*NEW, *THERE):
            line = f"mkdir -p $(dirname {path}); cp evil.sh {path}; ln -sf evil.sh {path}; rm -f {path}"
            line += f"; mkdir -p $(dirname {path}); cp evil.sh {path} && echo made"
            told = await does(it, command(line), workspace=str(work), session_id="s")
            assert not (work / path).exists() or path in before, path
            if "made" in told["output"]:
                assert path.split("/")[0] in told["note"], path
        for setting_ in ("core.fsmonitor", "core.hooksPath", "include.path", "filter.x.clean"):
            text = f"git config {setting_} {evil}; git config --worktree {setting_} {evil}"
            await does(it, command(text), workspace=str(work), session_id="s")
    assert {path: (work / path).read_bytes() for path in before} == before
    for words in (("status",), ("add", "-A"), ("commit", "-qm", "x"), ("checkout", "-qb", "y")):
        git(work, *words)
    assert not mark.exists()


@pytest.mark.fault("F-44")
@pytest.mark.promise("PATH-03")
@pytest.mark.parametrize("mode", ["ask", "sandboxed"])
async def test_a_protected_path_is_asked_for_in_every_mode(
    tmp_path: Path, model: ModelServer, mode: str
) -> None:
    work = tmp_path / "work"
    repository(work)
    config = f'[gateway]\nworkspace_roots = ["{tmp_path}"]\n[approval]\nmode = "{mode}"\n'
    async with gateway(tmp_path, model.base_url, config) as it:
        for path in (*NEW, *THERE):
            text = f"tool:write_file {json.dumps({'path': path, 'content': 'x'})}"
            for words in (text, command(f"echo x > {path}")):
                run_id = await it.run(words, workspace=str(work))
                question = await approve(it, run_id, "deny")
                assert question["choices"] == ["once", "deny"], (path, words)
                assert not started(await it.events(run_id))
    assert not any((work / path).exists() for path in NEW)
