"""Slash commands, for the session of a terminal. At the operator's socket only."""

from aiohttp import web
from msgspec import UNSET
from msgspec.structs import asdict

from holdfast.api import intents, requests, responses
from holdfast.api.auth import json_response
from holdfast.api.contracts import TakesCommands
from holdfast.api.routes.operator import SESSIONS
from holdfast.api.schema import operator as schema
from holdfast.core.intents import Principal

COMMANDS = "/v1/operator/commands"

_LIMIT = 1024 * 1024
_WAIT_S = 10.0


def add_routes(app: web.Application, terminal: TakesCommands, by: Principal) -> None:
    """GET lists the commands; POST …/ID/command executes one, once for each Idempotency-Key."""

    async def index(request: web.Request) -> web.Response:
        known = [schema.CommandObject(**asdict(one)) for one in terminal.commands(by)]
        return json_response(schema.CommandList(tuple(known)))

    async def take(request: web.Request) -> web.Response:
        session_id = requests.session_in(request)
        body = await requests.read(request, schema.CommandRequest, _LIMIT, _WAIT_S)
        given = intents.command_of(body, session_id, request.headers.get("Idempotency-Key"))
        done = await terminal.take(requests.asking(request, by), given)
        owner = responses.owner_name(done.owner) or UNSET
        return json_response(schema.CommandResponse(**asdict(done) | {"owner": owner}))

    app.router.add_get(COMMANDS, index)
    app.router.add_post(f"{SESSIONS}/{{session_id}}/command", take)
