"""Import a session of another program or gateway. At the operator's socket only."""

from aiohttp import web
from msgspec.structs import asdict

from holdfast.api import intents, requests, responses
from holdfast.api.auth import json_response
from holdfast.api.schema.sessions import ImportRequest, ImportResponse
from holdfast.core.intents import Principal
from holdfast.core.session.library import instructions_in
from holdfast.gateway import Library

IMPORT = "/v1/operator/import"


def add_routes(
    app: web.Application, library: Library, by: Principal, body_limit: int, body_wait_s: float
) -> None:
    """POST a session with its messages."""

    async def import_session(request: web.Request) -> web.Response:
        body = await requests.read(request, ImportRequest, body_limit, body_wait_s)
        session = intents.imported_of(body)
        made = responses.session_object(await library.bring_in(by, session))
        left_out = instructions_in(session.messages)
        return json_response(ImportResponse(**asdict(made), left_out=left_out), 201)

    app.router.add_post(IMPORT, import_session)
