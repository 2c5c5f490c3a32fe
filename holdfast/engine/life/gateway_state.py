"""What holds beyond one session: permissions, the posture work goes on at, what is wanted of us.

They are facts like all others, in a session of their own whose name no door can say.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256

import anyio
from msgspec.json import encode

from holdfast.core import lifecycle
from holdfast.core.approval import Level, PostureSeen, Standing
from holdfast.core.rules import Permission
from holdfast.core.session import Session, SessionOpened
from holdfast.core.types import OPERATOR, Fact, Owner, SessionId, SessionKey
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Conflict, Journal, Pending

KEY = SessionKey(OPERATOR, SessionId("/standing"))
_LIFE = lifecycle.Event.__args__


class Writing:
    """A session of the gateway's own, ready to be added to without waiting."""

    def __init__(self, sessions: Sessions, held: Held | None, key: SessionKey) -> None:
        self._sessions = sessions
        self._held = held
        self._key = key

    @property
    def now(self) -> Session:
        """What it says so far."""
        return self._held.session if self._held else Session(self._key)

    def add(self, facts: Sequence[Fact]) -> Pending | None:
        """Enqueue them; they are committed before whatever is enqueued next."""
        if not facts:
            return None
        first: tuple[SessionOpened, ...] = ()
        if self._held is None:
            key = self._key
            self._held = self._sessions.create(key)
            first = (SessionOpened(session_id=key.session_id, workspace="", platform="holdfast"),)
        return self._sessions.append(self._held, *first, *facts)


class StandingRules:
    """What always holds, as far as it is known in memory."""

    def __init__(self, sessions: Sessions, journal: Journal) -> None:
        self._sessions = sessions
        self._journal = journal
        self.rules: Sequence[Permission] = ()
        self.posture: Level | None = None
        self._writing = anyio.Lock()

    async def load(self) -> None:
        """Read what was said before. From then on `committed` keeps it."""
        async with self._sessions.hold(KEY) as held:
            self.rules = held.session.standing if held else ()
            self.posture = held.session.posture if held else None

    async def recorded(self) -> lifecycle.Recorded:
        """What was said of the gateway, by this process and those before it."""
        known = lifecycle.Recorded()
        if (row := await self._journal.stream_of(KEY)) is not None:
            for record in await self._journal.facts(row.stream, _LIFE, ()):
                if isinstance(record.fact, lifecycle.Event):
                    known = lifecycle.remember(known, record.fact, record.at)
        return known

    async def say(self, *facts: lifecycle.Event) -> None:
        """Write down, durably, what became of the gateway or is wanted of it."""
        async with self.hold() as standing:
            if (pending := standing.add(facts)) is not None:
                await pending.wait()

    def committed(self, fact: Standing | PostureSeen) -> None:
        """On the loop, after its commit: it holds, whether whoever said it has left or not."""
        if isinstance(fact, PostureSeen):
            self.posture = fact.level
            return
        others = tuple(p for p in self.rules if p != fact.permission)
        self.rules = others if fact.revoked else (*others, fact.permission)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Writing]:
        """For somebody who may say more; one at a time, so that it is made once."""
        async with self._writing, self._sessions.hold(KEY) as held:
            yield Writing(self._sessions, held, KEY)

    def named(self) -> dict[str, Permission]:
        """Each under a short name that stays the same."""
        return {sha256(encode(p)).hexdigest()[:12]: p for p in self.rules}

    async def revoke(self, name: str, by: Owner) -> bool:
        """Take one back, durably; False: there is none of that name."""
        permission = self.named().get(name)
        if permission is None:
            return False
        async with self.hold() as standing:
            facts = (Standing(permission=permission, by=by, revoked=True),)
            if (pending := standing.add(facts)) is not None:
                await pending.wait()
        return True

    async def see(self, level: Level) -> None:
        """Work goes on at this posture."""
        if level is not self.posture:
            async with self.hold() as standing:
                if (pending := standing.add((PostureSeen(level=level),))) is not None:
                    await pending.wait()


class Reporter:
    """Says how many runs are left, each time that is another number; never waits for the disk."""

    def __init__(self, standing: StandingRules, running: Callable[[], int]) -> None:
        self._standing = standing
        self._running = running
        self._said = -1

    async def draining(self) -> None:
        """Say it, if it is news. That none is left is for the end to say."""
        try:
            async with self._standing.hold() as writing:
                now = self._running()
                news = now != self._said and (now > 0 or self._said < 0)
                if news:
                    self._said = now
                    state = lifecycle.State.DRAINING
                    writing.add((lifecycle.GatewayState(state=state, running=now),))
        except (JournalUnavailable, Conflict):
            return  # it only reports
