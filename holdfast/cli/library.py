"""Sessions at the front door: listed, named, forked, read and brought in. A part of the client.

An answer can be lost with whoever owned the home, and is asked for again. So a fork is named here:
that its name is taken then says that it was made.
"""

import secrets
from typing import Protocol, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.cli.wire import Exists
from holdfast.cli.wire_sessions import (
    Fork,
    History,
    Hits,
    Import,
    Said,
    SessionInfo,
    SessionInfos,
    Title,
    Transcript,
)
from holdfast.core.types import OPERATOR, Value

PAGE = 100  # as many as one answer has
OWNER = "X-Holdfast-Owner"  # says whose a session is, where it is not the operator's own

T = TypeVar("T")


class Asks(Protocol):
    """Whoever can ask at the door."""

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: msgspec.Struct | None = None,
        headers: dict[str, str] | None = None,
    ) -> T: ...


class Library(Value):
    """What a client can do with sessions. Every method raises `NotFound` where there is none."""

    async def list_sessions(self: Asks, limit: int = 20) -> tuple[SessionInfo, ...]:
        """The sessions that were spoken in last, everybody's, newest first."""
        found: list[SessionInfo] = []
        more = True
        while more and len(found) < limit:
            after = _after(found[-1]) if found else ""
            size = min(PAGE, limit - len(found))
            page = await self._ask("GET", f"/api/sessions?limit={size}{after}", SessionInfos)
            found += page.data
            more = page.has_more
        return tuple(found)

    async def session(self: Asks, session_id: str) -> SessionInfo:
        """One of them."""
        return await self._ask("GET", _path(session_id), SessionInfo)

    async def rename(self: Asks, session_id: str, title: str) -> SessionInfo:
        """Call it so from now on; empty: it has no name any more."""
        return await self._ask("PATCH", _path(session_id), SessionInfo, Title(title))

    async def fork(self: Asks, session_id: str, title: str = "") -> SessionInfo:
        """A session of one's own that begins where this one is, also while it is busy."""
        made = f"ses_{secrets.token_hex(16)}"
        try:
            return await self._ask(
                "POST", f"{_path(session_id)}/fork", SessionInfo, Fork(made, title)
            )
        except Exists:
            return await self._ask("GET", _path(made), SessionInfo, None, {OWNER: OPERATOR})

    async def history(self: Asks, session_id: str) -> History:
        """What is settled of what was said, and where the session's events go on from it."""
        return await self._ask("GET", f"{_path(session_id)}/messages?settled=true", History)

    async def transcript(self: Asks, session_id: str) -> tuple[Said, ...]:
        """Everything that was said so far."""
        return (await self._ask("GET", f"{_path(session_id)}/messages", Transcript)).data

    async def search(self: Asks, words: str, limit: int = 20) -> Hits:
        """The sessions in which one message has all the words, or begins of them."""
        path = f"/v1/operator/search?q={quote(words, safe='')}&limit={limit}"
        return await self._ask("GET", path, Hits)

    async def import_session(self: Asks, what: Import) -> SessionInfo:
        """Bring in a session from elsewhere. Raises `Exists` if its name is taken."""
        return await self._ask("POST", "/v1/operator/import", SessionInfo, what)


def _after(last: SessionInfo) -> str:
    whose = f"&after_owner={quote(last.owner, safe='')}" if last.owner else ""
    return f"&after={quote(last.session_id, safe='')}{whose}"


def _path(session_id: str) -> str:
    return f"/api/sessions/{quote(session_id, safe='')}"
