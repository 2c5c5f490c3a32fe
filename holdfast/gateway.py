"""The front door: everything a channel, a command or a terminal may do, as a Protocol.

`send` returns when the intent is in the journal, not before; what happens to the
caller afterwards changes nothing. `follow` reads a run's records from a cursor, for
any number of readers, before and after the run has ended and across restarts.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, overload

from holdfast.core.approval import ApprovalRequested
from holdfast.core.events import Record
from holdfast.core.intents import (
    Answer,
    Answered,
    Principal,
    Steer,
    Steered,
    Stop,
    Stopping,
    Submit,
    Submitted,
)
from holdfast.core.messages import Message
from holdfast.core.run import Status
from holdfast.core.types import Fact, RunId, SessionId, Usage, Value

HANDOVER = "/v1/handover"  # at the operator's door: let somebody else own the home


class RunView(Value):
    """A run as somebody outside may see it."""

    run_id: RunId
    session_id: SessionId
    status: Status
    stopping: bool
    waiting_for_approval: bool
    approval: ApprovalRequested | None  # the oldest that waits
    created_at: float
    updated_at: float
    model: str
    last_event: str
    usage: Usage
    ending: Fact | None  # the fact that ended it
    ended_seq: int | None


class Health(Value):
    """What the process says of itself."""

    status: str
    version: str
    model: str
    running: int
    queued: int
    waiting: int
    loop_lag_ms: float
    journal: str
    uptime_s: float
    sandbox: str  # how well commands are confined, "L2" for one; empty: not known yet
    sandbox_note: str
    paused: str  # why no work is done, and what to do about it; empty: it is

    @property
    def ready(self) -> bool:
        return self.status == "ready" and self.journal == "ok"


class RunQuery(Value):
    """Which runs to list, newest first."""

    status: frozenset[Status] = frozenset()
    session_id: SessionId | None = None
    limit: int = 20
    after: RunId | None = None


Batches = AsyncIterator[Sequence[Record]]


class Gateway(Protocol):
    """The front door."""

    @overload
    async def send(self, intent: Submit) -> Submitted: ...
    @overload
    async def send(self, intent: Stop) -> Stopping: ...
    @overload
    async def send(self, intent: Steer) -> Steered: ...
    @overload
    async def send(self, intent: Answer) -> Answered: ...

    async def run(self, by: Principal, run_id: RunId) -> RunView:
        """The run as it stands; refused with `run_not_found` if it is not the caller's."""
        ...

    async def approvals(self, by: Principal) -> Sequence[ApprovalRequested]:
        """Everything of the caller's that waits for an approval, oldest first."""
        ...

    async def runs(self, by: Principal, query: RunQuery) -> tuple[Sequence[RunView], bool]:
        """A page of runs, and whether there are more."""
        ...

    async def messages(self, by: Principal, session_id: SessionId) -> Sequence[Message]:
        """The whole transcript; refused with `session_not_found` if it is not the caller's."""
        ...

    def follow(
        self, by: Principal, run_id: RunId, after: int
    ) -> AbstractAsyncContextManager[Batches | None]:
        """The run's records after `after`, in order, without gap or repeat; None if none follow.

        An empty batch is a sign of life. Ends after the run's last record; ends early, without
        one, when the reader is too slow or the gateway stops: come back with your cursor.
        """
        ...

    def follow_session(
        self, by: Principal, session_id: SessionId, after: int
    ) -> AbstractAsyncContextManager[Batches]:
        """Everything of the session after `after`, for as long as somebody reads."""
        ...

    def rules(self, by: Principal) -> dict[str, str]:
        """What the operator has permitted for good: a name for each, and its words."""
        ...

    async def revoke(self, by: Principal, name: str) -> None:
        """Take one of them back; refused with `rule_not_found`."""
        ...

    async def accept_posture(self, by: Principal) -> None:
        """The operator's word: go on, however well commands are confined here."""
        ...

    def health(self) -> Health:
        """How it is doing, from memory."""
        ...
