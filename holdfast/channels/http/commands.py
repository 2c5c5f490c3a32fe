"""What only the operator's own door has: slash commands, for the session a terminal sits in."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from aiohttp import web

from holdfast.channels.http import bodies, wire
from holdfast.channels.http.bodies import CommandRequest
from holdfast.channels.http.door import json_response
from holdfast.channels.http.operator import SESSIONS
from holdfast.core.intents import Principal
from holdfast.gateway import CommandDone, CommandGiven, CommandView

COMMANDS = "/v1/operator/commands"

_LIMIT = 1024 * 1024
_WAIT_S = 10.0


class Desk(Protocol):
    """Takes the operator's commands."""

    def commands(self, by: Principal) -> Sequence[CommandView]:
        """Every command there is."""
        ...

    async def take(self, by: Principal, given: CommandGiven) -> CommandDone:
        """Do what a command asks for; refused with `invalid_request` if it is none."""
        ...


def add_routes(app: web.Application, desk: Desk, by: Principal) -> None:
    """GET all commands; POST …/ID/command has one done: the same again under its key is one."""

    async def index(request: web.Request) -> web.Response:
        return json_response({"object": "list", "data": desk.commands(by)})

    async def take(request: web.Request) -> web.Response:
        session_id = bodies.session_id(request.match_info["session_id"])
        body = bodies.decode(await bodies.read_body(request, _LIMIT, _WAIT_S), CommandRequest)
        given = bodies.command_of(body, session_id, request.headers.get("Idempotency-Key"))
        done = msgspec.structs.asdict(await desk.take(bodies.asking(request, by), given))
        whose = wire.owner_fields(done.pop("owner"))
        return json_response(done | whose)

    app.router.add_get(COMMANDS, index)
    app.router.add_post(f"{SESSIONS}/{{session_id}}/command", take)
