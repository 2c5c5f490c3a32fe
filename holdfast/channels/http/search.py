"""What only the operator's own door has: sessions, found by what was said in them."""

from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from holdfast.channels.http.door import json_response
from holdfast.core.intents import Principal
from holdfast.core.types import SessionId
from holdfast.errors import Refused

SEARCH = "/v1/operator/search"
LONGEST = 500  # characters that one may ask for


class Hit(Protocol):
    """A session, and the best place of the words in it."""

    @property
    def session_id(self) -> SessionId: ...
    @property
    def title(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def at(self) -> float: ...
    @property
    def snippet(self) -> str: ...


class Found(Protocol):
    """What was found, and whether all was looked at."""

    @property
    def hits(self) -> Sequence[Hit]: ...
    @property
    def complete(self) -> bool: ...


class Finder(Protocol):
    """Whoever can find."""

    async def search(self, by: Principal, words: str, limit: int) -> Found:
        """The caller's sessions in which all the words are, newest and best first."""
        ...


def add_routes(app: web.Application, finder: Finder, by: Principal) -> None:
    """GET ?q=WORDS&limit=N; a hit in a snippet stands between ⟦ and ⟧."""

    async def search(request: web.Request) -> web.Response:
        words = request.query.get("q", "").strip()
        if not words or len(words) > LONGEST:
            raise Refused("invalid_request", f"`q` must be 1 to {LONGEST} characters.", param="q")
        found = await finder.search(by, words, _limit(request))
        data = [_hit_object(hit) for hit in found.hits]
        return json_response({"object": "list", "data": data, "complete": found.complete})

    app.router.add_get(SEARCH, search)


def _limit(request: web.Request) -> int:
    given = request.query.get("limit", "20")
    if not (given.isascii() and given.isdigit() and len(given) < 4 and 1 <= int(given) <= 100):
        raise Refused("invalid_request", "`limit` must be 1 to 100.", param="limit")
    return int(given)


def _hit_object(hit: Hit) -> dict[str, object]:
    return {
        "session_id": hit.session_id,
        "title": hit.title,
        "role": hit.role,
        "at": hit.at,
        "snippet": hit.snippet,
    }
