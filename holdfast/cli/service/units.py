"""The gateway as a service of the system: its unit, written from the settings.

A unit is never edited, but written again (`holdfast gateway install --force`). One that does not
match the settings is reported with that command: with a stop timeout shorter than the drain, the
gateway would be killed during the drain.
"""

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from xml.sax.saxutils import escape

from holdfast.config.process import LAUNCHD_LABEL
from holdfast.config.settings import Config
from holdfast.core.types import Value
from holdfast.host.control import COMMAND, LOG

NAME = "holdfast-gateway.service"
PLIST = f"{LAUNCHD_LABEL}.plist"
REPAIR = "holdfast gateway install --force"
WATCHDOG_S = 30
STOP_AT_LEAST_S = 90.0
AFTER_DRAIN_S = 30.0
SYSTEM_UNITS = Path("/etc/systemd/system")


class Scope(StrEnum):
    """The kind of service."""

    USER = "user"
    SYSTEM = "system"
    LAUNCHD = "launchd"  # macOS: the user's agent


class Unit(Value):
    """The unit of a service: its file and its text."""

    scope: Scope
    path: Path
    text: str

    def command(self, verb: str) -> tuple[str, ...]:
        """Return the command of the service manager for `verb` (start, stop, pid, …)."""
        if self.scope is not Scope.LAUNCHD:
            return ("systemctl", *self._user, *_SYSTEMD.get(verb, (verb, NAME)))
        domain = f"gui/{os.getuid()}"
        service = f"{domain}/{LAUNCHD_LABEL}"
        known = {
            "reload": ("print", domain),
            "enable": ("bootstrap", domain, str(self.path)),
            "disable": ("bootout", service),
            "start": ("kickstart", service),
            "stop": ("kill", "SIGTERM", service),
            "restart": ("kickstart", "-k", service),
        }
        return ("launchctl", *known.get(verb, ("print", service)))

    @property
    def logs(self) -> tuple[str, ...]:
        """The command that shows its log; empty: the log is in the home."""
        if self.scope is Scope.LAUNCHD:
            return ()
        return ("journalctl", *self._user, "--unit", NAME)

    @property
    def _user(self) -> tuple[str, ...]:
        return ("--user",) if self.scope is Scope.USER else ()


_SYSTEMD: Mapping[str, tuple[str, ...]] = {  # verbs that systemctl spells otherwise
    "reload": ("daemon-reload",),
    "pid": ("show", "--property=MainPID", "--value", NAME),
    "state": ("show", "--property=ActiveState", "--value", NAME),
}


def unit(config: Config, scope: Scope, search: str, user: str = "") -> Unit:
    """Return the unit for these settings. `search` is the PATH of the gateway."""
    match scope:
        case Scope.USER:
            path = config.user_config / "systemd" / "user" / NAME
            return Unit(scope, path, _systemd(config, search, ""))
        case Scope.SYSTEM:
            return Unit(scope, SYSTEM_UNITS / NAME, _systemd(config, search, user))
        case Scope.LAUNCHD:
            path = config.user_home / "Library" / "LaunchAgents" / PLIST
            return Unit(scope, path, _launchd(config, search))


def here() -> Scope:
    """Return the kind of service that a user installs on this system."""
    return Scope.LAUNCHD if platform.system() == "Darwin" else Scope.USER


def stop_timeout_s(config: Config) -> float:
    """Return the time for a stop before the service manager kills: longer than the drain."""
    return max(STOP_AT_LEAST_S, config.gateway.drain_s + AFTER_DRAIN_S)


def installed(config: Config) -> Unit | None:
    """Return the installed unit of this home, the user's before the system's."""
    scopes = (Scope.LAUNCHD,) if here() is Scope.LAUNCHD else (Scope.USER, Scope.SYSTEM)
    for scope in scopes:
        path = unit(config, scope, "").path
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if _home_line(config, scope) in text:
            return Unit(scope, path, text)
    return None


def disagreement(config: Config, found: Unit) -> str:
    """Say how an installed unit differs from the settings and how to fix it; empty: it matches."""
    wanted = unit(config, found.scope, "").text
    if (one := next(_missing(wanted, found.text), None)) is None:
        return ""
    system = " --system" if found.scope is Scope.SYSTEM else ""
    return f"{found.path} does not match the settings ({one}); to fix it: {REPAIR}{system}"


def _missing(wanted: str, found: str) -> Iterator[str]:
    """Yield the missing lines; the user and PATH may differ."""
    there = {line.strip() for line in found.splitlines()}
    for line in wanted.splitlines():
        known = line.strip()
        if known and known not in there and not known.startswith(_MAY_DIFFER):
            yield known


_PATH_KEY = "<key>PATH</key>"
_MAY_DIFFER = ("#", "User=", 'Environment="PATH=', _PATH_KEY)


def _home_line(config: Config, scope: Scope) -> str:
    if scope is Scope.LAUNCHD:
        return f"<key>HOLDFAST_HOME</key><string>{escape(str(config.home))}</string>"
    return f"Environment={_quoted(f'HOLDFAST_HOME={config.home}')}"


def _systemd(config: Config, search: str, user: str) -> str:
    # systemd expands `$` only in commands, `%` everywhere.
    command = " ".join(_quoted(word).replace("$", "$$") for word in (*COMMAND, "gateway", "run"))
    whose = f"User={user}\n" if user else ""
    return f"""\
# Written by `holdfast gateway install`; changes belong into config.toml.
[Unit]
Description=Holdfast gateway
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
{whose}ExecStart={command}
{_home_line(config, Scope.USER)}
Environment={_quoted(f"PATH={search}")}
Restart=always
RestartSec=1
RestartPreventExitStatus=78
KillMode=mixed
TimeoutStartSec=infinity
TimeoutStopSec={stop_timeout_s(config):g}
WatchdogSec={WATCHDOG_S}
OOMPolicy=continue
NoNewPrivileges=yes
UMask=0077

[Install]
WantedBy={"multi-user.target" if user else "default.target"}
"""


def _quoted(word: str) -> str:
    """Quote a word for systemd."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _launchd(config: Config, search: str) -> str:
    words = "".join(f"    <string>{escape(w)}</string>\n" for w in (*COMMAND, "gateway", "run"))
    log = escape(str(config.home / LOG))
    # launchd starts it again after an exit code other than 0, not after a stop.
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key><string>{LAUNCHD_LABEL}</string>
  <key>ProgramArguments</key>
  <array>
{words}  </array>
  <key>EnvironmentVariables</key>
  <dict>
    {_home_line(config, Scope.LAUNCHD)}
    {_PATH_KEY}<string>{escape(search)}</string>
  </dict>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>
  <key>ThrottleInterval</key><integer>1</integer>
  <key>ExitTimeOut</key><integer>{stop_timeout_s(config):.0f}</integer>
  <key>Umask</key><integer>63</integer>
  <key>StandardOutPath</key><string>{log}</string>
  <key>StandardErrorPath</key><string>{log}</string>
</dict>
</plist>
"""


def manager_found(scope: Scope) -> bool:
    """Tell whether the service manager is installed."""
    return shutil.which("launchctl" if scope is Scope.LAUNCHD else "systemctl") is not None
