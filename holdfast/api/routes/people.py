"""Pairing, users and channels. At the operator's socket of a gateway only.

A code comes in a body, never in a URL: URLs get logged.
"""

from collections.abc import Sequence

from aiohttp import web
from msgspec.structs import asdict

from holdfast.api import requests
from holdfast.api.auth import json_response
from holdfast.api.contracts import KeepsPeople
from holdfast.api.schema import operator as schema
from holdfast.core.approval.approval import Role
from holdfast.core.chat.access import Person
from holdfast.core.intents import Principal

_LIMIT = 64 * 1024
_WAIT_S = 10.0


def add_routes(app: web.Application, people: KeepsPeople, by: Principal) -> None:
    """Look up and confirm pairing codes, list and remove users, list channels."""

    async def look_up(request: web.Request) -> web.Response:
        body = await requests.read(request, schema.PairingCodeRequest, _LIMIT, _WAIT_S)
        return json_response(_user(await people.look_up(by, body.code)))

    async def pair(request: web.Request) -> web.Response:
        body = await requests.read(request, schema.PairRequest, _LIMIT, _WAIT_S)
        return json_response(_user(await people.pair(by, body.code, _roles(body.roles))))

    async def users(request: web.Request) -> web.Response:
        return json_response(schema.UserList(tuple(map(_user, await people.users(by)))))

    async def remove(request: web.Request) -> web.Response:
        body = await requests.read(request, schema.RemoveUserRequest, _LIMIT, _WAIT_S)
        await people.remove(by, body.platform, body.user)
        return json_response(schema.RemoveUserResponse(body.platform, body.user))

    async def channels(request: web.Request) -> web.Response:
        states = [schema.ChannelObject(**asdict(state)) for state in await people.channels(by)]
        return json_response(schema.ChannelList(tuple(states)))

    app.router.add_post("/v1/pairing/look-up", look_up)
    app.router.add_post("/v1/pairing", pair)
    app.router.add_get("/v1/users", users)
    app.router.add_post("/v1/users/remove", remove)
    app.router.add_get("/v1/channels", channels)


def _roles(given: Sequence[str]) -> frozenset[Role]:
    known = frozenset(Role)
    if not given or not known.issuperset(given):
        raise requests.invalid(f"`roles` must be some of {', '.join(Role)}.", "roles")
    return frozenset(map(Role, given))


def _user(person: Person) -> schema.UserObject:
    return schema.UserObject(
        platform=person.sender.platform,
        user=person.sender.user,
        name=person.name,
        roles=tuple(sorted(person.roles)),
        source=person.source,
        expires_at=person.expires_at,
    )
