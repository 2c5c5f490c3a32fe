"""Sessions, a part of the client: list, rename, fork, read, search and import them.

An answer can be lost with the process that owned the home; the request is then repeated. So the
client names a fork itself: if the name is taken, the first request made the fork.
"""

import secrets
from typing import Protocol, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.api.schema import sessions
from holdfast.api.schema.changes import DiffResponse, FileDiffObject
from holdfast.api.schema.sessions import MessageObject, SearchResponse, SessionObject
from holdfast.cli.client.refusals import Exists
from holdfast.core.types import OPERATOR, Value

PAGE = 100  # sessions in one answer, at most
OWNER = "X-Holdfast-Owner"  # names the owner of a session that is not the operator's

T = TypeVar("T")


class Asks(Protocol):
    """Sends requests."""

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: msgspec.Struct | None = None,
        headers: dict[str, str] | None = None,
    ) -> T: ...


class SessionsClient(Value):
    """Requests about sessions. Every method raises `NotFound` if there is no such session."""

    async def list_sessions(self: Asks, limit: int = 20) -> tuple[SessionObject, ...]:
        """List the sessions of all owners, last used first."""
        found: list[SessionObject] = []
        more = True
        while more and len(found) < limit:
            after = _after(found[-1]) if found else ""
            size = min(PAGE, limit - len(found))
            page = await self._ask(
                "GET", f"/api/sessions?limit={size}{after}", sessions.SessionPage
            )
            found += page.data
            more = page.has_more
        return tuple(found)

    async def session(self: Asks, session_id: str) -> SessionObject:
        """One session."""
        return await self._ask("GET", session_path(session_id), SessionObject)

    async def rename(self: Asks, session_id: str, title: str) -> SessionObject:
        """Give a session a title; an empty one removes it."""
        return await self._ask(
            "PATCH", session_path(session_id), SessionObject, sessions.TitleRequest(title)
        )

    async def fork(self: Asks, session_id: str, title: str = "") -> SessionObject:
        """Begin a session of the operator where this one is, also while it is busy."""
        made = f"ses_{secrets.token_hex(16)}"
        path, body = f"{session_path(session_id)}/fork", sessions.ForkRequest(title or None, made)
        try:
            return await self._ask("POST", path, SessionObject, body)
        except Exists:
            return await self._ask(
                "GET", session_path(made), SessionObject, None, {OWNER: OPERATOR}
            )

    async def history(self: Asks, session_id: str) -> sessions.SettledMessageList:
        """The transcript up to the first run that is not over; events after `after` tell the rest."""
        path = f"{session_path(session_id)}/messages?settled=true"
        return await self._ask("GET", path, sessions.SettledMessageList)

    async def transcript(self: Asks, session_id: str) -> tuple[MessageObject, ...]:
        """The whole transcript."""
        path = f"{session_path(session_id)}/messages"
        return (await self._ask("GET", path, sessions.MessageList)).data

    async def diff(
        self: Asks, session_id: str, run_id: str = "", path: str = "", call_id: str = ""
    ) -> DiffResponse:
        """The files that a session changed; of one run, one path or one call if given."""
        of = f"/v1/runs/{path_part(run_id)}" if run_id else session_path(session_id)
        only = f"path={path_part(path)}&call_id={path_part(call_id)}"
        return await self._ask("GET", f"{of}/diff?{only}", DiffResponse)

    async def each_change(self: Asks, session_id: str) -> tuple[FileDiffObject, ...]:
        """Every change of a file by a call of the session, oldest first, without diffs."""
        path = f"{session_path(session_id)}/diff?each=true"
        return (await self._ask("GET", path, DiffResponse)).data

    async def search(self: Asks, terms: str, limit: int = 20) -> SearchResponse:
        """The sessions with a message that has all the terms, or words that begin with them."""
        path = f"/v1/operator/search?q={path_part(terms)}&limit={limit}"
        return await self._ask("GET", path, SearchResponse)

    async def import_session(
        self: Asks, session: sessions.ImportRequest
    ) -> sessions.ImportResponse:
        """Import a session. Raises `Exists` if its id is taken."""
        return await self._ask("POST", "/v1/operator/import", sessions.ImportResponse, session)


def _after(last: SessionObject) -> str:
    whose = f"&after_owner={path_part(last.owner)}" if last.owner else ""
    return f"&after={path_part(last.session_id)}{whose}"


def path_part(text: str) -> str:
    """Escape a text for one part of a path, or for a value in a query."""
    return quote(text, safe="")


def session_path(session_id: str) -> str:
    """Return the path of a session."""
    return f"/api/sessions/{path_part(session_id)}"
