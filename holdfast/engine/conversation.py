"""One conversation in a chat, as a command sees it: what it may look at, and what it may change.

What changes the chats themselves (a fresh session behind a key, the home) is left for the
command's own record, so that it is done once however often the command is taken. What it does
to a session is done at once, and harmless to do again.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from holdfast.core import access, address, answers, run, session, words
from holdfast.core.access import Denied
from holdfast.core.address import NoSuchSession, Why
from holdfast.core.approval import ApprovalRequested, Choice, Role
from holdfast.core.chats import HomeChosen, RestartAsked
from holdfast.core.inbox import Came, Mode
from holdfast.core.intents import Answer, Principal
from holdfast.core.messages import User
from holdfast.core.replies import SUPERSEDED
from holdfast.core.session import ModelChosen, SessionReopened, SessionSuspended, Undone
from holdfast.core.session import Status as SessionStatus
from holdfast.core.types import Fact, SessionId, SessionKey, Usage, Value
from holdfast.engine.chats import Chats, Place
from holdfast.engine.clock import Clock
from holdfast.engine.reads import view_of
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import Refused
from holdfast.gateway import ChatSession, ChatStatus, Gateway
from holdfast.journal.journal import Journal

FIRST_WORDS = 60  # characters of a session's first words


class Control(Protocol):
    """The process, as far as a chat may ask it for something."""

    @property
    def check(self) -> Callable[[], Awaitable[None]]:
        """Refuses, if it would not come back after a restart."""
        ...

    async def restart(self, by: Principal) -> None: ...


class Parts(Value):
    """What a conversation needs of the rest."""

    gateway: Gateway
    journal: Journal
    sessions: Sessions
    clock: Clock
    model: str  # that is configured
    control: Control | None  # None: there is no process to restart


class Conversation:
    """The conversation of one place, for the time of one command."""

    def __init__(self, parts: Parts, chats: Chats, place: Place) -> None:
        self.roles = place.by.roles
        self.facts: list[Fact] = []
        self.afterwards: list[Callable[[], Awaitable[None]]] = []
        self._parts = parts
        self._chats = chats
        self._place = place

    async def status(self) -> ChatStatus:
        """How things stand."""
        known = await self._chats.known()
        mode = address.busy_mode(known.keys, self._place.key, self._place.connected.busy)
        health = self._parts.gateway.health()
        async with self._parts.sessions.hold(await self._current()) as held:
            now = held.session if held else session.Session(await self._current())
            busy = session.current(now)
            asked = words.question(busy) if busy else None
            return ChatStatus(
                session_id=now.key.session_id,
                run=view_of(held, busy) if held and busy else None,
                steps=busy.steps if busy else 0,
                waiting=max(0, len(now.runs) - 1),
                question=busy.calls[asked].question if busy and asked else "",
                approvals=await self._answerable(held),
                busy_mode=mode,
                model=now.model or self._parts.model,
                suspended=now.status is SessionStatus.SUSPENDED,
                health=health,
                now=self._parts.clock.now(),
            )

    async def stop(self) -> int:
        """Stop what the speaker may stop, and leave the session if that is all; how many it is.

        One that is being stopped already counts too: the command may have been cut by a crash.
        """
        async with self._parts.sessions.hold(await self._current()) as held:
            if held is None or not held.session.runs:
                return 0
            theirs = await self._theirs(held)
            if not theirs:
                raise Refused("not_yours", access.NOTHING_TO_STOP)
            facts = _stopped(held, theirs, "Stopped in the chat")
            if len(theirs) == len(held.session.runs):  # else somebody works on in it
                facts.append(SessionSuspended(reason="stopped"))
            if facts:
                await self._parts.sessions.append(held, *facts).wait()
            return len(theirs)

    async def _theirs(self, held: Held) -> list[run.Run]:
        """The runs that the speaker may stop."""
        policy, sender = await self._chats.policy(), self._place.address.sender
        return [
            found
            for found in held.session.runs.values()
            if not isinstance(
                access.may_stop(policy, sender, words.works_for(held.session, found)), Denied
            )
        ]

    async def begin(self) -> None:
        """A fresh session from the next words on; what is at work is stopped."""
        async with self._parts.sessions.hold(await self._current()) as held:
            if held is not None:
                facts = _stopped(held, await self._theirs(held), SUPERSEDED)
                if facts:
                    await self._parts.sessions.append(held, *facts).wait()
        keys = (await self._chats.known()).keys
        reason = Why.FIRST if address.current(keys, self._place.key) is None else Why.NEW
        self.facts.append(address.begin(keys, self._place.key, reason))

    async def say(self, text: str, mode: Mode | None) -> None:
        """Words for the agent."""
        await self._chats.say(self._place, text, mode)

    async def choose_busy_mode(self, mode: Mode) -> None:
        """What a message does to a busy run here, from now on."""
        self.facts.append(address.BusyModeChosen(key=self._place.key, mode=mode))

    async def choose_model(self, name: str) -> str:
        """Another model of the same provider for this session; empty: the configured one."""
        provider = self._parts.model.partition("/")[0]
        asked, _, rest = name.partition("/")
        if name and rest and asked != provider:
            raise Refused("no_such_model", f"Only models of {provider} can be had here.")
        chosen = f"{provider}/{rest or name}" if name else ""
        key = SessionKey(self._place.by.owner, await self._chats.route(self._place))
        async with self._parts.sessions.hold(key) as held:
            if held is None:
                raise Refused("session_not_found", "Say something first, then choose.")
            fact = ModelChosen(model=chosen, by=self._place.by.who)
            await self._parts.sessions.append(held, fact).wait()
        return chosen or self._parts.model

    async def answer(self, choice: Choice, request_id: str) -> Choice:
        """Answer an approval of this conversation: the oldest, if none is named."""
        async with self._parts.sessions.hold(await self._current()) as held:
            waiting = await self._answerable(held)
        asked = next((a for a in waiting if request_id in ("", a.request_id)), None)
        if asked is None:
            raise Refused("nothing_to_answer", access.NOTHING_TO_ANSWER)
        came = self._place.came
        intent = Answer(self._place.by, asked.run_id, choice, asked.request_id, came=came)
        return (await self._parts.gateway.send(intent)).choice

    async def _answerable(self, held: Held | None) -> list[ApprovalRequested]:
        """What waits here for an approval that the speaker may give."""
        policy, sender = await self._chats.policy(), self._place.address.sender
        now = held.session if held else session.Session(await self._current())
        return [
            asked
            for found in now.runs.values()
            if not isinstance(
                access.may_answer(policy, sender, words.works_for(now, found)), Denied
            )
            for asked in (a.requested for a in answers.pending(now, found.id))
        ]

    async def retry(self) -> None:
        """Say again what was said last, in place of what came of it."""
        async with self._parts.sessions.hold(await self._current()) as held:
            said = _last_words(held)
        await self._chats.say(self._place, said, Mode.QUEUE, instead=True)

    async def undo(self) -> str:
        """Take back the last exchange; the words it began with."""
        async with self._parts.sessions.hold(await self._current()) as held:
            said = _last_words(held)
            assert held is not None
            fact = Undone(by=self._place.by.who, came=self._place.came)
            await self._parts.sessions.append(held, fact).wait()
        return said

    async def usage(self) -> Usage:
        """Tokens this session has spent."""
        key = await self._current()
        row = await self._parts.journal.stream_of(key)
        ended = run.RunCompleted, run.RunFailed, run.RunCancelled
        facts = await self._parts.journal.facts(row.stream, ended, ()) if row else []
        spent = Usage()
        for record in facts:
            spent += getattr(record.fact, "usage", Usage())
        async with self._parts.sessions.hold(key) as held:
            for found in held.session.runs.values() if held else ():
                spent += found.usage
        return spent

    async def sessions(self) -> Sequence[ChatSession]:
        """Every session this conversation has had, the oldest first."""
        known = (await self._chats.known()).keys
        chat = known.get(self._place.key)
        if chat is None:
            return ()
        current = address.current(known, self._place.key)
        begun = {b.session_id: b.at for b in reversed(chat.bound)}
        return [
            ChatSession(
                number=number,
                session_id=session_id,
                begun_at=begun[session_id],
                current=session_id == current,
                first_words=await self._first_words(session_id),
                now=self._parts.clock.now(),
            )
            for number, session_id in enumerate(chat.sessions, 1)
        ]

    async def _first_words(self, session_id: SessionId) -> str:
        async with self._parts.sessions.hold(self._key(session_id)) as held:
            said = held.transcript.whole() if held else ()
        first = next((m.text for m in said if isinstance(m, User)), "")
        return " ".join(first.split())[:FIRST_WORDS]

    async def resume(self, number: int | None) -> ChatSession:
        """Bring back an earlier session; None: the one before."""
        had = await self.sessions()
        wanted = next((s.session_id for s in had if s.number == number), None)
        if number is not None and wanted is None:
            raise Refused("session_not_found", f"There is no session {number} in this chat.")
        current = next((s for s in had if s.current), None)
        if current is not None and wanted in (None, current.session_id):
            # Taken with it: the same word again would bring back the one before.
            if await self._reopen(current.session_id, self._place.came):
                return current
        keys = (await self._chats.known()).keys
        bound = address.resume(keys, self._place.key, wanted)
        if isinstance(bound, NoSuchSession):
            raise Refused("session_not_found", bound.reason)
        await self._reopen(bound.session_id)
        self.facts.append(bound)
        return next(s for s in had if s.session_id == bound.session_id)

    async def _reopen(self, session_id: SessionId, came: Came | None = None) -> bool:
        """Lift its suspension; whether there was one."""
        async with self._parts.sessions.hold(self._key(session_id)) as held:
            if held is None or held.session.status is not SessionStatus.SUSPENDED:
                return False
            fact = SessionReopened(by=self._place.by.who, came=came)
            await self._parts.sessions.append(held, fact).wait()
            return True

    async def restart(self) -> None:
        """Restart the gateway, once it is written down who is to hear that it is back."""
        self._check_admin()
        control = self._parts.control
        if control is None:
            raise Refused("no_gateway", "Only a gateway can be restarted.")
        await control.check()
        self.facts.append(
            RestartAsked(
                address=self._place.address.place,
                reply_to=self._place.reply_to,
                by=self._place.by.who,
            )
        )
        self.afterwards.append(partial(control.restart, self._place.by))

    async def make_home(self) -> None:
        """Have the gateway speak here when nobody asked it anything."""
        self._check_admin()
        self.facts.append(HomeChosen(address=self._place.address.place, by=self._place.by.who))

    def _check_admin(self) -> None:
        if Role.ADMIN not in self.roles:
            raise Refused("admin_only", "Only an administrator may do that.")

    async def _current(self) -> SessionKey:
        keys = (await self._chats.known()).keys
        current = address.current(keys, self._place.key)
        return self._key(current or SessionId(self._place.key))

    def _key(self, session_id: SessionId) -> SessionKey:
        return SessionKey(self._place.by.owner, session_id)


def _stopped(held: Held, those: Sequence[run.Run], reason: str) -> list[Fact]:
    """What it takes to stop those of them that nobody has stopped yet."""
    asked = (r.id for r in those if not r.stop_reason)
    return [fact for run_id in asked for fact in session.stop(held.session, run_id, reason)]


def _last_words(held: Held | None) -> str:
    """What the last exchange began with; refused while something is at work."""
    if held is not None and held.session.runs:
        raise Refused("session_busy", "Something is at work here. /stop it first.")
    said = held.transcript.last_words() if held else ""
    if not said:
        raise Refused("nothing_said", "There is nothing here to take back.")
    return said
