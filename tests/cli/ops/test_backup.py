"""`holdfast backup` and `holdfast restore`: all of a home, checked, and nothing half done."""

import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from holdfast.cli.exits import Code
from holdfast.core.session.doubts import RESTORED_TEXT
from holdfast.host import archive
from holdfast.host.archive import KEPT, MANIFEST, STAGING
from holdfast.journal.mark import PREFIX
from tests.behaviour import ledger
from tests.fakes.gateway import GatewayProcess, gateway, unstarted
from tests.fakes.model_server import ModelServer, serve

pytestmark = [pytest.mark.anyio, pytest.mark.promise("TIME-04")]


async def _holdfast(it: GatewayProcess, *words: str) -> tuple[int, str]:
    """Exit code, and what it said."""
    done = await it.holdfast(*words)
    return done.returncode, done.stderr.decode()


async def _ask(it: GatewayProcess, effects: Path) -> str:
    run_id = await it.run(f'tool:risky {{"path": "{effects}", "tag": "x"}}')
    await it.events(run_id, until="approval.request")
    return run_id


def _tree(home: Path) -> dict[str, bytes]:
    return {
        path.relative_to(home).as_posix(): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and not path.is_relative_to(home / "run")
    }


async def test_a_backup_of_a_gateway_at_work_comes_back_and_repeats_nothing(tmp_path: Path) -> None:
    effects, file = tmp_path / "effects", tmp_path / "home.backup"
    async with serve() as model, gateway(tmp_path, model.base_url) as it:
        done = await it.run("x" * 70_000, session_id="long")  # a blob
        before = await it.finished(done)
        waiting = await _ask(it, effects)
        code, said = await _holdfast(it, "backup", str(file))
        assert code == 0, said
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert list(it.home.glob(f"{PREFIX}*"))
        with tarfile.open(file, "r:gz") as members:  # a mark is of the home that it is in
            assert not [name for name in members.getnames() if name.startswith(PREFIX)]
        await it.post(f"/v1/runs/{waiting}/approval", {"choice": "once"})
        assert (await it.finished(waiting))["status"] == "completed"
        code, said = await _holdfast(it, "restore", "--force", str(file))
        assert code == Code.FAILED, said  # it is in use
        await it.stop()
        code, said = await _holdfast(it, "restore", str(file))
        assert code == Code.FAILED, said  # it is not empty
        code, said = await _holdfast(it, "restore", "--force", str(file))
        assert code == 0, said
        assert [p for p in it.home.iterdir() if p.name.startswith(KEPT)]
        await it.start()
        assert await it.status(done) == before
        ended = await it.finished(waiting)
        assert (ended["status"], ended["error"]) == ("failed", RESTORED_TEXT)
        assert len(effects.read_text().splitlines()) == 1
        code, said = await _holdfast(it, "audit", "verify")
        assert code == 0, said
        assert ledger.ask(
            it.home, "SELECT count(*) FROM events WHERE kind = 'journal.restored'"
        ) == [(1,)]


async def _backed_up(tmp_path: Path, model: ModelServer) -> tuple[Path, Path]:
    """A home that is down, and a backup of it."""
    file = tmp_path / "home.backup"
    async with gateway(tmp_path, model.base_url) as it:
        await it.finished(await it.run("hello"))
        await it.stop()
        code, said = await _holdfast(it, "backup", str(file))
        assert code == 0, said
        return it.home, file


def _damaged(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _no_manifest(file: Path) -> None:
    _rewrite(file, lambda name: name != MANIFEST)


def _something_missing(file: Path) -> None:
    _rewrite(file, lambda name: name != "config.toml")


def _no_archive(file: Path) -> None:
    file.write_bytes(b"these are words")


def _rewrite(file: Path, keep: Callable[[str], bool]) -> None:
    new = file.with_suffix(".new")
    with tarfile.open(file, "r:gz") as old, tarfile.open(new, "w:gz") as to:
        for info in old:
            if keep(info.name):
                to.addfile(info, old.extractfile(info) if info.isreg() else None)
    new.replace(file)


async def test_a_bad_archive_changes_nothing(tmp_path: Path) -> None:
    async with serve() as model:
        home, file = await _backed_up(tmp_path, model)
        good, before = file.read_bytes(), _tree(home)
        async with unstarted(tmp_path, model.base_url) as it:
            for spoil in (_damaged, _cut, _no_manifest, _something_missing, _no_archive):
                file.write_bytes(good)
                spoil(file)
                code, said = await _holdfast(it, "restore", "--force", str(file))
                assert code == Code.FAILED, (spoil.__name__, said)
                assert len(said.splitlines()) == 1, said
                assert _tree(home) == before, spoil.__name__
            missing = await _holdfast(it, "restore", "--force", str(tmp_path / "none"))
            assert missing[0] == Code.FAILED
            assert _tree(home) == before


async def test_a_newer_archive_is_refused(tmp_path: Path) -> None:
    async with serve() as model:
        home, file = await _backed_up(tmp_path, model)
        with closing(sqlite3.connect(home / "journal.db")) as journal:
            journal.execute("PRAGMA user_version = 9999")
        async with unstarted(tmp_path, model.base_url) as it:
            assert (await _holdfast(it, "backup", "--force", str(file)))[0] == 0
            code, said = await _holdfast(it, "restore", "--force", str(file))
            assert code == Code.FAILED
            assert "9999" in said


async def test_a_restore_into_an_empty_home_needs_no_force(tmp_path: Path) -> None:
    async with serve() as model:
        home, file = await _backed_up(tmp_path, model)
        home.rename(tmp_path / "away")
        new = tmp_path / "new"
        (tmp_path / "other").mkdir()
        async with unstarted(tmp_path / "other", model.base_url) as it:
            it.environment["HOLDFAST_HOME"] = str(new)
            code, said = await _holdfast(it, "restore", str(file))
            assert code == 0, said
        for name in ("config.toml", "audit.jsonl"):
            if (tmp_path / "away" / name).exists():
                assert (new / name).read_bytes() == (tmp_path / "away" / name).read_bytes()


def test_odd_files_in_a_workspace_do_not_block_a_backup(
    tmp_path: Path,
) -> None:
    home, file = tmp_path / "home", tmp_path / "home.backup"
    workspace = home / "workspaces" / "one"
    workspace.mkdir(parents=True)
    with closing(sqlite3.connect(home / "journal.db")) as journal:
        journal.execute("CREATE TABLE t (a)")
    os.mkfifo(workspace / "pipe")
    with closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(str(workspace / "socket"))
    names = [b"\xff", b"\\xff", b"a\nb", "ü".encode()]
    for name in names:
        Path(os.fsdecode(bytes(workspace) + b"/" + name)).write_bytes(name)
    os.symlink(b"/\xfe", bytes(workspace) + b"/link")
    os.symlink("/etc", workspace / "folder")
    archive.write(home, file, print)
    archive.unpack(file, tmp_path / "new", print)
    back = bytes(tmp_path / "new" / "workspaces" / "one")
    assert sorted(os.listdir(back)) == sorted([*names, b"link", b"folder"])
    assert os.readlink(back + b"/link") == b"/\xfe"
    assert all(Path(os.fsdecode(back + b"/" + name)).read_bytes() == name for name in names)


async def test_a_backup_does_not_replace_a_file_unasked(tmp_path: Path) -> None:
    async with serve() as model:
        _, file = await _backed_up(tmp_path, model)
        before = file.read_bytes()
        async with unstarted(tmp_path, model.base_url) as it:
            assert (await _holdfast(it, "backup", str(file)))[0] == Code.USAGE
            assert file.read_bytes() == before
            inside = it.home / "x.backup"
            assert (await _holdfast(it, "backup", str(inside)))[0] == Code.USAGE
            assert not inside.exists()


@pytest.mark.debian("strace")
@pytest.mark.parametrize("what", ["backup", "restore"])
async def test_an_interrupt_leaves_nothing_half_done(tmp_path: Path, what: str) -> None:
    async with serve() as model:
        home, file = await _backed_up(tmp_path, model)
        before, files = _tree(home), sorted(os.listdir(tmp_path))
        async with unstarted(tmp_path, model.base_url) as it:
            # Interrupt it at its first sync: all is written, nothing is in place.
            command = [
                *("strace", "-D", "-f", "-qq", "-o", os.devnull, "-e", "trace=fsync"),
                *("-e", f"inject=fsync:signal={signal.SIGINT.name}:when=1"),
                *(sys.executable, "-m", "holdfast", what, "--force", str(file)),
            ]
            done = await anyio.run_process(
                command, env=it.environment, check=False, stderr=subprocess.PIPE
            )
            assert done.returncode == Code.INTERRUPTED, done.stderr
        assert _tree(home) == before
        assert not (home / STAGING).exists()
        assert sorted(os.listdir(tmp_path)) == files
