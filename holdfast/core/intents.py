"""Everything one may ask of the gateway. Each intent says who asks and names its target.

An intent is not a fact: it may be refused. What was accepted has become facts in the
journal by the time `send` returns, whatever happens to the process afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.core.messages import Message
from holdfast.core.types import Owner, RequestId, RunId, SessionId


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, and through which door."""

    owner: Owner
    platform: str  # "api_server", "cli", …


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The caller's name for a request, and a fingerprint of what it asked under that name."""

    route: str
    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Submit:
    """Words for the agent. They become one run."""

    by: Principal
    text: str
    session_id: SessionId | None = None
    instructions: str = ""
    history: tuple[Message, ...] | None = None
    model: str = ""
    workspace: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    request_key: RequestKey | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End one run, now."""

    by: Principal
    run_id: RunId
    reason: str


@dataclass(frozen=True, slots=True)
class Steer:
    """Guidance for one live run, read before its next turn."""

    by: Principal
    run_id: RunId
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to approvals of one run: the named one, all, or the oldest."""

    by: Principal
    run_id: RunId
    choice: str
    request_id: RequestId | None = None
    every: bool = False


Intent = Submit | Stop | Steer | Answer


@dataclass(frozen=True, slots=True)
class Submitted:
    run_id: RunId
    session_id: SessionId
    replayed: bool  # the same request had been accepted before


@dataclass(frozen=True, slots=True)
class Stopping:
    run_id: RunId


@dataclass(frozen=True, slots=True)
class Steered:
    run_id: RunId


@dataclass(frozen=True, slots=True)
class Answered:
    run_id: RunId
    choice: str
    resolved: int


Reply = Submitted | Stopping | Steered | Answered
