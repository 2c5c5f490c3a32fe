"""What holds always: the operator's permissions beyond one session.

They are facts like all others, in a session of their own whose name no door can say.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from holdfast.core.approval import Standing
from holdfast.core.rules import Permission
from holdfast.core.session import SessionOpened
from holdfast.core.types import OPERATOR, SessionId, SessionKey
from holdfast.engine.sessions import Held, Sessions

KEY = SessionKey(OPERATOR, SessionId("/standing"))


class Writing:
    """The session that keeps them, ready to be added to without waiting."""

    def __init__(self, sessions: Sessions, held: Held | None) -> None:
        self._sessions = sessions
        self._held = held

    def add(self, facts: Sequence[Standing]) -> None:
        """Enqueue them; they are committed before whatever is enqueued next."""
        if not facts:
            return
        first: tuple[SessionOpened, ...] = ()
        if self._held is None:
            self._held = self._sessions.create(KEY)
            first = (SessionOpened(session_id=KEY.session_id, workspace="", platform="holdfast"),)
        self._sessions.append(self._held, *first, *facts)


class StandingRules:
    """The permissions that always hold, as far as they are known in memory."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.rules: Sequence[Permission] = ()

    async def load(self) -> None:
        """Read what was given before."""
        async with self._sessions.hold(KEY) as held:
            self.rules = held.session.standing if held else ()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Writing]:
        """For somebody who may give more."""
        async with self._sessions.hold(KEY) as held:
            yield Writing(self._sessions, held)
        await self.load()
