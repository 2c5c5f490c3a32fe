"""What only the operator may do with sessions: see their marks, set or clear one, end a search."""

from collections.abc import Awaitable, Callable, Sequence

from holdfast.core import session
from holdfast.core.approval import Role
from holdfast.core.intents import Principal
from holdfast.core.session import Session
from holdfast.core.types import Fact, SessionId, SessionKey
from holdfast.engine.search import Search
from holdfast.engine.sessions import Sessions
from holdfast.errors import Refused
from holdfast.gateway import SessionView
from holdfast.journal.audit import Entry
from holdfast.journal.journal import Journal, RunFilter

RUNS = 200  # the latest, whose sessions are listed


class Keeper:
    """The operator's hands on sessions."""

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        search: Search,
        audit: Callable[[Entry], Awaitable[None]],
    ) -> None:
        self._journal = journal
        self._sessions = sessions
        self._search = search
        self._audit = audit

    async def sessions(self, by: Principal) -> Sequence[SessionView]:
        """The sessions of the latest runs, newest first."""
        check_admin(by)
        rows = await self._journal.runs(RunFilter(by.owner, frozenset(), None, RUNS, None))
        views: list[SessionView] = []
        for key in dict.fromkeys(row.key for row in rows):
            async with self._sessions.hold(key) as held:
                if held is not None:
                    views.append(_view(held.session))
        return views

    async def mark(self, by: Principal, session_id: SessionId) -> None:
        """Have whoever goes on with it told that it was cut; refused if it is suspended."""
        await self._change(by, session_id, "session.marked", session.mark)

    async def clear_mark(self, by: Principal, session_id: SessionId) -> None:
        """Drop the mark; refused if there is none."""
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
        async with self._sessions.hold(SessionKey(by.owner, session_id)) as held:
            decide(held.session if held else None)
            entry = Entry(kind=kind, who=by.owner, platform=by.platform, what=session_id)
            await self._audit(entry)
            if held is not None and (facts := decide(held.session)):
                await self._sessions.append(held, *facts).wait()

    async def release(self, by: Principal) -> int:
        """Let every run go on that is held because it may end the process; how many."""
        check_admin(by)
        await self._audit(Entry(kind="runs.released", who=by.owner, platform=by.platform))
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


def check_admin(by: Principal) -> None:
    """Refuse whoever is not the operator."""
    if Role.ADMIN not in by.roles:
        raise Refused("admin_only", "Only the operator may do that, at a terminal.")
