"""Everything one may ask of the gateway. Each intent says who asks and names its target.

An intent is not a fact: it may be refused. What was accepted has become facts in the
journal by the time `send` returns, whatever happens to the process afterwards.
"""

from collections.abc import Mapping

from holdfast.core.approval import Choice
from holdfast.core.messages import Message
from holdfast.core.types import Owner, RequestId, RunId, SessionId, Value


class Principal(Value):
    """Who asks, and through which door."""

    owner: Owner
    platform: str  # "api_server", "cli", …


class RequestKey(Value):
    """The caller's name for a request, and a fingerprint of what it asked under that name."""

    route: str
    key: str
    fingerprint: str


class Submit(Value):
    """Words for the agent. They become one run."""

    by: Principal
    text: str
    session_id: SessionId | None = None
    instructions: str = ""
    history: tuple[Message, ...] | None = None
    model: str = ""
    workspace: str = ""
    metadata: Mapping[str, str] = {}
    request_key: RequestKey | None = None


class Stop(Value):
    """End one run, now."""

    by: Principal
    run_id: RunId
    reason: str


class Steer(Value):
    """Guidance for one live run, read before its next turn."""

    by: Principal
    run_id: RunId
    text: str


class Answer(Value):
    """An answer to approvals of one run: the named one, all, or the oldest."""

    by: Principal
    run_id: RunId
    choice: Choice
    request_id: RequestId | None = None
    every: bool = False


Intent = Submit | Stop | Steer | Answer


class Submitted(Value):
    run_id: RunId
    session_id: SessionId
    replayed: bool  # the same request had been accepted before


class Stopping(Value):
    run_id: RunId


class Steered(Value):
    run_id: RunId


class Answered(Value):
    run_id: RunId
    choice: Choice  # what was recorded, which may be less than what was asked for
    resolved: int


Reply = Submitted | Stopping | Steered | Answered
