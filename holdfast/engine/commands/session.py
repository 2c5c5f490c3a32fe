"""One session, as a slash command sees it: what the sender may read and change there.

It is the same for chats and terminals. In a chat, the place determines the session, and the access
lists say who may do what. A terminal names its session, and the operator may do everything. Changes
of a session happen at once: they can be repeated without harm, or are recorded with the id of the
command, by which a repeated command is known.
"""

from collections.abc import Callable, Sequence

from holdfast.core.approval.approval import ApprovalRequested, Choice, Role
from holdfast.core.chat import access
from holdfast.core.inbox import Mode, UpdateRef
from holdfast.core.intents import Answer, Principal
from holdfast.core.messages import Message, User
from holdfast.core.run import run
from holdfast.core.session import answers, placement, session
from holdfast.core.session.compaction import Filling
from holdfast.core.session.replies import SUPERSEDED
from holdfast.core.session.rewind import (
    NO_POINT,
    NO_SUCH_POINT,
    Point,
    Rewind,
    RewindChoice,
    RewindDone,
)
from holdfast.core.session.session import ModelChosen, SessionReopened
from holdfast.core.session.session import SessionStatus as SessionStatus
from holdfast.core.types import CallId, Fact, Owner, ProcessId, RunId, SessionKey, Usage, Value
from holdfast.engine.commands.deps import CommandDeps
from holdfast.engine.reads import view_of
from holdfast.engine.runs.rewinding import RUN_ACTIVE
from holdfast.engine.sessions import LoadedSession
from holdfast.errors import Refused
from holdfast.gateway import ChatStatus, DiffQuery, FileDiff, ProcessView, RunQuery
from holdfast.models.model import Models

NO_SUCH_MODEL = "No such model here. Name one of {}, like /model PROVIDER/NAME; /model lists some."
NOTHING_YET = "This session has no messages yet."
MESSAGE_FIRST = "Send a message first, then choose the model."
NO_PROCESS = "No process of this session has that id, or several have. /ps lists them."
PROC = "proc_"  # begins every id of a process, and may be left out
PROCESS_OUTPUT = 4 * 1024  # bytes
LAST = "last"  # stands for the last run
RUNS = 100  # among which a run is looked for
NO_SUCH_RUN = "No run of this session has that id."
SEVERAL_RUNS = "Several runs of this session have ids that begin so; write more of it."
FIRST_WORDS = 60  # characters of a session's first message

# Tells whether the sender has that role for a run that works for that owner.
May = Callable[[Role, Owner], bool]


class CommandSession(Value):
    """One session and the sender, during one command."""

    _parts: CommandDeps
    key: SessionKey
    _by: Principal
    _may: May
    _came: UpdateRef | None  # identifies the command if it is sent again

    async def status(self, mode: Mode) -> ChatStatus:
        """Report the status; `mode` is what a message does to a busy run."""
        health = self._parts.gateway.health()
        async with self._parts.sessions.load(self.key) as loaded:
            now = loaded.committed() if loaded else session.Session(self.key)
            busy = session.current(now)
            asked = placement.question(busy) if busy else None
            read = loaded.transcript.files if loaded else None
            return ChatStatus(
                session_id=self.key.session_id,
                run=view_of(now, busy) if busy else None,
                steps=busy.steps if busy else 0,
                waiting=max(0, len(now.runs) - 1),
                question=busy.calls[asked].question if busy and asked else "",
                approvals=self._answerable(now),
                busy_mode=mode,
                model=now.model or self._parts.models.main.name,
                suspended=now.status is SessionStatus.SUSPENDED,
                health=health,
                now=self._parts.clock.now(),
                priced=self._parts.models.named(now.model).price.known,
                attempts=busy.attempts if busy else 0,
                retry_at=busy.retry_at if busy else 0.0,
                files=read.files if read else (),
            )

    async def question(self) -> tuple[RunId, CallId] | None:
        """Return the active run and its call that waits for an answer of the user, if any."""
        async with self._parts.sessions.load(self.key) as loaded:
            busy = session.current(loaded.session) if loaded else None
            asked = placement.question(busy) if busy else None
            return (busy.id, asked) if busy and asked else None

    async def stop(self, reason: str, *last: Fact) -> int:
        """Stop the runs that the sender may stop; append `last` if those are all. Return how many.

        A run that is being stopped already counts too: a crash may have cut the command.
        """
        stopped = 0

        def decide(loaded: LoadedSession | None) -> Sequence[Fact]:
            nonlocal stopped
            if loaded is None or not loaded.session.runs:
                return ()
            theirs = self._theirs(loaded)
            if not theirs:
                raise Refused("not_yours", access.NOTHING_TO_STOP)
            stopped = len(theirs)
            facts = _stopped(loaded, theirs, reason)
            return [*facts, *last] if stopped == len(loaded.session.runs) else facts

        await self._parts.sessions.change(self.key, decide)
        return stopped

    async def give_way(self) -> None:
        """Stop the runs that the sender may stop, because another one replaces them."""
        await self._parts.sessions.change(
            self.key,
            lambda loaded: _stopped(loaded, self._theirs(loaded), SUPERSEDED) if loaded else (),
        )

    def _theirs(self, loaded: LoadedSession) -> list[run.Run]:
        """Return the runs that the sender may stop."""
        now = loaded.session
        return [r for r in now.runs.values() if self._may(Role.RUN, placement.works_for(now, r))]

    async def choose_model(self, chosen: str) -> str:
        """Choose the model of this session (empty: the configured one), and return it."""

        def decide(loaded: LoadedSession | None) -> Sequence[Fact]:
            if loaded is None:
                raise Refused("session_not_found", MESSAGE_FIRST)
            return (ModelChosen(model=chosen, by=self._by.who),)

        await self._parts.sessions.change(self.key, decide)
        return chosen or self._parts.models.main.name

    async def answer(self, choice: Choice, request_id: str, reason: str = "") -> Choice:
        """Answer an approval of this session: the oldest, if none is named."""
        async with self._parts.sessions.load(self.key) as loaded:
            waiting = self._answerable(loaded.session) if loaded else ()
        asked = next((a for a in waiting if request_id in ("", a.request_id)), None)
        if asked is None:
            raise Refused("nothing_to_answer", access.NOTHING_TO_ANSWER)
        intent = Answer(
            *(self._by, asked.run_id, choice, asked.request_id), came=self._came, reason=reason
        )
        return (await self._parts.gateway.send(intent)).choice

    def _answerable(self, now: session.Session) -> Sequence[ApprovalRequested]:
        """List the approvals here that the sender may answer."""
        return [
            asked.requested
            for found in now.runs.values()
            if self._may(Role.APPROVE, placement.works_for(now, found))
            for asked in answers.pending(now, found.id)
        ]

    async def last_words(self) -> str:
        """Return the last message to the agent; refused while a run is active."""
        async with self._parts.sessions.load_whole(self.key) as loaded:
            return _last_words(loaded)

    async def points(self) -> Sequence[Point]:
        """Return the points that the session can go back to, oldest first."""
        return await self._parts.rewinder.points(self.key)

    async def rewind(self, asked: RewindChoice) -> RewindDone:
        """Go back to a point, or forth again."""
        point: RunId | None = None
        if asked.point is not None:
            found = (p.run_id for p in await self.points() if p.number == asked.point)
            if (point := next(found, None)) is None:
                raise Refused("no_such_point", NO_SUCH_POINT)
        wanted = Rewind(self._by, point, asked.what, asked.force, asked.redo, self._came)
        return await self._parts.rewinder.carry_out(self.key, wanted)

    async def usage(self) -> Usage:
        """Return the tokens that this session has used."""
        row = await self._parts.journal.stream_of(self.key)
        ended = run.RunCompleted, run.RunFailed, run.RunCancelled
        facts = await self._parts.journal.facts(row.stream, ended, ()) if row else []
        spent = Usage()
        for record in facts:
            spent += getattr(record.fact, "usage", Usage())
        async with self._parts.sessions.load(self.key) as loaded:
            for found in loaded.committed().runs.values() if loaded else ():
                spent += found.usage
        return spent

    async def diff(self, of: str) -> Sequence[FileDiff]:
        """Return the files that this session changed; `of` names one run, or is `last`."""
        gateway, session_id = self._parts.gateway, self.key.session_id
        if await self._parts.journal.stream_of(self.key) is None:
            return ()
        if not of:
            return await gateway.diff(self._by, DiffQuery(session_id=session_id))
        limit = 1 if of == LAST else RUNS
        runs, _ = await gateway.runs(self._by, RunQuery(session_id=session_id, limit=limit))
        match [r.run_id for r in runs if of == LAST or r.run_id.startswith(of)]:
            case [run_id]:
                return await gateway.diff(self._by, DiffQuery(run_id))
            case found:
                raise Refused("run_not_found", SEVERAL_RUNS if found else NO_SUCH_RUN)

    async def context(self) -> Filling:
        """Return what fills the model's window."""
        async with self._parts.sessions.load(self.key) as loaded:
            if loaded is None:
                raise Refused("nothing_said", NOTHING_YET)
            return self._parts.asking.filling(loaded)

    async def compact(self, focus: str) -> Filling | None:
        """Replace the beginning of what the model reads by notes; None: nothing to leave out."""
        async with self._parts.sessions.load(self.key) as loaded:
            if loaded is None:
                raise Refused("nothing_said", NOTHING_YET)
            _check_idle(loaded)
            done = await self._parts.asking.compact_now(loaded, focus)
            if done is None:
                return None
            _check_idle(loaded)  # it may have taken a while
            await self._parts.sessions.append(loaded, done).wait()
            return self._parts.asking.filling(loaded)

    async def processes(self) -> Sequence[ProcessView]:
        """Return the background processes of this session, oldest first, ended ones too."""
        background = self._parts.gateway.background
        return await background.listed(self._whose, self.key.session_id, ended=True)

    async def process_output(self, named: str) -> str:
        """Return the end of the output of a process of this session."""
        found = await self._process(named)
        return await self._parts.gateway.background.output(self._whose, found, PROCESS_OUTPUT)

    async def kill_process(self, named: str) -> ProcessView:
        """Kill a process of this session."""
        found = await self._process(named)
        return await self._parts.gateway.background.kill(self._whose, found)

    @property
    def _whose(self) -> Principal:
        """The sender, as a principal for the owner of this session."""
        return self._by if self._by.owner == self.key.owner else self._by.among(self.key.owner)

    async def _process(self, named: str) -> ProcessId:
        """Return the process of this session whose id is or begins with `named`."""
        known = [view.process.id for view in await self.processes()]
        match [p for p in known if p.removeprefix(PROC).startswith(named.removeprefix(PROC))]:
            case [found]:
                return found
            case _:
                raise Refused("process_not_found", NO_PROCESS)

    async def first_words(self) -> str:
        """Return the first message, on one line."""
        async with self._parts.sessions.load(self.key) as loaded:
            said: Sequence[Message] = ()
            if loaded is not None:
                said = (await self._parts.sessions.whole(loaded)).whole()
                await loaded.landed()
        first = next((m.text for m in said if isinstance(m, User)), "")
        return " ".join(first.split())[:FIRST_WORDS]

    async def reopen(self, came: UpdateRef | None = None) -> bool:
        """End its suspension; return whether there was one. `came`: the command does only that."""
        was_suspended = False

        def decide(loaded: LoadedSession | None) -> Sequence[Fact]:
            nonlocal was_suspended
            was_suspended = loaded is not None and loaded.session.status is SessionStatus.SUSPENDED
            return (SessionReopened(by=self._by.who, came=came),) if was_suspended else ()

        await self._parts.sessions.change(self.key, decide)
        return was_suspended


def named_model(models: Models, name: str) -> str:
    """Return the whole name of a model that is served; empty: the configured one."""
    chosen = models.full_name(name) if name else ""
    if name and not chosen:
        raise Refused("no_such_model", NO_SUCH_MODEL.format(", ".join(models.providers)))
    return chosen


def _stopped(loaded: LoadedSession, those: Sequence[run.Run], reason: str) -> list[Fact]:
    """Return the facts that stop those runs, except runs that are being stopped already."""
    asked = (r.id for r in those if not r.stop_reason)
    return [fact for run_id in asked for fact in session.stop(loaded.session, run_id, reason)]


def _check_idle(loaded: LoadedSession) -> None:
    if loaded.session.runs:
        raise Refused("session_busy", RUN_ACTIVE)


def _last_words(loaded: LoadedSession | None) -> str:
    """Return the last message to the agent; refused while a run is active."""
    if loaded is not None:
        _check_idle(loaded)
    said = loaded.transcript.last_input() if loaded else ""
    if loaded is None or not (said or loaded.transcript.last_images()):
        raise Refused("nothing_said", NO_POINT)
    return said
