"""kill -9 while autorun files are moved away: the next gateway gets the same result."""

import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from holdfast.tools.exec.record import Folder
from holdfast.tools.sandbox import autorun_paths
from holdfast.tools.sandbox.autorun import MOVED_AWAY, Before
from holdfast.tools.sandbox.autorun_paths import HELD
from tests.behaviour.hands import approve, command, until
from tests.crash import kills
from tests.crash.evidence import noted
from tests.fakes.gateway import ROOT, GatewayProcess, gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

LEAVE = """
import sys
from pathlib import Path
from holdfast.tools.exec.record import Folder
Folder(Path(sys.argv[1])).leave()
"""
EVIL = "[core]\n\tfsmonitor = ./evil\n"
HOOK = "#!/bin/sh\n./evil\n"
THEIRS = "[core]\n\tbare = false\n[user]\n\tname = Ada\n"
HARMFUL = (".git/config", ".git/hooks/pre-push", "\udcff/.git/config", "\udcff/.git/hooks/pre-push")


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _left(place: Path) -> tuple[Path, Folder]:
    """A workspace in which a command has just ended, and what is written down of it."""
    work, folder = place / "work", Folder(place / "call")
    for name in ("HEAD", "objects/x", "refs/x"):
        _put(work / ".git" / name, "ref: refs/heads/main\n")
    _put(work / ".git/config", THEIRS)
    _put(work / ".git/hooks/pre-commit", "#!/bin/sh\necho of the user\n")
    folder.keep(Before(str(work), autorun_paths.look(str(work)), frozenset()))
    for name in HARMFUL:
        _put(work / name, HOOK if "hooks" in name else EVIL)
    return work, folder


def _texts(work: Path) -> dict[str, str]:
    files = [path for path in work.rglob("*") if path.is_file()]
    return {str(path.relative_to(work)): path.read_text() for path in files}


def _check(work: Path, notes: tuple[str, ...]) -> None:
    """What git would run is out of the way, kept and told of; what was there before is back."""
    after = _texts(work)
    assert after.pop(".git/config") == THEIRS
    assert after.pop(".git/hooks/pre-commit") == "#!/bin/sh\necho of the user\n"
    assert not [name for name in HARMFUL if name in after]
    for name in HARMFUL:
        aside = [now for now in after if now.startswith(name + HELD) and not now.endswith(".new")]
        assert [after[now] for now in aside] == [HOOK if "hooks" in name else EVIL]
        assert name.replace("\udcff", "�") in notes[0]


@pytest.mark.fault("F-44")
@pytest.mark.debian("strace")
def test_a_move_that_is_killed_is_finished_by_the_next_one(tmp_path: Path) -> None:
    for call in ("renameat", "write", "unlink"):
        _kill_at_each(tmp_path, call)


def _kill_at_each(tmp_path: Path, call: str) -> None:
    for number in count(1):
        place = tmp_path / str(number)
        work, folder = _left(place)
        wrapper = kills.at(call, number)
        argv = [*wrapper, sys.executable, "-B", "-c", LEAVE, str(folder.path)]
        with noted(f"killed at {call} {number}"):
            through = subprocess.run(argv, cwd=ROOT, timeout=60, check=False).returncode == 0
            _check(work, folder.leave())
        shutil.rmtree(place)
        if through:
            break
    assert number > 1, "there was something to be killed at"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


MAKES = (
    "git init -q . && git config core.fsmonitor ./evil && echo evil > .git/hooks/pre-push && "
    "touch made && while [ ! -e go ]; do sleep 0.02; done"
)


async def _makes(it: GatewayProcess, work: Path) -> str:
    """A run whose command has made a repository that runs code, and waits for `go`."""
    run_id = await it.run(command(MAKES), workspace=str(work))
    await approve(it, run_id)
    await until((work / "made").exists)
    return run_id


def _is_clean(work: Path) -> bool:
    config, hook = work / ".git/config", work / ".git/hooks/pre-push"
    return not hook.exists() and not (config.exists() and "fsmonitor" in config.read_text())


@pytest.mark.fault("F-44")
@pytest.mark.debian("bwrap")
async def test_autorun_files_of_a_command_are_moved_away_after_its_gateway_was_killed(
    tmp_path: Path, work: Path, model: ModelServer
) -> None:
    rooted = f'[gateway]\nworkspace_roots = ["{work}"]\n'
    async with gateway(tmp_path, model.base_url, rooted) as it:
        run_id = await _makes(it, work)
        await it.kill()
        assert not _is_clean(work)
        await it.start()
        assert _is_clean(work)
        assert MOVED_AWAY in (await it.finished(run_id))["output"]
        assert not list((it.home / "calls").glob("*/before.json"))


@pytest.mark.fault("F-44")
@pytest.mark.debian("strace", "bwrap")
async def test_a_gateway_killed_between_two_moves_makes_the_rest_when_it_is_back(
    tmp_path: Path, work: Path, model: ModelServer
) -> None:
    rooted = f'[gateway]\nworkspace_roots = ["{work}"]\n'
    async with gateway(tmp_path, model.base_url, rooted) as it:
        run_id = await _makes(it, work)
        async with kills.attached(it, "renameat", 2, workers=True):
            (work / "go").touch()
            await it.ended()
        assert sum(HELD in name for name in _texts(work)) == 1
        assert not _is_clean(work)
        await it.start()
        assert _is_clean(work)
        told = (await it.finished(run_id))["output"]
        assert ".git/config (now" in told and ".git/hooks/pre-push (now" in told
