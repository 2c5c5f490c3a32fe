"""Settings: every key of `config.toml` with its type, its default and where its value came from.

The types below are the whole list of keys.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_type_hints

from msgspec import Meta

from holdfast.config import channels as config_channels
from holdfast.config.channels import Channels
from holdfast.config.secrets import Secret
from holdfast.core.approval.approval import ApprovalMode
from holdfast.core.inbox import Mode as Busy
from holdfast.core.session.session import OnStart

PROVIDERS = ("openai", "builtin", "scripted", "offline")
DEFAULT_OPENAI_MODEL = "gpt-5-mini"
FILE = "config.toml"

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
Days = Annotated[int, Meta(ge=1, le=3650, description="a whole number of days, at least 1")]
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
Asking = Annotated[ApprovalMode, Meta(description='"ask" or "sandboxed"')]
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
class OpenAISettings:
    """Where an OpenAI-compatible server is, and how long it may be silent."""

    base_url: Url = "https://api.openai.com/v1"
    api_key: ProviderKey = None
    stall_s: Seconds = 120.0
    context_tokens: Size = 0  # what the model can read at once; 0: not known
    usd_per_m_input: Price = 0.0  # what a million tokens cost; 0: not known
    usd_per_m_output: Price = 0.0


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The HTTP door, and who may come through it."""

    host: Text = "127.0.0.1"
    port: Port = 8642
    api_key: OwnKey = None  # None: generated at first need, see `api_key`
    allowed_hosts: Texts = ()
    allowed_origins: Texts = ()
    drain_s: Seconds = 0.0
    workspace_roots: Directories = ()


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What one process takes on."""

    running: Count = 1_024
    queued: Count = 10_000
    turns: Count = 90
    model_attempts: Count = 5
    body_mb: Count = 10
    body_s: Seconds = 30.0
    headers_s: Seconds = 10.0
    queued_mb: Count = 256


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """What happens at start to a run that was cut."""

    on_start: Policy = OnStart.RESUME


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How much room the journal keeps; how long deltas and replaced versions of files are kept."""

    low_water_mb: Size = 64
    ballast_mb: Size = 4
    retention_h: Hours = 24
    versions_days: Days = 30


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    """Which commands ask before they run, and how long a question waits for its answer.

    "ask": all but the plainly harmless. "sandboxed": where the sandbox holds (L2), only what
    wants out of it.
    """

    mode: Asking = ApprovalMode.ASK
    expiry_s: Expiry = 600.0


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """How commands are confined, and what happens where they cannot be: refused, or asked for."""

    allow_none: Flag = False
    container: Image = ""  # an image, or a root directory; empty: no container


@dataclass(frozen=True, slots=True)
class TerminalSettings:
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
    openai: OpenAISettings = field(default_factory=OpenAISettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    approval: ApprovalSettings = field(default_factory=ApprovalSettings)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    terminal: TerminalSettings = field(default_factory=TerminalSettings)
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

SECTIONS: Mapping[str, type] = MappingProxyType(
    {
        "openai": OpenAISettings,
        "gateway": GatewaySettings,
        "limits": LimitSettings,
        "recovery": RecoverySettings,
        "journal": JournalSettings,
        "approval": ApprovalSettings,
        "sandbox": SandboxSettings,
        "terminal": TerminalSettings,
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
    for prefix, owner in (("", Config), *SECTIONS.items()):
        hints = get_type_hints(owner, include_extras=True)
        for entry in fields(owner):
            meta = next(iter(getattr(hints[entry.name], "__metadata__", ())), None)
            if meta is not None:
                key = f"{prefix}.{entry.name}" if prefix else entry.name
                found[key] = _Setting(hints[entry.name], meta, entry.default)
    return MappingProxyType(found)


SETTINGS = _settings()

EXAMPLES = MappingProxyType(
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


def shown(config: Config) -> Iterator[tuple[str, object, str]]:
    """Every key with its value and its origin. Secrets stay masked."""
    for key in SETTINGS:
        section, _, name = key.rpartition(".")
        owner = getattr(config, section) if section else config
        yield key, getattr(owner, name), config.origins[key]
    yield from config_channels.shown(config.channels)
