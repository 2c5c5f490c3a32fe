"""A disk in memory: what is committed, and what the journal can be asked about it.

The records are kept in the order they were committed. Whatever else can be asked is kept up by
`_project`, one fact at a time: a new projection is a new case there.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

from msgspec.structs import replace

from holdfast.core.approval import approval
from holdfast.core.approval.approval import ApprovalRequested
from holdfast.core.chat import delivery
from holdfast.core.chat.delivery import Delivery, DeliveryQueued
from holdfast.core.events import TERMINAL, MessageDelta, ReasoningDelta, Record, ToolProgress
from holdfast.core.inbox import InputAdmitted, UpdateRef
from holdfast.core.run.call import CallSettled, CallStarted
from holdfast.core.run.child import ChildBegun, ChildEnded
from holdfast.core.session.rewound import RewindPlanned, Rewound
from holdfast.core.session.session import SessionOpened
from holdfast.core.types import DeliveryId, Fact, Owner, RequestId, RunId, SessionKey
from holdfast.errors import IllegalTransition, JournalUnavailable
from holdfast.journal.batch import Growing
from holdfast.journal.journal import Asked, Outbound, Replayed, RunRow, SessionRow, StreamRow
from holdfast.journal.sqlite import approvals
from holdfast.journal.sqlite.outbox import DEAD_S, DONE_S
from holdfast.journal.sqlite.projections import CHANGING, Listing

DELTAS = (MessageDelta, ReasoningDelta, ToolProgress)
_FATES = get_args(delivery.Event)


class Request(NamedTuple):
    owner: Owner
    route: str
    key: str


class Stream:
    """What is committed of one session."""

    __slots__ = ("key", "number", "records")

    def __init__(self, number: int, key: SessionKey) -> None:
        self.number = number
        self.key = key
        self.records: list[Record] = []

    def row(self) -> StreamRow:
        last = self.records[-1]
        return StreamRow(self.key, self.number, last.seq, last.at)


class Disk:
    """What is committed."""

    def __init__(self) -> None:
        self.full = False  # nothing can be written
        self.log: list[Record] = []  # all that ever was, in the order it was committed
        self.streams: dict[int, Stream] = {}
        self.sessions: dict[SessionKey, Stream] = {}
        self.runs: dict[RunId, RunRow] = {}
        self.open: dict[RunId, RunRow] = {}
        self.requests: dict[Request, tuple[Replayed, float]] = {}
        self.cursors: dict[str, str] = {}
        self.taken: dict[tuple[str, str], float] = {}  # channel and update, when
        self.said: dict[tuple[str, str], tuple[str, float]] = {}  # place and message, digest, when
        self.outbox: dict[DeliveryId, Outbound] = {}
        self.asked: dict[RequestId, Asked] = {}  # that wait
        self.children: dict[SessionKey, int] = {}  # how many are open
        self.rewinding: set[SessionKey] = set()
        self.checkpoints: dict[int, tuple[int, bytes]] = {}  # by stream
        self.listings: dict[int, Listing] = {}  # of streams
        self.on_write: Callable[[Sequence[Record]], None] = _unseen
        self._pruned: set[RunId] = set()

    def records(self, stream: int) -> Sequence[Record]:
        """What is there of a stream, without what was pruned."""
        found = self.streams.get(stream)
        return found.records if found else ()

    def write(self, batch: "Batch") -> None:
        """Commit: all of it or, if it raises, nothing."""
        if self.full:
            raise JournalUnavailable("the disk is full", retry_after_s=5)
        for record in batch.records:
            stream = self.streams.get(record.stream)
            if stream is None:
                stream = Stream(record.stream, batch.keys[record.stream])
                self.streams[record.stream] = self.sessions[stream.key] = stream
            stream.records.append(record)
            self._project(stream, record)
        self.log += batch.records
        self.checkpoints |= batch.checkpoints
        for run_id, row in batch.runs.items():
            self.runs[run_id] = row
            if row.ended_seq is None:
                self.open[run_id] = row
            else:
                self.open.pop(run_id, None)
        self.on_write(batch.records)

    def _project(self, stream: Stream, record: Record) -> None:
        fact = record.fact
        came: UpdateRef | None = getattr(fact, "came", None)
        if came is not None:
            self.taken[came.channel, came.external_id] = record.at
            if came.digest and came.message_id:
                self.said[came.place, came.message_id] = (came.digest, record.at)
            if came.cursor:
                self.cursors[came.channel] = came.cursor
        if type(fact) in approvals.CHANGING:
            self._ask(stream.key, fact)
        if type(fact) in CHANGING:
            self.listings.setdefault(stream.number, Listing()).add(fact, record.at)
        match fact:
            case InputAdmitted(idempotency=asked) if asked is not None:
                found = Replayed(fact.run_id, stream.key.session_id, asked.fingerprint)
                name = Request(stream.key.owner, asked.route, asked.key)
                self.requests[name] = found, record.at
            case ChildBegun() | ChildEnded():
                change = 1 if isinstance(fact, ChildBegun) else -1
                self.children[stream.key] = self.children.get(stream.key, 0) + change
            case RewindPlanned():
                self.rewinding.add(stream.key)
            case Rewound():
                self.rewinding.discard(stream.key)
            case DeliveryQueued() if fact.delivery_id not in self.outbox:
                now = Delivery(fact.delivery_id, queued_at=record.at)
                self.outbox[fact.delivery_id] = Outbound(fact, now, stream.key, record.at)
            case _ if isinstance(fact, _FATES):
                self._deliver(fact, record.at)

    def _ask(self, key: SessionKey, fact: Fact) -> None:
        match fact:
            case ApprovalRequested():
                self.asked[fact.request_id] = Asked(key, fact)
            case CallStarted() | CallSettled():
                self._answered(lambda asked: asked.call_id == fact.call_id)
            case _ if isinstance(fact, TERMINAL):
                self._answered(lambda asked: asked.run_id == fact.run_id)
            case _ if isinstance(fact, approval.Event):
                self.asked.pop(fact.request_id, None)
            case _:
                pass

    def _answered(self, these: Callable[[ApprovalRequested], bool]) -> None:
        self.asked = {name: a for name, a in self.asked.items() if not these(a.requested)}

    def _deliver(self, fact: delivery.Event, at: float) -> None:
        found = self.outbox.get(fact.delivery_id)
        if found is not None:
            try:
                now = delivery.evolve(found.now, fact)
            except IllegalTransition:
                return  # what the machine does not allow changes nothing
            self.outbox[fact.delivery_id] = replace(found, now=now, updated_at=at)

    def listed(self, owner: Owner | None) -> list[SessionRow]:
        """What a list shows of the sessions of one owner, or of all."""
        return [
            self.shown(stream)
            for stream in self.streams.values()
            if owner in (None, stream.key.owner) and not self.listings[stream.number].hidden
        ]

    def shown(self, stream: Stream) -> SessionRow:
        """What a list shows of one of them."""
        listing, opened = self.listings[stream.number], stream.records[0].fact
        assert isinstance(opened, SessionOpened)
        shown = listing.row(opened, stream.key.owner, stream.number)[7:]
        title, preview, model, status, _, updated_at, changed_at = shown
        unfinished = sum(row.stream == stream.number for row in self.open.values())
        times = (listing.created_at or 0.0, updated_at, changed_at)
        where = (opened.workspace, opened.platform)
        words = (status, title, preview, model)
        return SessionRow(stream.key, stream.number, *where, *words, *times, unfinished)

    def prune(self, deltas_before: float, keys_before: float) -> int:
        """Forget deltas of runs that ended, and request keys, older than this."""
        old = [
            row
            for row in self.runs.values()
            if row.ended_seq is not None
            and row.updated_at < deltas_before
            and row.run_id not in self._pruned
        ]
        for row in old:
            self._pruned.add(row.run_id)
            stream = self.streams[row.stream]
            stream.records = [
                r
                for r in stream.records
                if not (isinstance(r.fact, DELTAS) and r.fact.run_id == row.run_id)
            ]
        self.requests = {k: v for k, v in self.requests.items() if v[1] >= keys_before}
        self.taken = {k: at for k, at in self.taken.items() if at >= keys_before - DONE_S}
        self.said = {k: v for k, v in self.said.items() if v[1] >= keys_before - DONE_S}
        kept_s = {delivery.DeliveryStatus.SENT: DONE_S, delivery.DeliveryStatus.DEAD: DEAD_S}
        self.outbox = {
            name: o
            for name, o in self.outbox.items()
            if o.now.status not in kept_s or o.updated_at >= keys_before - kept_s[o.now.status]
        }
        return len(old)


class Batch:
    """What is committed together."""

    __slots__ = ("_done", "checkpoints", "entries", "error", "keys", "records", "runs", "tails")

    def __init__(self) -> None:
        self.entries: list[Record | Growing] = []
        self.tails: dict[int, Growing] = {}
        self.keys: dict[int, SessionKey] = {}
        self.runs: dict[RunId, RunRow] = {}
        self.checkpoints: dict[int, tuple[int, bytes]] = {}
        self.records: list[Record] = []
        self.error: JournalUnavailable | None = None
        self._done = asyncio.Event()

    def settle(self, error: JournalUnavailable | None = None) -> None:
        self.error = error
        self._done.set()

    @property
    def durable(self) -> bool:
        return self._done.is_set() and self.error is None

    async def settled(self) -> None:
        await self._done.wait()


def _unseen(records: Sequence[Record]) -> None:
    """Nobody watches the disk."""
