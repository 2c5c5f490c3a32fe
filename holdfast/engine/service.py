"""The front door, implemented. It decides nothing: it looks, appends and reads.

What happens after an append does not depend on whoever asked for it: the session is
woken, and a stopped run interrupted, when the journal says that the fact is committed.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, assert_never, overload

import anyio
from anyio.abc import TaskGroup

from holdfast.commands.command import Command
from holdfast.core import answers, call, lifecycle, rules, run, session, words
from holdfast.core.approval import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalRequested,
    Choice,
    Level,
    Posture,
    PostureSeen,
    Standing,
    is_weaker,
    weigh,
)
from holdfast.core.chats import UpdateTaken
from holdfast.core.child import ChildEnded
from holdfast.core.events import Record
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
from holdfast.core.redaction import Redactor
from holdfast.core.run import RunQueued, RunRequeued, StopAsked
from holdfast.core.types import OPERATOR, RunId, SessionKey, Value
from holdfast.engine import dialogue, drain, timers
from holdfast.engine.calls import Calls
from holdfast.engine.children import Children
from holdfast.engine.clerk import Clerk
from holdfast.engine.clock import Clock
from holdfast.engine.coordinator import Coordinator
from holdfast.engine.desk import Desk
from holdfast.engine.intake import Defaults, Intake
from holdfast.engine.keeper import Keeper
from holdfast.engine.keeper import check_admin as _check_admin
from holdfast.engine.library import Library
from holdfast.engine.live import Live
from holdfast.engine.messenger import Chatting, Messenger, split
from holdfast.engine.outbox import Outbox
from holdfast.engine.permits import Audit, Permits, Policy
from holdfast.engine.processes import Processes
from holdfast.engine.reads import Reads
from holdfast.engine.recover import Recovery
from holdfast.engine.runner import Runner
from holdfast.engine.search import Search
from holdfast.engine.sessions import Held, Sessions
from holdfast.engine.standing import Reporter, StandingRules
from holdfast.engine.steering import Steering
from holdfast.engine.stops import Stops
from holdfast.errors import JournalUnavailable, Refused, ToolFailed
from holdfast.gateway import Health
from holdfast.journal.audit import Entry
from holdfast.journal.journal import Conflict, Journal
from holdfast.models.model import Model, ToolSpec
from holdfast.tools.tool import BlobStore, Hands, Tool, schema

log = logging.getLogger(__name__)

RETRY_CONFLICTS = 5
PROBE_AGAIN_S = 3.0  # where commands' sandbox could not be tried


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
    policy: Policy
    version: str
    redactor: Redactor
    hands: Hands
    audit: Audit
    chatting: Chatting | None = None  # None: no gateway, but a terminal that embeds us
    commands: Callable[[], Mapping[str, Command]] = dict  # the operator's, at first use


class Service(Reads):
    """The gateway's front door over one journal."""

    def __init__(self, parts: Parts, tasks: TaskGroup) -> None:
        chatting = parts.chatting
        in_parts = partial(split, chatting.channels) if chatting else None
        sessions = Sessions(parts.journal, parts.clock, parts.redactor, in_parts)
        super().__init__(
            parts.journal,
            sessions,
            Live(),
            lambda child: self._children.made(child),
            self._see_to,
        )
        self._before = lifecycle.Recorded()  # what was known of the gateway before this start
        self._parts = parts
        self._tasks = tasks
        self._status = lifecycle.Status.STARTING
        self._started_at = parts.clock.now()
        self._is_gateway = False  # it has a state to tell; a terminal that embeds us has none
        self._posture: Posture | None = None
        self._paused = ""
        self._accepted = False  # work goes on at the posture there is
        self._lag = timers.Lag(parts.clock)
        self._expiries = timers.Expiries()
        self._standing = StandingRules(sessions, parts.journal)
        self._permits = Permits(
            parts.clock, parts.policy, lambda: self._standing.rules, parts.audit
        )
        self._processes = Processes(sessions, parts.clock, parts.hands, tasks, parts.model_name)
        defaults = Defaults(parts.model_name, parts.home, parts.workspace_roots)
        self._intake = Intake(parts.journal, sessions, parts.clock, parts.limits, defaults)
        self.library = Library(parts.journal, sessions, parts.model_name, self._intake.workspace)
        self._coordinator = Coordinator(
            tasks, self._runner().drive, self._broken, self._orphaned, parts.limits.running
        )
        self._recovery = Recovery(
            parts.journal, sessions, self._coordinator, parts.clock, parts.on_start, self._notice
        )
        self._stops = Stops(sessions, parts.journal, self._unfinished)
        self._steering = Steering(sessions, parts.journal, self._unfinished)
        self._search = Search(sessions, parts.clock, parts.on_start)
        self.keeper = Keeper(parts.journal, sessions, self._search, parts.audit)
        need, model = self._recovery.need, parts.model_name
        self._children = Children(sessions, parts.journal, parts.clock, tasks, model, need)
        self.messenger: Messenger | None = None
        if chatting is not None:
            self.messenger = Messenger(
                chatting,
                self,
                parts.journal,
                sessions,
                parts.clock,
                tasks,
                parts.model_name,
                parts.audit,
            )
        seats = dialogue.Parts(self, parts.journal, sessions, parts.clock, model)
        self.desk = Desk(seats, parts.commands, self._needed)
        self.clerk = Clerk(self.messenger.outbox if self.messenger else self._unsent(), parts.audit)
        parts.journal.on_commit(self._committed)

    def _unsent(self) -> Outbox:
        """Without channels it is never started: what is said of messages is only written down."""
        parts = self._parts
        return Outbox(parts.journal, self._sessions, parts.clock, {}, self._tasks)

    def _runner(self) -> Runner:
        parts = self._parts
        calls = Calls(
            parts.tools,
            parts.blobs,
            parts.clock,
            self._sessions,
            self._permits,
            parts.redactor,
            parts.home / "workspaces",
            self._processes.begun,
        )
        return Runner(
            self._sessions,
            calls,
            parts.model,
            parts.model_name,
            [ToolSpec(t.name, t.description, schema(t.arguments)) for t in parts.tools],
            parts.clock,
            parts.limits,
            lambda: self._coordinator.admitting,
            parts.redactor,
            self._find_posture,
            self._processes.end_of,
        )

    async def start(self, only: frozenset[RunId] | None = None) -> None:
        """The way up. Afterwards new work is taken. `only`: the runs to bring back, if not all."""
        self._change(lifecycle.Change.JOURNAL_OPENED)
        await self._processes.sweep()
        await self._standing.load()
        found = await self._recovery.start(only)
        await self._children.start(aside=only is not None)
        await self._processes.start()
        self._tasks.start_soon(self._begin)
        self._tasks.start_soon(self._recovery.tend)
        self._tasks.start_soon(self._search.watch)
        self._tasks.start_soon(self._processes.tend)
        self._tasks.start_soon(self._lag.watch)
        self._tasks.start_soon(timers.nudge, self._live, self._parts.clock)
        self._tasks.start_soon(self._expiries.watch, self._parts.clock, self._expire)
        self._tasks.start_soon(
            timers.prune, self._journal, self._parts.clock, self._parts.retention_s
        )
        self._change(lifecycle.Change.RECOVERED)
        if self.messenger is not None:
            await self.messenger.start(self._before)
        log.info("recovered", extra={"unfinished_runs": found})

    async def boots(self, start: lifecycle.Start) -> bool:
        """Whether a gateway is to serve at all; asked before any door opens."""
        known = self._before = await self._standing.recorded()
        if lifecycle.stays_down(start, known):
            return False
        self._is_gateway = True
        await self._say(*lifecycle.take_back(known, OPERATOR))
        return True

    async def booted(self) -> None:
        """Write down that a gateway serves; nobody waits for that."""
        await self._say(lifecycle.GatewayBooted(version=self._parts.version))

    async def _say(self, *facts: lifecycle.Event) -> None:
        """Write down what became of the process, if that can be done now."""
        try:
            with anyio.move_on_after(drain.RECORD_S, shield=True):
                await self._standing.say(*facts)
        except (JournalUnavailable, Conflict):
            log.warning("the state of the gateway could not be written down")

    async def want(self, by: Principal, wanted: lifecycle.Wanted) -> None:
        """The operator's word on whether it is to run. Durable when this returns."""
        _check_admin(by)
        await self._parts.audit(
            Entry(kind="gateway.wanted", who=by.owner, platform=by.platform, result=wanted)
        )
        await self._standing.say(lifecycle.GatewayWanted(wanted=wanted, by=by.owner))

    async def recorded(self, by: Principal) -> lifecycle.Recorded:
        """What is wanted of the gateway, and what it has said of itself."""
        _check_admin(by)
        return await self._standing.recorded()

    async def _find_posture(self) -> str:
        """How well commands are confined, in a word. `Refused` while nobody can find out."""
        if self._posture is None:
            try:
                self._posture = await self._parts.hands.posture()
            except ToolFailed as unknown:
                raise Refused(
                    "gateway_starting", str(unknown), retry_after_s=PROBE_AGAIN_S
                ) from unknown
        level = self._posture.level
        return level.name if level else "UNSANDBOXED"

    async def _begin(self) -> None:
        """Let work begin, unless commands are confined worse than when it went on last.

        It is held until that is known.
        """
        while self._posture is None:
            try:
                await self._find_posture()
            except Refused as unknown:
                if not self._paused:
                    log.warning("work is held", extra={"reason": str(unknown)})
                self._paused = str(unknown)
                await self._parts.clock.sleep(PROBE_AGAIN_S)
        self._paused = ""
        if self._accepted:
            return
        before, now = self._standing.posture, self._posture.level
        if is_weaker(before, now):
            assert before is not None
            self._paused = (
                f"commands were confined at {before.name} and now are at {now.name}; "
                "to go on all the same: holdfast sandbox accept"
            )
            log.warning("work is paused", extra={"reason": self._paused})
            return
        await self._go_on(now)

    async def _go_on(self, level: Level) -> None:
        self._paused, self._accepted = "", True
        try:
            await self._standing.see(level)
        except (JournalUnavailable, Conflict):
            log.warning("the posture could not be written down")  # the next start will try again
        self._coordinator.begin()

    def rules(self, by: Principal) -> dict[str, str]:
        """What the operator has permitted for good: a name for each, and its words."""
        _check_admin(by)
        return {name: rules.shown(rule) for name, rule in self._standing.named().items()}

    async def revoke(self, by: Principal, name: str) -> None:
        """Take one of them back."""
        _check_admin(by)
        await self._parts.audit(
            Entry(kind="rule.revoked", who=by.owner, platform=by.platform, rule=name)
        )
        if not await self._standing.revoke(name, by.owner):
            raise Refused("rule_not_found", f"There is no rule {name}.")

    async def accept_posture(self, by: Principal) -> None:
        """The operator's word: go on, however well commands are confined here."""
        _check_admin(by)
        await self._find_posture()
        assert self._posture is not None
        await self._parts.audit(
            Entry(
                kind="sandbox.accepted",
                who=by.owner,
                platform=by.platform,
                posture=self._posture.level.name,
                result=self._posture.note,
            )
        )
        await self._go_on(self._posture.level)

    def refuse_work(self) -> None:
        """From now on nothing new is taken."""
        self._change(lifecycle.Change.STOP_ASKED)

    async def stop(self, wait_s: float, cause: run.Cause) -> None:
        """The way down. Afterwards nothing is driven and nobody reads; then close the doors."""
        if self._status is not lifecycle.Status.DRAINING:
            self.refuse_work()
        if self.messenger is not None:
            running = [drive.run_id for drive in self._coordinator.active]
            restarts = cause is run.Cause.RESTART
            reason = lifecycle.Reason.RESTART if restarts else lifecycle.Reason.STOP
            await self.messenger.warn(running, reason)
        reporter = Reporter(self._standing, lambda: len(self._coordinator.active))
        report = reporter.draining if self._is_gateway else _unsaid
        clock = self._parts.clock
        if not await drain.drain(self._sessions, self._coordinator, clock, wait_s, cause, report):
            await self._processes.kill_all(last=False)
        self._live.close()
        if self.messenger is not None:
            await self.messenger.stop()

    async def end(self, reason: lifecycle.Reason | None = None) -> None:
        """The last of the way down, with all doors closed: no process of ours lives on.

        `reason` is a gateway's, and decides which state it leaves.
        """
        await self._processes.kill_all(last=True)
        if reason is not None:
            state, running = lifecycle.last_state(reason), len(self._coordinator.active)
            await self._say(lifecycle.GatewayState(state=state, running=running))
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
                            key = SessionKey(intent.by.owner, intent.session_id)
                            await self._needed(intent.by, key)
                        return await self._intake.submit(intent, self._status)
                    case Stop():
                        return await self._stops.stop(intent)
                    case Steer():
                        return await self._steering.steer(intent)
                    case Answer():
                        return await self._answer(intent)
                    case _:
                        assert_never(intent)
            except Conflict:
                continue  # somebody appended meanwhile: look again, decide again
        raise JournalUnavailable("the session is busy; try again", retry_after_s=1)

    async def _needed(self, by: Principal, key: SessionKey) -> None:
        """Somebody has something to do with a session that may have been left aside."""
        if by.visits and self.messenger is None:  # what its chat is to hear, nobody here could say
            why = "It goes on in a chat, which only a gateway serves: holdfast gateway start"
            raise Refused("no_gateway", why)
        await self._recovery.need(key)
        await self._children.need(key)

    async def _see_to(self, by: Principal, key: SessionKey) -> None:
        """Somebody follows a session that may have been left aside."""
        # What a chat is to hear of its runs, nobody could say but a gateway.
        if key.owner == by.who or self.messenger is not None:
            await self._recovery.watch(key)
            await self._children.need(key)

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
            sandbox="" if self._posture is None else self._posture.level.name,
            paused=self._paused,
            held=self._search.trouble,
            channels=self.messenger.troubles if self.messenger else {},
            undelivered=self.messenger.undelivered if self.messenger else 0,
            sandbox_note=(self._paused or "not known yet")
            if self._posture is None
            else self._posture.note,
        )

    async def _answer(self, intent: Answer) -> Answered:
        try:
            key = await self._unfinished(intent.by, intent.run_id)
        except Refused as refused:
            if refused.code == "run_ended":
                raise _over() from None
            raise
        choice = weigh(intent.choice, intent.by.roles)
        given = answers.Given(intent.run_id, choice, intent.by.who, intent.request_id, intent.every)
        async with self._standing.hold() as standing, self._sessions.hold(key) as held:
            if held is None or intent.run_id not in held.session.runs:
                raise _over()
            await self._note(held, intent, choice, "approval.answer")
            try:
                now = self._parts.clock.now()
                facts, resolved = answers.answer(held.session, given, now)
            except Refused as refused:
                await self._note(held, intent, choice, "approval.refused", refused.code)
                raise
            stands = answers.stands(held.session, given, now)
            taken = () if intent.came is None else (UpdateTaken(came=intent.came),)
            pending = self._sessions.append(held, *facts, *taken)
            standing.add(stands)
            await pending.wait()
        return Answered(intent.run_id, choice, resolved)

    async def _note(
        self, held: Held, intent: Answer, choice: Choice, kind: str, result: str = ""
    ) -> None:
        """An answer is in the audit before it counts."""
        asked = intent.request_id or ("all" if intent.every else "oldest")
        who = f"{intent.by.who} ({intent.by.platform})"
        await self._permits.note(
            kind, held, intent.run_id, request_id=asked, choice=choice, rule=who, result=result
        )

    async def _expire(self, key: SessionKey) -> None:
        """What the clock says to requests nobody has answered."""
        async with self._sessions.hold(key) as held:
            if held is None:
                return
            if facts := answers.expire(held.session, self._parts.clock.now()):
                await self._sessions.append(held, *facts).wait()
                for fact in facts:
                    if isinstance(fact, ApprovalExpired):
                        await self._permits.note(
                            "approval.expired", held, fact.run_id, request_id=fact.request_id
                        )

    async def _unfinished(self, by: Principal, run_id: RunId) -> SessionKey:
        """The session of a run that has not ended."""
        if (found := self._sessions.running(run_id)) is not None and by.sees(found[0].key.owner):
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
        self._permits.committed(records)
        self._children.committed(records)
        if self.messenger is not None:
            self.messenger.committed(records)
        for record in records:
            fact = record.fact
            if not isinstance(fact, _CONSEQUENTIAL):
                continue
            if isinstance(fact, Standing | PostureSeen):
                self._standing.committed(fact)
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
        self._search.notice(held)
        self._children.notice(held)
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
            given_up, next_one = (
                session.give_up(now, failed.code),
                words.passed_on(held.session, now),
            )
            await self._sessions.append(held, *given_up, failed, *next_one).wait()

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
    call.CallAnswered,
    ChildEnded,
    ApprovalDenied,
    ApprovalExpired,
    Standing,
    PostureSeen,
)


async def _unsaid() -> None:
    """A terminal that embeds the engine has no state to tell."""


def _over() -> Refused:
    return Refused("approval_not_active", "The run is over.")
