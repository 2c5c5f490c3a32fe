"""State beyond one session: standing rules, the posture, what is wanted of the gateway.

They are facts like all others, in a session of their own whose name no door can say.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256

import anyio
from msgspec import field
from msgspec.json import encode

from holdfast.core.approval.approval import Level, PostureSeen, Standing
from holdfast.core.approval.rules import Permission
from holdfast.core.events import Record
from holdfast.core.life import lifecycle
from holdfast.core.session.session import Session, SessionOpened
from holdfast.core.types import OPERATOR, Fact, Owner, Part, SessionId, SessionKey
from holdfast.engine.commits import Commits
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Journal, Pending

KEY = SessionKey(OPERATOR, SessionId("/standing"))
_LIFE = lifecycle.Event.__args__


class Writing(Part):
    """A session of the gateway's own, ready to be added to without waiting."""

    _sessions: Sessions
    _loaded: LoadedSession | None
    _key: SessionKey

    @property
    def now(self) -> Session:
        """The session as it is now."""
        return self._loaded.session if self._loaded else Session(self._key)

    def add(self, facts: Sequence[Fact]) -> Pending | None:
        """Enqueue them; they are committed before whatever is enqueued next."""
        if not facts:
            return None
        first: tuple[SessionOpened, ...] = ()
        if self._loaded is None:
            key = self._key
            self._loaded = self._sessions.create(key)
            first = (SessionOpened(session_id=key.session_id, workspace="", platform="holdfast"),)
        return self._sessions.append(self._loaded, *first, *facts)

    async def record(self, *facts: Fact) -> None:
        """Append them; they are durable when this returns."""
        if (pending := self.add(facts)) is not None:
            await pending.wait()


class StandingRules(Part):
    """Standing rules and the posture, as known in memory."""

    _sessions: Sessions
    _journal: Journal
    rules: Sequence[Permission] = ()
    posture: Level | None = None
    _writing: anyio.Lock = field(default_factory=anyio.Lock)

    async def load(self) -> None:
        """Read what was said before. From then on the journal's commits keep it."""
        async with self._sessions.load(KEY) as loaded:
            self.rules = loaded.session.standing if loaded else ()
            self.posture = loaded.session.posture if loaded else None

    async def recorded(self) -> lifecycle.Recorded:
        """Read what was recorded of the gateway, by this process and earlier ones."""
        known = lifecycle.Recorded()
        if (row := await self._journal.stream_of(KEY)) is not None:
            for record in await self._journal.facts(row.stream, _LIFE, ()):
                if isinstance(record.fact, lifecycle.Event):
                    known = lifecycle.remember(known, record.fact, record.at)
        return known

    async def record(self, *facts: Fact) -> None:
        """Record facts about the gateway durably."""
        async with self.write() as standing:
            await standing.record(*facts)

    def subscribe(self, commits: Commits) -> None:
        """Get rules and the posture from the journal: they hold once they are committed."""
        commits.subscribe((Standing, PostureSeen), self._committed)

    def _committed(self, record: Record) -> None:
        fact = record.fact
        assert isinstance(fact, Standing | PostureSeen)
        if isinstance(fact, PostureSeen):
            self.posture = fact.level
            return
        others = tuple(p for p in self.rules if p != fact.permission)
        self.rules = others if fact.revoked else (*others, fact.permission)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Writing]:
        """Write to the gateway's session, one at a time, so that it is created once."""
        async with self._writing, self._sessions.load(KEY) as loaded:
            yield Writing(self._sessions, loaded, KEY)

    def named(self) -> dict[str, Permission]:
        """Each under a short name that stays the same."""
        return {_name(p): p for p in self.rules}

    async def allow(self, permission: Permission, by: Owner) -> str:
        """Add one, durably; return its name."""
        await self.record(Standing(permission=permission, by=by))
        return _name(permission)

    async def revoke(self, name: str, by: Owner) -> bool:
        """Take one back, durably; False: there is none of that name."""
        permission = self.named().get(name)
        if permission is None:
            return False
        await self.record(Standing(permission=permission, by=by, revoked=True))
        return True

    async def see(self, level: Level) -> None:
        """Work goes on at this posture."""
        if level is not self.posture:
            await self.record(PostureSeen(level=level))


def _name(permission: Permission) -> str:
    return sha256(encode(permission)).hexdigest()[:12]


class Reporter(Part):
    """Says how many runs are left, each time that is another number; never waits for the disk."""

    _standing: StandingRules
    _running: Callable[[], int]
    _said: int = -1

    async def draining(self) -> None:
        """Say it, if it is news. That none is left is for the end to say."""
        try:
            async with self._standing.write() as writing:
                now = self._running()
                news = now != self._said and (now > 0 or self._said < 0)
                if news:
                    self._said = now
                    state = lifecycle.ReportedState.DRAINING
                    writing.add((lifecycle.GatewayState(state=state, running=now),))
        except JournalUnavailable:
            return  # it only reports
