"""Quarantine: find the run that ends the process, by letting held runs go on bit by bit.

The journal keeps which runs are held, and why; core/run/quarantine.py decides which go on next.
This looks after them once a second, for as long as a run is held.
"""

import logging
from collections.abc import Sequence

import anyio

from holdfast.core.run.quarantine import Release, release
from holdfast.core.run.run import Run, RunCleared, RunIsolated, RunPhase, RunRequeued
from holdfast.core.session.session import OnStart
from holdfast.core.types import Fact, RunId, SessionKey
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import JournalUnavailable

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
RELEASE = "holdfast sessions release"


class Search:
    """The runs that are held, and those that may be the cause and go on."""

    def __init__(self, sessions: Sessions, clock: Clock, policy: OnStart) -> None:
        self._sessions = sessions
        self._clock = clock
        self._policy = policy
        self._held: dict[RunId, SessionKey] = {}
        self._driven: dict[RunId, SessionKey] = {}
        self._some = anyio.Event()

    @property
    def trouble(self) -> str:
        """Explain how many runs are held, why, and what to do; empty: none."""
        if not self._held:
            return ""
        return (
            f"{len(self._held)} of the runs that were cut are held, for 10 minutes at most: the "
            "process ended several times in a row, and one of them may be why. They go on bit by "
            f"bit; all at once with: {RELEASE}"
        )

    def notice(self, held: LoadedSession) -> None:
        """A session was brought back: some of its runs may concern us."""
        for found in held.session.runs.values():
            if found.held_until:
                self._held[found.id] = held.key
            elif found.cuts:
                self._driven[found.id] = held.key
        if self._held and not self._some.is_set():
            log.warning("runs are held", extra={"held": len(self._held)})
            self._some.set()

    async def watch(self) -> None:
        """For as long as the process lives: let those go on who may."""
        while True:
            await self._some.wait()
            await self._clock.sleep(LOOK_EVERY_S)
            try:
                await self._look()
            except JournalUnavailable:
                continue
            if not self._held:
                log.info("no run is held any more")
                self._some = anyio.Event()

    async def end(self) -> int:
        """Let every held run go on and forget its earlier cuts; how many there were."""
        held = await self._found(self._held)
        if held:
            await self._let_go(Release(tuple(r.id for r in held), over=True))
        return len(held)

    async def _look(self) -> None:
        held = [r for r in await self._found(self._held) if r.held_until]
        self._held = {r.id: self._held[r.id] for r in held}
        if not held:
            return
        driven = await self._found(self._driven)
        decided = release(held, driven, self._clock.now())
        if decided is None:
            return
        for run in driven:
            if run.isolated:  # before it is true: a crash now must not be put down to it
                await self._record(run.id, RunIsolated(run_id=run.id, alone=False))
        await self._let_go(decided)

    async def _found(self, those: dict[RunId, SessionKey]) -> list[Run]:
        """Those of them that have not ended."""
        found: list[Run] = []
        for run_id, key in tuple(those.items()):
            async with self._sessions.load(key) as held:
                if held is not None and run_id in held.session.runs:
                    found.append(held.session.runs[run_id])
                else:
                    those.pop(run_id, None)
        return found

    async def _let_go(self, decided: Release) -> None:
        if decided.over:
            for run_id in tuple(self._driven):
                await self._record(run_id, RunCleared(run_id=run_id))
        for run_id in decided.runs:
            await self._record(run_id, *self._released(run_id, decided))
            self._driven[run_id] = self._held.pop(run_id)
        log.info("held runs go on", extra={"runs": len(decided.runs), "held": len(self._held)})

    def _released(self, run_id: RunId, decided: Release) -> tuple[Fact, ...]:
        cleared, requeued = RunCleared(run_id=run_id), RunRequeued(run_id=run_id)
        if self._policy is not OnStart.RESUME:
            return (cleared,)  # its user's next words let it go on
        if decided.over:
            return (cleared, requeued)
        return (RunIsolated(run_id=run_id), requeued) if decided.isolated else (requeued,)

    async def _record(self, run_id: RunId, *facts: Fact) -> None:
        key = self._held.get(run_id) or self._driven[run_id]

        def decide(loaded: LoadedSession | None) -> Sequence[Fact]:
            now = loaded.session.runs.get(run_id) if loaded else None
            if now is None:
                return ()
            decided = facts
            if now.status is not RunPhase.INTERRUPTED:  # it goes on already
                decided = tuple(f for f in decided if not isinstance(f, RunRequeued))
            if now.status is RunPhase.WAITING:
                decided = tuple(f for f in decided if not isinstance(f, RunIsolated))
            return decided

        await self._sessions.change(key, decide)
