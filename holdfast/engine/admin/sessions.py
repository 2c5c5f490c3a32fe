"""Session administration for the operator: list marks, set or clear one, release held runs."""

from collections.abc import Callable, Sequence

from holdfast.core.intents import Principal
from holdfast.core.session import session
from holdfast.core.session.session import Session
from holdfast.core.types import Fact, SessionId, SessionKey, Value
from holdfast.engine.life.quarantine import Search
from holdfast.engine.permission import check_admin
from holdfast.engine.runs.approvals import Audit
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.gateway import SessionView
from holdfast.journal.audit import entry_of
from holdfast.journal.journal import Journal, RunFilter

RUNS = 200  # the latest, whose sessions are listed


class SessionAdmin(Value):
    """Administers sessions, for the operator only."""

    _journal: Journal
    _sessions: Sessions
    _search: Search
    _audit: Audit

    async def sessions(self, by: Principal) -> Sequence[SessionView]:
        """Return the sessions of the latest runs, newest first."""
        check_admin(by)
        rows = await self._journal.runs(RunFilter(by.owner, frozenset(), None, RUNS, None))
        views: list[SessionView] = []
        for key in dict.fromkeys(row.key for row in rows):
            async with self._sessions.load(key) as loaded:
                if loaded is not None:
                    views.append(_view(loaded.committed()))
        return views

    async def mark(self, by: Principal, session_id: SessionId) -> None:
        """Set the interruption mark; refused if the session is suspended."""
        await self._change(by, session_id, "session.marked", session.mark)

    async def clear_mark(self, by: Principal, session_id: SessionId) -> None:
        """Clear the interruption mark; refused if there is none."""
        kind = "session.mark_cleared"
        await self._change(by, session_id, kind, lambda now: session.clear_mark(now, by.owner))

    async def _change(
        self,
        by: Principal,
        session_id: SessionId,
        kind: str,
        decide: Callable[[Session | None], tuple[Fact, ...]],
    ) -> None:
        check_admin(by)
        key = SessionKey(by.owner, session_id)

        def decided(loaded: LoadedSession | None) -> tuple[Fact, ...]:
            return decide(loaded.session if loaded else None)

        async with self._sessions.load(key) as loaded:
            decided(loaded)  # a refused order is not in the audit
        await self._audit(entry_of(by, kind, what=session_id))
        await self._sessions.change(key, decided)

    async def release(self, by: Principal) -> int:
        """Continue all runs in quarantine; return their number."""
        check_admin(by)
        await self._audit(entry_of(by, "runs.released"))
        return await self._search.end()


def _view(of: Session) -> SessionView:
    return SessionView(
        session_id=of.key.session_id,
        status=of.status,
        reason=of.suspended_for,
        unfinished=len(of.runs),
        held=sum(bool(r.held_until) for r in of.runs.values()),
        mark=of.mark.cause if of.mark else "",
        mark_reason=of.mark.reason if of.mark else "",
        marked_at=of.mark.at if of.mark else 0.0,
    )
