"""Endpoints: each route of the public API, declared once.

The server routes by these declarations, and the OpenAPI document is generated from them.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from holdfast.api import requests
from holdfast.core.intents import Principal
from holdfast.core.types import Value
from holdfast.gateway import Gateway

T = TypeVar("T", bound=msgspec.Struct)

_PATH_PARAMETER = re.compile(r"{(\w+)(?::[^}]*)?}")


class RouteContext(Value):
    """The context of a handler: the gateway, the caller, and the limits of bodies."""

    gateway: Gateway
    by: Principal
    body_limit: int
    body_wait_s: float

    async def read_body(self, request: web.Request) -> bytes:
        """Read the body of a request."""
        return await requests.read_body(request, self.body_limit, self.body_wait_s)

    async def read(self, request: web.Request, wanted: type[T]) -> T:
        """Read the body of a request as a typed value."""
        return requests.decode(await self.read_body(request), wanted)

    def asking(self, request: web.Request) -> Principal:
        """The caller, for the sessions of the owner that a header names."""
        return requests.asking(request, self.by)


Handler = Callable[[RouteContext, web.Request], Awaitable[web.StreamResponse]]


class Parameter(Value):
    """A parameter of an endpoint that is not in its path."""

    name: str
    place: str  # "query" or "header"
    schema: dict[str, Any]


class Endpoint(Value):
    """A method and a path, the function that handles them, and their types."""

    method: str
    path: str  # as aiohttp writes it
    handler: Handler
    summary: str
    response: type[msgspec.Struct] | None  # None: an object without a declared type
    request: type[msgspec.Struct] | None = None
    status: int = 200
    errors: tuple[int, ...] = ()  # beyond those that every endpoint has
    parameters: tuple[Parameter, ...] = ()
    stream: str = ""  # describes the events, if the response is a stream of them
    empty: str = ""  # describes 204, where it is possible
    public: bool = False  # no key is needed

    @property
    def documented_path(self) -> str:
        """The path as OpenAPI writes it."""
        return _PATH_PARAMETER.sub(r"{\1}", self.path)

    @property
    def path_parameters(self) -> list[str]:
        """The names of the parameters in the path."""
        return _PATH_PARAMETER.findall(self.path)


def query(name: str, schema: dict[str, Any]) -> Parameter:
    """A query parameter."""
    return Parameter(name, "query", schema)


def header(name: str) -> Parameter:
    """A header."""
    return Parameter(name, "header", {"type": "string"})


def page(most: int) -> tuple[Parameter, Parameter]:
    """The parameters of a list that has pages."""
    return (
        query("limit", {"type": "integer", "minimum": 1, "maximum": most}),
        query("after", {"type": "string"}),
    )


KEY = header("Idempotency-Key")
CURSOR = (query("after", {"type": "integer", "minimum": 0}), header("Last-Event-ID"))
EVENTS = (
    "Server-sent events, each with the id to come back with; the data is an `Event`, of which each "
    "kind has its own fields. A question of a run to its user is `question.asked` (call_id, "
    "question, options), then `question.answered`; a delegated task is `subagent.started` "
    "(call_id, child_run_id, name, preview, background), then `subagent.completed` (with a status); "
    "a file that a call changed is `file.changed` (call_id, path, kind, added, removed, before, "
    "after, binary), before its `tool.completed`"
)
