"""`make run` and `make setup`: what they install, once, also after an interruption.

The installer is a fake: it writes down what it was asked for and installs nothing.
"""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("Makefile", "scripts/setup.sh", "requirements.lock", "requirements-dev.lock")
INSTALLER = """#!/bin/sh
echo "$@" >> asked
site=$(echo .venv/lib/python3.*/site-packages)
if [ -f cut ]; then
  rm cut
  mkdir "$site/half-1.0.dist-info"
  kill -9 $PPID
fi
echo {installed} > "$site/installed.pth"
"""


class Clone:
    """The project in a folder of its own, with an installer that installs nothing."""

    def __init__(self, root: Path) -> None:
        self.root, self.home, programs = root / "my clone", root / "home", root / "bin"
        for name in FILES:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        (self.root / "holdfast").symlink_to(ROOT / "holdfast")
        programs.mkdir()
        uv = programs / "uv"
        uv.write_text(INSTALLER.format(installed=sysconfig.get_path("purelib")))
        uv.chmod(0o755)
        self.environ = {
            "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
            "HOME": str(root),
            "HOLDFAST_HOME": str(self.home),
            "HOLDFAST_PULL": "0",
        }

    def make(self, *targets: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", *targets],
            cwd=self.root,
            env=self.environ,
            input="list the files here",
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    def asked(self) -> list[str]:
        """The files that the installer was given, in order."""
        path = self.root / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        assert all("--require-hashes" in line for line in lines)
        return [line.rpartition("-r ")[2] for line in lines]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@pytest.mark.promise("BARE-03")
def test_a_run_installs_what_running_needs_and_development_the_rest_each_once(
    clone: Clone,
) -> None:
    first = clone.make("run")
    assert (first.returncode, "requirements.lock" in first.stdout) == (0, True), first.stderr
    assert clone.asked() == ["requirements.lock"]
    again = clone.make("run")
    assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr
    assert clone.asked() == ["requirements.lock"]
    for _ in range(2):
        assert clone.make("setup").returncode == 0
        assert clone.asked() == ["requirements.lock", "requirements-dev.lock"]
    assert clone.make("run").returncode == 0
    assert len(clone.asked()) == 2


def test_a_run_imports_nothing_that_lies_beside_the_package(clone: Clone) -> None:
    (clone.root / "beside.py").write_text("")
    assert clone.make("run").returncode == 0
    found = "import holdfast, importlib.util as u; print(u.find_spec('beside'))"
    argv = [str(clone.root / ".venv/bin/python"), "-P", "-c", found]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "None\n"


@pytest.mark.promise("BARE-03")
def test_an_interrupted_setup_is_continued(clone: Clone) -> None:
    (clone.root / "cut").touch()
    assert clone.make("run").returncode != 0
    (half,) = (clone.root / ".venv").rglob("half-1.0.dist-info")
    again = clone.make("run")
    assert again.returncode == 0, again.stderr
    assert clone.asked() == ["requirements.lock"] * 2
    assert not half.exists()


def test_the_command_works_from_anywhere_and_takes_nothing_from_where_it_is_called(
    clone: Clone, tmp_path: Path
) -> None:
    assert clone.make("run").returncode == 0
    (tmp_path / "holdfast").mkdir()
    (tmp_path / "holdfast" / "__init__.py").write_text("raise SystemExit(99)")
    done = subprocess.run(
        [clone.root / ".venv" / "bin" / "holdfast", "--version"], cwd=tmp_path, check=False
    )
    assert done.returncode == 0


def test_advised_commands_can_be_typed_unchanged(clone: Clone) -> None:
    advice = clone.make("run").stderr
    (command,) = {word for word in advice.split() if word.endswith("/holdfast")}
    done = subprocess.run(
        [command, "setup", "--yes"], cwd=clone.root, env=clone.environ, check=False
    )
    assert done.returncode in (0, 1)
    clone.environ["PATH"] = f"{clone.root}/.venv/bin:{clone.environ['PATH']}"
    assert "/holdfast" not in clone.make("run").stderr
