"""`holdfast gateway`: a server that runs by itself, and the operator's word to it."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from holdfast.cli.service.service import ALREADY_RUNNING, NO_UNIT, STAYS_STOPPED
from holdfast.host.lock import read_owner
from tests.cli import Place, read_until
from tests.crash.evidence import facts
from tests.fakes.gateway import ROOT

pytestmark = pytest.mark.anyio

CONFIG = "[gateway]\nport = 0\n"

# Stands for systemd: it starts the unit's program, ends it by a signal, and notes what it is told.
SYSTEMCTL = """#!/bin/sh
here="$(dirname "$0")"
echo "$*" >> "$here/told"
[ -e "$here/broken" ] && { echo "Failed to connect to bus" >&2; exit 1; }
end() { kill -TERM "$1" && while kill -0 "$1" 2>/dev/null; do sleep 0.02; done; }
begin() {
  setsid "$PYTHON" -P -m holdfast gateway run </dev/null >/dev/null 2>&1 &
  echo $! > "$here/pid"
}
case " $* " in
  *" show "*) cat "$here/pid" 2>/dev/null || echo 0;;
  *" start "*) begin;;
  *" restart "*) end "$(cat "$here/pid")"; begin;;
  *" stop "*) end "$(cat "$here/pid")"; rm "$here/pid";;
esac
"""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """A home whose gateway, however it was started, is gone afterwards."""
    place = Place(tmp_path)
    place.environ |= {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    place.configure(CONFIG)
    yield place
    with anyio.CancelScope(shield=True):
        stopped = await place.holdfast("gateway", "stop")
        assert stopped.code == 0, stopped


@pytest.fixture
def manager(place: Place) -> Path:
    """A service manager that does as it is told; the directory with what it was told."""
    programs = place.root / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text(SYSTEMCTL)
    (programs / "systemctl").chmod(0o755)
    place.environ["PATH"] = f"{programs}:{place.environ['PATH']}"
    return programs


def told(manager: Path) -> list[str]:
    return (manager / "told").read_text().splitlines()


def owner(place: Place) -> int:
    return int(read_owner(place.home).pid)


def said(place: Place) -> list[tuple[str, str]]:
    """What the journal holds of the gateway's life."""
    kinds = ("gateway.wanted", "gateway.booted", "gateway.state")
    found = facts(place.home, *kinds)
    return [(f["kind"].partition(".")[2], f.get("wanted") or f.get("state", "")) for f in found]


async def status(place: Place) -> dict[str, str]:
    found: dict[str, str] = json.loads((await place.holdfast("gateway", "status", "--json")).out)
    return found


@pytest.mark.promise("STOP-11")
async def test_it_is_started_in_the_background_and_stopped_for_good(place: Place) -> None:
    started = await place.holdfast("gateway", "start")
    assert started.code == 0, started
    pid = owner(place)
    assert started.out.startswith(f"Running: pid {pid}, http://127.0.0.1:")
    assert os.getsid(pid) == pid, "it has a session of its own, so no terminal ends it"
    shown = await place.holdfast("gateway", "status")
    assert shown.code == 0
    lines = dict(line.split(maxsplit=1) for line in shown.out.splitlines())
    assert (lines["state"], lines["wanted"], lines["pid"]) == ("ready", "running", str(pid))
    assert lines["runs"] == "0 running, 0 queued, 0 waiting"
    assert lines["unit"] == NO_UNIT
    assert {"since", "address", "version", "sandbox"} <= lines.keys()
    again = await place.holdfast("gateway", "start")
    assert (again.code, owner(place)) == (0, pid) and ALREADY_RUNNING in again.out
    logs = await place.holdfast("gateway", "logs", "-n", "100")
    assert f"ready on {lines['address']}" in logs.out
    stopped = await place.holdfast("gateway", "stop")
    assert (stopped.code, stopped.out) == (0, "Stopped.\n")
    after = await place.holdfast("gateway", "status")
    assert after.code == 3
    assert after.out.splitlines()[:2] == ["state    not running", "wanted   stopped"]
    expected = [("booted", ""), ("wanted", "stopped"), ("state", "draining"), ("state", "stopped")]
    assert said(place) == expected


@pytest.mark.promise("STOP-11")
async def test_a_stopped_gateway_stays_stopped_at_a_boot_until_it_is_started(
    place: Place,
) -> None:
    assert (await place.holdfast("gateway", "stop")).out == f"{STAYS_STOPPED}\n"
    boot = await place.holdfast("gateway", "run", "--boot")
    assert (boot.code, "holdfast gateway start" in boot.err) == (0, True)
    assert said(place) == [("wanted", "stopped")], "nothing has served"
    assert (await place.holdfast("gateway", "start")).code == 0
    assert said(place)[:2] == [("wanted", "stopped"), ("wanted", "running")]
    os.kill(owner(place), signal.SIGKILL)
    async with place.started("gateway", "run", "--boot") as booted:
        await read_until(booted.stderr, "ready on")
        booted.send_signal(signal.SIGTERM)
        assert await booted.wait() == 0
    assert said(place)[-3:] == [("booted", ""), ("state", "draining"), ("state", "running")]


@pytest.mark.promise("STOP-11")
async def test_a_signal_alone_does_not_count_as_a_stop(place: Place) -> None:
    for _ in range(2):
        async with place.started("gateway", "run", "--boot") as booted:
            await read_until(booted.stderr, "ready on")
            booted.send_signal(signal.SIGTERM)
            assert await booted.wait() == 0
    assert said(place) == [("booted", ""), ("state", "draining"), ("state", "running")] * 2


@pytest.mark.promise("STOP-07", "STOP-11")
async def test_unsupervised_a_restart_leaves_a_detached_successor(place: Place) -> None:
    async with place.started("gateway", "run") as first:
        await read_until(first.stderr, "ready on")
        done = await place.holdfast("gateway", "restart")
        assert done.code == 0, done
        last = await read_until(first.stderr, "log/gateway.log")
        assert f"It goes on in the background, and says so in {place.home}/log/gateway.log" in last
        assert await first.wait() == 0
        pid = owner(place)
        assert pid != first.pid and os.getsid(pid) == pid
        assert f"pid {pid}" in done.out
    assert (await status(place))["wanted"] == "running"
    life = [("booted", ""), ("wanted", "running"), ("state", "draining"), ("state", "stopped")]
    assert said(place) == [*life, ("booted", "")]


async def test_the_successor_has_the_keys_the_first_was_given(place: Place) -> None:
    place.environ |= {"HOLDFAST_API_KEY": "a-key-of-16-characters-or-more"}
    assert (await place.holdfast("gateway", "start")).code == 0
    assert (await place.holdfast("gateway", "restart")).code == 0
    assert not (place.home / "api_key").exists(), "none had to be made"


async def test_a_start_that_fails_says_why_with_its_code(place: Place) -> None:
    place.configure(CONFIG + 'host = "192.0.2.1"\n')
    failed = await place.holdfast("gateway", "start")
    assert failed.code == 78
    assert "192.0.2.1" in failed.err
    place.configure(CONFIG)


@pytest.mark.promise("STOP-13")
async def test_the_unit_is_written_from_the_settings_and_an_old_one_is_told_of(
    place: Place, manager: Path
) -> None:
    installed = await place.holdfast("gateway", "install")
    assert installed.code == 0, installed
    unit = place.root / ".config/systemd/user/holdfast-gateway.service"
    assert "TimeoutStopSec=90\n" in unit.read_text()
    assert told(manager) == ["--user daemon-reload", "--user enable holdfast-gateway.service"]
    assert (await status(place))["unit"] == str(unit)
    place.configure(CONFIG + "drain_s = 100\n")
    mend = "holdfast gateway install --force"
    shown = await place.holdfast("gateway", "status")
    assert "(TimeoutStopSec=130)" in shown.out and mend in shown.out
    started = await place.holdfast("gateway", "start")
    assert started.code == 0 and mend in started.err
    assert (await place.holdfast("gateway", "status")).code == 1, "it runs, and is to be mended"
    refused = await place.holdfast("gateway", "install")
    assert refused.code == 1 and mend in refused.err
    assert (await place.holdfast("gateway", "install", "--force")).code == 0
    assert "TimeoutStopSec=130\n" in unit.read_text()
    assert (await place.holdfast("gateway", "status")).code == 0


@pytest.mark.promise("STOP-07", "STOP-11")
async def test_with_a_unit_the_service_manager_does_it_and_the_word_is_written_down_before(
    place: Place, manager: Path
) -> None:
    assert (await place.holdfast("gateway", "install")).code == 0
    assert (await place.holdfast("gateway", "start")).code == 0
    pid = owner(place)
    assert (await place.holdfast("gateway", "restart")).code == 0
    assert owner(place) != pid
    stopped = await place.holdfast("gateway", "stop")
    assert (stopped.code, stopped.out) == (0, "Stopped.\n")
    verbs = [line.split()[1] for line in told(manager) if "show" not in line]
    assert verbs == ["daemon-reload", "enable", "start", "restart", "stop"]
    life = [("booted", ""), ("wanted", "running"), ("state", "draining"), ("state", "stopped")]
    assert said(place) == [*life, life[0], ("wanted", "stopped"), *life[2:]]


async def test_a_stop_that_the_service_manager_refuses_is_taken_back(
    place: Place, manager: Path
) -> None:
    assert (await place.holdfast("gateway", "install")).code == 0
    assert (await place.holdfast("gateway", "start")).code == 0
    pid = owner(place)
    programs = (manager / "systemctl").read_text()
    refusing = programs.replace('*" stop "*)', '*" stop "*) echo Access denied >&2; exit 1;;\n  x)')
    (manager / "systemctl").write_text(refusing)
    refused = await place.holdfast("gateway", "stop")
    assert refused.code == 1 and "Access denied" in refused.err
    found = await status(place)
    assert (found["pid"], found["wanted"]) == (str(pid), "running")
    (manager / "systemctl").write_text(programs)


async def test_uninstalled_it_is_stopped_and_the_home_stays(place: Place, manager: Path) -> None:
    assert (await place.holdfast("gateway", "install")).code == 0
    assert (await place.holdfast("gateway", "start")).code == 0
    removed = await place.holdfast("gateway", "uninstall")
    assert removed.code == 0, removed
    assert not (place.root / ".config/systemd/user/holdfast-gateway.service").exists()
    assert (place.home / "journal.db").exists()
    assert (await place.holdfast("gateway", "status")).code == 3
    assert "No unit" in (await place.holdfast("gateway", "uninstall")).out


async def test_without_a_bus_an_install_says_what_failed(place: Place, manager: Path) -> None:
    (manager / "broken").touch()
    failed = await place.holdfast("gateway", "install")
    assert failed.code == 1
    assert "systemctl --user daemon-reload: Failed to connect to bus" in failed.err


async def test_the_orders_are_only_at_the_operators_door(place: Place) -> None:
    started = await place.holdfast("gateway", "start")
    url = started.out.split()[-1]
    key = (place.home / "api_key").read_text().strip()
    for path in ("stop", "restart", "announce/stop"):
        posted = await anyio.run_process(
            ["curl", "-s", "-X", "POST", f"{url}/v1/gateway/{path}"]
            + ["-H", f"Authorization: Bearer {key}"]
        )
        assert b"no such route" in posted.stdout
    assert (await status(place))["wanted"] == "running"


async def test_logs_are_followed(place: Place) -> None:
    missing = await place.holdfast("gateway", "logs")
    assert missing.code == 1 and "log/gateway.log does not exist" in missing.err
    async with place.started("gateway", "logs", "-f") as following:
        assert (await place.holdfast("gateway", "start")).code == 0
        with anyio.fail_after(20):
            await read_until(following.stdout, "ready on")
