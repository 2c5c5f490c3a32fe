"""Background processes: what becomes of them is written down, and told where that was promised.

The journal says which processes a session has; the hands know what became of them. One task
watches each process that runs here; whatever that meets (no descriptors, a journal that cannot
be read) is logged, and it looks again: nothing else ends for it. What ended while nobody
watched, because the gateway was gone, is found at the next start by the traces it left, and
told then.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from secrets import token_hex
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from holdfast.core import process
from holdfast.core.inbox import InputAdmitted
from holdfast.core.process import Cause, Process, ProcessEnded, ProcessMatched
from holdfast.core.run import RunQueued
from holdfast.core.session import Session, admit
from holdfast.core.types import Fact, InputId, ProcessId, RunId, SessionKey
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Conflict
from holdfast.tools.tool import Hands

log = logging.getLogger(__name__)

T = TypeVar("T")

TRY_AGAIN_S = 0.5
WATCH_AGAIN_S = 2.0  # after what should not have been raised
KILL_S = 2.5  # for what a stopped run left in the background
RECORD_S = 2.0  # for ends to reach the disk on the way down
TIDY_EVERY_S = 600.0
KEEP_S = 24 * 3600.0  # traces of what has ended


class Processes:
    """Watches what runs in the background, for all sessions."""

    def __init__(
        self, sessions: Sessions, clock: Clock, hands: Hands, tasks: TaskGroup, model: str
    ) -> None:
        self._sessions = sessions
        self._clock = clock
        self._hands = hands
        self._tasks = tasks
        self._model = model
        self._watched: dict[ProcessId, anyio.Event] = {}  # set when its end is written down
        self._closing = False
        self._unheard: set[ProcessId] = set()  # their run was stopped: their end is no news

    async def sweep(self) -> None:
        """Before anything is brought back: nothing of an earlier gateway runs but the detached."""
        await self._hands.sweep()

    async def tend(self) -> None:
        """For as long as the process lives: let go of traces that nobody needs any more."""
        while True:
            await self._clock.sleep(TIDY_EVERY_S)
            try:
                await self.start()
            except Exception:
                log.exception("the traces of processes were not looked through")

    async def start(self) -> None:
        """Settle what became of processes while nobody watched; go on watching those that live."""
        for key, process_id in self._hands.known():
            try:
                await self._take_up(key, process_id)
            except Exception:
                # One session that cannot be read must not keep the others from being told.
                log.exception("process left aside", extra={"process_id": process_id})

    def begun(self, held: Held, process_id: ProcessId) -> None:
        """A call of the session has started it."""
        if process_id not in self._watched:
            self._watched[process_id] = anyio.Event()
            self._tasks.start_soon(self._watch, held.key, process_id)

    async def end_of(self, held: Held, run_id: RunId) -> None:
        """The run was stopped: what it left in the background goes with it, and nobody is told."""
        left = process.left_by(held.session.processes, run_id)
        self._unheard.update(left)
        with anyio.move_on_after(KILL_S):
            async with anyio.create_task_group() as group:
                for process_id in left:
                    group.start_soon(self._hands.kill, process_id)

    async def kill_all(self, *, last: bool) -> None:
        """End all but the detached. The last time, until that is written down."""
        self._closing = True
        await self._hands.kill_all()
        if last:
            with anyio.move_on_after(RECORD_S, shield=True):
                for ended in tuple(self._watched.values()):
                    await ended.wait()

    async def _take_up(self, key: SessionKey, process_id: ProcessId) -> None:
        async with self._sessions.hold(key) as held:
            found = held.session.processes.get(process_id) if held else None
            if held is not None and found is not None and not found.status.final:
                self.begun(held, process_id)
            elif held is None or self._is_stale(held.session, process_id, found):
                self._hands.forget(process_id)

    def _is_stale(self, session: Session, process_id: ProcessId, found: Process | None) -> bool:
        if found is not None:
            return found.started_at < self._clock.now() - KEEP_S
        names = (process.name(r.id, r.turn, c) for r in session.runs.values() for c in r.calls)
        return process_id not in names  # else its call has yet to be settled by it

    async def _watch(self, key: SessionKey, process_id: ProcessId) -> None:
        async with anyio.create_task_group() as group:
            lines = partial(self._watch_lines, key, process_id)
            group.start_soon(self._insist, process_id, lines)
            ended = await self._insist(process_id, partial(self._hands.ended, process_id))
            group.cancel_scope.cancel()
        if self._closing and ended.cause is Cause.KILLED:
            ended = replace(ended, cause=Cause.RESTART)
        say = partial(self._say, key, process_id, partial(self._end, ended))
        await self._insist(process_id, say)
        self._watched.pop(process_id).set()

    async def _insist(self, process_id: ProcessId, work: Callable[[], Awaitable[T]]) -> T:
        """What comes of `work`, however often it has to be tried."""
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
            while found is not None and not process.may_tell(found, self._clock.now()):
                await self._clock.sleep(TRY_AGAIN_S)
                found = await self._look(key, process_id)
            await self._say(key, process_id, partial(self._match, matched))
            found = await self._look(key, process_id)

    async def _look(self, key: SessionKey, process_id: ProcessId) -> Process | None:
        async with self._sessions.hold(key) as held:
            return held.session.processes.get(process_id) if held else None

    def _end(self, ended: ProcessEnded, found: Process) -> list[Fact]:
        facts: list[Fact] = [ended]
        if found.started.notify and found.id not in self._unheard:
            facts += self._input(found, process.ended_text(found, ended))
        return facts

    def _match(self, matched: ProcessMatched, found: Process) -> list[Fact]:
        return [matched, *self._input(found, process.matched_text(found, matched.lines))]

    def _input(self, found: Process, text: str) -> list[Fact]:
        """A new input of the session, for whom the process was started."""
        made_at = f"{int(self._clock.now() * 1000):012x}"
        run_id, input_id = RunId(f"run_{made_at}{token_hex(10)}"), InputId(f"in_{token_hex(12)}")
        return [
            InputAdmitted(
                input_id=input_id, run_id=run_id, text=text, metadata={"process_id": found.id}
            ),
            RunQueued(
                run_id=run_id, input_id=input_id, model=self._model, origin=found.started.origin
            ),
        ]

    async def _say(
        self, key: SessionKey, process_id: ProcessId, facts: Callable[[Process], list[Fact]]
    ) -> None:
        """Append to the session, however long the journal takes to be writable again."""
        while True:
            try:
                async with self._sessions.hold(key) as held:
                    found = held.session.processes.get(process_id) if held else None
                    if held is None or found is None or found.status.final:
                        return
                    told = facts(found)
                    # A chat's suspended session stays so: its next words go to a fresh one.
                    in_chat = found.started.origin.address is not None
                    first = admit(held.session) if len(told) > 1 and not in_chat else ()
                    await self._sessions.append(held, *first, *told).wait()
                    return
            except (JournalUnavailable, Conflict):
                await self._clock.sleep(TRY_AGAIN_S)
