"""What holds beyond one session: the operator's permissions, and the posture work goes on at.

They are facts like all others, in a session of their own whose name no door can say.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256

from msgspec.json import encode

from holdfast.core.approval import Level, PostureSeen, Standing
from holdfast.core.rules import Permission
from holdfast.core.session import SessionOpened
from holdfast.core.types import OPERATOR, Owner, SessionId, SessionKey
from holdfast.engine.sessions import Held, Sessions
from holdfast.journal.journal import Pending

KEY = SessionKey(OPERATOR, SessionId("/standing"))


class Writing:
    """The session that keeps them, ready to be added to without waiting."""

    def __init__(self, sessions: Sessions, held: Held | None) -> None:
        self._sessions = sessions
        self._held = held

    def add(self, facts: Sequence[Standing | PostureSeen]) -> Pending | None:
        """Enqueue them; they are committed before whatever is enqueued next."""
        if not facts:
            return None
        first: tuple[SessionOpened, ...] = ()
        if self._held is None:
            self._held = self._sessions.create(KEY)
            first = (SessionOpened(session_id=KEY.session_id, workspace="", platform="holdfast"),)
        return self._sessions.append(self._held, *first, *facts)


class StandingRules:
    """What always holds, as far as it is known in memory."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.rules: Sequence[Permission] = ()
        self.posture: Level | None = None

    async def load(self) -> None:
        """Read what was said before."""
        async with self._sessions.hold(KEY) as held:
            self.rules = held.session.standing if held else ()
            self.posture = held.session.posture if held else None

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Writing]:
        """For somebody who may say more."""
        async with self._sessions.hold(KEY) as held:
            yield Writing(self._sessions, held)
        await self.load()

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
