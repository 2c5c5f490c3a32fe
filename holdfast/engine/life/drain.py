"""The way down: stop driving, let finish, interrupt. One deadline for all of it.

Nothing correct depends on getting to the end of this: what is cut here is found by the
next start exactly as after a crash, only with a better reason written down.
"""

from collections.abc import Awaitable, Callable

import anyio

from holdfast.core.run.run import CutCause, RunInterrupted, RunPhase
from holdfast.engine.clock import Clock
from holdfast.engine.runs.coordinator import Coordinator, Drive
from holdfast.engine.sessions import Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Pending

LET_GO_S = 2.8  # for interrupted drives to clean up
RECORD_S = 2.0  # for the marks to reach the disk
REPORT_S = 0.3  # to say that it has begun

REASON = "Gateway shutting down"
RESTARTING = "Gateway restarting"


async def drain(
    sessions: Sessions,
    coordinator: Coordinator,
    clock: Clock,
    wait_s: float,
    cause: CutCause,
    report: Callable[[], Awaitable[None]],
) -> bool:
    """Let runs finish for `wait_s`, mark what is left as interrupted, then cancel it.

    `report` is called at the beginning, and when the number of what is driven may have changed.
    Returns whether all of them had finished by themselves.
    """
    coordinator.close()
    async with anyio.create_task_group() as counting:
        with anyio.move_on_after(REPORT_S):
            await report()
        for drive in coordinator.active:
            counting.start_soon(_count, drive, report)
        finished = await _let_finish(sessions, coordinator, clock, wait_s, cause)
        counting.cancel_scope.cancel()
    return finished


async def _count(drive: Drive, report: Callable[[], Awaitable[None]]) -> None:
    await drive.done.wait()
    await report()


async def _let_finish(
    sessions: Sessions, coordinator: Coordinator, clock: Clock, wait_s: float, cause: CutCause
) -> bool:
    with anyio.move_on_after(wait_s):
        await coordinator.drained()
    if not coordinator.active:
        return True
    marks = [mark for d in coordinator.active if (mark := _mark(sessions, d, clock, cause))]
    for drive in coordinator.active:
        drive.again = False
        drive.cancel()
    with anyio.move_on_after(RECORD_S, shield=True):
        for mark in marks:
            try:
                await mark.wait()
            except JournalUnavailable:
                break  # then the next start finds a crash instead
    with anyio.move_on_after(LET_GO_S, shield=True):
        await coordinator.drained()
    return False


def _mark(sessions: Sessions, drive: Drive, clock: Clock, cause: CutCause) -> Pending | None:
    """Say that the run was cut before it is. Only a run that is running then is marked."""
    found = drive.run_id and sessions.running(drive.run_id)
    if not found or found[1].status is not RunPhase.RUNNING:
        return None
    loaded, run = found
    reason = RESTARTING if cause is CutCause.RESTART else REASON
    fact = RunInterrupted(run_id=run.id, cause=cause, reason=reason, cut_at=clock.now())
    try:
        return sessions.append(loaded, fact)
    except JournalUnavailable:
        return None
