"""Who is reading what, now. A slow reader is cut, never waited for.

Followers get committed records from memory; what they missed before they joined they
read from the journal. A follower joins first and reads second, so the hand-over at a
number can lose nothing, and drops what it has seen, so it repeats nothing. One that
does not take what it is given is cut at a bound and may come back with its cursor.
"""

from collections.abc import Sequence

import anyio

from holdfast.core.events import MessageDelta, Record
from holdfast.core.types import RunId

BUFFER = 256 * 1024  # what one follower may leave lying, in bytes, roughly
_OVERHEAD = 100  # of a record, beside its text


class Follower:
    """One reader of one run."""

    __slots__ = ("_arrived", "_open", "_records", "_size", "run_id")

    def __init__(self, run_id: RunId) -> None:
        self.run_id = run_id
        self._records: list[Record] = []
        self._size = 0
        self._open = True
        self._arrived: anyio.Event | None = None

    def push(self, record: Record) -> None:
        """Hand it a record, or cut it if it has too many already."""
        if not self._open:
            return
        fact = record.fact
        self._size += _OVERHEAD + (len(fact.text) if type(fact) is MessageDelta else 0)
        if self._size > BUFFER:
            self._records.clear()
            self.close()
            return
        self._records.append(record)
        if self._arrived is not None:
            self._arrived.set()

    def close(self) -> None:
        """It gets what it was given, and then nothing more."""
        self._open = False
        if self._arrived is not None:
            self._arrived.set()

    def nudge(self) -> None:
        """Let it take nothing, so that it can say that it is still there."""
        if self._arrived is not None:
            self._arrived.set()

    async def take(self) -> Sequence[Record] | None:
        """What has come since the last time, waiting for it; None once closed and empty."""
        if not self._records and self._open:
            self._arrived = anyio.Event()
            await self._arrived.wait()
            self._arrived = None
        if not self._records and not self._open:
            return None
        records, self._records, self._size = self._records, [], 0
        return records


class Live:
    """The followers of every run that somebody reads."""

    def __init__(self) -> None:
        self._followers: dict[RunId, list[Follower]] = {}

    def join(self, run_id: RunId) -> Follower:
        """A new reader of `run_id`, from now on."""
        follower = Follower(run_id)
        self._followers.setdefault(run_id, []).append(follower)
        return follower

    def leave(self, follower: Follower) -> None:
        """It reads no more."""
        rest = [f for f in self._followers.get(follower.run_id, ()) if f is not follower]
        if rest:
            self._followers[follower.run_id] = rest
        else:
            self._followers.pop(follower.run_id, None)

    def publish(self, records: Sequence[Record]) -> None:
        """Hand committed records to whoever reads their runs."""
        if not self._followers:
            return
        for record in records:
            run_id: RunId | None = getattr(record.fact, "run_id", None)
            if run_id is not None and (followers := self._followers.get(run_id)):
                for follower in followers:
                    follower.push(record)

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
