"""A journal restored from a backup is detected, and nothing is used, run or sent twice."""

import json
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path

import msgspec
import pytest

from holdfast.core.session.doubts import RESTORED_TEXT
from holdfast.engine.life.distrust import DOUBTED
from holdfast.journal.mark import PREFIX
from holdfast.journal.versions import DAY_S
from tests.behaviour import ledger
from tests.crash import kills
from tests.fakes.gateway import GatewayProcess, unstarted
from tests.fakes.model_server import ModelServer
from tests.fakes.stepped import Wall

pytestmark = [pytest.mark.anyio, pytest.mark.promise("TIME-03")]


def _copy(home: Path, to: Path) -> None:
    """Copy the journal of a gateway at work, as a backup job would."""
    with closing(sqlite3.connect(f"file:{home / 'journal.db'}?mode=ro", uri=True)) as journal:
        with closing(sqlite3.connect(to)) as copy:
            journal.backup(copy)


def _same_file(backup: Path, home: Path) -> None:
    """Put it back into the file that is there."""
    (home / "journal.db").write_bytes(backup.read_bytes())


def _other_file(backup: Path, home: Path) -> None:
    """Put it back as a file of its own."""
    (home / "journal.db").unlink()
    shutil.copy(backup, home / "journal.db")


def _put_back(it: GatewayProcess, backup: Path, how: Callable[[Path, Path], None]) -> None:
    for name in ("journal.db-wal", "journal.db-shm"):
        (it.home / name).unlink(missing_ok=True)
    how(backup, it.home)


async def _ask(it: GatewayProcess, effects: Path) -> str:
    run_id = await it.run(f'tool:risky {{"path": "{effects}", "tag": "x"}}')
    await it.events(run_id, until="approval.request")
    return run_id


async def _answer(it: GatewayProcess, run_id: str) -> int:
    return (await it.post(f"/v1/runs/{run_id}/approval", {"choice": "once"}))[0]


def _restores(home: Path) -> list[object]:
    rows = ledger.ask(home, "SELECT data FROM events WHERE kind = 'journal.restored'")
    return [msgspec.json.decode(data) for (data,) in rows]


@pytest.mark.parametrize("how", [_same_file, _other_file])
async def test_a_used_one_time_approval_is_void_after_a_restore(
    it: GatewayProcess, tmp_path: Path, how: Callable[[Path, Path], None]
) -> None:
    effects = tmp_path / "effects"
    run_id = await _ask(it, effects)
    _copy(it.home, tmp_path / "backup.db")
    assert await _answer(it, run_id) == 200
    assert (await it.finished(run_id))["status"] == "completed"
    await it.stop()
    _put_back(it, tmp_path / "backup.db", how)
    await it.start()
    await it.said(DOUBTED)
    ended = await it.finished(run_id)
    assert (ended["status"], ended["error"]) == ("failed", RESTORED_TEXT)
    assert await _answer(it, run_id) == 409
    assert len(effects.read_text().splitlines()) == 1
    assert [r["runs"] for r in _restores(it.home) if isinstance(r, dict)] == [1]
    await it.stop()
    await it.start()  # that is settled: what comes now is trusted again
    other = await _ask(it, effects)
    await it.kill()
    await it.start()
    assert await _answer(it, other) == 200
    assert (await it.finished(other))["status"] == "completed"
    assert len(_restores(it.home)) == 1


async def test_a_home_that_is_put_back_as_a_whole_is_noticed(
    it: GatewayProcess, tmp_path: Path
) -> None:
    effects, backup = tmp_path / "effects", tmp_path / "backup"
    run_id = await _ask(it, effects)
    await it.stop()
    shutil.copytree(it.home, backup, ignore=shutil.ignore_patterns("*.sock"))
    await it.start()
    assert await _answer(it, run_id) == 200
    await it.finished(run_id)
    await it.stop()
    shutil.rmtree(it.home)
    backup.rename(it.home)
    await it.start()
    assert (await it.finished(run_id))["status"] == "failed"
    assert len(effects.read_text().splitlines()) == 1


def _copy_over(backup: Path, home: Path) -> None:
    """Copy a whole home back in place, as `cp -a backup/. home/` does: every file stays the same."""
    for name in ("journal.db-wal", "journal.db-shm"):
        (home / name).unlink(missing_ok=True)
    subprocess.run(["cp", "-a", f"{backup}/.", str(home)], check=True)


async def _is_told(it: GatewayProcess) -> None:
    """`gateway status` and `doctor` say that the journal is from a backup."""
    status = json.loads((await it.holdfast("gateway", "status", "--json")).stdout)
    report = json.loads((await it.holdfast("doctor", "--json")).stdout)
    (check,) = [c for c in report["checks"] if c["name"] == "journal"]
    assert check["verdict"] == "note"
    assert check["finding"] == status["journal"]
    assert ": 1 unfinished runs ended" in status["journal"]


async def _doubted(it: GatewayProcess) -> bool:
    """Start it; whether it doubts the journal."""
    await it.start()
    return any(DOUBTED in line for line in it.lines)


@pytest.mark.parametrize("end", [GatewayProcess.stop, GatewayProcess.kill])
async def test_a_home_that_is_copied_back_in_place_is_noticed(
    it: GatewayProcess, tmp_path: Path, end: Callable[[GatewayProcess], Awaitable[object]]
) -> None:
    effects, backup = tmp_path / "effects", tmp_path / "backup"
    run_id = await _ask(it, effects)
    await it.stop()
    shutil.copytree(it.home, backup, ignore=shutil.ignore_patterns("*.sock"))
    await it.start()
    assert await _answer(it, run_id) == 200
    assert (await it.finished(run_id))["status"] == "completed"
    await end(it)
    number = (it.home / "journal.db").stat().st_ino
    _copy_over(backup, it.home)
    assert (it.home / "journal.db").stat().st_ino == number
    await it.start()
    await it.said(DOUBTED)
    ended = await it.finished(run_id)
    assert (ended["status"], ended["error"]) == ("failed", RESTORED_TEXT)
    assert await _answer(it, run_id) == 409
    assert len(effects.read_text().splitlines()) == 1
    assert [r["runs"] for r in _restores(it.home) if isinstance(r, dict)] == [1]
    await _is_told(it)
    for _ in range(2):  # that is settled: later starts doubt nothing
        await end(it)
        await _is_told(it)
        assert not await _doubted(it)
    other = await _ask(it, effects)
    assert await _answer(it, other) == 200
    assert (await it.finished(other))["status"] == "completed"
    assert len(_restores(it.home)) == 1


async def test_a_home_that_is_copied_back_is_noticed_though_nothing_was_approved_since(
    it: GatewayProcess, tmp_path: Path
) -> None:
    waiting, backup = await _ask(it, tmp_path / "effects"), tmp_path / "backup"
    await it.stop()
    shutil.copytree(it.home, backup, ignore=shutil.ignore_patterns("*.sock"))
    await it.start()
    await it.kill()
    _copy_over(backup, it.home)
    assert await _doubted(it)
    assert (await it.finished(waiting))["status"] == "failed"


async def test_a_copy_of_a_gateway_at_work_is_noticed_after_it_was_stopped(
    it: GatewayProcess, tmp_path: Path
) -> None:
    waiting, backup = await _ask(it, tmp_path / "effects"), tmp_path / "backup"
    shutil.copytree(it.home, backup, ignore=shutil.ignore_patterns("*.sock", "journal.db*"))
    _copy(it.home, backup / "journal.db")
    await it.finished(await it.run("say:hello", session_id="other"))
    await it.stop()
    _copy_over(backup, it.home)
    assert await _doubted(it)
    assert (await it.finished(waiting))["status"] == "failed"


async def test_a_home_without_a_mark_starts_as_ever(it: GatewayProcess, tmp_path: Path) -> None:
    waiting = await _ask(it, tmp_path / "effects")
    await it.stop()
    for mark in it.home.glob(f"{PREFIX}*"):
        mark.unlink()
    assert not await _doubted(it)
    assert await _answer(it, waiting) == 200
    assert (await it.finished(waiting))["status"] == "completed"


@pytest.mark.debian("strace")
async def test_a_kill_before_the_mark_is_moved_changes_nothing(
    it: GatewayProcess, tmp_path: Path
) -> None:
    waiting = await _ask(it, tmp_path / "effects")
    await it.stop()
    (mark,) = it.home.glob(f"{PREFIX}*")
    await it.start(*kills.at("rename", 1, mark), wait=False)
    await it.comes_up()
    await it.ended()
    assert list(it.home.glob(f"{PREFIX}*")) == [mark]
    assert not await _doubted(it)
    assert list(it.home.glob(f"{PREFIX}*")) != [mark]
    assert await _answer(it, waiting) == 200
    assert (await it.finished(waiting))["status"] == "completed"


async def test_pending_approvals_of_an_old_backup_are_withdrawn_before_they_expire(
    tmp_path: Path, model: ModelServer
) -> None:
    effects, backup, wall = tmp_path / "effects", tmp_path / "backup", Wall(tmp_path / "wall")
    week = f"[approval]\nexpiry_s = {7 * DAY_S:.0f}\n"
    async with unstarted(tmp_path, model.base_url, week) as it:
        await it.start(*wall.wrapper)
        run_id = await _ask(it, effects)
        await it.stop()
        shutil.copytree(it.home, backup, ignore=shutil.ignore_patterns("*.sock"))
        await it.start(*wall.wrapper)
        assert await _answer(it, run_id) == 200
        assert (await it.finished(run_id))["status"] == "completed"
        await it.stop()
        _copy_over(backup, it.home)
        wall.step(2 * DAY_S)
        ledger.change(it.home, lambda j: j.execute("UPDATE machine SET boot_id = 'before'"))
        await it.start(*wall.wrapper)
        ended = await it.finished(run_id)
        assert (ended["status"], ended["error"]) == ("failed", RESTORED_TEXT)
        assert await _answer(it, run_id) == 409
        assert len(effects.read_text().splitlines()) == 1


async def _keyed(it: GatewayProcess, key: str) -> tuple[str, str | None, bool]:
    """Post under a key: the run, when the journal was restored if that is said, a replay or not."""
    headers = {"Idempotency-Key": key} if key else {}
    body = {"input": "say:hello"}
    async with it.http.post(it.url + "/v1/runs", json=body, headers=headers) as response:
        assert response.status == 202, await response.text()
        told = response.headers
        answer = await response.json()
        return answer["run_id"], told.get("Holdfast-Restored"), "Idempotency-Replayed" in told


@pytest.mark.promise("RUN-21")
async def test_a_key_that_may_have_been_used_before_the_restore_is_answered_with_its_time(
    it: GatewayProcess, tmp_path: Path
) -> None:
    first, restored, _ = await _keyed(it, "in-the-backup")
    assert restored is None
    await it.finished(first)
    _copy(it.home, tmp_path / "backup.db")
    lost, _, _ = await _keyed(it, "after-the-backup")
    await it.finished(lost)
    assert await _answer(it, await _ask(it, tmp_path / "effects")) == 200  # the audit says so
    await it.stop()
    _put_back(it, tmp_path / "backup.db", _same_file)
    for _ in range(2):  # also at the starts after that
        await it.start()
        assert await _keyed(it, "in-the-backup") == (first, None, True)
        assert (await _keyed(it, ""))[1] is None
        await it.stop()
    await it.start()
    again, restored, replayed = await _keyed(it, "after-the-backup")
    assert again != lost and not replayed
    assert restored is not None
    noticed = parsedate_to_datetime(restored).timestamp()
    assert abs(noticed - time.time()) < 60
    assert await _keyed(it, "after-the-backup") == (again, None, True)


async def test_if_the_audit_is_older_than_the_journal_approvals_are_asked_again(
    it: GatewayProcess, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    first = await _ask(it, effects)
    assert await _answer(it, first) == 200
    await it.finished(first)
    await it.stop()
    await it.start()  # knows how long the audit is now
    waiting = await _ask(it, effects)
    await it.stop()
    for name in ("audit.jsonl", "audit.head"):
        (it.home / name).unlink()
    await it.start()
    await it.said(DOUBTED)
    assert await _answer(it, waiting) == 409
    assert (await it.finished(waiting))["status"] == "completed"
    assert len(effects.read_text().splitlines()) == 1
    assert not _restores(it.home)


async def test_a_kill_and_restart_is_not_taken_for_a_restore(
    it: GatewayProcess, tmp_path: Path
) -> None:
    run_id = await _ask(it, tmp_path / "effects")
    for _ in range(3):
        await it.kill()
        await it.start()
        assert not [line for line in it.lines if DOUBTED in line]
    assert await _answer(it, run_id) == 200
    assert (await it.finished(run_id))["status"] == "completed"


@pytest.mark.debian("strace")
@pytest.mark.parametrize("number", [1, 2, 4])
async def test_a_kill_while_the_restore_is_settled_changes_nothing(
    it: GatewayProcess, tmp_path: Path, number: int
) -> None:
    effects = tmp_path / "effects"
    run_id = await _ask(it, effects)
    _copy(it.home, tmp_path / "backup.db")
    assert await _answer(it, run_id) == 200
    await it.finished(run_id)
    await it.stop()
    _put_back(it, tmp_path / "backup.db", _same_file)
    await it.start(*kills.at("fdatasync", number), wait=False)
    await it.comes_up()
    await it.kill()
    await it.start()
    assert (await it.finished(run_id))["status"] == "failed"
    assert await _answer(it, run_id) == 409
    assert len(effects.read_text().splitlines()) == 1
    assert _restores(it.home)
