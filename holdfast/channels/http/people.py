"""What only the operator's own door has for chats: who is let in, and how the channels are doing.

A code comes in a body, never in an address: those get logged.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from aiohttp import web
from msgspec.structs import asdict

from holdfast.channels.http import bodies
from holdfast.channels.http.bodies import CodeRequest, PairRequest, RemoveRequest
from holdfast.channels.http.door import json_response
from holdfast.core.access import Person
from holdfast.core.approval import Role
from holdfast.core.intents import Principal
from holdfast.errors import Refused
from holdfast.gateway import ChannelState

_LIMIT = 64 * 1024
_WAIT_S = 10.0


class People(Protocol):
    """Who is let into chats, as far as the operator may see and change it."""

    async def look_up(self, by: Principal, code: str) -> Person:
        """Who was shown that code; refused with `code_not_found` or `too_many_codes`."""
        ...

    async def pair(self, by: Principal, code: str, roles: Collection[Role]) -> Person:
        """Let them in; refused like that."""
        ...

    async def users(self, by: Principal) -> Sequence[Person]:
        """Everybody who is let in, then those who wait for it."""
        ...

    async def remove(self, by: Principal, platform: str, user: str) -> None:
        """Shut out who was let in by pairing; refused with `user_not_found`."""
        ...

    async def channels(self, by: Principal) -> Sequence[ChannelState]:
        """Every channel that is on."""
        ...


def add_routes(app: web.Application, people: People, by: Principal) -> None:
    """Codes are looked up and confirmed, users listed and removed, channels listed."""

    async def look_up(request: web.Request) -> web.Response:
        body = bodies.decode(await _read(request), CodeRequest)
        return json_response(_person(await people.look_up(by, body.code)))

    async def pair(request: web.Request) -> web.Response:
        body = bodies.decode(await _read(request), PairRequest)
        return json_response(_person(await people.pair(by, body.code, _roles(body.roles))))

    async def users(request: web.Request) -> web.Response:
        return json_response({"data": [_person(person) for person in await people.users(by)]})

    async def remove(request: web.Request) -> web.Response:
        body = bodies.decode(await _read(request), RemoveRequest)
        await people.remove(by, body.platform, body.user)
        return json_response({"platform": body.platform, "user": body.user, "removed": True})

    async def channels(request: web.Request) -> web.Response:
        return json_response({"data": [asdict(state) for state in await people.channels(by)]})

    app.router.add_post("/v1/pairing/look-up", look_up)
    app.router.add_post("/v1/pairing", pair)
    app.router.add_get("/v1/users", users)
    app.router.add_post("/v1/users/remove", remove)
    app.router.add_get("/v1/channels", channels)


async def _read(request: web.Request) -> bytes:
    return await bodies.read_body(request, _LIMIT, _WAIT_S)


def _roles(said: Sequence[str]) -> frozenset[Role]:
    known = frozenset(Role)
    if not said or not known.issuperset(said):
        raise Refused(
            "invalid_request", f"`roles` must be some of {', '.join(Role)}.", param="roles"
        )
    return frozenset(map(Role, said))


def _person(person: Person) -> dict[str, object]:
    return {
        "platform": person.sender.platform,
        "user": person.sender.user,
        "name": person.name,
        "roles": sorted(person.roles),
        "source": person.source,
        "expires_at": person.expires_at,
    }
