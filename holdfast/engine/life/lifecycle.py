"""The gateway's own life: its phase, and what the journal keeps of its starts and ends."""

import logging

import anyio

from holdfast.core.intents import Principal
from holdfast.core.life import lifecycle
from holdfast.core.life.lifecycle import LifecyclePhase, Recorded
from holdfast.core.run.run import CutCause
from holdfast.core.types import OPERATOR, Part
from holdfast.engine.clock import Clock
from holdfast.engine.life import drain
from holdfast.engine.life.distrust import Distrust
from holdfast.engine.life.gateway_state import Reporter, StandingRules
from holdfast.engine.permission import check_admin
from holdfast.engine.runs.approvals import Audit
from holdfast.engine.runs.coordinator import Coordinator
from holdfast.engine.sessions import Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.audit import entry_of
from holdfast.journal.journal import Journal

log = logging.getLogger(__name__)


class GatewayLife(Part):
    """One process over one journal: a gateway, or a terminal that embeds the engine."""

    _journal: Journal
    _sessions: Sessions
    _standing: StandingRules
    _clock: Clock
    _audit: Audit
    _version: str
    _retention_s: float
    _is_gateway: bool = False  # a terminal that embeds the engine records no state
    _started_at: float = 0.0
    phase: LifecyclePhase = LifecyclePhase.STARTING
    before: Recorded = Recorded()  # what the journal said of the gateway before this start

    def __post_init__(self) -> None:
        self._started_at = self._clock.now()

    @property
    def uptime_s(self) -> float:
        return self._clock.now() - self._started_at

    @property
    def restored_at(self) -> float:
        """The time of a restore, while an older key may still be repeated; else 0."""
        at = self.before.restored_at
        return at if at and self._clock.now() < at + self._retention_s else 0.0

    def change(self, change: lifecycle.Change) -> None:
        """Go to the next phase."""
        self.phase = lifecycle.evolve(self.phase, change)

    async def settle_doubt(self) -> None:
        """Record what follows if this start does not trust its journal."""
        if self._journal.doubt is not None:
            await Distrust(
                self._journal, self._sessions, self._clock, self._standing, self._audit
            ).settle()
            self.before = await self._standing.recorded()

    async def boots(self, start: lifecycle.StartedBy) -> bool:
        """Decide whether a gateway should serve at all; asked before any door opens."""
        known = self.before = await self._standing.recorded()
        if lifecycle.stays_down(start, known):
            return False
        self._is_gateway = True
        await self.record(*lifecycle.want_running(known, OPERATOR))
        return True

    async def booted(self) -> None:
        """Record that a gateway serves."""
        await self.record(lifecycle.GatewayBooted(version=self._version))

    async def record(self, *facts: lifecycle.Event) -> None:
        """Record what became of the process, if that can be done now."""
        try:
            with anyio.move_on_after(drain.RECORD_S, shield=True):
                await self._standing.record(*facts)
        except JournalUnavailable:
            log.warning("the state of the gateway could not be recorded")

    async def want(self, by: Principal, wanted: lifecycle.Wanted) -> None:
        """Record whether the operator wants it to run. Durable when this returns."""
        check_admin(by)
        await self._audit(entry_of(by, "gateway.wanted", result=wanted))
        await self._standing.record(lifecycle.GatewayWanted(wanted=wanted, by=by.owner))

    async def recorded(self, by: Principal) -> Recorded:
        """Return what is wanted of the gateway, and what it has recorded of itself."""
        check_admin(by)
        return await self._standing.recorded()

    async def drain(self, coordinator: Coordinator, wait_s: float, cause: CutCause) -> bool:
        """Let runs finish for `wait_s`, then interrupt the rest; whether all finished."""
        reporter = Reporter(self._standing, lambda: len(coordinator.active))
        report = reporter.draining if self._is_gateway else _report_nothing
        return await drain.drain(self._sessions, coordinator, self._clock, wait_s, cause, report)


async def _report_nothing() -> None:
    """A terminal that embeds the engine has no state to report."""
