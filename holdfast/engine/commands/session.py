"""One session, as a command sees it: what whoever speaks may look at there, and change.

It is the same at every door. A chat finds its session behind a key, and its lists say who may
do what; a terminal names its session, and the operator may do everything. What is done to a
session here is done at once: it is harmless to do again, or written down with the name by which
the command is known when it comes again.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from holdfast.core import access, answers, run, session, words
from holdfast.core.approval import ApprovalRequested, Choice, Role
from holdfast.core.inbox import Came, Mode
from holdfast.core.intents import Answer, Principal
from holdfast.core.messages import User
from holdfast.core.replies import SUPERSEDED
from holdfast.core.session import ModelChosen, SessionReopened, Undone
from holdfast.core.session import Status as SessionStatus
from holdfast.core.types import CallId, Fact, Owner, RunId, SessionKey, Usage, Value
from holdfast.engine.clock import Clock
from holdfast.engine.reads import view_of
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import Refused
from holdfast.gateway import ChatStatus, Gateway
from holdfast.journal.journal import Journal

FIRST_WORDS = 60  # characters of a session's first words

# Whether they may, by that role, have a say in a run that works for that owner.
May = Callable[[Role, Owner], bool]


class Control(Protocol):
    """The process, as far as a command may ask it for something."""

    @property
    def check(self) -> Callable[[], Awaitable[None]]:
        """Refuses, if it would not come back after a restart."""
        ...

    async def restart(self, by: Principal) -> None: ...


class Parts(Value):
    """What commands need of the rest."""

    gateway: Gateway
    journal: Journal
    sessions: Sessions
    clock: Clock
    model: str  # that is configured


class Dialogue:
    """One session, for the time of one command, and who speaks in it."""

    def __init__(
        self, parts: Parts, key: SessionKey, by: Principal, may: May, came: Came | None
    ) -> None:
        self.key = key
        self._parts = parts
        self._by = by
        self._may = may
        self._came = came  # by what the command is known when it comes again

    async def status(self, mode: Mode) -> ChatStatus:
        """How things stand, where `mode` is what words do to a busy run."""
        health = self._parts.gateway.health()
        async with self._parts.sessions.hold(self.key) as held:
            now = held.session if held else session.Session(self.key)
            busy = session.current(now)
            asked = words.question(busy) if busy else None
            return ChatStatus(
                session_id=self.key.session_id,
                run=view_of(held, busy) if held and busy else None,
                steps=busy.steps if busy else 0,
                waiting=max(0, len(now.runs) - 1),
                question=busy.calls[asked].question if busy and asked else "",
                approvals=self._answerable(now),
                busy_mode=mode,
                model=now.model or self._parts.model,
                suspended=now.status is SessionStatus.SUSPENDED,
                health=health,
                now=self._parts.clock.now(),
            )

    async def question(self) -> tuple[RunId, CallId] | None:
        """The run at work and its call, if that waits for an answer of the user's."""
        async with self._parts.sessions.hold(self.key) as held:
            busy = session.current(held.session) if held else None
            asked = words.question(busy) if busy else None
            return (busy.id, asked) if busy and asked else None

    async def stop(self, reason: str, *last: Fact) -> int:
        """Stop what the speaker may stop, and say `last` if that is all; how many it is.

        One that is being stopped already counts too: the command may have been cut by a crash.
        """
        async with self._parts.sessions.hold(self.key) as held:
            if held is None or not held.session.runs:
                return 0
            theirs = self._theirs(held)
            if not theirs:
                raise Refused("not_yours", access.NOTHING_TO_STOP)
            facts = _stopped(held, theirs, reason)
            if len(theirs) == len(held.session.runs):  # else somebody works on in it
                facts += last
            if facts:
                await self._parts.sessions.append(held, *facts).wait()
            return len(theirs)

    async def give_way(self) -> None:
        """Stop what the speaker may stop, because something else takes its place."""
        async with self._parts.sessions.hold(self.key) as held:
            if held is not None:
                facts = _stopped(held, self._theirs(held), SUPERSEDED)
                if facts:
                    await self._parts.sessions.append(held, *facts).wait()

    def _theirs(self, held: Held) -> list[run.Run]:
        """The runs that the speaker may stop."""
        now = held.session
        return [r for r in now.runs.values() if self._may(Role.RUN, words.works_for(now, r))]

    async def choose_model(self, chosen: str) -> str:
        """Another model for this session; empty: the configured one. Which it is now."""
        async with self._parts.sessions.hold(self.key) as held:
            if held is None:
                raise Refused("session_not_found", "Say something first, then choose.")
            fact = ModelChosen(model=chosen, by=self._by.who)
            await self._parts.sessions.append(held, fact).wait()
        return chosen or self._parts.model

    async def answer(self, choice: Choice, request_id: str) -> Choice:
        """Answer an approval of this session: the oldest, if none is named."""
        async with self._parts.sessions.hold(self.key) as held:
            waiting = self._answerable(held.session) if held else ()
        asked = next((a for a in waiting if request_id in ("", a.request_id)), None)
        if asked is None:
            raise Refused("nothing_to_answer", access.NOTHING_TO_ANSWER)
        intent = Answer(self._by, asked.run_id, choice, asked.request_id, came=self._came)
        return (await self._parts.gateway.send(intent)).choice

    def _answerable(self, now: session.Session) -> Sequence[ApprovalRequested]:
        """What waits here for an approval that the speaker may give."""
        return [
            asked.requested
            for found in now.runs.values()
            if self._may(Role.APPROVE, words.works_for(now, found))
            for asked in answers.pending(now, found.id)
        ]

    async def last_words(self) -> str:
        """What the last exchange began with; refused while something is at work."""
        async with self._parts.sessions.hold(self.key) as held:
            return _last_words(held)

    async def undo(self) -> str:
        """Take back the last exchange; the words it began with."""
        async with self._parts.sessions.hold(self.key) as held:
            said = _last_words(held)
            assert held is not None
            fact = Undone(by=self._by.who, came=self._came)
            await self._parts.sessions.append(held, fact).wait()
        return said

    async def usage(self) -> Usage:
        """Tokens this session has spent."""
        row = await self._parts.journal.stream_of(self.key)
        ended = run.RunCompleted, run.RunFailed, run.RunCancelled
        facts = await self._parts.journal.facts(row.stream, ended, ()) if row else []
        spent = Usage()
        for record in facts:
            spent += getattr(record.fact, "usage", Usage())
        async with self._parts.sessions.hold(self.key) as held:
            for found in held.session.runs.values() if held else ():
                spent += found.usage
        return spent

    async def first_words(self) -> str:
        """How it began, on one line."""
        async with self._parts.sessions.hold(self.key) as held:
            said = held.transcript.whole() if held else ()
        first = next((m.text for m in said if isinstance(m, User)), "")
        return " ".join(first.split())[:FIRST_WORDS]

    async def reopen(self, came: Came | None = None) -> bool:
        """Lift its suspension; whether there was one. `came`: that is all the command does."""
        async with self._parts.sessions.hold(self.key) as held:
            if held is None or held.session.status is not SessionStatus.SUSPENDED:
                return False
            fact = SessionReopened(by=self._by.who, came=came)
            await self._parts.sessions.append(held, fact).wait()
            return True


def named_model(configured: str, name: str) -> str:
    """The whole name of a model of the configured provider; empty: the configured one."""
    provider = configured.partition("/")[0]
    asked, _, rest = name.partition("/")
    if name and rest and asked != provider:
        raise Refused("no_such_model", f"Only models of {provider} can be had here.")
    return f"{provider}/{rest or name}" if name else ""


def _stopped(held: Held, those: Sequence[run.Run], reason: str) -> list[Fact]:
    """What it takes to stop those of them that nobody has stopped yet."""
    asked = (r.id for r in those if not r.stop_reason)
    return [fact for run_id in asked for fact in session.stop(held.session, run_id, reason)]


def _last_words(held: Held | None) -> str:
    """What the last exchange began with; refused while something is at work."""
    if held is not None and held.session.runs:
        raise Refused("session_busy", "Something is at work here. /stop it first.")
    said = held.transcript.last_words() if held else ""
    if held is None or not (said or held.transcript.last_images()):
        raise Refused("nothing_said", "There is nothing here to take back.")
    return said
