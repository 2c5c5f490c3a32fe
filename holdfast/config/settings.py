"""Settings: every key of `config.toml` with its type, its default and where its value came from.

The types below are the whole list of keys.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

from msgspec import Meta

from holdfast.config import channels as config_channels
from holdfast.config import models as config_models
from holdfast.config.channels import Channels
from holdfast.config.models import ModelTable
from holdfast.config.secrets import Secret
from holdfast.config.types import (
    Asking,
    Count,
    Days,
    Directories,
    Dollars,
    Expiry,
    Flag,
    Hours,
    Image,
    Level,
    OwnKey,
    Policy,
    Port,
    Ports,
    Price,
    ProviderKey,
    Seconds,
    Size,
    Text,
    Texts,
    Url,
)
from holdfast.core.approval.approval import ApprovalMode
from holdfast.core.inbox import Mode as Busy
from holdfast.core.session.session import OnStart

FILE = "config.toml"
LOCAL_PORTS = (11434, 1234, 8080, 8000)  # Ollama, LM Studio, llama.cpp, vLLM


@dataclass(frozen=True, slots=True)
class OpenAISettings:
    """The address of an OpenAI-compatible server, and how long it may be silent."""

    base_url: Url = "https://api.openai.com/v1"
    api_key: ProviderKey = None
    stall_s: Seconds = 120.0
    context_tokens: Size = 0  # what the model can read at once; 0: not known
    usd_per_m_input: Price = 0.0  # what a million tokens cost; 0: not known
    usd_per_m_output: Price = 0.0


@dataclass(frozen=True, slots=True)
class BuiltinSettings:
    """The built-in model: how long its unused process is kept, and how many processors it uses."""

    idle_s: Seconds = 600.0
    threads: Size = 0  # 0: as many as were free lately, at most 8


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
    """The limits of one process."""

    running: Count = 1_024
    queued: Count = 10_000
    turns: Count = 90
    model_attempts: Count = 12
    run_usd: Dollars = 0.0  # what one run may spend on models; 0: no limit
    body_mb: Count = 10
    body_s: Seconds = 30.0
    headers_s: Seconds = 10.0
    queued_mb: Count = 256


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """The policy at start for runs that were cut."""

    on_start: Policy = OnStart.RESUME


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """The disk space that the journal reserves, and retention of deltas and former file versions."""

    low_water_mb: Size = 64
    ballast_mb: Size = 4
    retention_h: Hours = 24
    versions_days: Days = 30


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    """The commands that need an approval, and how long a question waits for its answer.

    "ask": all but the plainly harmless. "sandboxed": where the sandbox holds (L2), only what
    wants out of it.
    """

    mode: Asking = ApprovalMode.ASK
    expiry_s: Expiry = 600.0


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The confinement of commands, and what happens without it: refuse or ask."""

    allow_none: Flag = False
    container: Image = ""  # an image, or a root directory; empty: no container


@dataclass(frozen=True, slots=True)
class TerminalSettings:
    """The limits of one command."""

    memory_mb: Size = 0  # of all its processes; 0: as much as there is


@dataclass(frozen=True, slots=True)
class Cli:
    """The conversation at a terminal."""

    busy: config_channels.Busy = Busy.INTERRUPT  # what a message does to an active run
    notify: Flag = True  # bell and notification: a question opens, a long run ends


@dataclass(frozen=True, slots=True)
class Log:
    """The log level."""

    level: Level = "info"


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set, as it is set."""

    home: Path
    user_home: Path
    user_config: Path = Path()  # where the user's other programs keep their settings
    model: Text = ""  # "NAME/model", NAME as in [models.NAME]; after `load` never empty
    fallbacks: Texts = ()  # models that are asked in this order if the one before fails
    small_model: Text = ""  # writes notes on long histories; empty: `model` does
    probe_local: Flag = True  # look for model servers on this machine if no model is configured
    probe_ports: Ports = LOCAL_PORTS
    plugins: Texts = ()  # modules with more tools
    openai: OpenAISettings = field(default_factory=OpenAISettings)
    builtin: BuiltinSettings = field(default_factory=BuiltinSettings)
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
    models: Mapping[str, ModelTable] = field(default_factory=dict)  # by name, in order of choice
    vendor_keys: Mapping[str, Secret] = field(default_factory=dict)  # by environment variable
    model_reason: str = ""  # one line: why this model
    origins: Mapping[str, str] = field(default_factory=dict)  # key → where its value is from

    @property
    def provider(self) -> str:
        """The part of `model` before the slash."""
        return self.model.partition("/")[0]

    @property
    def model_name(self) -> str:
        """The part after it: the provider's own name of the model."""
        return self.model.partition("/")[2] or self.provider

    @property
    def asked_model(self) -> str:
        """The model that was set for this command, and not for the home; empty: none was."""
        return self.model if self.origins["model"] in _CLOSE else ""

    @property
    def is_open(self) -> bool:
        """Tell whether neither the configuration nor the environment names a model or a server."""
        unset = self.provider == "offline" and self.origins["model"] == "default"
        return unset and not any(table.lacks_model for table in self.models.values())

    @property
    def table(self) -> ModelTable | None:
        """The table of the configured model; None: the model needs none, like `offline`."""
        return self.models.get(self.provider)

    @property
    def file(self) -> Path:
        return self.home / FILE


# Where a model is set for this command, and not for the home.
_CLOSE = frozenset({"flag", "environment HOLDFAST_MODEL"})

SECTIONS: Mapping[str, type] = MappingProxyType(
    {
        "openai": OpenAISettings,
        "builtin": BuiltinSettings,
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
    """The description of one key."""

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
        "fallbacks": ["anthropic/claude-sonnet-4-5"],
        "small_model": "openai/gpt-5-nano",
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
    yield from config_models.shown(config.models)
    yield from config_channels.shown(config.channels)
