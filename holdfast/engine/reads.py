"""The reading half of the front door: runs, approvals, transcripts, and event streams.

Sessions in memory are read from the folds in memory, the rest from the
journal's projections. Only what is committed is shown: a fold in memory may be ahead of the disk,
and a crash would lose the difference. Reading changes nothing, with one exception: following a
session resumes it if its recovery was deferred.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from holdfast.core.approval.approval import ApprovalRequested
from holdfast.core.events import TERMINAL, Record
from holdfast.core.intents import Principal
from holdfast.core.messages import Message
from holdfast.core.run import call, run
from holdfast.core.run.run import Run
from holdfast.core.session import answers, placement
from holdfast.core.session.session import Session
from holdfast.core.types import Fact, RequestId, RunId, SessionId, SessionKey, Usage
from holdfast.engine.changes import Changes
from holdfast.engine.live import Live
from holdfast.engine.sessions import Sessions
from holdfast.errors import Refused
from holdfast.gateway import (
    AskedPlace,
    Batches,
    DiffQuery,
    FileDiff,
    PendingApproval,
    RunQuery,
    RunView,
)
from holdfast.journal.journal import Journal, RunFilter, RunRow

PAGE = 500  # records a follower reads at once
_ENDS: frozenset[type[Fact]] = frozenset(TERMINAL)


class Reads:
    """Everything that callers may read."""

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        live: Live,
        changes: Changes,
        made: Callable[[RunId], Awaitable[None]],
        watched: Callable[[Principal, SessionKey], Awaitable[None]],
    ) -> None:
        self._journal = journal
        self._sessions = sessions
        self._live = live
        self._changes = changes
        self._made = made  # a child is known to its parent's readers before it is there
        self._watched = watched  # resumes a session whose recovery was deferred

    async def run(self, by: Principal, run_id: RunId) -> RunView:
        """The run as it stands; refused with `run_not_found` if it is not the caller's."""
        if (found := self._sessions.running(run_id)) is not None:
            committed = found[0].committed()
            if not by.sees(committed.key.owner):
                raise no_such_run(run_id)
            if (now := committed.runs.get(run_id)) is not None:
                return view_of(committed, now)
        row = await self.row(by, run_id)
        return await self._folded(row) if row.ended_seq is None else await self._view(row)

    async def _folded(self, row: RunRow) -> RunView:
        async with self._sessions.load(row.key) as cold:
            known = cold.committed() if cold is not None else None
            if known is not None and (found := known.runs.get(row.run_id)) is not None:
                return view_of(known, found)
        return await self._view(row)

    async def _seen(self, row: RunRow) -> RunView:
        """A row says that a run waits; for what, only its fold does."""
        waits = row.status is run.RunPhase.WAITING
        return await self._folded(row) if waits else await self._view(row)

    async def approvals(
        self, by: Principal, limit: int, after: AskedPlace | None
    ) -> tuple[Sequence[PendingApproval], bool]:
        """A page of what the caller may see that waits for an approval, oldest first."""
        found = await self._journal.approvals(by.scope, limit + 1, after)
        page = [PendingApproval(asked.key.owner, asked.requested) for asked in found[:limit]]
        return page, len(found) > limit

    async def approval(self, by: Principal, request_id: RequestId) -> PendingApproval | None:
        """One of them; None if nothing waits under that id, or the caller may not see it."""
        found = await self._journal.approval(request_id)
        if found is None or not by.sees(found.key.owner):
            return None
        return PendingApproval(found.key.owner, found.requested)

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
        async with self._sessions.load(SessionKey(by.owner, session_id)) as loaded:
            if loaded is None:
                raise Refused("session_not_found", f"There is no session {session_id}.")
            said = (await self._sessions.whole(loaded)).whole()
            await loaded.landed()
            return said

    async def diff(self, by: Principal, query: DiffQuery) -> Sequence[FileDiff]:
        """What a run or a session changed; refused if it is not the caller's."""
        if query.run_id is not None:
            stream = (await self.row(by, query.run_id)).stream
        else:
            name = query.session_id or SessionId("")
            if (row := await self._journal.stream_of(SessionKey(by.owner, name))) is None:
                raise Refused("session_not_found", f"There is no session {name}.")
            stream = row.stream
        return await self._changes.diff(stream, query)

    def follow(
        self, by: Principal, run_id: RunId, after: int
    ) -> AbstractAsyncContextManager[Batches | None]:
        """The run's records after `after`, in order, without gap or repeat."""
        return _Following(self, by, run_id, after)

    async def batches(self, by: Principal, run_id: RunId, after: int) -> "_Batches | None":
        """The same, to be left by the caller; None if there is nothing after `after`."""
        key, stream, ended = await self._place_of(by, run_id)
        if ended is not None and after >= ended:
            return None
        if ended is None:
            await self._watched(by, key)
        return _Batches(self._journal, self._live, run_id, stream, after)

    @asynccontextmanager
    async def follow_session(
        self, by: Principal, session_id: SessionId, after: int
    ) -> AsyncIterator[Batches]:
        """Everything of the session after `after`, without an end."""
        key = SessionKey(by.owner, session_id)
        await self._watched(by, key)
        async with self._sessions.load(key) as loaded:
            if loaded is None:
                raise Refused("session_not_found", f"There is no session {session_id}.")
            stream = loaded.stream  # of records that are committed, whatever this fold has
        batches = _Batches(self._journal, self._live, None, stream, after)
        try:
            yield batches
        finally:
            batches.leave()

    async def _place_of(self, by: Principal, run_id: RunId) -> tuple[SessionKey, int, int | None]:
        """The run's session and stream, and the number of its last record if it has ended."""
        if tail := self._live.tail(run_id):
            last = tail[-1]
            key = self._sessions.key_of(last.stream)
            if key is not None and by.sees(key.owner):
                return key, last.stream, last.seq if type(last.fact) in _ENDS else None
        row = await self.row(by, run_id)
        return row.key, row.stream, row.ended_seq

    async def row(self, by: Principal, run_id: RunId) -> RunRow:
        """The run's row; refused with `run_not_found` if it is not the caller's."""
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


class _Batches:
    """The records of one run to its end, or of all runs of a session without an end.

    A class, and `_Following` too: generators cost more, and every reader of a run has both.
    """

    __slots__ = (
        "_after",
        "_behind",
        "_follower",
        "_journal",
        "_live",
        "_over",
        "_run_id",
        "_stream",
    )

    def __init__(
        self, journal: Journal, live: Live, run_id: RunId | None, stream: int, after: int
    ) -> None:
        self._journal = journal
        self._live = live
        self._run_id = run_id
        self._stream = stream
        self._after = after
        self._behind = True  # it has not had all that was committed before it joined
        self._over = False
        self._follower = live.join(stream if run_id is None else run_id)

    def leave(self) -> None:
        """Read no more."""
        self._live.leave(self._follower)

    def __aiter__(self) -> "_Batches":
        return self

    async def __anext__(self) -> Sequence[Record]:
        if self._behind and (batch := await self._backlog()):
            return self._passed(batch)
        while not self._over and (records := await self._follower.take()) is not None:
            fresh = [r for r in records if r.seq > self._after]
            if fresh or not records:
                return self._passed(fresh)
            self._passed(records)  # its cursor is ahead of them
        raise StopAsyncIteration

    async def _backlog(self) -> Sequence[Record]:
        """Return the next records that are committed: from memory if all of them are there."""
        tail = None if self._run_id is None else self._live.tail(self._run_id)
        if tail is not None:
            self._behind = False  # the follower has had all that came since it joined
            return [r for r in tail if r.seq > self._after]
        batch = await self._journal.records(self._stream, self._run_id, self._after, PAGE)
        self._behind = bool(batch)
        return batch

    def _passed(self, records: Sequence[Record]) -> Sequence[Record]:
        """Note how far it has come."""
        if records:
            self._after = max(self._after, records[-1].seq)
            self._over = self._run_id is not None and type(records[-1].fact) in _ENDS
            self._behind = self._behind and not self._over
        return records


class _Following:
    """A block that follows one run."""

    __slots__ = ("_after", "_batches", "_by", "_reads", "_run_id")

    def __init__(self, reads: Reads, by: Principal, run_id: RunId, after: int) -> None:
        self._reads = reads
        self._by = by
        self._run_id = run_id
        self._after = after
        self._batches: _Batches | None = None

    async def __aenter__(self) -> Batches | None:
        self._batches = await self._reads.batches(self._by, self._run_id, self._after)
        return self._batches

    async def __aexit__(self, *raised: object) -> None:
        if self._batches is not None:
            self._batches.leave()


def _oldest(session: Session, run_id: RunId) -> ApprovalRequested | None:
    waiting = answers.pending(session, run_id)
    return waiting[0].requested if waiting else None


def view_of(session: Session, now: Run) -> RunView:
    """A run that is not over, from the fold of its session."""
    return RunView(
        run_id=now.id,
        session_id=session.key.session_id,
        status=now.status,
        stopping=bool(now.stop_reason),
        waiting_for_approval=any(c.status is call.CallStatus.ASKED for c in now.calls.values()),
        approval=_oldest(session, now.id),
        created_at=now.created_at,
        updated_at=now.updated_at,
        model=now.model,
        last_event=now.last_event,
        usage=now.usage,
        ending=None,
        ended_seq=None,
        question=_question(now),
        owner=session.key.owner,
    )


def _question(now: Run) -> call.CallParked | None:
    asked = placement.question(now)
    return None if asked is None else now.calls[asked].parked


def no_such_run(run_id: RunId, why: str = "") -> Refused:
    return Refused("run_not_found", f"There is no run {run_id}. {why}".strip())
