"""Health, models and capabilities: what a gateway reports about itself."""

from collections.abc import Mapping

import msgspec


class HealthObject(msgspec.Struct, frozen=True):
    """The answer to GET /health and GET /health/ready."""

    status: str
    version: str


class RunCounts(msgspec.Struct, frozen=True):
    """The number of runs that are not over."""

    running: int = 0
    queued: int = 0
    waiting: int = 0


class SandboxObject(msgspec.Struct, frozen=True):
    """The sandbox of commands. `level` is empty until the gateway has tried it."""

    level: str
    note: str


class HealthDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to GET /health/detailed."""

    status: str = ""
    version: str = ""
    uptime_s: float = 0.0
    checks: dict[str, str] = {}
    model: str = ""
    model_reason: str = ""  # why it is this one
    runs: RunCounts = RunCounts()
    paused: str  # why no work is done, and what to do; empty: work is done
    held: str = ""  # why some runs do not go on, and what to do; empty: all go on
    channels: Mapping[str, str] = {}  # the trouble of each channel; empty: none
    undelivered: int = 0  # messages to chats that wait or are held
    sandbox: SandboxObject
    loop_lag_ms: float = 0.0


class ModelObject(msgspec.Struct, frozen=True, tag_field="object", tag="model"):
    """A model."""

    id: str
    created: int = 0
    owned_by: str = "holdfast"


class ModelList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /v1/models."""

    data: tuple[ModelObject, ...]


class CapabilityList(
    msgspec.Struct, frozen=True, tag_field="object", tag="hermes.api_server.capabilities"
):
    """The answer to GET /v1/capabilities."""

    model: str
    features: dict[str, bool]
    endpoints: tuple[str, ...]
