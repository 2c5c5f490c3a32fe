"""A batch of records for one commit, and the merging of its deltas."""

import re
from asyncio import AbstractEventLoop, Future
from typing import Any

from holdfast.core.events import Delta, MessageDelta, ReasoningDelta, Record, ToolProgress
from holdfast.core.types import CallId, RunId, SessionKey
from holdfast.errors import JournalUnavailable

Row = tuple[Any, ...]
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_CALL = CallId("")
MERGED = 32 * 1024  # approximate characters of a merged delta, so that slow readers can take it


def call_of(delta: Delta) -> CallId:
    """Return the call that produced the text; empty if the model did."""
    return delta.call_id if type(delta) is ToolProgress else _NO_CALL


def delta(kind: type[Delta], run_id: RunId, turn: int, call_id: CallId, text: str) -> Delta:
    """Make a delta from its parts."""
    if kind is MessageDelta or kind is ReasoningDelta:
        return kind(run_id=run_id, turn=turn, text=text)
    return ToolProgress(run_id=run_id, turn=turn, call_id=call_id, text=text)


class Growing:
    """A delta that may still grow: its batch is open, so no reader has seen it."""

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
        """Tell if `delta` can be added: the same run, turn, call and kind, and there is room."""
        return (
            self.turn == delta.turn
            and self.kind is type(delta)
            and self.run_id == delta.run_id
            and self.call_id == call_of(delta)
            and self.room > 0
        )

    def add(self, text: str) -> None:
        """Add `text`."""
        self.parts.append(text)
        self.room -= len(text)

    def closed(self) -> Record:
        """Return the final record."""
        text = "".join(self.parts)
        if not text.isascii():
            text = _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)  # UTF-8 cannot encode it
        fact = delta(self.kind, self.run_id, self.turn, self.call_id, text)
        return Record(self.stream, self.seq, self.at, fact)


class Batch:
    """Records with their projections, committed together or not at all."""

    __slots__ = (
        "_loop",
        "_settled",
        "_waiting",
        "checkpoints",
        "data",
        "entries",
        "error",
        "full",
        "keys",
        "records",
        "runs",
        "tails",
    )

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self.entries: list[Record | Growing] = []
        self.data: list[bytes] = []  # the encoded form of each entry; empty for deltas
        self.tails: dict[int, Growing] = {}  # the last entry of a stream, if it may grow
        self.runs: dict[RunId, Row] = {}
        self.keys: dict[int, SessionKey] = {}
        self.checkpoints: dict[int, Row] = {}
        self.records: list[Record] = []
        self.full = False  # it has a fact that must survive a power failure
        self.error: JournalUnavailable | None = None
        self._settled = False
        self._waiting: list[Future[None]] = []  # an event costs more: this is the hottest path

    def close(self) -> None:
        """Turn the growing deltas into records."""
        self.records = [e.closed() if isinstance(e, Growing) else e for e in self.entries]

    def settle(self) -> None:
        """Wake the waiting tasks: it is committed, or it failed with `error`.

        The content is dropped, so that references to this batch do not keep it in memory.
        """
        self.entries, self.data, self.records = [], [], []
        self.tails, self.runs, self.keys, self.checkpoints = {}, {}, {}, {}
        self._settled = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting = []

    @property
    def durable(self) -> bool:
        """True when it is committed and the listeners were called."""
        return self._settled and self.error is None

    async def settled(self) -> None:
        """Return when it is committed or has failed."""
        if not self._settled:
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter

    async def wait(self) -> None:
        """Return when it is committed; raise if it failed."""
        await self.settled()
        if self.error is not None:
            raise self.error
