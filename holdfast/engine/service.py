"""The front door, implemented: reads, intents, start and stop. It decides nothing."""

import logging
from functools import partial

from anyio.abc import TaskGroup

from holdfast.core.intents import Principal
from holdfast.core.life.lifecycle import (
    Change,
    GatewayState,
    LifecyclePhase,
    Reason,
    Recorded,
    StartedBy,
    Wanted,
    last_state,
)
from holdfast.core.run.run import CutCause, RunPhase
from holdfast.core.types import RunId
from holdfast.engine import timers
from holdfast.engine.administration import Administration
from holdfast.engine.changes import Changes
from holdfast.engine.commands.deps import CommandDeps
from holdfast.engine.deps import ServiceDeps
from holdfast.engine.intents.send import Intents
from holdfast.engine.life.audit_watch import AuditWatch
from holdfast.engine.life.gateway_state import StandingRules
from holdfast.engine.life.lifecycle import GatewayLife
from holdfast.engine.life.posture import PostureGate, PostureProbe
from holdfast.engine.messenger import Messenger, split
from holdfast.engine.reads import Reads
from holdfast.engine.sessions import Sessions
from holdfast.engine.work import Work
from holdfast.gateway import Health

log = logging.getLogger(__name__)


class Service(Reads):
    """The gateway's front door over one journal."""

    def __init__(self, deps: ServiceDeps, tasks: TaskGroup) -> None:
        journal, clock, chatting = deps.journal, deps.clock, deps.chatting
        self._audit = audit = AuditWatch(deps.audit)
        in_parts = partial(split, chatting.channels) if chatting else None
        sessions = Sessions(journal, clock, deps.redactor, in_parts)
        standing = StandingRules(sessions, journal)
        probe = PostureProbe(deps.hands)
        self._work = work = Work(deps, sessions, standing, audit, probe.name, tasks)
        changes = Changes(journal, deps.blobs, deps.redactor)
        super().__init__(journal, sessions, work.live, changes, work.children.made, work.watch)
        self._deps = deps
        self.clock = clock
        self._tasks = tasks
        self._standing = standing
        self._lag = timers.Lag(clock)
        self._life = GatewayLife(
            journal, sessions, standing, clock, audit, deps.version, deps.retention_s
        )
        self._posture = PostureGate(probe, standing, work.coordinator, clock, audit)
        self._intents = Intents(deps, work, self, self._life)
        self.send = self._intents.send
        self.control = control = deps.control(self._life) if deps.control else None
        commands = CommandDeps(
            self, journal, sessions, clock, deps.models, work.asking, work.rewinder
        )
        self.messenger: Messenger | None = None
        if chatting is not None:
            self.messenger = Messenger(chatting, commands, tasks, audit, control)
            self.messenger.outbox.subscribe(work.commits)
        outbox = self.messenger.outbox if self.messenger else None
        admin = Administration(
            deps, work, commands, self._intents.intake, audit, outbox, control, tasks
        )
        self.library, self.commands = admin.library, admin.commands
        self.background = admin.background
        self.session_admin, self.delivery_admin = admin.sessions, admin.deliveries
        self.rules, self.revoke = admin.rules.rules, admin.rules.revoke
        self.allow = admin.rules.allow
        self.accept_posture = self._posture.accept

    async def start(self, only: frozenset[RunId] | None = None) -> None:
        """Recover, then accept work. `only`: the runs to continue, if not all."""
        clock, start_soon = self.clock, self._tasks.start_soon
        self._life.change(Change.JOURNAL_OPENED)
        await self._work.processes.sweep()
        await self._standing.load()
        await self._life.settle_doubt()
        found = await self._work.start(only)
        start_soon(self._posture.begin)
        start_soon(self._lag.watch)
        start_soon(timers.nudge, self._live, clock)
        start_soon(self._intents.answers.watch)
        start_soon(timers.prune, self._journal, clock, self._deps.retention_s)
        self._life.change(Change.RECOVERED)
        if self.messenger is not None:
            await self.messenger.start(self._life.before)
        log.info("recovered", extra={"unfinished_runs": found})

    @property
    def restored_at(self) -> float:
        """The time of the restore, while older request keys may be repeated; otherwise 0."""
        return self._life.restored_at

    async def boots(self, start: StartedBy) -> bool:
        """Decide whether a gateway should serve at all; called before any door opens."""
        return await self._life.boots(start)

    async def booted(self) -> None:
        """Record that a gateway serves."""
        await self._life.booted()

    async def want(self, by: Principal, wanted: Wanted) -> None:
        """Record whether the operator wants it to run. Durable when this returns."""
        await self._life.want(by, wanted)

    async def recorded(self, by: Principal) -> Recorded:
        """Return the wanted state of the gateway, and the state that it recorded."""
        return await self._life.recorded(by)

    def refuse_work(self) -> None:
        """Accept no new work from now on."""
        self._life.change(Change.STOP_ASKED)

    async def stop(self, wait_s: float, cause: CutCause) -> None:
        """Stop driving runs and serving readers. The caller then closes the doors."""
        if self._life.phase is not LifecyclePhase.DRAINING:
            self.refuse_work()
        coordinator = self._work.coordinator
        if self.messenger is not None:
            running = [drive.run_id for drive in coordinator.active]
            reason = Reason.RESTART if cause is CutCause.RESTART else Reason.STOP
            await self.messenger.warn(running, reason)
        if not await self._life.drain(coordinator, wait_s, cause):
            await self._work.processes.kill_all(last=False)
        self._live.close()
        if self.messenger is not None:
            await self.messenger.stop()

    async def end(self, reason: Reason | None = None) -> None:
        """Finish the shutdown after the doors are closed: kill every process that is left.

        `reason` is given by a gateway, and decides which state it records.
        """
        await self._work.processes.kill_all(last=True)
        if reason is not None:
            running = len(self._work.coordinator.active)
            await self._life.record(GatewayState(state=last_state(reason), running=running))
        self._life.change(Change.ENDED)

    def health(self) -> Health:
        """Report the health of the gateway, from memory."""
        counts, messenger = self._sessions.counts, self.messenger
        return Health(
            status=self._life.phase,
            version=self._deps.version,
            model=self._deps.model_name,
            model_reason=self._deps.models.reason,
            models=tuple(candidate.name for candidate in self._deps.models.all),
            running=len(self._work.coordinator.active),
            queued=counts[RunPhase.QUEUED],
            waiting=counts[RunPhase.WAITING],
            loop_lag_ms=round(self._lag.ms, 1),
            journal=self._journal.state(),
            audit=self._audit.trouble or "ok",
            uptime_s=round(self._life.uptime_s, 1),
            sandbox=self._posture.sandbox,
            paused=self._posture.paused,
            held=self._work.search.trouble,
            channels=messenger.troubles if messenger else {},
            undelivered=messenger.undelivered if messenger else 0,
            sandbox_note=self._posture.note,
        )
