"""Finding sessions by what was said in them. The operator's only.

The index is caught up when a search asks, the latest changes first, a few sessions at a time and
never on the loop. That may take longer than the search may: then the answer says that it is not
complete, what was taken in stays, at least one session each time, and the next one who asks goes
on from there. So the index costs nothing while no one searches, and a home full of sessions
is no reason to hang.
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

BATCH = 16  # sessions taken in at once
CATCH_UP_S = 3.0  # that one who asks waits for it
SLACK_S = 3600.0  # that the clock may have gone back

T = TypeVar("T")


class SearchHits(Value):
    """Where the words are, as far as has been looked."""

    hits: Sequence[Hit]
    complete: bool  # False: not everything has been looked at; ask again


class SessionSearch:
    """Searches, one after the other."""

    def __init__(
        self, journal: Journal, index: Index, clock: Clock, catch_up_s: float = CATCH_UP_S
    ) -> None:
        self._journal = journal
        self._index = index
        self._clock = clock
        self._catch_up_s = catch_up_s
        self._turn = anyio.Lock()

    async def search(self, by: Principal, words: str, limit: int) -> SearchHits:
        """The caller's sessions in which all the words are, newest and best first."""
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
        """Take in what is new; whether that was all."""
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
