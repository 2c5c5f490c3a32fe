"""The configuration of this process. Only this module reads the environment."""

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.channels import OWN
from holdfast.config.home import find_home
from holdfast.config.load import ENVIRONMENT, load
from holdfast.config.secrets import Secret
from holdfast.config.settings import SETTINGS, Config, shown
from holdfast.config.vendors import VENDORS, Vendor
from holdfast.core.life.lifecycle import Supervisor

# Those that set no key, and those that are for tests.
_OTHER_VARIABLES = (
    "HOLDFAST_HOME",
    "HOLDFAST_DEBUG",
    "HOLDFAST_PULL",
    *(name for names in OWN.values() for name in names),
)
_TEST_VARIABLES = ("HOLDFAST_TORTURE_", "HOLDFAST_FUZZ_", "HOLDFAST_RESTARTS")

LAUNCHD_LABEL = "org.holdfast.gateway"
_SUPERVISION = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("SYSTEMD_EXEC_PID", "MANAGERPID"),
)


def from_process(overrides: Mapping[str, str]) -> Config:
    """The configuration of this process; `overrides` are the flags, by key.

    Secrets leave the environment with it, so that no child inherits them. (Linux still
    shows the environment a process was started with in /proc; see `holdfast.app` for that.)
    """
    config = load(os.environ, overrides)
    ours = [name for name, key in ENVIRONMENT.items() if SETTINGS[key].meta.extra]
    for name in (*ours, *config.vendor_keys, *config.channels.secrets):
        os.environ.pop(name, None)
    return config


@dataclass(frozen=True, slots=True)
class Supervision:
    """The supervisor of this process, its socket, and the interval of its watchdog."""

    by: Supervisor = Supervisor.NONE
    socket: str = ""  # empty: there is none
    watchdog_s: float = 0.0  # 0: no sign of life is wanted
    of_user: bool = False  # systemd's manager is a user's, not the machine's


def take_supervision() -> Supervision:
    """Return the supervisor of this process, and remove its variables: no child inherits them."""
    found = find_supervision(os.environ, os.getpid())
    for name in _SUPERVISION:
        os.environ.pop(name, None)
    return found


def find_supervision(environ: Mapping[str, str], pid: int) -> Supervision:
    """Read the supervisor of process `pid` from the environment."""
    address = environ.get("NOTIFY_SOCKET", "")
    by = Supervisor.NONE
    if environ.get("XPC_SERVICE_NAME") == LAUNCHD_LABEL:
        by = Supervisor.LAUNCHD
    elif address or environ.get("SYSTEMD_EXEC_PID") == str(pid):
        by = Supervisor.SYSTEMD
    usec = environ.get("WATCHDOG_USEC", "")
    ours = environ.get("WATCHDOG_PID") in (None, "", str(pid))
    wanted = bool(address) and ours and usec.isascii() and usec.isdigit()
    of_user = by is Supervisor.SYSTEMD and bool(environ.get("MANAGERPID"))
    return Supervision(by, address, int(usec) / 1e6 if wanted else 0.0, of_user)


def environment(config: Config) -> dict[str, str]:
    """The environment this process was given, for another one of ours: with its secrets."""
    given = {n: k for n, k in ENVIRONMENT.items() if config.origins[k] == f"environment {n}"}
    values = {key: value for key, value, _ in shown(config)}
    hidden = {n: v.reveal() for n, k in given.items() if isinstance(v := values[k], Secret)}
    hidden |= {name: key.reveal() for name, key in config.vendor_keys.items()}
    of_channels = {
        name: given.secret.reveal()
        for name, given in config.channels.secrets.items()
        if given.origin == f"environment {name}"
    }
    return {**os.environ, **hidden, **of_channels}


def again(config: Config) -> Config:
    """Load the configuration that the next process of this home would have."""
    flags = {key: str(value) for key, value, origin in shown(config) if origin == "flag"}
    return load({**environment(config), "HOLDFAST_HOME": str(config.home)}, flags)


def peek(overrides: Mapping[str, str]) -> Config:
    """As `from_process`, and the secrets stay: for who tries several and starts no child."""
    return load(os.environ, overrides)


def vendors_found() -> list[Vendor]:
    """The vendors that the environment of this process has a key for."""
    return [v for v in VENDORS if any(os.environ.get(name) for name in v.variables)]


def process_home() -> Path:
    """The home of this process, whatever may be wrong in it."""
    return find_home(os.environ)


def wants_no_colour() -> bool:
    """Tell whether the user wants plain text (NO_COLOR, not empty)."""
    return bool(os.environ.get("NO_COLOR"))


def can_draw() -> bool:
    """Tell whether the terminal can move its cursor, according to TERM."""
    return os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def folds_again() -> bool:
    """Tell whether the terminal folds its lines again when it becomes narrower, as most do."""
    stiff = "XTERM_VERSION" in os.environ or "STY" in os.environ
    return "TMUX" in os.environ or not (stiff or os.environ.get("TERM") == "linux")


def notifies_by_777() -> bool:
    """Tell whether the terminal takes a notification as OSC 777, not as OSC 9."""
    return "VTE_VERSION" in os.environ or os.environ.get("TERM", "").startswith(("rxvt", "foot"))


def debugging() -> bool:
    """Tell whether the user wants to see our traces (HOLDFAST_DEBUG=1)."""
    return os.environ.get("HOLDFAST_DEBUG", "") not in ("", "0")


def wants_pull() -> bool | None:
    """Tell whether to fetch the built-in model if there is no other (HOLDFAST_PULL); None: ask."""
    given = os.environ.get("HOLDFAST_PULL", "")
    return given != "0" if given else None


def unknown_variables(environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, str]]:
    """Variables that look like ours and are not, each with what to do about it."""
    prefix = "HOLDFAST_"
    known = [n for n in (*ENVIRONMENT, *_OTHER_VARIABLES) if n.startswith(prefix)]
    bare = [name.removeprefix(prefix) for name in known]
    for name in sorted(environ):
        if not name.startswith(prefix) or name.startswith(_TEST_VARIABLES) or name in known:
            continue
        close = difflib.get_close_matches(name.removeprefix(prefix), bare, n=1)
        yield (
            name,
            f"did you mean {prefix}{close[0]}?" if close else f"known are {', '.join(known)}",
        )


_FOR_PACKAGES = (
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "NETRC"),
    *("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)


def package_environment() -> dict[str, str]:
    """The environment for pip: its own settings, proxies and certificates, and no secrets of ours."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _FOR_PACKAGES
        or name.startswith("PIP_")
        or name.lower() in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    }


def pager(less: str = "FRX") -> tuple[str, dict[str, str]]:
    """Return the command line of the user's pager, and the environment for it.

    `less` is how less behaves unless the user has said it: F ends at once if the text fits, R shows
    colours, X leaves the text on the screen.
    """
    return os.environ.get("PAGER") or "less", {"LESS": less, **os.environ}


def search_path() -> str:
    """Return the PATH of this process."""
    return os.environ.get("PATH") or os.defpath
