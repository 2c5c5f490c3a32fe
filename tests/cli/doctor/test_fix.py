"""`holdfast doctor --fix`: mends what needs no decision, says what it did, touches nothing else."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.cli import Place

pytestmark = pytest.mark.anyio

HOUR_S = 3600.0


async def fix(place: Place, code: int = 0) -> tuple[list[str], dict[str, Any]]:
    """What was mended, and the whole report."""
    result = await place.holdfast("doctor", "--fix", "--json")
    assert result.code == code, result
    report: dict[str, Any] = json.loads(result.out)
    return [c["finding"] for c in report["checks"] if c["name"] == "mended"], report


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_a_healthy_home_reports_no_repairs(place: Place) -> None:
    place.configure('model = "offline"\n')
    (place.home / "config.toml").chmod(0o600)
    assert (await fix(place))[0] == []
    assert [path.name for path in place.home.iterdir()] == ["config.toml"]


async def test_a_missing_home_is_made(place: Place) -> None:
    mended, _ = await fix(place)
    assert mended == [f"{place.home} was missing and was made"]
    assert mode(place.home) == 0o700


async def test_a_home_that_its_owner_cannot_write_is_one_again(place: Place) -> None:
    place.home.mkdir(mode=0o500)
    mended, _ = await fix(place)
    assert mended == [f"{place.home} had mode 0500 and has 0700 now"]


async def test_files_open_to_others_become_private_except_in_workspaces(
    place: Place,
) -> None:
    place.configure('model = "offline"\n')
    place.home.chmod(0o755)
    secret, log, tool = (
        place.home / "api_key",
        place.home / "log" / "gateway.log",
        place.home / "workspaces" / "s" / "tool",
    )
    for path in (secret, log, tool):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("0123456789abcdef")
    secret.chmod(0o644)
    log.chmod(0o640)
    tool.chmod(0o755)
    mended, report = await fix(place)
    assert mended[0] == f"{place.home} had mode 0755 and has 0700 now"
    assert f"{secret} was open to other users and is private now" in mended
    assert (mode(place.home), mode(secret), mode(log), mode(tool)) == (0o700, 0o600, 0o600, 0o755)
    assert secret.read_text() == "0123456789abcdef"
    assert "open to other users" not in json.dumps(
        [c for c in report["checks"] if c["name"] in ("home", "config")]
    )
    assert (await fix(place))[0] == []


async def test_a_file_that_is_kept_elsewhere_keeps_its_mode(place: Place) -> None:
    place.home.mkdir(mode=0o700)
    elsewhere = place.root / "config.toml"
    elsewhere.write_text("")
    elsewhere.chmod(0o644)
    (place.home / "config.toml").symlink_to(elsewhere)
    assert (await fix(place))[0] == []
    assert mode(elsewhere) == 0o644


async def test_drafts_that_were_left_behind_are_taken_away(place: Place) -> None:
    place.home.mkdir(mode=0o700)
    old = [place.home / name for name in (".config.toml.x1", ".api_key.x2", ".holdfast-x3")]
    fresh, strange = place.home / ".config.toml.x4", place.home / ".mine"
    for path in (*old[:2], fresh, strange):
        path.write_text("draft")
        path.chmod(0o600)
    old[2].mkdir(mode=0o700)
    for path in (*old, strange):
        ago = path.stat().st_mtime - HOUR_S
        os.utime(path, (ago, ago))
    mended, _ = await fix(place)
    assert mended == [f"{path} was left behind and was removed" for path in sorted(old)]
    assert sorted(path.name for path in place.home.iterdir()) == [".config.toml.x4", ".mine"]


async def test_a_damaged_index_goes_and_a_whole_one_stays(place: Place) -> None:
    place.home.mkdir(mode=0o700)
    index = place.home / "search.db"
    with sqlite3.connect(index) as whole:
        whole.execute("CREATE TABLE said (text)")
        whole.executemany("INSERT INTO said VALUES (?)", [("word " * 100,)] * 500)
    whole.close()
    index.chmod(0o600)
    assert (await fix(place))[0] == []
    good = index.read_bytes()
    index.write_bytes(good[:5000] + b"\xff" * 3000 + good[8000:])
    assert (await fix(place))[0] == [
        f"{index} was damaged and was removed; the next search rebuilds it"
    ]
    assert not index.exists()
    index.write_text("this is no database, and never was one" * 100)
    index.chmod(0o600)
    assert len((await fix(place))[0]) == 1
    assert not index.exists()


async def test_a_unit_that_does_not_match_the_settings_is_rewritten(place: Place) -> None:
    tools = place.root / "bin"
    tools.mkdir()
    said = place.root / "systemctl.said"
    (tools / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    (tools / "systemctl").chmod(0o755)
    place.environ["PATH"] = f"{tools}:{place.environ['PATH']}"
    place.configure("")
    (place.home / "config.toml").chmod(0o600)
    assert (await place.holdfast("gateway", "install")).code == 0
    unit = place.root / ".config" / "systemd" / "user" / "holdfast-gateway.service"
    assert (await fix(place))[0] == []
    (place.home / "config.toml").write_text("[gateway]\ndrain_s = 600\n")
    said.unlink()
    mended, report = await fix(place)
    assert mended == [f"{unit} matches the settings now; to use it: holdfast gateway restart"]
    assert "TimeoutStopSec=630" in unit.read_text()
    assert "--user daemon-reload" in said.read_text()
    assert {c["name"]: c["verdict"] for c in report["checks"]}["unit"] == "ok"


async def test_settings_that_are_wrong_stay_wrong_and_the_home_is_mended(place: Place) -> None:
    text = "[gateway]\nprot = 1\n"
    place.configure(text)
    (place.home / "config.toml").chmod(0o644)
    mended, _ = await fix(place, code=78)
    assert mended == [f"{place.home}/config.toml was open to other users and is private now"]
    assert (place.home / "config.toml").read_text() == text


async def test_without_fix_nothing_is_changed(place: Place) -> None:
    place.configure("")
    place.home.chmod(0o755)
    result = await place.holdfast("doctor")
    assert result.code == 0
    assert "mended" not in result.out
    assert mode(place.home) == 0o755


async def test_repairs_are_listed_for_people_too(place: Place) -> None:
    result = await place.holdfast("doctor", "--fix")
    assert f"✓ mended   {place.home} was missing and was made\n" in result.out
