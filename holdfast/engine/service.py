"""The front door, implemented. It decides nothing: it looks, appends and reads.

What happens after an append does not depend on whoever asked for it: the session is
woken, and a stopped run interrupted, when the journal says that the fact is committed.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, assert_never, overload

from anyio.abc import TaskGroup

from holdfast.core import answers, call, lifecycle, run, session
from holdfast.core.approval import ApprovalDenied, ApprovalExpired, ApprovalRequested, Choice
from holdfast.core.events import TERMINAL, Record
from holdfast.core.inbox import InputAdmitted, Mode
from holdfast.core.intents import (
    Answer,
    Answered,
    Intent,
    Principal,
    Reply,
    Steer,
    Steered,
    Stop,
    Stopping,
    Submit,
    Submitted,
)
from holdfast.core.limits import Limits
from holdfast.core.messages import Message
from holdfast.core.redaction import Redactor
from holdfast.core.run import Run, RunQueued, RunRequeued, StopAsked
from holdfast.core.types import Fact, InputId, RunId, SessionId, SessionKey, Usage, Value
from holdfast.engine import drain, timers
from holdfast.engine.calls import Calls
from holdfast.engine.clock import Clock
from holdfast.engine.coordinator import Coordinator
from holdfast.engine.intake import Defaults, Intake
from holdfast.engine.live import Follower, Live
from holdfast.engine.recover import Recovery
from holdfast.engine.runner import Runner
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import JournalUnavailable, Refused
from holdfast.gateway import Batches, Health, RunQuery, RunView
from holdfast.journal.journal import Conflict, Journal, RunFilter, RunRow
from holdfast.models.model import Model, ToolSpec
from holdfast.tools.tool import BlobStore, Tool, schema

log = logging.getLogger(__name__)

PAGE = 500  # records a follower reads at once
RETRY_CONFLICTS = 5
APPROVALS = 1_000  # unfinished runs that are looked through for what waits


class Parts(Value):
    """What a service is made of. The composition root fills it."""

    journal: Journal
    blobs: BlobStore
    model: Model
    model_name: str
    tools: Sequence[Tool[Any]]
    clock: Clock
    limits: Limits
    on_start: session.OnStart
    home: Path
    workspace_roots: tuple[Path, ...]
    retention_s: float
    approval_s: float  # how long a request for approval waits
    version: str
    redactor: Redactor


class Service:
    """The gateway's front door over one journal."""

    def __init__(self, parts: Parts, tasks: TaskGroup) -> None:
        self._parts = parts
        self._tasks = tasks
        self._status = lifecycle.Status.STARTING
        self._started_at = parts.clock.now()
        self._journal = parts.journal
        self._live = Live()
        self._lag = timers.Lag(parts.clock)
        self._expiries = timers.Expiries()
        self._sessions = Sessions(parts.journal, parts.clock, parts.redactor)
        defaults = Defaults(parts.model_name, parts.home, parts.workspace_roots)
        self._intake = Intake(parts.journal, self._sessions, parts.clock, parts.limits, defaults)
        runner = Runner(
            self._sessions,
            Calls(
                parts.tools,
                parts.blobs,
                parts.clock,
                parts.approval_s,
                parts.redactor,
                parts.home / "workspaces",
            ),
            parts.model,
            parts.model_name,
            [ToolSpec(t.name, t.description, schema(t.arguments)) for t in parts.tools],
            parts.clock,
            parts.limits,
            lambda: self._coordinator.admitting,
            parts.redactor,
        )
        self._coordinator = Coordinator(
            tasks, runner.drive, self._broken, self._orphaned, parts.limits.running
        )
        self._recovery = Recovery(
            parts.journal,
            self._sessions,
            self._coordinator,
            parts.clock,
            parts.on_start,
            self._notice,
        )
        parts.journal.on_commit(self._committed)

    async def start(self, only: frozenset[RunId] | None = None) -> None:
        """The way up. Afterwards new work is taken. `only`: the runs to bring back, if not all."""
        self._change(lifecycle.Change.JOURNAL_OPENED)
        found = await self._recovery.start(only)
        self._tasks.start_soon(self._recovery.tend)
        self._tasks.start_soon(self._lag.watch)
        self._tasks.start_soon(timers.nudge, self._live, self._parts.clock)
        self._tasks.start_soon(self._expiries.watch, self._parts.clock, self._expire)
        self._tasks.start_soon(
            timers.prune, self._journal, self._parts.clock, self._parts.retention_s
        )
        self._change(lifecycle.Change.RECOVERED)
        log.info("recovered", extra={"unfinished_runs": found})

    def refuse_work(self) -> None:
        """From now on nothing new is taken."""
        self._change(lifecycle.Change.STOP_ASKED)

    async def stop(self, wait_s: float, cause: run.Cause) -> None:
        """The way down. Afterwards nothing is driven and nobody reads."""
        if self._status is not lifecycle.Status.DRAINING:
            self.refuse_work()
        await drain.drain(self._sessions, self._coordinator, self._parts.clock, wait_s, cause)
        self._live.close()
        self._change(lifecycle.Change.ENDED)

    @overload
    async def send(self, intent: Submit) -> Submitted: ...
    @overload
    async def send(self, intent: Stop) -> Stopping: ...
    @overload
    async def send(self, intent: Steer) -> Steered: ...
    @overload
    async def send(self, intent: Answer) -> Answered: ...
    async def send(self, intent: Intent) -> Reply:
        """Turn an intent into facts, or refuse it."""
        intent = self._parts.redactor.cleaned(intent)
        for _ in range(RETRY_CONFLICTS):
            try:
                match intent:
                    case Submit():
                        if intent.session_id is not None:
                            await self._recovery.need(
                                SessionKey(intent.by.owner, intent.session_id)
                            )
                        return await self._intake.submit(intent, self._status)
                    case Stop():
                        return await self._stop(intent)
                    case Steer():
                        return await self._steer(intent)
                    case Answer():
                        return await self._answer(intent)
                    case _:
                        assert_never(intent)
            except Conflict:
                continue  # somebody appended meanwhile: look again, decide again
        raise JournalUnavailable("the session is busy; try again", retry_after_s=1)

    async def run(self, by: Principal, run_id: RunId) -> RunView:
        """The run as it stands; refused with `run_not_found` if it is not the caller's."""
        if (found := self._sessions.running(run_id)) is not None:
            held, now = found
            if held.key.owner != by.owner:
                raise _no_such_run(run_id)
            return _view_of(held, now)
        row = await self._row(by, run_id)
        if row.ended_seq is None:
            async with self._sessions.hold(row.key) as cold:
                if cold is not None and (waiting := cold.session.runs.get(run_id)) is not None:
                    return _view_of(cold, waiting)
        return await self._view(row)

    async def approvals(self, by: Principal) -> Sequence[ApprovalRequested]:
        """Everything of the caller's that waits for an approval, oldest first."""
        waiting = frozenset({run.Status.WAITING, run.Status.RUNNING, run.Status.QUEUED})
        rows = await self._journal.runs(RunFilter(by.owner, waiting, None, APPROVALS, None))
        found: list[ApprovalRequested] = []
        for key in dict.fromkeys(row.key for row in rows):
            async with self._sessions.hold(key) as held:
                if held is not None:
                    asked = held.session.approvals.values()
                    found += [a.requested for a in asked if not a.status.final]
        return sorted(found, key=lambda a: a.expires_at)

    async def runs(self, by: Principal, query: RunQuery) -> tuple[Sequence[RunView], bool]:
        """A page of runs, and whether there are more."""
        wanted = RunFilter(by.owner, query.status, query.session_id, query.limit + 1, query.after)
        rows = await self._journal.runs(wanted)
        views = [await self._view(row) for row in rows[: query.limit]]
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
        stream, ended = await self._place_of(by, run_id)
        if ended is not None and after >= ended:
            yield None
            return
        follower = self._live.join(run_id)
        try:
            yield self._batches(follower, stream, after)
        finally:
            self._live.leave(follower)

    def health(self) -> Health:
        """How it is doing, from memory."""
        counts = self._sessions.counts
        return Health(
            status=self._status,
            version=self._parts.version,
            model=self._parts.model_name,
            running=len(self._coordinator.active),
            queued=counts[run.Status.QUEUED],
            waiting=counts[run.Status.WAITING],
            loop_lag_ms=round(self._lag.ms, 1),
            journal=self._journal.state(),
            uptime_s=round(self._parts.clock.now() - self._started_at, 1),
        )

    async def _batches(self, follower: Follower, stream: int, after: int) -> Batches:
        async for batch in self._backlog(follower.run_id, stream, after):
            yield batch
            after = batch[-1].seq
            if isinstance(batch[-1].fact, TERMINAL):
                return
        while (records := await follower.take()) is not None:
            fresh = [r for r in records if r.seq > after]
            if fresh or not records:
                yield fresh
            if fresh:
                after = fresh[-1].seq
            if records and isinstance(records[-1].fact, TERMINAL):
                return  # also for a reader whose cursor is ahead of it

    async def _backlog(self, run_id: RunId, stream: int, after: int) -> Batches:
        """What has been committed so far: from memory if all of it is there."""
        if (tail := self._live.tail(run_id)) is not None:
            if missed := [r for r in tail if r.seq > after]:
                yield missed
            return
        while page := await self._journal.records(stream, run_id, after, PAGE):
            yield page
            after = page[-1].seq

    async def _place_of(self, by: Principal, run_id: RunId) -> tuple[int, int | None]:
        """The run's stream, and the number of its last record if it has ended."""
        if tail := self._live.tail(run_id):
            last = tail[-1]
            key = self._sessions.key_of(last.stream)
            if key is not None and key.owner == by.owner:
                return last.stream, last.seq if isinstance(last.fact, TERMINAL) else None
        row = await self._row(by, run_id)
        return row.stream, row.ended_seq

    async def _row(self, by: Principal, run_id: RunId) -> RunRow:
        row = await self._journal.run(run_id)
        if row is None or row.key.owner != by.owner:
            raise _no_such_run(run_id)
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
            waiting_for_approval=row.status is run.Status.WAITING,
            approval=None,
            created_at=row.created_at,
            updated_at=row.updated_at,
            model=row.model,
            last_event=row.last_event,
            usage=getattr(ending, "usage", Usage()),
            ending=ending,
            ended_seq=row.ended_seq,
        )

    async def _stop(self, intent: Stop) -> Stopping:
        row = await self._unfinished(intent.by, intent.run_id)
        async with self._sessions.hold(row) as held:
            now = held.session.runs.get(intent.run_id) if held else None
            if held is None or now is None:
                raise _no_such_run(intent.run_id, "It has ended.")
            if not now.stop_reason:
                facts = session.stop(held.session, intent.run_id, intent.reason)
                await self._sessions.append(held, *facts).wait()
        return Stopping(intent.run_id)

    async def _steer(self, intent: Steer) -> Steered:
        try:
            key = await self._unfinished(intent.by, intent.run_id)
        except Refused as refused:
            if refused.code == "run_ended":
                raise _not_steerable(intent.run_id) from None
            raise
        async with self._sessions.hold(key) as held:
            now = held.session.runs.get(intent.run_id) if held else None
            if held is None or now is None or now.stop_reason:
                raise _not_steerable(intent.run_id)
            fact = InputAdmitted(
                input_id=InputId(f"in_{token_hex(12)}"),
                run_id=intent.run_id,
                text=intent.text,
                mode=Mode.STEER,
            )
            await self._sessions.append(held, *session.go_on(held.session), fact).wait()
        return Steered(intent.run_id)

    async def _answer(self, intent: Answer) -> Answered:
        try:
            key = await self._unfinished(intent.by, intent.run_id)
        except Refused as refused:
            if refused.code == "run_ended":
                raise _over() from None
            raise
        # Only an administrator's word outlives the session; there are none at these doors yet.
        choice = Choice.SESSION if intent.choice is Choice.ALWAYS else intent.choice
        given = answers.Given(
            intent.run_id, choice, intent.by.owner, intent.request_id, intent.every
        )
        async with self._sessions.hold(key) as held:
            if held is None or intent.run_id not in held.session.runs:
                raise _over()
            facts, resolved = answers.answer(held.session, given, self._parts.clock.now())
            await self._sessions.append(held, *facts).wait()
        return Answered(intent.run_id, choice, resolved)

    async def _expire(self, key: SessionKey) -> None:
        """What the clock says to requests nobody has answered."""
        async with self._sessions.hold(key) as held:
            if held is None:
                return
            if facts := answers.expire(held.session, self._parts.clock.now()):
                await self._sessions.append(held, *facts).wait()

    async def _unfinished(self, by: Principal, run_id: RunId) -> SessionKey:
        """The session of a run that has not ended."""
        if (found := self._sessions.running(run_id)) is not None and found[0].key.owner == by.owner:
            key = found[0].key
        else:
            row = await self._row(by, run_id)
            if row.ended_seq is not None:
                raise Refused("run_ended", f"Run {run_id} has ended: {row.status}.")
            key = row.key
        await self._recovery.need(key)
        return key

    def _committed(self, records: Sequence[Record]) -> None:
        """On the loop, after every commit: tell readers, then do what the facts ask for."""
        self._live.publish(records)
        for record in records:
            fact = record.fact
            if not isinstance(fact, _CONSEQUENTIAL):
                continue
            if (key := self._sessions.key_of(record.stream)) is None:
                continue
            match fact:
                case ApprovalRequested(expires_at=expires_at):
                    self._expiries.add(expires_at, key)
                case StopAsked(run_id=run_id):
                    self._coordinator.interrupt(key, run_id)
                case _:
                    self._coordinator.wake(key, first=not isinstance(fact, RunQueued))

    def _notice(self, held: Held) -> None:
        """A session was found at the start: what it waits for may run out."""
        for asked in held.session.approvals.values():
            self._expiries.add(asked.requested.expires_at, held.key)

    async def _broken(self, key: SessionKey, run_id: RunId | None, error: Exception) -> None:
        """A drive raised what it should not have: the run it was at fails, aloud."""
        log.error("drive broke", exc_info=error, extra={"session_id": key.session_id})
        async with self._sessions.hold(key) as held:
            now = held.session.runs.get(run_id) if held and run_id else None
            if held is None or now is None:
                return
            text = f"Internal error: {type(error).__name__}. The log has the details."
            failed = run.RunFailed(
                run_id=now.id, code="internal_error", error=text, usage=now.usage
            )
            await self._sessions.append(held, *session.give_up(now, failed.code), failed).wait()

    def _orphaned(self, key: SessionKey) -> None:
        self._recovery.orphaned(key)

    def _change(self, change: lifecycle.Change) -> None:
        self._status = lifecycle.evolve(self._status, change)


_CONSEQUENTIAL = (
    ApprovalRequested,
    RunQueued,
    RunRequeued,
    StopAsked,
    call.CallCleared,
    ApprovalDenied,
    ApprovalExpired,
)


def _oldest(held: Held, run_id: RunId) -> ApprovalRequested | None:
    waiting = answers.pending(held.session, run_id)
    return waiting[0].requested if waiting else None


def _over() -> Refused:
    return Refused("approval_not_active", "The run is over.")


def _view_of(held: Held, now: Run) -> RunView:
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
    )


def _no_such_run(run_id: RunId, why: str = "") -> Refused:
    return Refused("run_not_found", f"There is no run {run_id}. {why}".strip())


def _not_steerable(run_id: RunId) -> Refused:
    return Refused("run_not_accepting_steer", f"Run {run_id} has ended or is being stopped.")
