"""Live followers: hand committed records to those who follow. A slow one is cut, not waited for.

The newest records of every run that is driven are kept for a while: a reader who comes
early is served from memory, from the run's first record on. A reader who comes later than
that, or whose run has said more than fits, reads the journal first and then takes what is
committed from here. It joins before it reads, so the hand-over at a number can lose
nothing, and drops what it has seen, so it repeats nothing. One that does not take what it
is given is cut at a bound and may come back with its cursor.
"""

from asyncio import Future, get_running_loop
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import NewType

import msgspec
from msgspec.structs import fields

from holdfast.core.events import TERMINAL, MessageDelta, ReasoningDelta, Record
from holdfast.core.inbox import InputAdmitted, InputPromoted, Mode
from holdfast.core.run.run import RunQueued, RunStarted
from holdfast.core.types import Fact, RunId

BUFFER = 256 * 1024  # what one follower may leave lying, in bytes, roughly
BURST = 8 * BUFFER  # what one commit may bring to a follower that has kept up
TAIL = 32 * 1024  # what is kept of one run
ENDED = 128  # of how many runs that have ended: 4 MiB of them
_OVERHEAD = 300  # of a record, beside what it says
_PART = 100  # of a message or a call in it, likewise


_ENDS: frozenset[type[Fact]] = frozenset(TERMINAL)


_SHORT: frozenset[type[Fact]] = frozenset({RunQueued, RunStarted, InputPromoted})


def _size(fact: Fact) -> int:
    if type(fact) is MessageDelta or type(fact) is ReasoningDelta:  # most records are
        return _OVERHEAD + len(fact.text)
    return _OVERHEAD if type(fact) in _SHORT else _OVERHEAD + _length(fact)


@cache
def _sized(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that may hold text. An id is short."""
    return tuple(f.name for f in fields(kind) if not isinstance(f.type, NewType))


def _length(said: msgspec.Struct) -> int:
    """Of all text anywhere in it: a history, arguments, an output. On the way of every record."""
    length = 0
    for name in _sized(type(said)):
        value = getattr(said, name)
        if type(value) is str:
            length += len(value)
        elif type(value) is tuple:
            length += sum(_PART + _length(p) for p in value if isinstance(p, msgspec.Struct))
        elif type(value) is dict:
            length += sum(_PART + len(key) + len(text) for key, text in value.items())
    return length


Place = RunId | int  # a run, or the stream of a whole session


class Follower:
    """One reader of one place."""

    __slots__ = ("_arrived", "_commit", "_open", "_records", "_size", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self._records: list[Record] = []
        self._size = 0
        self._commit = 0
        self._open = True
        self._arrived: Future[None] | None = None

    def push(self, record: Record, size: int, commit: int) -> None:
        """Hand it a record of that size, or cut it if it has too many already."""
        if not self._open:
            return
        if self._size > (BURST if commit == self._commit else BUFFER):
            self._records.clear()
            self.close()
            return
        self._commit = commit
        self._size += size
        self._records.append(record)
        if (arrived := self._arrived) is not None and not arrived.done():  # as `nudge`
            arrived.set_result(None)

    def close(self) -> None:
        """It gets what it was given, and then nothing more."""
        self._open = False
        self.nudge()

    def nudge(self) -> None:
        """Let it take nothing, so that it can say that it is still there."""
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def take(self) -> Sequence[Record] | None:
        """Wait for new records and take them; None once closed and empty."""
        if not self._records and self._open:
            self._arrived = get_running_loop().create_future()  # an anyio.Event costs thrice that
            try:
                await self._arrived
            finally:
                self._arrived = None
        if not self._records and not self._open:
            return None
        records, self._records, self._size = self._records, [], 0
        return records


class _Tail:
    """All records of a run so far, as long as they fit."""

    __slots__ = ("records", "size")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.size = 0


class Live:
    """The followers of every run and session, and the tails of live runs."""

    def __init__(self) -> None:
        self._followers: dict[Place, list[Follower]] = {}
        self._streams = 0  # how many of them read a whole session
        self._tails: dict[RunId, _Tail] = {}
        self._ended: OrderedDict[RunId, None] = OrderedDict()
        self._commit = 0

    def tail(self, run_id: RunId) -> Sequence[Record] | None:
        """Every record of the run so far, if they are all still here."""
        found = self._tails.get(run_id)
        return None if found is None else found.records

    def join(self, place: Place) -> Follower:
        """A new reader of `place`, from now on."""
        follower = Follower(place)
        self._followers.setdefault(place, []).append(follower)
        self._streams += isinstance(place, int)
        return follower

    def leave(self, follower: Follower) -> None:
        """It reads no more."""
        rest = [f for f in self._followers[follower.place] if f is not follower]
        self._streams -= isinstance(follower.place, int)
        if rest:
            self._followers[follower.place] = rest
        else:
            del self._followers[follower.place]

    def publish(self, records: Sequence[Record]) -> None:
        """Hand committed records to the followers of their run and of their session."""
        self._commit = commit = self._commit + 1
        followers = self._followers
        for record in records:
            fact = record.fact
            run_id: RunId | None = getattr(fact, "run_id", None)
            if run_id is None and not self._streams:
                continue
            size = _size(fact)
            if self._streams:
                for follower in followers.get(record.stream, ()):
                    follower.push(record, size, commit)
            if run_id is not None:
                self._remember(run_id, record, size)
                for follower in followers.get(run_id, ()):
                    follower.push(record, size, commit)

    def nudge(self) -> None:
        """Readers that hear nothing get a sign of life."""
        for followers in self._followers.values():
            for follower in followers:
                follower.nudge()

    def close(self) -> None:
        """End every reader without a last word: they come back and go on reading."""
        for followers in self._followers.values():
            for follower in followers:
                follower.close()

    def _remember(self, run_id: RunId, record: Record, size: int) -> None:
        tail = self._tails.get(run_id)
        if tail is None:
            if type(record.fact) is not InputAdmitted or record.fact.mode is Mode.STEER:
                return  # it began before this process, or said more than fits
            tail = self._tails[run_id] = _Tail()
        tail.records.append(record)
        tail.size += size
        if tail.size > TAIL:
            del self._tails[run_id]
        elif type(record.fact) in _ENDS:
            self._ended[run_id] = None
            if len(self._ended) > ENDED:
                self._tails.pop(self._ended.popitem(last=False)[0], None)
