"""Background processes: their ends are recorded, and reported if that was promised.

The journal knows the processes of a session, the commands know their state. One task watches each
process; an error (no descriptors, a journal that cannot be read) is logged, and the task tries
again. The end of a process while no gateway ran is found at the next start, by the record of its
shim, and reported then.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from holdfast.core.events import Record
from holdfast.core.inbox import InputAdmitted
from holdfast.core.run import process
from holdfast.core.run.process import (
    BackgroundProcess,
    PortClosed,
    PortPublished,
    ProcessEnd,
    ProcessEnded,
    ProcessMatched,
)
from holdfast.core.run.run import RunCancelled, RunCompleted, RunFailed, RunQueued
from holdfast.core.session.session import Session, admit
from holdfast.core.types import Fact, Owner, ProcessId, RunId, SessionKey
from holdfast.engine.clock import Clock
from holdfast.engine.commits import Commits
from holdfast.engine.ids import Ids
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import JournalUnavailable, Refused, ToolFailed
from holdfast.tools.tool import RunsCommands

log = logging.getLogger(__name__)

T = TypeVar("T")

_ENDS = (RunCompleted, RunFailed, RunCancelled)

CLOSED_BY_RESTART = "the gateway was restarted"
TRY_AGAIN_S = 0.5
WATCH_AGAIN_S = 2.0  # after what should not have been raised
KILL_S = 2.5  # for what a stopped run left in the background
RECORD_S = 2.0  # for ends to reach the disk on the way down
TIDY_EVERY_S = 600.0
KEEP_S = 24 * 3600.0  # traces of what has ended


class Processes:
    """Watches what runs in the background, for all sessions."""

    def __init__(
        self, sessions: Sessions, clock: Clock, hands: RunsCommands, tasks: TaskGroup, model: str
    ) -> None:
        self._sessions = sessions
        self._clock = clock
        self._ids = Ids(clock)
        self._hands = hands
        self._tasks = tasks
        self._model = model
        self._watched: dict[ProcessId, anyio.Event] = {}  # set when its end is written down
        self._closing = False
        self._unheard: set[ProcessId] = set()  # their run was stopped: their end is no news

    def subscribe(self, commits: Commits) -> None:
        """Learn from the journal which runs have ended."""
        commits.subscribe(_ENDS, self._run_ended)

    def _run_ended(self, record: Record) -> None:
        if (key := self._sessions.key_of(record.stream)) is not None:
            self._hands.rest(key)

    async def sweep(self) -> None:
        """Before anything is brought back: nothing of an earlier gateway runs but the detached."""
        await self._hands.sweep()

    async def tend(self) -> None:
        """For as long as the process lives: remove traces that are not needed any more."""
        while True:
            await self._clock.sleep(TIDY_EVERY_S)
            try:
                await self.start()
            except Exception:
                log.exception("the traces of processes were not looked through")

    async def start(self) -> None:
        """Settle processes that ended unwatched; watch those that live."""
        for key, process_id in self._hands.known():
            try:
                await self._take_up(key, process_id)
            except Exception:
                # One session that cannot be read must not keep the others from being told.
                log.exception("process skipped", extra={"process_id": process_id})

    def begun(self, loaded: LoadedSession, process_id: ProcessId) -> None:
        """A call of the session has started it."""
        if process_id not in self._watched:
            self._watched[process_id] = anyio.Event()
            self._tasks.start_soon(self._watch, loaded.key, process_id)

    async def end_of(self, loaded: LoadedSession, run_id: RunId) -> None:
        """End the background processes of a stopped run; their end is not reported."""
        left = process.left_running(loaded.session.processes, run_id)
        self._unheard.update(left)
        with anyio.move_on_after(KILL_S):
            async with anyio.create_task_group() as group:
                for process_id in left:
                    group.start_soon(self._hands.kill, process_id)

    async def kill(self, process_id: ProcessId) -> None:
        """End one, and wait until that is recorded."""
        await self._hands.kill(process_id)
        if (recorded := self._watched.get(process_id)) is not None:
            with anyio.move_on_after(RECORD_S):
                await recorded.wait()

    async def publish(
        self, key: SessionKey, process_id: ProcessId, port: int, host_port: int, by: Owner
    ) -> None:
        """Publish a port of a process, as `by` decided; refused if that is not possible."""
        async with self._sessions.load(key) as loaded:
            found = loaded.session.processes.get(process_id) if loaded else None
        if found is None or (why := process.may_publish(found, port, host_port)):
            raise Refused("port_not_published", f"Not published: {why if found else 'no process'}.")
        if port in found.ports:
            return
        try:
            at = await self._hands.publish(process_id, port, host_port)
        except ToolFailed as failed:
            raise Refused("port_not_published", f"Not published: {failed}") from failed
        published = PortPublished(process_id=process_id, port=port, host_port=at, by=by)
        await self._record(key, process_id, lambda _: [published])

    async def close_port(
        self, key: SessionKey, process_id: ProcessId, port: int, reason: str
    ) -> None:
        """Close a published port."""
        self._hands.close_port(process_id, port)
        closed = PortClosed(process_id=process_id, port=port, reason=reason)
        await self._record(key, process_id, lambda now: [closed] if port in now.ports else [])

    async def kill_all(self, *, last: bool) -> None:
        """End all but the detached. The last time, until that is written down."""
        self._closing = True
        await self._hands.kill_all()
        if last:
            with anyio.move_on_after(RECORD_S, shield=True):
                for ended in tuple(self._watched.values()):
                    await ended.wait()

    async def _take_up(self, key: SessionKey, process_id: ProcessId) -> None:
        async with self._sessions.load(key) as loaded:
            found = loaded.session.processes.get(process_id) if loaded else None
            if loaded is not None and found is not None and not found.status.final:
                for port in found.ports if process_id not in self._watched else ():
                    await self.close_port(key, process_id, port, CLOSED_BY_RESTART)
                self.begun(loaded, process_id)
            elif loaded is None or self._is_stale(loaded.session, process_id, found):
                self._hands.forget(process_id)

    def _is_stale(
        self, session: Session, process_id: ProcessId, found: BackgroundProcess | None
    ) -> bool:
        if found is not None:
            return found.started_at < self._clock.now() - KEEP_S
        names = (process.id_for(r.id, r.turn, c) for r in session.runs.values() for c in r.calls)
        return process_id not in names  # else its call has yet to be settled by it

    async def _watch(self, key: SessionKey, process_id: ProcessId) -> None:
        async with anyio.create_task_group() as group:
            lines = partial(self._watch_lines, key, process_id)
            group.start_soon(self._insist, process_id, lines)
            ended = await self._insist(process_id, partial(self._hands.ended, process_id))
            group.cancel_scope.cancel()
        if self._closing and ended.cause is ProcessEnd.KILLED:
            ended = replace(ended, cause=ProcessEnd.RESTART)
        record = partial(self._record, key, process_id, partial(self._end, ended))
        await self._insist(process_id, record)
        self._watched.pop(process_id).set()

    async def _insist(self, process_id: ProcessId, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat `work` until it succeeds; return its result."""
        while True:
            try:
                return await work()
            except Exception:
                log.exception("a process is looked at again", extra={"process_id": process_id})
            await self._clock.sleep(WATCH_AGAIN_S)

    async def _watch_lines(self, key: SessionKey, process_id: ProcessId) -> None:
        found = await self._look(key, process_id)
        while found is not None and found.started.watch and found.matches < process.WATCH_MOST:
            lines, offset = await self._hands.lines(process_id, found.offset, found.started.watch)
            matched = ProcessMatched(process_id=process_id, offset=offset, lines=lines)
            while found is not None and not process.may_notify(found, self._clock.now()):
                await self._clock.sleep(TRY_AGAIN_S)
                found = await self._look(key, process_id)
            await self._record(key, process_id, partial(self._match, matched))
            found = await self._look(key, process_id)

    async def _look(self, key: SessionKey, process_id: ProcessId) -> BackgroundProcess | None:
        async with self._sessions.load(key) as loaded:
            return loaded.session.processes.get(process_id) if loaded else None

    def _end(self, ended: ProcessEnded, found: BackgroundProcess) -> list[Fact]:
        facts: list[Fact] = [ended]
        if found.started.notify and found.id not in self._unheard:
            facts += self._input(found, process.ended_text(found, ended))
        return facts

    def _match(self, matched: ProcessMatched, found: BackgroundProcess) -> list[Fact]:
        return [matched, *self._input(found, process.matched_text(found, matched.lines))]

    def _input(self, found: BackgroundProcess, text: str) -> list[Fact]:
        """A new input of the session, for whom the process was started."""
        run_id, input_id = self._ids.run(), self._ids.input()
        return [
            InputAdmitted(
                input_id=input_id, run_id=run_id, text=text, metadata={"process_id": found.id}
            ),
            RunQueued(
                run_id=run_id, input_id=input_id, model=self._model, origin=found.started.origin
            ),
        ]

    async def _record(
        self,
        key: SessionKey,
        process_id: ProcessId,
        facts: Callable[[BackgroundProcess], list[Fact]],
    ) -> None:
        """Append to the session, however long the journal takes to be writable again."""

        def decide(loaded: LoadedSession | None) -> Sequence[Fact]:
            found = loaded.session.processes.get(process_id) if loaded else None
            if loaded is None or found is None or found.status.final:
                return ()
            told = facts(found)
            # A chat's suspended session stays so: its next message goes to a fresh one.
            in_chat = found.started.origin.address is not None
            first = admit(loaded.session) if len(told) > 1 and not in_chat else ()
            return (*first, *told)

        while True:
            try:
                return await self._sessions.change(key, decide)
            except JournalUnavailable:
                await self._clock.sleep(TRY_AGAIN_S)
