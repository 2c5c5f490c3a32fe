"""The journal: the only state. This file says what every store promises.

* A session is a stream. Its records are numbered from 1, rising, never renumbered.
  Holes may occur; compare numbers, never count them.
* `append` and `delta` number and enqueue at once, on the event loop, without waiting:
  what is decided and enqueued with no await in between cannot be overtaken. Records
  become durable in the order they were enqueued, all facts of one append together
  with their projections or none of them.
* A fact that has no written form (a lone surrogate) is the error of whoever says it: `append`
  raises, nothing is enqueued. In streamed text U+FFFD takes its place.
* `Pending.wait` returns when the facts are durable and readers have been told. A
  failed commit fails everything enqueued and not yet committed; whoever holds a fold
  in memory throws it away and loads it again. `expected_seq` that is not the stream's
  head raises `Conflict`: fold again, decide again.
* A batch that holds something one acts upon (core.events.ACTED_UPON) survives a power
  cut once waited for; any other survives the end of the process.
* Deltas of one run, turn and kind that wait for the same commit are one record, or a
  few if they are long.
* Readers see committed records only. After their retention deltas are gone; the
  numbers of what remains do not change.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.core.delivery import Delivery, DeliveryQueued
from holdfast.core.delivery import Status as Sending
from holdfast.core.events import Delta, Record
from holdfast.core.run import Run, Status
from holdfast.core.types import DeliveryId, Fact, Owner, RunId, SessionId, SessionKey, Value
from holdfast.errors import HoldfastError


class Conflict(HoldfastError):
    """Somebody appended to the stream since the caller looked."""


class Pending(Protocol):
    """An append on its way to the disk."""

    @property
    def seq(self) -> int:
        """The number of its last fact."""
        ...

    async def wait(self) -> None:
        """Return when it is durable and published; raise `JournalUnavailable` if it failed."""
        ...


class StreamRow(Value):
    """What the journal knows of a session without folding it."""

    key: SessionKey
    stream: int
    head: int  # the highest number in use
    last_at: float  # when its last record was written


class RunRow(Value):
    """The projection of one run."""

    run_id: RunId
    key: SessionKey
    stream: int
    first_seq: int
    ended_seq: int | None
    status: Status
    created_at: float
    updated_at: float
    model: str
    last_event: str
    stopping: bool


class SessionRow(Value):
    """What a list shows of one session."""

    key: SessionKey
    stream: int
    workspace: str
    platform: str
    status: str  # "open" or "suspended"
    title: str
    preview: str  # the first words, in one line
    model: str  # of its last run, or chosen since; empty: the configured one
    created_at: float
    updated_at: float  # when it was last spoken in; of what was imported: there
    changed_at: float  # when words or a title were last taken in here
    unfinished: int  # runs


class RunFilter(Value):
    owner: Owner | None  # None: everybody's
    status: frozenset[Status]
    session_id: SessionId | None
    limit: int
    after: RunId | None


class Replayed(Value):
    """An earlier request under the same key."""

    run_id: RunId
    session_id: SessionId
    fingerprint: str


class Outbound(Value):
    """A message on its way, as its facts have it."""

    queued: DeliveryQueued
    now: Delivery
    key: SessionKey  # whose stream its facts are in
    updated_at: float


class Journal(Protocol):
    """One store of facts."""

    def open_stream(self, key: SessionKey) -> StreamRow:
        """Give a session that does not exist yet its stream. Durable with its first append."""
        ...

    def append(
        self, stream: int, expected_seq: int, at: float, facts: Sequence[Fact], runs: Sequence[Run]
    ) -> Pending:
        """Number and enqueue facts that belong together, with the runs they led to."""
        ...

    def delta(self, stream: int, at: float, delta: Delta) -> int:
        """Enqueue streamed text, merged with its neighbour if that still waits; the new head."""
        ...

    def forget(self, stream: int) -> None:
        """Nobody holds this stream's fold any more; its head may leave memory."""
        ...

    def on_commit(self, listener: Callable[[Sequence[Record]], None]) -> None:
        """Call `listener` on the loop with every committed batch, in order."""
        ...

    def on_failure(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the loop when a commit failed: every fold in memory is void."""
        ...

    async def stream_of(self, key: SessionKey) -> StreamRow | None:
        """The session's stream, if it exists; its head is then known to `append`.

        Of one that was forgotten on its way to the disk, once it is there.
        """
        ...

    async def facts(
        self, stream: int, kinds: Sequence[type[Fact]], runs: Sequence[RunId]
    ) -> list[Record]:
        """All facts of these kinds or of these runs, in order. Never deltas."""
        ...

    async def open_runs(self, stream: int) -> list[RunId]:
        """The stream's runs that have not ended."""
        ...

    async def has_deltas(self, stream: int, run_id: RunId, turn: int) -> bool:
        """Whether text of this turn has been streamed to readers."""
        ...

    async def records(
        self, stream: int, run_id: RunId | None, after: int, limit: int
    ) -> list[Record]:
        """Up to `limit` records of one run, or of all, numbered higher than `after`."""
        ...

    async def run(self, run_id: RunId) -> RunRow | None:
        """One run's projection."""
        ...

    async def runs(self, query: RunFilter) -> list[RunRow]:
        """Runs of one owner or of all, newest first: run ids rise with time."""
        ...

    async def session(self, key: SessionKey) -> SessionRow | None:
        """What a list would show of it, whether it is listed or not."""
        ...

    async def sessions(
        self, owner: Owner | None, limit: int, after: SessionKey | None
    ) -> list[SessionRow]:
        """Sessions of one owner or of all, after the named one, by `updated_at`, newest first.

        Not the gateway's own, nor those of children. After one that there is not: none.
        """
        ...

    async def changed_sessions(self, owner: Owner, since: float) -> list[SessionRow]:
        """Of the same all whose `changed_at` is not before `since`, the latest change first."""
        ...

    async def unfinished(self) -> list[RunRow]:
        """Every run that has not ended, oldest first. This is what recovery reads."""
        ...

    async def with_children(self) -> list[SessionKey]:
        """The sessions that have begun children and not been told of their end."""
        ...

    async def replay(self, owner: Owner, route: str, key: str) -> Replayed | None:
        """The request accepted before under this route and key, within its retention."""
        ...

    async def cursor(self, channel: str) -> str:
        """Where the channel's stream stood when the last of its updates was taken; or empty."""
        ...

    async def seen(self, channel: str, external_id: str) -> bool:
        """Whether this update of the channel was taken before, within its retention."""
        ...

    async def undelivered(self) -> list[Outbound]:
        """Every message that is neither sent nor given up, in the order they were queued."""
        ...

    async def deliveries(self, status: frozenset[Sending], limit: int) -> list[Outbound]:
        """Messages that are in one of these states, newest first."""
        ...

    async def delivery(self, delivery_id: DeliveryId) -> Outbound | None:
        """One message, within its retention."""
        ...

    async def prune(self, deltas_before: float, keys_before: float) -> int:
        """Forget deltas of runs that ended, and request keys, older than this.

        Also updates that were taken and messages that were sent six days before those keys, and
        messages that were given up 29 days before. Never a cursor.
        """
        ...

    def state(self) -> str:
        """`ok`, or why facts cannot be taken."""
        ...

    async def aclose(self) -> None:
        """Commit what is enqueued, then let go of the file."""
        ...
