"""The configuration: read once, checked whole, frozen. The only reader of the environment.

A value comes from a flag, else the environment, else `config.toml` in the home, else
its default; where it came from is kept beside it. Nothing is guessed: a key nobody
knows, or a value of the wrong kind, is `Misconfigured` in one line that names the
place, the key and what to write instead. The types below are the whole list of keys.
Nothing is created here but the API key, at its first need.
"""

import difflib
import json
import os
import secrets
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

from holdfast import config_channels, vendors
from holdfast.channels import OWN
from holdfast.config_channels import Channels
from holdfast.core.approval import Mode
from holdfast.core.inbox import Mode as Busy
from holdfast.core.lifecycle import Supervisor
from holdfast.core.session import OnStart
from holdfast.errors import Misconfigured
from holdfast.secret import Secret as Secret
from holdfast.vendors import VENDORS, Vendor

PROVIDERS = ("openai", "scripted", "offline")
DEFAULT_OPENAI_MODEL = "gpt-5-mini"
FILE = "config.toml"
KEY_FILE = "api_key"

# What the environment may set, and the key it sets.
ENVIRONMENT = MappingProxyType(
    {
        "HOLDFAST_MODEL": "model",
        "OPENAI_BASE_URL": "openai.base_url",
        "OPENAI_API_KEY": "openai.api_key",
        "HOLDFAST_API_KEY": "gateway.api_key",
        "HOLDFAST_PORT": "gateway.port",
    }
)

# With those that hold the key of a vendor, where that vendor's server is the chosen one.
GIVING = MappingProxyType({**ENVIRONMENT, **{v.variable: "openai.api_key" for v in VENDORS}})

# Those that set no key, and those that are for tests.
_OTHER_VARIABLES = (
    "HOLDFAST_HOME",
    "HOLDFAST_DEBUG",
    *(name for names in OWN.values() for name in names),
)
_TEST_VARIABLES = ("HOLDFAST_TORTURE_", "HOLDFAST_FUZZ_", "HOLDFAST_RESTARTS")

LAUNCHD_LABEL = "org.holdfast.gateway"
_SUPERVISION = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("SYSTEMD_EXEC_PID", "MANAGERPID"),
)

_SOCKET_ROOM = 103 - len("/run/front.sock")  # what the system leaves for a socket's address


_LINE = r"^[^\x00-\x1f\x7f]+$"
_VISIBLE = r"^[\x21-\x7e]+$"

Text = Annotated[str, Meta(pattern=_LINE, description="a text in quotes")]
Url = Annotated[
    str,
    Meta(pattern=r"^https?://[\x21-\x7e]+$", description="an address with http:// or https://"),
]
Count = Annotated[int, Meta(ge=1, le=2**31, description="a whole number, at least 1")]
Size = Annotated[int, Meta(ge=0, le=2**31, description="a whole number, 0 or more")]
Port = Annotated[int, Meta(ge=0, le=65535, description="a whole number from 0 to 65535")]
Seconds = Annotated[float, Meta(ge=0, le=86400, description="a number of seconds, 0 to 86400")]
Price = Annotated[float, Meta(ge=0, le=1e6, description="US dollars for a million tokens")]
Expiry = Annotated[float, Meta(gt=0, le=604800, description="seconds, up to 7 days (604800)")]
Hours = Annotated[int, Meta(ge=24, le=2**16, description="a whole number of hours, at least 24")]
Texts = Annotated[tuple[Text, ...], Meta(description="a list of texts")]
Directories = Annotated[
    tuple[Annotated[str, Meta(pattern="^/")], ...],
    Meta(description="a list of absolute directories"),
]
Image = Annotated[
    str,
    Meta(
        pattern=r"^(/[^\x00-\x1f\x7f]*|[A-Za-z0-9][A-Za-z0-9._/:@-]*)?$",
        description="the name of an image, or an absolute directory",
    ),
]
Policy = Annotated[OnStart, Meta(description='"resume", "wait" or "suspend"')]
Level = Annotated[
    Literal["debug", "info", "warning", "error"],
    Meta(description='"debug", "info", "warning" or "error"'),
]
Asking = Annotated[Mode, Meta(description='"ask" or "sandboxed"')]
Flag = Annotated[bool, Meta(description="true or false")]
ProviderKey = Annotated[
    Secret | None,
    Meta(description="a text of visible characters", extra={"pattern": _VISIBLE}),
]
OwnKey = Annotated[
    Secret | None,
    Meta(description="at least 16 visible characters", extra={"pattern": r"^[\x21-\x7e]{16,}$"}),
]


@dataclass(frozen=True, slots=True)
class OpenAI:
    """Where an OpenAI-compatible server is, and how long it may be silent."""

    base_url: Url = "https://api.openai.com/v1"
    api_key: ProviderKey = None
    stall_s: Seconds = 120.0
    context_tokens: Size = 0  # what the model can read at once; 0: not known
    usd_per_m_input: Price = 0.0  # what a million tokens cost; 0: not known
    usd_per_m_output: Price = 0.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """The HTTP door, and who may come through it."""

    host: Text = "127.0.0.1"
    port: Port = 8642
    api_key: OwnKey = None  # None: generated at first need, see `api_key`
    allowed_hosts: Texts = ()
    allowed_origins: Texts = ()
    drain_s: Seconds = 0.0
    workspace_roots: Directories = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process takes on."""

    running: Count = 1_024
    queued: Count = 10_000
    turns: Count = 90
    model_attempts: Count = 5
    body_mb: Count = 10
    body_s: Seconds = 30.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """What happens at start to a run that was cut."""

    on_start: Policy = OnStart.RESUME


@dataclass(frozen=True, slots=True)
class Journal:
    """How much room the journal keeps, and for how long it keeps deltas."""

    low_water_mb: Size = 64
    ballast_mb: Size = 4
    retention_h: Hours = 24


@dataclass(frozen=True, slots=True)
class Approval:
    """Which commands ask before they run, and how long a question waits for its answer.

    "ask": all but the plainly harmless. "sandboxed": where the sandbox holds (L2), only what
    wants out of it.
    """

    mode: Asking = Mode.ASK
    expiry_s: Expiry = 600.0


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How commands are confined, and what happens where they cannot be: refused, or asked for."""

    allow_none: Flag = False
    container: Image = ""  # an image, or a root directory; empty: no container


@dataclass(frozen=True, slots=True)
class Terminal:
    """What one command may use."""

    memory_mb: Size = 0  # of all its processes; 0: as much as there is


@dataclass(frozen=True, slots=True)
class Cli:
    """The conversation at a terminal: what words do to a run at work."""

    busy: config_channels.Busy = Busy.INTERRUPT


@dataclass(frozen=True, slots=True)
class Log:
    """How much is said on the way."""

    level: Level = "info"


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set, as it is set."""

    home: Path
    user_home: Path
    user_config: Path = Path()  # where the user's other programs keep their settings
    model: Text = ""  # "provider/name"; after `load` never empty
    plugins: Texts = ()  # modules with more tools
    openai: OpenAI = field(default_factory=OpenAI)
    gateway: Gateway = field(default_factory=Gateway)
    limits: Limits = field(default_factory=Limits)
    recovery: Recovery = field(default_factory=Recovery)
    journal: Journal = field(default_factory=Journal)
    approval: Approval = field(default_factory=Approval)
    sandbox: Sandbox = field(default_factory=Sandbox)
    terminal: Terminal = field(default_factory=Terminal)
    cli: Cli = field(default_factory=Cli)
    log: Log = field(default_factory=Log)
    channels: Channels = Channels()
    model_reason: str = ""  # one line: why this model
    origins: Mapping[str, str] = field(default_factory=dict)  # key → where its value is from

    @property
    def provider(self) -> str:
        """What stands before the slash of `model`."""
        return self.model.partition("/")[0]

    @property
    def model_name(self) -> str:
        """What stands after it: the provider's own name of the model."""
        return self.model.partition("/")[2] or self.provider

    @property
    def asked_model(self) -> str:
        """The model that was set for this command, and not for the home; empty: none was."""
        return self.model if self.origins["model"] in _CLOSE else ""

    @property
    def file(self) -> Path:
        return self.home / FILE


# Where a model is set for this command, and not for the home.
_CLOSE = frozenset({"flag", "environment HOLDFAST_MODEL"})

_SECTIONS: Mapping[str, type] = MappingProxyType(
    {
        "openai": OpenAI,
        "gateway": Gateway,
        "limits": Limits,
        "recovery": Recovery,
        "journal": Journal,
        "approval": Approval,
        "sandbox": Sandbox,
        "terminal": Terminal,
        "cli": Cli,
        "log": Log,
    }
)


@dataclass(frozen=True, slots=True)
class _Setting:
    """What is known about one key."""

    type: Any
    meta: Meta
    default: object


def _settings() -> Mapping[str, _Setting]:
    found: dict[str, _Setting] = {}
    for prefix, owner in (("", Config), *_SECTIONS.items()):
        hints = get_type_hints(owner, include_extras=True)
        for entry in fields(owner):
            meta = next(iter(getattr(hints[entry.name], "__metadata__", ())), None)
            if meta is not None:
                key = f"{prefix}.{entry.name}" if prefix else entry.name
                found[key] = _Setting(hints[entry.name], meta, entry.default)
    return MappingProxyType(found)


SETTINGS = _settings()

_EXAMPLES = MappingProxyType(
    {
        "model": "openai/gpt-5-mini",
        "plugins": ["my_tools"],
        "openai.api_key": "sk-…",
        "gateway.api_key": "<the output of: openssl rand -hex 32>",
        "gateway.allowed_hosts": ["holdfast.example.org"],
        "gateway.allowed_origins": ["https://app.example.org"],
        "gateway.workspace_roots": ["/srv/work"],
        "sandbox.container": "docker.io/library/python:3.13",
    }
)


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as somebody wrote it, and where."""

    value: object
    origin: str
    written: str  # the name it goes by there

    @property
    def is_text(self) -> bool:
        """Flags and the environment know no types: a number comes as its digits."""
        return not self.origin.endswith(FILE)


def from_process(overrides: Mapping[str, str]) -> Config:
    """The configuration of this process; `overrides` are the flags, by key.

    Secrets leave the environment with it, so that no child inherits them. (Linux still
    shows the environment a process was started with in /proc; see `holdfast.app` for that.)
    """
    config = load(os.environ, overrides)
    used = [name for name, key in GIVING.items() if config.origins[key] == f"environment {name}"]
    for name in (*ENVIRONMENT, *used):
        if SETTINGS[GIVING[name]].meta.extra:
            os.environ.pop(name, None)
    for name in config.channels.secrets:
        os.environ.pop(name, None)
    return config


@dataclass(frozen=True, slots=True)
class Supervision:
    """Who watches this process, where it listens, and how often it wants a sign of life."""

    by: Supervisor = Supervisor.NONE
    socket: str = ""  # empty: nobody listens
    watchdog_s: float = 0.0  # 0: no sign of life is wanted
    of_user: bool = False  # systemd's manager is a user's, not the machine's


def take_supervision() -> Supervision:
    """Who supervises this process. What says so is for us alone: no child inherits it."""
    found = find_supervision(os.environ, os.getpid())
    for name in _SUPERVISION:
        os.environ.pop(name, None)
    return found


def find_supervision(environ: Mapping[str, str], pid: int) -> Supervision:
    """What the environment says of the supervisor of process `pid`."""
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
    given = {n: k for n, k in GIVING.items() if config.origins[k] == f"environment {n}"}
    values = {key: value for key, value, _ in shown(config)}
    hidden = {n: v.reveal() for n, k in given.items() if isinstance(v := values[k], Secret)}
    of_channels = {
        name: given.secret.reveal()
        for name, given in config.channels.secrets.items()
        if given.origin == f"environment {name}"
    }
    return {**os.environ, **hidden, **of_channels}


def again(config: Config) -> Config:
    """What the next one of ours would be configured with, as the home is now."""
    flags = {key: str(value) for key, value, origin in shown(config) if origin == "flag"}
    return load({**environment(config), "HOLDFAST_HOME": str(config.home)}, flags)


def peek(overrides: Mapping[str, str]) -> Config:
    """As `from_process`, and the secrets stay: for who tries several and starts no child."""
    return load(os.environ, overrides)


def vendors_found() -> list[Vendor]:
    """The vendors that the environment of this process has a key for."""
    return [vendor for vendor in VENDORS if os.environ.get(vendor.variable)]


def process_home() -> Path:
    """The home of this process, whatever may be wrong in it."""
    return find_home(os.environ)


def wants_no_colour() -> bool:
    """Whether somebody has asked every program for plain text (NO_COLOR, not empty)."""
    return bool(os.environ.get("NO_COLOR"))


def can_draw() -> bool:
    """Whether the terminal can move its cursor, as far as it says so (TERM)."""
    return os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def folds_again() -> bool:
    """Whether the terminal folds its lines anew when it becomes narrower, as most do."""
    stiff = "XTERM_VERSION" in os.environ or "STY" in os.environ
    return "TMUX" in os.environ or not (stiff or os.environ.get("TERM") == "linux")


def debugging() -> bool:
    """Whether somebody wants to see our traces (HOLDFAST_DEBUG=1)."""
    return os.environ.get("HOLDFAST_DEBUG", "") not in ("", "0")


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


def find_home(environ: Mapping[str, str]) -> Path:
    """HOLDFAST_HOME, else ~/.holdfast; absolute."""
    user = _user_home(environ)
    given = environ.get("HOLDFAST_HOME") or "~/.holdfast"
    if given == "~" or given.startswith("~/"):
        return user / given[2:]
    return Path(os.path.abspath(given))


def _user_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or os.path.expanduser("~"))


def _user_config(environ: Mapping[str, str]) -> Path:
    given = environ.get("XDG_CONFIG_HOME", "")
    return Path(given) if given.startswith("/") else _user_home(environ) / ".config"


def search_path() -> str:
    """Where this process finds commands."""
    return os.environ.get("PATH") or os.defpath


def load(environ: Mapping[str, str], overrides: Mapping[str, str]) -> Config:
    """Read and check everything. Raises `Misconfigured` at the first thing that is wrong."""
    home = find_home(environ)
    check_home(home)
    document = _document(home / FILE)
    tables = document.pop(config_channels.SECTION, {})
    given = _from_file(home / FILE, document)
    for name, key in ENVIRONMENT.items():
        value = environ.get(name)
        if value or (value is not None and key == "gateway.api_key"):
            given[key] = _Given(value, f"environment {name}", name)
    for key, value in overrides.items():
        name = key.rpartition(".")[2].replace("_", "-")
        given[key] = _Given(value, "flag", f"--{name}")
    given |= _vendor_key(environ, given)
    values: dict[str, Any] = {
        k: _read(k, given[k]) if k in given else s.default for k, s in SETTINGS.items()
    }
    origins = {k: given[k].origin if k in given else "default" for k in SETTINGS}
    model, reason = _choose_model(given, values)
    channels = config_channels.read(home / FILE, tables, environ, plugins=bool(values["plugins"]))
    origins |= {key: origin for key, _, origin in config_channels.shown(channels)}
    return Config(
        home=home,
        user_home=_user_home(environ),
        user_config=_user_config(environ),
        model=model,
        plugins=values["plugins"],
        **{name: kind(**_section(name, values)) for name, kind in _SECTIONS.items()},
        channels=channels,
        model_reason=reason,
        origins=MappingProxyType(origins),
    )


def _vendor_key(environ: Mapping[str, str], given: Mapping[str, _Given]) -> dict[str, _Given]:
    """At a vendor's own address, the key that goes by the vendor's name; OpenAI's is not for it."""
    url = given.get("openai.base_url")
    vendor = vendors.at(str(url.value)) if url is not None else None
    if vendor is None or not (value := environ.get(vendor.variable)):
        return {}
    origin = f"environment {vendor.variable}"
    return {"openai.api_key": _Given(value, origin, vendor.variable)}


def _section(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    prefix = name + "."
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def check_home(home: Path) -> None:
    """Raise `Misconfigured` if `home` cannot be one."""
    other = "set HOLDFAST_HOME to a directory that you own"
    if len(os.fsencode(home)) > _SOCKET_ROOM:
        raise Misconfigured(
            f"the home {home} has too long a path for a socket",
            f"set HOLDFAST_HOME to one of at most {_SOCKET_ROOM} bytes",
        )
    try:
        there = next(p for p in (home, *home.parents) if p.exists())
    except OSError as error:
        raise Misconfigured(f"the home {home} cannot be used: {error.strerror}", other) from None
    if not there.is_dir():
        what = "is a file" if there == home else f"lies below {there}, which is a file"
        raise Misconfigured(f"the home {home} {what}", other)
    if not os.access(there, os.W_OK | os.X_OK):
        what = "is not writable" if there == home else f"cannot be made: {there} is not writable"
        raise Misconfigured(f"the home {home} {what}", other)
    if there != home and (why := probe(there)):
        raise Misconfigured(f"the home {home} cannot be made: {why}", other)


def probe(directory: Path) -> str:
    """Why nothing can be made in `directory`, or nothing if it can. Tries, and leaves no trace.

    Permissions do not tell: root has them all, and still cannot write below /sys.
    """
    try:
        os.rmdir(tempfile.mkdtemp(dir=directory, prefix=".holdfast-"))
    except OSError as error:
        return f"in {directory}: {error.strerror}"
    return ""


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise Misconfigured(f"{path} is not UTF-8 text", "save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{path} is not TOML: {error}", "mend that line") from None
    except OSError as error:
        raise Misconfigured(
            f"{path} cannot be read: {error.strerror}", "make it a file that you can read"
        ) from None


def _from_file(path: Path, document: Mapping[str, object]) -> dict[str, _Given]:
    origin = str(path)
    given: dict[str, _Given] = {}
    for key, value in _flatten(path, document):
        if key not in SETTINGS:
            raise _unknown(path, key)
        given[key] = _Given(value, origin, f"{path}: {key}")
    return given


def _flatten(path: Path, document: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if name not in _SECTIONS:
            inner = next(iter(value), "") if isinstance(value, dict) else ""
            if isinstance(value, dict) and name not in SETTINGS:
                raise _unknown(path, f"{name}.{inner}" if inner else name)
            yield name, value
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            raise Misconfigured(f"{path}: {name} is a section", f"write [{name}] on its own line")


def _unknown(path: Path, key: str) -> Misconfigured:
    last = key.rpartition(".")[2]
    # The right name in the wrong section, or the section misspelt; only else a misspelt name.
    same = [k for k in SETTINGS if k.rpartition(".")[2] == last]
    close = difflib.get_close_matches(key, same or SETTINGS, n=1, cutoff=0.0 if same else 0.6)
    if close:
        return Misconfigured(f"{path}: unknown key {key}", f"did you mean {_line(close[0])}?")
    section = key.partition(".")[0]
    if difflib.get_close_matches(section, [config_channels.SECTION]):
        meant = f"[{config_channels.SECTION}.telegram]"
        return Misconfigured(f"{path}: unknown key {key}", f"did you mean {meant}?")
    known = [k for k in SETTINGS if k.startswith(section + ".")] or [
        *(k for k in SETTINGS if "." not in k),
        *(f"[{s}]" for s in _SECTIONS),
        f"[{config_channels.SECTION}.NAME]",
    ]
    return Misconfigured(f"{path}: unknown key {key}", f"known are {', '.join(known)}")


def _line(key: str) -> str:
    """How `key` is written in the file, with a value that works."""
    example = _EXAMPLES.get(key, SETTINGS[key].default)
    section, _, name = key.rpartition(".")
    where = f" under [{section}]" if section else " above the first section"
    return f"{name} = {json.dumps(example, ensure_ascii=False)}{where}"


def _read(key: str, given: _Given) -> Any:
    setting = SETTINGS[key]
    if setting.meta.extra:
        return _read_secret(key, given, setting.meta.extra["pattern"])
    try:
        return msgspec.convert(given.value, setting.type, strict=not given.is_text)
    except msgspec.ValidationError:
        shown = json.dumps(given.value, ensure_ascii=False, default=str)
        shown = shown if len(shown) <= 60 else shown[:59] + "…"
        raise Misconfigured(f"{given.written} is {shown}", _instead(key, given)) from None


def _read_secret(key: str, given: _Given, pattern: str) -> Secret:
    try:
        return Secret(msgspec.convert(given.value, Annotated[str, Meta(pattern=pattern)]))
    except msgspec.ValidationError:
        what = "is empty" if given.value == "" else "is not usable as a key"
        if isinstance(given.value, str) and 0 < len(given.value) < 16 and key == "gateway.api_key":
            what = "is too short"
        raise Misconfigured(f"{given.written} {what}", _instead(key, given)) from None


def _instead(key: str, given: _Given) -> str:
    said = SETTINGS[key].meta.description
    if given.is_text:
        example = _EXAMPLES.get(key, SETTINGS[key].default)
        return f"it must be {said}, like {example}"
    return f"it must be {said}; write {_line(key)}"


def _choose_model(given: Mapping[str, _Given], values: Mapping[str, Any]) -> tuple[str, str]:
    """Which model, and the line that says why. The first hit wins."""
    if "model" in given:
        return _check_model(given["model"], values["model"]), f"set by {given['model'].origin}"
    if "openai.api_key" in given:
        model = f"openai/{DEFAULT_OPENAI_MODEL}"
        return model, f"there is a key in {given['openai.api_key'].origin} and no model is named"
    if "openai.base_url" in given:
        origin = given["openai.base_url"].origin
        return "openai/default", (
            f'there is a server in {origin} and no model is named, so it is asked for "default"'
        )
    return "offline", "no model is configured: holdfast setup finds what is there"


def _check_model(given: _Given, model: str) -> str:
    provider, _, name = model.partition("/")
    known = ", ".join(PROVIDERS)
    if provider not in PROVIDERS:
        meant = f"openai/{model}" if "/" not in model else f"openai/{name}"
        raise Misconfigured(
            f'{given.written} is "{model}" and there is no provider "{provider}"',
            f"known are {known}; write provider/name, like {meant}",
        )
    if not name and provider != "offline":
        raise Misconfigured(
            f'{given.written} is "{model}" and names no model',
            f"write provider/name, like {provider}/{DEFAULT_OPENAI_MODEL}",
        )
    return model


def shown(config: Config) -> Iterator[tuple[str, object, str]]:
    """Every key with its value and its origin. Secrets stay masked."""
    for key in SETTINGS:
        section, _, name = key.rpartition(".")
        owner = getattr(config, section) if section else config
        yield key, getattr(owner, name), config.origins[key]
    yield from config_channels.shown(config.channels)


def known_secrets(config: Config) -> list[str]:
    """Everything that must not be seen anywhere; of a generated key, if there is one by now."""
    found = [value.reveal() for _, value, _ in shown(config) if isinstance(value, Secret)]
    if config.gateway.api_key is None and (config.home / KEY_FILE).exists():
        with suppress(Misconfigured):  # no key; whoever needs one will say so
            found.append(api_key(config).reveal())
    return found


def api_key(config: Config) -> Secret:
    """The key of the HTTP door: the given one, else the generated one, made at first need.

    Safe against others who do the same at the same time: whoever links first wins, and
    nobody ever sees half a key.
    """
    if config.gateway.api_key is not None:
        return config.gateway.api_key
    path = config.home / KEY_FILE
    try:
        if not path.exists():
            _create_key(path)
        value = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(
            f"{path} cannot be used: {error}", "make it a file of your own with mode 0600"
        ) from None
    if len(value) < 16:
        raise Misconfigured(f"{path} holds no key of 16 characters", "delete it for a new one")
    return Secret(value)


def _create_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".api_key.")  # mode 0600, O_EXCL
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        pass  # somebody was faster: theirs is the key
    finally:
        os.unlink(draft)
