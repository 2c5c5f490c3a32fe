"""What is committed together, and how deltas that wait for the same commit become one."""

import re
from asyncio import Event

from holdfast.core.events import Delta, MessageDelta, ReasoningDelta, Record, ToolProgress
from holdfast.core.types import CallId, RunId, SessionKey
from holdfast.errors import JournalUnavailable
from holdfast.journal.projections import Row

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_CALL = CallId("")
MERGED = 32 * 1024  # characters, roughly: what a slow reader must be able to take at once


def call_of(delta: Delta) -> CallId:
    """The call whose words they are; empty if they are the model's."""
    return delta.call_id if type(delta) is ToolProgress else _NO_CALL


def delta(kind: type[Delta], run_id: RunId, turn: int, call_id: CallId, text: str) -> Delta:
    """A delta from its parts."""
    if kind is MessageDelta or kind is ReasoningDelta:
        return kind(run_id=run_id, turn=turn, text=text)
    return ToolProgress(run_id=run_id, turn=turn, call_id=call_id, text=text)


class Growing:
    """A delta that may still grow: its batch has not closed, so nobody has seen it."""

    __slots__ = ("at", "call_id", "kind", "parts", "room", "run_id", "seq", "stream", "turn")

    def __init__(self, stream: int, seq: int, at: float, delta: Delta) -> None:
        self.stream = stream
        self.seq = seq
        self.at = at
        self.kind = type(delta)
        self.run_id = delta.run_id
        self.turn = delta.turn
        self.call_id = call_of(delta)
        self.parts = [delta.text]
        self.room = MERGED - len(delta.text)

    def takes(self, delta: Delta) -> bool:
        """Whether `delta` is more of the same, one run, turn, call and kind, and there is room."""
        return (
            self.turn == delta.turn
            and self.kind is type(delta)
            and self.run_id == delta.run_id
            and self.call_id == call_of(delta)
            and self.room > 0
        )

    def add(self, text: str) -> None:
        """Grow by `text`."""
        self.parts.append(text)
        self.room -= len(text)

    def closed(self) -> Record:
        """The record it has become."""
        text = "".join(self.parts)
        if not text.isascii():
            text = _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)  # it has no written form
        fact = delta(self.kind, self.run_id, self.turn, self.call_id, text)
        return Record(self.stream, self.seq, self.at, fact)


class Batch:
    """Records and the projections they lead to: all of it is committed, or none."""

    __slots__ = ("_done", "data", "entries", "error", "full", "keys", "records", "runs", "tails")

    def __init__(self) -> None:
        self.entries: list[Record | Growing] = []
        self.data: list[bytes] = []  # of each entry, as it is written; empty for what still grows
        self.tails: dict[int, Growing] = {}  # the last entry of a stream, if it may grow
        self.runs: dict[RunId, Row] = {}
        self.keys: dict[int, SessionKey] = {}
        self.records: list[Record] = []
        self.full = False  # holds something one acts upon
        self.error: JournalUnavailable | None = None
        self._done = Event()  # asyncio's: a tenth of the price of anyio's, on the hottest path

    def close(self) -> None:
        """Nothing grows any more."""
        self.records = [e.closed() if isinstance(e, Growing) else e for e in self.entries]

    def settle(self) -> None:
        """Tell whoever waits that it is committed, or that it failed with `error`."""
        self._done.set()

    async def settled(self) -> None:
        """Return when it is committed or has failed."""
        await self._done.wait()

    async def wait(self) -> None:
        """Return when it is committed; raise if it failed."""
        await self._done.wait()
        if self.error is not None:
            raise self.error
