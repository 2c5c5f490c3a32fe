"""At most one drive per session, and no more drives than there are places.

The journal is the truth; a wake is only a hint to look at the session. Several wakes during a
drive cause one more look. An interrupt names its run and has no effect on another run. It cancels
the drive; after the cleanup, the session is looked at again. A drive whose cleanup takes too long
is abandoned: the session continues without it, and its later facts are refused. After `close`
nothing new starts. If a drive could not write, its session becomes an orphan: wakes are ignored
until recovery calls `adopt`. Before `begin` nothing is driven; wakes are remembered.

This is a supervisor: an exception of a drive becomes a fact, through `broken`.
"""

import logging
from asyncio import Event
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from anyio import TaskHandle
from anyio.abc import TaskGroup

from holdfast.core.types import RunId, SessionKey
from holdfast.errors import JournalUnavailable

log = logging.getLogger(__name__)

SET_APART = "session set apart: it cannot be read"
LET_GO_S = 2.8  # for the cleanup of an interrupted drive: enough for a tool that ignores TERM


@dataclass(slots=True, eq=False)
class Drive:
    """One session being driven. The runner sets `run_id`."""

    key: SessionKey
    admitting: Callable[[], bool]  # whether it may begin another run
    run_id: RunId | None = None
    done: Event = field(default_factory=Event)
    again: bool = True
    cut: bool = False  # it is cancelled
    task: TaskHandle[None] | None = None  # once it is started

    def cancel(self) -> None:
        """Cancel it; it cleans up and ends."""
        self.cut = True
        if self.task is not None:
            self.task.cancel()


class Coordinator:
    """Decides which sessions are driven, and which wait for a place."""

    def __init__(
        self,
        tasks: TaskGroup,
        drive: Callable[[Drive], Awaitable[None]],
        broken: Callable[[SessionKey, RunId | None, Exception], Awaitable[None]],
        orphaned: Callable[[SessionKey], None],
        places: int,
    ) -> None:
        self._tasks = tasks
        self._drive = drive
        self._broken = broken
        self._orphaned = orphaned
        self._places = places
        self._drives: dict[SessionKey, Drive] = {}
        self._woken: dict[SessionKey, None] = {}
        self._fresh: dict[SessionKey, None] = {}
        self._orphans: set[SessionKey] = set()
        self._open = True
        self._held_back = True

    @property
    def active(self) -> tuple[Drive, ...]:
        """The drives at work now."""
        return tuple(self._drives.values())

    @property
    def admitting(self) -> bool:
        """Return whether a drive may begin another run."""
        return self._open

    def wake(self, key: SessionKey, *, first: bool = False) -> None:
        """Look at the session now or when it has a place; `first`: before runs not yet begun."""
        if key in self._orphans:
            return
        if (drive := self._drives.get(key)) is not None:
            drive.again = True
        elif not self._open:
            return
        elif len(self._drives) < self._places and not self._held_back:
            self._start(key)
        elif first:
            self._fresh.pop(key, None)
            self._woken[key] = None
        elif key not in self._woken:
            self._fresh[key] = None

    def interrupt(self, key: SessionKey, run_id: RunId) -> None:
        """Cancel the drive of `run_id`, if it is driven; then look at the session again."""
        drive = self._drives.get(key)
        if drive is None or drive.run_id != run_id:
            self.wake(key, first=True)
            return
        drive.again = True
        drive.cancel()
        self._tasks.start_soon(self._let_go, drive)

    def orphan(self, key: SessionKey) -> None:
        """Ignore the session until `adopt`: its runs were cut, and the journal does not know yet."""
        self._orphans.add(key)

    def adopt(self, key: SessionKey) -> None:
        """Continue the session: the journal knows now that its runs were cut."""
        self._orphans.discard(key)
        self.wake(key, first=True)

    def begin(self) -> None:
        """Start driving. Until now it was not known whether work is safe here."""
        self._held_back = False
        self._fill()

    def close(self) -> None:
        """Start nothing new; active drives may finish."""
        self._open = False
        self._woken.clear()
        self._fresh.clear()

    async def drained(self) -> None:
        """Wait until no drive is active."""
        while self._drives:
            await next(iter(self._drives.values())).done.wait()

    def _start(self, key: SessionKey) -> None:
        drive = self._drives[key] = Drive(key, lambda: self._open)
        drive.task = self._tasks.start_soon(self._run, drive)

    async def _run(self, drive: Drive) -> None:
        try:
            while drive.again and not drive.cut:
                drive.again = False
                await self._look(drive)
        finally:
            self._end(drive)

    async def _look(self, drive: Drive) -> None:
        try:
            await self._drive(drive)
        except JournalUnavailable:
            self._lose(drive)
        except Exception as error:  # noqa: BLE001  a supervisor: it becomes a fact
            await self._mend(drive, error)

    async def _mend(self, drive: Drive, error: Exception) -> None:
        if self._drives.get(drive.key) is not drive:
            log.error("an abandoned drive raised", exc_info=error)
            return
        try:
            await self._broken(drive.key, drive.run_id, error)
            drive.again = True  # the runs queued behind the failed one must not wait
        except JournalUnavailable:
            self._lose(drive)
        except Exception:
            # The session cannot even be read. It is ignored; the others continue.
            log.exception(SET_APART, extra={"session_id": drive.key.session_id})
            drive.again = False
            self.orphan(drive.key)

    def _lose(self, drive: Drive) -> None:
        if self._drives.get(drive.key) is drive:  # else it was abandoned
            drive.again = False
            self.orphan(drive.key)
            self._orphaned(drive.key)

    def _end(self, drive: Drive) -> None:
        drive.done.set()
        if self._drives.get(drive.key) is not drive:
            return  # it was abandoned; another drive has its place
        del self._drives[drive.key]
        if drive.again:
            self.wake(drive.key, first=True)
        self._fill()

    def _fill(self) -> None:
        """Give free places to waiting sessions."""
        if self._held_back:
            return
        for waiting in (self._woken, self._fresh):
            while waiting and len(self._drives) < self._places:
                key = next(iter(waiting))
                del waiting[key]
                self._start(key)

    async def _let_go(self, drive: Drive) -> None:
        with anyio.move_on_after(LET_GO_S):
            await drive.done.wait()
            return
        if self._drives.get(drive.key) is drive:
            del self._drives[drive.key]
            drive.done.set()
            self.wake(drive.key, first=True)
