"""Search sessions by their text. For the operator only.

A search first updates the index: the latest changes first, a few sessions at a time, in a thread.
If that takes too long, the result says that it is incomplete, the index keeps what it has (at least
one more session), and the next search continues. So the index costs nothing without searches, and
a search of a large home does not hang.
"""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

from holdfast.core.events import Record
from holdfast.core.intents import Principal
from holdfast.core.types import Owner, Value
from holdfast.engine.clock import Clock
from holdfast.engine.permission import check_admin
from holdfast.errors import JournalUnavailable
from holdfast.journal import search
from holdfast.journal.journal import Journal
from holdfast.journal.search import Behind, Damaged, Hit, Index

log = logging.getLogger(__name__)

BATCH = 16  # sessions that are indexed at once
CATCH_UP_S = 3.0  # that a search spends on the index
SLACK_S = 3600.0  # by which the clock may have gone back

T = TypeVar("T")


class SearchHits(Value):
    """The matches in the sessions that are indexed."""

    hits: Sequence[Hit]
    complete: bool  # False: not everything is indexed; search again


class SessionSearch:
    """Executes searches one after the other."""

    def __init__(
        self, journal: Journal, index: Index, clock: Clock, catch_up_s: float = CATCH_UP_S
    ) -> None:
        self._journal = journal
        self._index = index
        self._clock = clock
        self._catch_up_s = catch_up_s
        self._turn = anyio.Lock()

    async def search(self, by: Principal, words: str, limit: int) -> SearchHits:
        """Return the caller's sessions that have all the words, newest and best first."""
        check_admin(by)
        async with self._turn:
            try:
                return await self._search(by.owner, words, limit)
            except Damaged as damage:
                log.warning("the search index is rebuilt", extra={"reason": str(damage)})
            await _in_thread(self._index.discard)
            try:
                return await self._search(by.owner, words, limit)
            except Damaged as damage:
                raise JournalUnavailable(f"nothing can be searched: {damage}") from damage

    async def _search(self, owner: Owner, words: str, limit: int) -> SearchHits:
        try:
            await _in_thread(self._index.open)
            complete = await self._catch_up(owner, anyio.current_time() + self._catch_up_s)
            now = self._clock.now()
            hits = await _in_thread(lambda: self._index.search(owner, words, limit, now))
            return SearchHits(hits, complete)
        finally:
            with anyio.CancelScope(shield=True):
                await _in_thread(self._index.close)

    async def _catch_up(self, owner: Owner, until: float) -> bool:
        """Index what is new; return whether that was all."""
        known = await _in_thread(lambda: self._index.caught_up(owner))
        rows = await self._journal.changed_sessions(owner, known - SLACK_S)
        behind = await _in_thread(lambda: self._index.behind(rows))
        for at in range(0, len(behind), BATCH):
            some = behind[at : at + BATCH]
            read = await self._read(some, until, first=not at)
            await _in_thread(partial(self._index.take, read))
            if len(read) < len(some):
                return False
        if rows and rows[0].changed_at > known:
            await _in_thread(lambda: self._index.catch_up(owner, rows[0].changed_at))
        return True

    async def _read(
        self, some: Sequence[Behind], until: float, *, first: bool
    ) -> list[tuple[Behind, Sequence[Record]]]:
        """Index what is new in these sessions, as far as time allows; the first one in any case."""
        read: list[tuple[Behind, Sequence[Record]]] = []
        for one in some:
            with anyio.CancelScope(deadline=until if read or not first else math.inf) as reading:
                facts = await self._journal.facts(one.row.stream, search.FACTS, ())
            if reading.cancelled_caught:
                break
            read.append((one, facts))
        return read


async def _in_thread(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work)
