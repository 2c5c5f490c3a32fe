"""Full-text search of sessions. At the operator's socket only."""

from aiohttp import web

from holdfast.api import requests
from holdfast.api.auth import json_response
from holdfast.api.contracts import Searches
from holdfast.api.schema.sessions import SearchHit, SearchResponse
from holdfast.core.intents import Principal

SEARCH = "/v1/operator/search"
LONGEST = 500  # characters of a query


def add_routes(app: web.Application, finder: Searches, by: Principal) -> None:
    """GET ?q=TERMS&limit=N; a match in a snippet stands between ⟦ and ⟧."""

    async def search(request: web.Request) -> web.Response:
        terms = request.query.get("q", "").strip()
        if not terms or len(terms) > LONGEST:
            raise requests.invalid(f"`q` must be 1 to {LONGEST} characters.", "q")
        found = await finder.search(by, terms, requests.limit(request))
        hits = [SearchHit(h.session_id, h.title, h.role, h.at, h.snippet) for h in found.hits]
        return json_response(SearchResponse(tuple(hits), found.complete))

    app.router.add_get(SEARCH, search)
