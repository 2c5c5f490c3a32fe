"""The front door to sessions as people keep them: listed, named, forked, brought in.

Lists come from the journal's projection and fold nothing. Whoever changes something holds the
session meanwhile, and has the answer once it is durable.
"""

from collections.abc import Callable, Sequence
from secrets import token_hex

from holdfast.core import library
from holdfast.core.intents import Principal
from holdfast.core.library import Imported
from holdfast.core.session import current
from holdfast.core.types import Fact, SessionId, SessionKey
from holdfast.engine.keeper import check_admin
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import JournalUnavailable, Refused
from holdfast.gateway import SessionSummary, Settled
from holdfast.journal.journal import Conflict, Journal, SessionRow


class Library:
    """All sessions, each for its owner; those of others for the operator, who says whose."""

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        model: str,
        workspace: Callable[[Principal, str, SessionKey], str],
    ) -> None:
        self._journal = journal
        self._sessions = sessions
        self._model = model  # of a session that has chosen no other
        self._workspace = workspace  # where a new session may work

    async def sessions(
        self, by: Principal, limit: int, after: SessionKey | None
    ) -> tuple[Sequence[SessionSummary], bool]:
        """A page of all that it may see, newest first, and whether there are more."""
        rows = await self._journal.sessions(by.scope, limit + 1, after)
        return [self._summary(row) for row in rows[:limit]], len(rows) > limit

    async def session(self, by: Principal, session_id: SessionId) -> SessionSummary:
        """One of them."""
        row = await self._journal.session(SessionKey(by.owner, session_id))
        if row is None:
            raise no_such_session(session_id)
        return self._summary(row)

    async def settled(self, by: Principal, session_id: SessionId) -> Settled:
        """What is settled of its transcript, and the number after which events tell the rest."""
        async with self._sessions.hold(SessionKey(by.owner, session_id)) as held:
            if held is None:
                raise no_such_session(session_id)
            while (first := current(held.session)) is not None:
                row = await self._journal.run(first.id)
                if row is None:
                    await _arrival(held)
                elif (now := current(held.session)) is not None and now.id == first.id:
                    messages = held.transcript.settled(first.id)
                    return Settled(messages, row.first_seq - 1, tuple(held.session.runs))
            return Settled(held.transcript.whole(), held.head, ())

    async def rename(self, by: Principal, session_id: SessionId, title: str) -> SessionSummary:
        """Call it so from now on; empty: it has no name."""
        named = library.titled(title, by.who)
        async with self._sessions.hold(SessionKey(by.owner, session_id)) as held:
            if held is None:
                raise no_such_session(session_id)
            if held.session.title != named.title:
                await self._append(held, named)
        return await self.session(by, session_id)

    async def fork(
        self, by: Principal, session_id: SessionId, title: str, name: SessionId | None
    ) -> SessionSummary:
        """Another that begins with what the model of this one reads now, also while it is busy.

        It is the caller's own, whosever this one is.
        """
        named = library.titled(title, by.who)
        made = name or SessionId(f"ses_{token_hex(16)}")
        async with self._sessions.hold(SessionKey(by.owner, session_id)) as held:
            if held is None:
                raise no_such_session(session_id)
            await self._make(
                SessionKey(by.who, made),
                lambda: library.fork(
                    held.session, held.transcript.so_far(), made, by.platform, named
                ),
            )
        return await self.session(by.among(by.who), made)

    async def bring_in(self, by: Principal, what: Imported) -> SessionSummary:
        """Begin one with what was said elsewhere."""
        check_admin(by)
        key = SessionKey(by.owner, what.session_id)
        workspace = self._workspace(by, what.workspace, key)
        await self._make(key, lambda: library.imported(what, workspace, by.platform, by.who))
        return await self.session(by, what.session_id)

    async def _make(self, key: SessionKey, begin: Callable[[], tuple[Fact, ...]]) -> None:
        """Make a session of facts that are decided when nothing can come between any more."""
        async with self._sessions.hold(key) as there:
            if there is not None:
                raise Refused(
                    "session_exists",
                    f"There is a session {key.session_id} already. Nothing changed.",
                    param="session_id",
                )
            if (trouble := self._journal.state()) != "ok":
                raise JournalUnavailable(trouble, retry_after_s=5)
            facts = begin()
            await self._append(self._sessions.create(key), *facts)

    async def _append(self, held: Held, *facts: Fact) -> None:
        try:
            await self._sessions.append(held, *facts).wait()
        except Conflict as busy:
            raise JournalUnavailable("the session is busy; try again", retry_after_s=1) from busy

    def _summary(self, row: SessionRow) -> SessionSummary:
        return SessionSummary(
            session_id=row.key.session_id,
            title=row.title,
            preview=row.preview,
            created_at=row.created_at,
            updated_at=row.updated_at,
            workspace=row.workspace,
            platform=row.platform,
            model=row.model or self._model,
            status=row.status,
            unfinished=row.unfinished,
            owner=row.key.owner,
        )


async def _arrival(held: Held) -> None:
    """Return when what was appended last is on the disk."""
    if held.said is None:
        raise JournalUnavailable("the session is busy; try again", retry_after_s=1)
    await held.said.wait()


def no_such_session(session_id: SessionId) -> Refused:
    return Refused("session_not_found", f"There is no session {session_id}.")
