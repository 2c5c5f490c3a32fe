"""The unit says what the settings say, and systemd agrees that it is one."""

import plistlib
import subprocess
from pathlib import Path

import pytest

from holdfast.cli.service import units
from holdfast.cli.service.units import Scope
from holdfast.config.load import load
from holdfast.config.process import find_supervision
from holdfast.config.settings import Config
from holdfast.core.life.lifecycle import Supervisor
from holdfast.host.control import COMMAND, own_unit


def configured(root: Path, text: str = "", home: str = "home") -> Config:
    (root / home).mkdir(exist_ok=True)
    (root / home / "config.toml").write_text(text)
    return load({"HOME": str(root), "HOLDFAST_HOME": str(root / home)}, {})


def install(config: Config, scope: Scope = Scope.USER) -> units.Unit:
    unit = units.unit(config, scope, "/usr/bin:/bin")
    unit.path.parent.mkdir(parents=True, exist_ok=True)
    unit.path.write_text(unit.text)
    return unit


def lines(unit: units.Unit) -> dict[str, str]:
    pairs = (line.partition("=") for line in unit.text.splitlines() if "=" in line)
    return {name: value for name, _, value in pairs}


def test_the_unit_is_what_the_safety_sheet_asks_for(tmp_path: Path) -> None:
    unit = units.unit(configured(tmp_path), Scope.USER, "/bin")
    expected = {
        "Type": "notify",
        "Restart": "always",
        "RestartSec": "1",
        "RestartPreventExitStatus": "78",
        "KillMode": "mixed",
        "TimeoutStopSec": "90",
        "WatchdogSec": "30",
        "OOMPolicy": "continue",
        "NoNewPrivileges": "yes",
        "UMask": "0077",
        "StartLimitIntervalSec": "0",
        "TimeoutStartSec": "infinity",
        "WantedBy": "default.target",
    }
    assert expected.items() <= lines(unit).items()
    assert "User" not in lines(unit)
    assert int(lines(unit)["WatchdogSec"]) < 40, "F-24: a loop blocked for 40 s is noticed"
    assert unit.path == tmp_path / ".config/systemd/user/holdfast-gateway.service"


@pytest.mark.promise("STOP-13")
@pytest.mark.parametrize(
    ("drain_s", "timeout"), [("0", "90"), ("60", "90"), ("60.5", "90.5"), ("3600", "3630")]
)
def test_the_stop_timeout_never_undercuts_the_drain(
    tmp_path: Path, drain_s: str, timeout: str
) -> None:
    config = configured(tmp_path, f"[gateway]\ndrain_s = {drain_s}\n")
    assert lines(units.unit(config, Scope.USER, "/bin"))["TimeoutStopSec"] == timeout
    plist = plistlib.loads(units.unit(config, Scope.LAUNCHD, "/bin").text.encode())
    assert plist["ExitTimeOut"] >= float(drain_s) + 30 - 0.5


@pytest.mark.debian("systemd")
@pytest.mark.parametrize("home", ["home", 'a $H %h "b"'])
@pytest.mark.parametrize("user", ["", "root"])
def test_systemd_has_nothing_to_say_against_it(tmp_path: Path, home: str, user: str) -> None:
    config = configured(tmp_path, home=home)
    scope = Scope.SYSTEM if user else Scope.USER
    file = tmp_path / units.NAME
    file.write_text(units.unit(config, scope, "/usr/bin:/bin", user).text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *([] if user else ["--user"]), str(file)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    said = [line for line in done.stderr.splitlines() if units.NAME in line]
    assert (done.returncode, said) == (0, []), done.stderr


def test_a_system_unit_names_its_user_and_starts_at_boot(tmp_path: Path) -> None:
    unit = units.unit(configured(tmp_path), Scope.SYSTEM, "/bin", "agent")
    assert lines(unit)["User"] == "agent" and lines(unit)["WantedBy"] == "multi-user.target"
    assert unit.path == Path("/etc/systemd/system/holdfast-gateway.service")
    assert unit.command("stop") == ("systemctl", "stop", units.NAME)


def test_the_plist_is_one_and_starts_again_what_did_not_end_well(tmp_path: Path) -> None:
    unit = units.unit(configured(tmp_path, home="a <b> & c"), Scope.LAUNCHD, "/bin")
    plist = plistlib.loads(unit.text.encode())
    assert plist["ProgramArguments"] == [*COMMAND, "gateway", "run"]
    assert plist["EnvironmentVariables"]["HOLDFAST_HOME"] == str(tmp_path / "a <b> & c")
    assert plist["KeepAlive"] == {"SuccessfulExit": False}
    assert plist["Umask"] == 0o077
    assert unit.path == tmp_path / "Library/LaunchAgents/org.holdfast.gateway.plist"
    found = find_supervision({"XPC_SERVICE_NAME": plist["Label"]}, 1)
    assert found.by is Supervisor.LAUNCHD


@pytest.mark.promise("STOP-13")
def test_an_installed_unit_that_says_otherwise_is_told_of_with_the_command_that_mends_it(
    tmp_path: Path,
) -> None:
    config = configured(tmp_path)
    assert units.installed(config) is None
    unit = install(config)
    assert units.installed(config) == unit
    assert units.disagreement(config, unit) == ""
    longer = configured(tmp_path, "[gateway]\ndrain_s = 300\n")
    told = units.disagreement(longer, unit)
    assert "TimeoutStopSec=330" in told and told.endswith(": holdfast gateway install --force")
    assert (
        units.disagreement(config, units.Unit(unit.scope, unit.path, unit.text + "Nice=5\n")) == ""
    )


def test_a_unit_of_another_home_is_not_ours(tmp_path: Path) -> None:
    install(configured(tmp_path, home="theirs"))
    assert units.installed(configured(tmp_path)) is None


@pytest.mark.parametrize(
    ("environ", "by", "watchdog_s"),
    [
        ({}, Supervisor.NONE, 0.0),
        ({"SYSTEMD_EXEC_PID": "7"}, Supervisor.SYSTEMD, 0.0),
        ({"SYSTEMD_EXEC_PID": "8"}, Supervisor.NONE, 0.0),
        ({"NOTIFY_SOCKET": "@s"}, Supervisor.SYSTEMD, 0.0),
        ({"NOTIFY_SOCKET": "@s", "WATCHDOG_USEC": "30000000"}, Supervisor.SYSTEMD, 30.0),
        ({"NOTIFY_SOCKET": "@s", "WATCHDOG_USEC": "soon"}, Supervisor.SYSTEMD, 0.0),
        (
            {"NOTIFY_SOCKET": "@s", "WATCHDOG_USEC": "30", "WATCHDOG_PID": "8"},
            Supervisor.SYSTEMD,
            0.0,
        ),
        ({"WATCHDOG_USEC": "30000000"}, Supervisor.NONE, 0.0),
        ({"XPC_SERVICE_NAME": "application.com.apple.Terminal"}, Supervisor.NONE, 0.0),
    ],
)
def test_who_supervises_is_read_from_what_is_meant_for_us(
    environ: dict[str, str], by: Supervisor, watchdog_s: float
) -> None:
    found = find_supervision(environ, 7)
    assert (found.by, found.watchdog_s) == (by, watchdog_s)


@pytest.mark.promise("STOP-07")
@pytest.mark.parametrize(
    ("cgroup", "environ", "unit"),
    [
        ("0::/system.slice/mine.service\n", {}, ("mine.service",)),
        ("0::/mine.service\n", {}, ("mine.service",)),
        (
            "1:name=x:/\n0::/user.slice/user-1.slice/user@1.service/app.slice/mine.service\n",
            {},
            ("--user", "mine.service"),
        ),
        ("0::/app.slice/mine.service\n", {"MANAGERPID": "1"}, ("--user", "mine.service")),
        ("0::/user.slice/user-1.slice/session-2.scope\n", {}, ()),
        ("0::/user.slice/user-1.slice/user@1.service\n", {}, ()),
        ("1:name=systemd:/system.slice/mine.service\n", {}, ("mine.service",)),
        ("2:cpu:/system.slice/mine.service\n1:name=systemd:/\n0::/\n", {}, ()),
    ],
)
def test_under_systemd_our_own_unit_is_found_and_whose_it_is(
    cgroup: str, environ: dict[str, str], unit: tuple[str, ...]
) -> None:
    watched = find_supervision({"SYSTEMD_EXEC_PID": "7", **environ}, 7)
    assert own_unit(cgroup, watched) == unit


def test_a_users_manager_that_is_not_ours_means_nothing() -> None:
    assert not find_supervision({"MANAGERPID": "1", "SYSTEMD_EXEC_PID": "8"}, 7).of_user
