"""The journal: the only durable state. This file defines what every store promises.

* A session is a stream. Its records have increasing numbers from 1, which never change.
  There may be gaps: compare numbers, never count them.
* `append` and `delta` number and enqueue at once, on the event loop, without waiting. So no other
  record comes between a decision and its append if there is no await between them. Records become
  durable in the order they were enqueued; all facts of one append with their projections, or none.
* A fact that cannot be encoded (a lone surrogate) is an error of the caller: `append` raises, and
  nothing is enqueued. In streamed text U+FFFD replaces such a character.
* `Pending.wait` returns when the facts are durable and the listeners were called. A failed commit
  fails everything that is enqueued and not yet committed; the state in memory must be dropped and
  loaded again. If `expected_seq` is not the stream's head, `append` raises `Conflict`: load the
  session again and decide again.
* A batch with a fact in core.events.ACTED_UPON survives a power failure once it was waited for;
  any other batch survives the end of the process.
* Deltas of one run, turn and kind that wait for the same commit are merged into one record, or a
  few if they are long.
* Readers see only committed records. Deltas are deleted after their retention; the numbers of the
  other records do not change.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from holdfast.core.approval.approval import ApprovalRequested
from holdfast.core.chat.delivery import Delivery, DeliveryQueued
from holdfast.core.chat.delivery import DeliveryStatus as Sending
from holdfast.core.events import Delta, Record
from holdfast.core.life.evidence import Doubt
from holdfast.core.run.run import Run, RunPhase
from holdfast.core.types import (
    DeliveryId,
    Fact,
    Owner,
    RequestId,
    RunId,
    SessionId,
    SessionKey,
    Value,
)
from holdfast.errors import JournalUnavailable
from holdfast.gateway import AskedPlace

LAST = 2**63 - 1  # higher than any number of a record


class Conflict(JournalUnavailable):
    """The stream has moved on since the caller loaded it: load it again and decide again."""


class Pending(Protocol):
    """An append that is not durable yet, or was not when it was returned."""

    @property
    def seq(self) -> int:
        """The number of its last fact."""

    @property
    def durable(self) -> bool:
        """True when it is durable and published."""

    def wait(self) -> Coroutine[Any, Any, None]:
        """Return when it is durable and published; raise `JournalUnavailable` if it failed."""


class StreamRow(Value):
    """The position of a session's stream."""

    key: SessionKey
    stream: int
    head: int  # the highest number in use
    last_at: float  # the time of its last record


class RunRow(Value):
    """The projection of one run."""

    run_id: RunId
    key: SessionKey
    stream: int
    first_seq: int
    ended_seq: int | None
    status: RunPhase
    created_at: float
    updated_at: float
    model: str
    last_event: str
    stopping: bool


class SessionRow(Value):
    """One session in a list."""

    key: SessionKey
    stream: int
    workspace: str
    platform: str
    status: str  # "open" or "suspended"
    title: str
    preview: str  # the beginning of the first message, in one line
    model: str  # of its last run, or chosen since; empty: the configured one
    created_at: float
    updated_at: float  # the time of its last message; of an import: the original time
    changed_at: float  # when a message or a title was last recorded here
    unfinished: int  # the number of unfinished runs


class RunFilter(Value):
    owner: Owner | None  # None: all owners
    status: frozenset[RunPhase]
    session_id: SessionId | None
    limit: int
    after: RunId | None


class Replayed(Value):
    """An earlier request with the same key."""

    run_id: RunId
    session_id: SessionId
    fingerprint: str


class Outbound(Value):
    """An outgoing message and its present state."""

    queued: DeliveryQueued
    now: Delivery
    key: SessionKey  # the session whose stream has its facts
    updated_at: float


class Asked(Value):
    """A pending approval request."""

    key: SessionKey
    requested: ApprovalRequested


class Journal(Protocol):
    """One store of facts."""

    @property
    def doubt(self) -> Doubt | None:
        """The reason why this start does not trust its records; None: it does, or it is settled."""

    @property
    def trusted_since(self) -> float:
        """Grants from before this time do not count, because their age is unknown."""

    async def trust(self) -> None:
        """Record that all consequences of the doubt are in the journal."""

    def open_stream(self, key: SessionKey) -> StreamRow:
        """Give a new session its stream. It becomes durable with its first append."""

    def append(
        self, stream: int, expected_seq: int, at: float, facts: Sequence[Fact], runs: Sequence[Run]
    ) -> Pending:
        """Number and enqueue facts that belong together, with the runs after these facts."""

    def delta(self, stream: int, at: float, delta: Delta) -> int:
        """Enqueue streamed text, merged with the last piece if possible; return the new head."""

    def forget(self, stream: int) -> None:
        """Drop the stream's head from memory: its session is no longer loaded."""

    def on_commit(self, listener: Callable[[Sequence[Record]], None]) -> None:
        """Call `listener` on the loop with every committed batch, in order."""

    def on_failure(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the loop when a commit failed: all state in memory is invalid."""

    async def stream_of(self, key: SessionKey) -> StreamRow | None:
        """Return the session's stream, if it exists; `append` knows its head from then on.

        For a stream that was forgotten before its records were on disk, this waits for them.
        """

    async def facts(
        self,
        stream: int,
        kinds: Sequence[type[Fact]],
        runs: Sequence[RunId],
        after: int = 0,
        upto: int = LAST,
    ) -> list[Record]:
        """Return all facts of these kinds or of these runs, in order, without deltas.

        Only those that are numbered higher than `after`, and not higher than `upto`.
        """

    def keep_checkpoint(self, stream: int, seq: int, data: bytes) -> None:
        """Keep what the facts up to `seq` led to; committed with the next facts, after those."""

    async def checkpoint(self, stream: int) -> tuple[int, bytes] | None:
        """Return the last one that was kept, and its number."""

    async def open_runs(self, stream: int) -> list[RunId]:
        """Return the stream's unfinished runs."""

    async def has_deltas(self, stream: int, run_id: RunId, turn: int) -> bool:
        """Tell if text of this turn was streamed to readers."""

    async def records(
        self, stream: int, run_id: RunId | None, after: int, limit: int
    ) -> list[Record]:
        """Return up to `limit` records of one run, or of all, numbered higher than `after`."""

    async def run(self, run_id: RunId) -> RunRow | None:
        """Return the projection of one run."""

    async def runs(self, query: RunFilter) -> list[RunRow]:
        """Return runs of one owner or of all, newest first: run ids increase with time."""

    async def approvals(
        self, owner: Owner | None, limit: int, after: AskedPlace | None
    ) -> list[Asked]:
        """Return pending requests of one owner or of all, the first to expire first."""

    async def approval(self, request_id: RequestId) -> Asked | None:
        """Return one request, if it is pending."""

    async def session(self, key: SessionKey) -> SessionRow | None:
        """Return one session as a list shows it, even if lists leave it out."""

    async def sessions(
        self, owner: Owner | None, limit: int, after: SessionKey | None
    ) -> list[SessionRow]:
        """Return sessions of one owner or of all, after the named one, last updated first.

        The gateway's own sessions and those of child runs are left out. If the named session
        does not exist, the result is empty.
        """

    async def changed_sessions(self, owner: Owner, since: float) -> list[SessionRow]:
        """Return the same sessions with `changed_at` not before `since`, last changed first."""

    async def unfinished(self) -> list[RunRow]:
        """Return all unfinished runs, oldest first. Recovery reads these."""

    async def with_rewinds(self) -> list[SessionKey]:
        """Return the sessions with a rewind that was planned and not finished."""

    async def with_children(self) -> list[SessionKey]:
        """Return the sessions with open child runs."""

    async def replay(self, owner: Owner, route: str, key: str) -> Replayed | None:
        """Return the request accepted earlier with this route and key, within its retention."""

    async def cursor(self, channel: str) -> str:
        """Return the channel's position after its last recorded update; empty if there is none."""

    async def seen(self, channel: str, external_id: str) -> bool:
        """Tell if this update of the channel was recorded before, within its retention."""

    async def message_digest(self, place: str, message_id: str) -> str:
        """Return the digest of the text last recorded for that message; empty: none or expired."""

    async def undelivered(self) -> list[Outbound]:
        """Return all messages that are neither sent nor given up, in the order of queueing."""

    async def deliveries(self, status: frozenset[Sending], limit: int) -> list[Outbound]:
        """Return the messages in one of these states, newest first."""

    async def delivery(self, delivery_id: DeliveryId) -> Outbound | None:
        """Return one message, within its retention."""

    async def prune(self, deltas_before: float, keys_before: float) -> int:
        """Delete older deltas of ended runs and older request keys.

        Recorded updates and sent messages are kept six days longer than the keys, abandoned
        messages 29 days longer. Cursors are never deleted.
        """

    def state(self) -> str:
        """Return `ok`, or why no facts can be recorded."""

    async def aclose(self) -> None:
        """Commit what is enqueued, then close the file."""
