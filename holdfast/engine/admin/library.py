"""The session library: list, rename, fork and import sessions.

Lists come from the journal's projection and load no session. A change returns once it is durable.
"""

from collections.abc import Callable, Sequence
from secrets import token_hex

from holdfast.core.intents import Principal
from holdfast.core.session import library
from holdfast.core.session.library import Imported
from holdfast.core.session.rewind import Point, Rewind, RewindDone
from holdfast.core.session.session import current
from holdfast.core.types import Fact, SessionId, SessionKey, Value
from holdfast.engine.permission import check_admin
from holdfast.engine.runs.rewinding import RUN_ACTIVE, Rewinder
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import JournalUnavailable, Refused
from holdfast.gateway import SessionSummary, SettledTranscript
from holdfast.journal.journal import Journal, SessionRow


class SessionLibrary(Value):
    """All sessions. An owner has access to their own, the operator to all."""

    _journal: Journal
    _sessions: Sessions
    _model: str  # of a session that has chosen no other
    _workspace: Callable[[Principal, str, SessionKey], str]  # where a new session may work
    _now: Callable[[], float]
    _rewinder: Rewinder

    async def sessions(
        self, by: Principal, limit: int, after: SessionKey | None
    ) -> tuple[Sequence[SessionSummary], bool]:
        """Return a page of the visible sessions, newest first, and whether there are more."""
        rows = await self._journal.sessions(by.scope, limit + 1, after)
        return [self._summary(row) for row in rows[:limit]], len(rows) > limit

    async def session(self, by: Principal, session_id: SessionId) -> SessionSummary:
        """Return one session."""
        row = await self._journal.session(SessionKey(by.owner, session_id))
        if row is None:
            raise no_such_session(session_id)
        return self._summary(row)

    async def settled(self, by: Principal, session_id: SessionId) -> SettledTranscript:
        """Return the settled transcript, and the number after which events tell the rest."""
        async with self._sessions.load(SessionKey(by.owner, session_id)) as loaded:
            if loaded is None:
                raise no_such_session(session_id)
            found = await self._settled(loaded)
            await loaded.landed()
            return found

    async def _settled(self, loaded: LoadedSession) -> SettledTranscript:
        while True:
            first = current(loaded.session)
            row = None if first is None else await self._journal.run(first.id)
            transcript = await self._sessions.whole(loaded)
            now = current(loaded.session)
            if first is None and now is None:
                return SettledTranscript(transcript.whole(), loaded.head, ())
            if row is not None and now is not None and now.id == row.run_id:
                messages = transcript.settled(now.id)
                return SettledTranscript(messages, row.first_seq - 1, tuple(loaded.session.runs))
            await loaded.landed()

    async def rename(self, by: Principal, session_id: SessionId, title: str) -> SessionSummary:
        """Give the session a title; an empty one removes it."""
        named = library.titled(title, by.who)

        def decide(loaded: LoadedSession | None) -> tuple[Fact, ...]:
            if loaded is None:
                raise no_such_session(session_id)
            return (named,) if loaded.session.title != named.title else ()

        await self._sessions.change(SessionKey(by.owner, session_id), decide)
        return await self.session(by, session_id)

    async def fork(
        self, by: Principal, session_id: SessionId, title: str, name: SessionId | None
    ) -> SessionSummary:
        """Create a session with the messages that the model of this one reads now.

        It belongs to the caller, even if another owner has this one. This one may be busy.
        """
        named = library.titled(title, by.who)
        made = name or SessionId(f"ses_{token_hex(16)}")
        async with self._sessions.load_whole(SessionKey(by.owner, session_id)) as loaded:
            if loaded is None:
                raise no_such_session(session_id)
            if loaded.session.rewinding is not None:
                raise Refused("session_busy", RUN_ACTIVE)
            await loaded.landed()
            line = await self._rewinder.timeline(loaded)
            await self._make(
                SessionKey(by.who, made),
                lambda: library.fork(
                    loaded.session,
                    loaded.transcript.without_note(),
                    made,
                    by.platform,
                    named,
                    points=line.seed_points(loaded.transcript.positions()),
                    from_file=loaded.transcript.imported,
                ),
            )
        return await self.session(by.among(by.who), made)

    async def points(self, by: Principal, session_id: SessionId) -> Sequence[Point]:
        """Return the points that the session can go back to, oldest first."""
        await self.session(by, session_id)
        return await self._rewinder.points(SessionKey(by.owner, session_id))

    async def rewind(self, session_id: SessionId, asked: Rewind) -> RewindDone:
        """Go back to a point, or forth again. Durable when this returns."""
        await self.session(asked.by, session_id)
        return await self._rewinder.carry_out(SessionKey(asked.by.owner, session_id), asked)

    async def bring_in(self, by: Principal, what: Imported) -> SessionSummary:
        """Import a session."""
        check_admin(by)
        key = SessionKey(by.owner, what.session_id)
        workspace = self._workspace(by, what.workspace, key)
        now = self._now()
        await self._make(key, lambda: library.imported(what, workspace, by.platform, by.who, now))
        return await self.session(by, what.session_id)

    async def _make(self, key: SessionKey, begin: Callable[[], tuple[Fact, ...]]) -> None:
        """Create a session from the facts of `begin`, which is called right before the append."""
        async with self._sessions.load(key) as there:
            if there is not None:
                raise Refused(
                    "session_exists",
                    f"There is a session {key.session_id} already. Nothing changed.",
                    param="session_id",
                )
            if (trouble := self._journal.state()) != "ok":
                raise JournalUnavailable(trouble, retry_after_s=5)
            facts = begin()
            await self._sessions.append(self._sessions.create(key), *facts).wait()

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


def no_such_session(session_id: SessionId) -> Refused:
    return Refused("session_not_found", f"There is no session {session_id}.")
