"""The front door's reading half: runs, approvals, transcripts, and streams of what happens.

What is driven or was asked about lately is read from the folds in memory, the rest from the
journal's projections. Nothing here changes anything; only, what is followed goes on, if a process
that will not stay long has left it aside.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from holdfast.core import answers, call, run, words
from holdfast.core.approval import ApprovalRequested
from holdfast.core.events import TERMINAL
from holdfast.core.intents import Principal
from holdfast.core.messages import Message
from holdfast.core.run import Run
from holdfast.core.types import Fact, RunId, SessionId, SessionKey, Usage
from holdfast.engine.live import Follower, Live
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import Refused
from holdfast.gateway import Batches, RunQuery, RunView, Waiting
from holdfast.journal.journal import Journal, RunFilter, RunRow

PAGE = 500  # records a follower reads at once
APPROVALS = 1_000  # unfinished runs that are looked through for what waits


class Reads:
    """Everything one may look at."""

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        live: Live,
        made: Callable[[RunId], Awaitable[None]],
        watched: Callable[[Principal, SessionKey], Awaitable[None]],
    ) -> None:
        self._journal = journal
        self._sessions = sessions
        self._live = live
        self._made = made  # a child is known to its parent's readers before it is there
        self._watched = watched  # somebody follows a session that may have been left aside

    async def run(self, by: Principal, run_id: RunId) -> RunView:
        """The run as it stands; refused with `run_not_found` if it is not the caller's."""
        if (found := self._sessions.running(run_id)) is not None:
            held, now = found
            if not by.sees(held.key.owner):
                raise no_such_run(run_id)
            return view_of(held, now)
        row = await self._row(by, run_id)
        return await self._folded(row) if row.ended_seq is None else await self._view(row)

    async def _folded(self, row: RunRow) -> RunView:
        async with self._sessions.hold(row.key) as cold:
            if cold is not None and (found := cold.session.runs.get(row.run_id)) is not None:
                return view_of(cold, found)
        return await self._view(row)

    async def _seen(self, row: RunRow) -> RunView:
        """A row says that a run waits; for what, only its fold does."""
        waits = row.status is run.Status.WAITING
        return await self._folded(row) if waits else await self._view(row)

    async def approvals(self, by: Principal) -> Sequence[Waiting]:
        """Everything the caller may see that waits for an approval, oldest first."""
        waiting = frozenset(s for s in run.Status if not s.final)
        rows = await self._journal.runs(RunFilter(by.scope, waiting, None, APPROVALS, None))
        found: list[Waiting] = []
        for key in dict.fromkeys(row.key for row in rows):
            async with self._sessions.hold(key) as held:
                if held is not None:
                    asked = held.session.approvals.values()
                    found += [Waiting(key.owner, a.requested) for a in asked if not a.status.final]
        return sorted(found, key=lambda waiting: waiting.asked.expires_at)

    async def runs(self, by: Principal, query: RunQuery) -> tuple[Sequence[RunView], bool]:
        """A page of runs, and whether there are more."""
        # A session's id names it only together with its owner.
        whose = by.scope if query.session_id is None else by.owner
        wanted = RunFilter(whose, query.status, query.session_id, query.limit + 1, query.after)
        rows = await self._journal.runs(wanted)
        views = [await self._seen(row) for row in rows[: query.limit]]
        return views, len(rows) > query.limit

    async def messages(self, by: Principal, session_id: SessionId) -> Sequence[Message]:
        """The whole transcript; refused with `session_not_found` if it is not the caller's."""
        async with self._sessions.hold(SessionKey(by.owner, session_id)) as held:
            if held is None:
                raise Refused("session_not_found", f"There is no session {session_id}.")
            return held.transcript.whole()

    @asynccontextmanager
    async def follow(
        self, by: Principal, run_id: RunId, after: int
    ) -> AsyncIterator[Batches | None]:
        """The run's records after `after`, in order, without gap or repeat."""
        key, stream, ended = await self._place_of(by, run_id)
        if ended is not None and after >= ended:
            yield None
            return
        if ended is None:
            await self._watched(by, key)
        follower = self._live.join(run_id)
        try:
            yield self._batches(follower, run_id, stream, after)
        finally:
            self._live.leave(follower)

    @asynccontextmanager
    async def follow_session(
        self, by: Principal, session_id: SessionId, after: int
    ) -> AsyncIterator[Batches]:
        """Everything of the session after `after`, for as long as somebody reads."""
        key = SessionKey(by.owner, session_id)
        await self._watched(by, key)
        async with self._sessions.hold(key) as held:
            if held is None:
                raise Refused("session_not_found", f"There is no session {session_id}.")
            stream = held.stream
        follower = self._live.join(stream)
        try:
            yield self._batches(follower, None, stream, after)
        finally:
            self._live.leave(follower)

    async def _batches(
        self, follower: Follower, run_id: RunId | None, stream: int, after: int
    ) -> Batches:
        """Of one run, to its end; of all runs, for ever."""
        async for batch in self._backlog(run_id, stream, after):
            yield batch
            after = batch[-1].seq
            if run_id is not None and isinstance(batch[-1].fact, TERMINAL):
                return
        while (records := await follower.take()) is not None:
            fresh = [r for r in records if r.seq > after]
            if fresh or not records:
                yield fresh
            if fresh:
                after = fresh[-1].seq
            if run_id is not None and records and isinstance(records[-1].fact, TERMINAL):
                return  # also for a reader whose cursor is ahead of it

    async def _backlog(self, run_id: RunId | None, stream: int, after: int) -> Batches:
        """What has been committed so far: from memory if all of it is there."""
        if run_id is not None and (tail := self._live.tail(run_id)) is not None:
            if missed := [r for r in tail if r.seq > after]:
                yield missed
            return
        while page := await self._journal.records(stream, run_id, after, PAGE):
            yield page
            after = page[-1].seq

    async def _place_of(self, by: Principal, run_id: RunId) -> tuple[SessionKey, int, int | None]:
        """The run's session and stream, and the number of its last record if it has ended."""
        if tail := self._live.tail(run_id):
            last = tail[-1]
            key = self._sessions.key_of(last.stream)
            if key is not None and by.sees(key.owner):
                return key, last.stream, last.seq if isinstance(last.fact, TERMINAL) else None
        row = await self._row(by, run_id)
        return row.key, row.stream, row.ended_seq

    async def _row(self, by: Principal, run_id: RunId) -> RunRow:
        await self._made(run_id)
        row = await self._journal.run(run_id)
        if row is None or not by.sees(row.key.owner):
            raise no_such_run(run_id)
        return row

    async def _view(self, row: RunRow) -> RunView:
        ending: Fact | None = None
        if row.ended_seq is not None:
            last = await self._journal.records(row.stream, row.run_id, row.ended_seq - 1, 1)
            ending = last[0].fact
        return RunView(
            run_id=row.run_id,
            session_id=row.key.session_id,
            status=row.status,
            stopping=row.stopping,
            waiting_for_approval=False,
            approval=None,
            created_at=row.created_at,
            updated_at=row.updated_at,
            model=row.model,
            last_event=row.last_event,
            usage=getattr(ending, "usage", Usage()),
            ending=ending,
            ended_seq=row.ended_seq,
            owner=row.key.owner,
        )


def _oldest(held: Held, run_id: RunId) -> ApprovalRequested | None:
    waiting = answers.pending(held.session, run_id)
    return waiting[0].requested if waiting else None


def view_of(held: Held, now: Run) -> RunView:
    """A run that is not over, from its fold."""
    return RunView(
        run_id=now.id,
        session_id=held.key.session_id,
        status=now.status,
        stopping=bool(now.stop_reason),
        waiting_for_approval=any(c.status is call.Status.ASKED for c in now.calls.values()),
        approval=_oldest(held, now.id),
        created_at=now.created_at,
        updated_at=now.updated_at,
        model=now.model,
        last_event=now.last_event,
        usage=now.usage,
        ending=None,
        ended_seq=None,
        question=_question(now),
        owner=held.key.owner,
    )


def _question(now: Run) -> call.CallParked | None:
    asked = words.question(now)
    return None if asked is None else now.calls[asked].parked


def no_such_run(run_id: RunId, why: str = "") -> Refused:
    return Refused("run_not_found", f"There is no run {run_id}. {why}".strip())
