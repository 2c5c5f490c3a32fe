"""Invalid requests: valid ones, generated from the OpenAPI document, then damaged.

Deterministic by its seed. Every answer is looked at: no 5xx, every refusal in its form,
the security headers on everything. Meanwhile health is asked for again and again, so
that a request which freezes the server is seen.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio
import anyio.abc
from multidict import CIMultiDict
from yarl import URL

from tests.behaviour.wire import SECURITY, check_error
from tests.fakes.gateway import KEY, GatewayProcess

WORKERS = 8
LIVE = 6  # runs that hang in a tool, until a request stops them
HEALTH_EVERY = 20  # requests

_STRINGS = (
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\ud800",
        "a\udfff",
        "é",
        "😀",
        "\u202e",
        "\ufeff",
        "\n\n",
        "a" * 5000,
    ),
    *("../../etc/passwd", "/etc/passwd", "..", ".", "~", "~nobody/x", "C:\\", "%00", "%2e%2e%2f"),
    *("NaN", "null", "true", "-1", "0", "1e999", "9" * 400, "' OR 1=1 --", "<b>", "${x}", "{0}"),
    *("user", "assistant", "system", "tool", "once", "always", "text", "run_" + "0" * 32),
)
_SCALARS = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**64), 10**400, 0.1, -0.0, 1e308),
    *(float("nan"), float("inf"), float("-inf")),
)
_SPLINTERS = (
    *(b"NaN", b"\xff", b"\xed\xa0\x80", b"\0", b"}", b"{", b"]", b"[[", b'"', b",", b":", b"\\"),
    *(b"\\ud800", b"\\u0000", b"1e999", b"-", b"//", b"\xef\xbb\xbf", b"[" * 3000, b'{"a":' * 3000),
)
_TYPES = (
    *("application/json", "application/json; charset=utf-8", "text/plain", "", "application/jsonx"),
    *("multipart/form-data", "application/octet-stream", "application/json;;=", "/", "*/*"),
)
_HEADERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Content-Type", _TYPES),
    ("Last-Event-ID", ("", "0", "7", "-1", "x", "9" * 18, "9" * 19, "1e3", "\xb2", "0x1", "1 ")),
    ("Idempotency-Key", ("", "k", "k", "k2", " ", "a b", "\xe9", "x" * 255, "x" * 256)),
    ("Authorization", ("", "Bearer", f"Bearer {KEY}", f"bearer  {KEY}", "Basic x", "Bearer \xff")),
    ("Host", ("evil.example", "localhost", "localhost:x", "[::1]", "[", "", ":", "127.0.0.1:0")),
    ("Origin", ("https://evil.example", "null", "", "\xff")),
    ("Content-Encoding", ("identity", "gzip", "br", "deflate", "x")),
    ("Expect", ("100-continue", "x")),
    ("Accept", ("text/html", "text/event-stream", "application/xml", "\xff")),
    ("Connection", ("close", "upgrade", "keep-alive")),
    ("Upgrade", ("websocket", "h2c")),
    ("X-HTTP-Method-Override", ("DELETE",)),
    ("Range", ("bytes=0-1",)),
    ("If-None-Match", ("*",)),
    ("Cookie", ("a=b; \xff",)),
    ("Content-MD5", ("x",)),
)
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE")


@dataclass(slots=True)
class Request:
    """One request on its way to being spoilt."""

    method: str
    path: str
    headers: CIMultiDict[str]
    query: dict[str, str]
    body: Any = None
    raw: bytes | None = None

    @property
    def url(self) -> str:
        query = "&".join(f"{name}={_quoted(value)}" for name, value in self.query.items())
        return f"{self.path}?{query}" if query else self.path


@dataclass(slots=True)
class Tally:
    """What came of an attack."""

    statuses: Counter[int] = field(default_factory=Counter)
    runs: set[str] = field(default_factory=set)
    slowest_s: float = 0.0


def requests(
    document: dict[str, Any], dice: Random, ended: list[str], live: list[str]
) -> Iterator[Request]:
    """One after the other, for as long as one likes. Only the events of `ended` are read."""
    operations = [
        (method.upper(), path, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]
    weights = [6 if method == "POST" else 1 for method, _, _ in operations]
    while True:
        ((method, path, operation),) = dice.choices(operations, weights)
        runs = ended if path.endswith("/events") else ended + live
        request = _valid(document, dice, method, path, operation, runs)
        for _ in range(dice.choice((0, 1, 1, 1, 1, 2, 3))):
            dice.choice(_SPOIL)(request, dice)
        yield request


def _valid(
    document: dict[str, Any],
    dice: Random,
    method: str,
    path: str,
    operation: dict[str, Any],
    runs: list[str],
) -> Request:
    path = path.replace("{run_id}", dice.choice(runs)).replace("{model_id}", "offline")
    request = Request(method, path.replace("{session_id}", "s"), CIMultiDict(), {})
    for parameter in operation["parameters"]:
        if parameter["in"] == "query" and dice.random() < 0.3:
            value = made(document, parameter["schema"], dice)
            request.query[parameter["name"]] = str(value)
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        request.body = made(document, schema, dice)
        request.headers["Content-Type"] = "application/json"
    return request


def made(document: dict[str, Any], schema: dict[str, Any], dice: Random) -> Any:
    """A value that fits `schema`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return made(document, document["components"]["schemas"][name], dice)
    if "anyOf" in schema:
        return made(document, dice.choice(schema["anyOf"]), dice)
    if "enum" in schema:
        return dice.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            required = schema.get("required", ())
            return {
                name: made(document, inner, dice)
                for name, inner in schema.get("properties", {}).items()
                if name in required or dice.random() < 0.15
            }
        case "array":
            return [made(document, schema["items"], dice) for _ in range(dice.randrange(3))]
        case "string":
            return dice.choice(("hello", "user", "s", "list the files here", "text"))
        case "integer" | "number":
            return dice.randrange(1, 50)
        case "boolean":
            return dice.random() < 0.5
        case _:
            return None


def _junk(dice: Random) -> Any:
    match dice.randrange(4):
        case 0:
            return dice.choice(_STRINGS)
        case 1:
            return dice.choice(_SCALARS)
        case 2:
            return [_junk(dice) for _ in range(dice.randrange(3))]
        case _:
            return {dice.choice(_STRINGS): _junk(dice) for _ in range(dice.randrange(3))}


def _spoil_value(request: Request, dice: Random) -> None:
    """Somewhere in the body stands something else, too much or too little."""
    here, place = {"": request.body}, ""
    at: Any = here
    while isinstance(at[place], dict | list) and at[place] and dice.random() < 0.8:
        at = at[place]
        place = dice.choice(list(at) if isinstance(at, dict) else range(len(at)))
    if isinstance(at, dict) and place and dice.random() < 0.2:
        del at[place]
    elif isinstance(at[place], dict) and dice.random() < 0.5:
        at[place][dice.choice(_STRINGS)] = _junk(dice)
    else:
        at[place] = _junk(dice)
    request.body = here[""]


def _spoil_bytes(request: Request, dice: Random) -> None:
    """The body's bytes are torn."""
    raw = bytearray(_encoded(request) or b"{}")
    place = dice.randrange(len(raw) + 1)
    match dice.randrange(4):
        case 0:
            raw[place:place] = dice.choice(_SPLINTERS)
        case 1:
            del raw[place:]
        case 2:
            raw[place : place + 1] = bytes((dice.randrange(256),))
        case _:
            raw *= 2
    request.raw = bytes(raw)


def _spoil_path(request: Request, dice: Random) -> None:
    """A part of the path is something else."""
    parts = request.path.split("/")
    parts[dice.randrange(1, len(parts))] = _quoted(dice.choice(_STRINGS))
    request.path = "/".join(parts) or "/"


def _spoil_query(request: Request, dice: Random) -> None:
    """A parameter is something else, or one that nobody knows."""
    names = ("after", "limit", "status", "session_id", "token", "x", "\0", "key")
    request.query[_quoted(dice.choice(names))] = dice.choice(_STRINGS)


def _spoil_header(request: Request, dice: Random) -> None:
    """A header is something else, twice, or one that nobody asked for."""
    name, values = dice.choice(_HEADERS)
    if dice.random() < 0.8:
        request.headers[name] = dice.choice(values)
    elif name not in ("Host", "Content-Encoding", "Expect"):
        request.headers.add(name, dice.choice(values))


def _spoil_method(request: Request, dice: Random) -> None:
    request.method = dice.choice(_METHODS)


_SPOIL: tuple[Callable[[Request, Random], None], ...] = (
    *(_spoil_value,) * 6,
    *(_spoil_bytes,) * 2,
    _spoil_path,
    _spoil_query,
    _spoil_header,
    _spoil_header,
    _spoil_method,
)


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def _encoded(request: Request) -> bytes | None:
    if request.raw is not None:
        return request.raw
    return None if request.body is None else json.dumps(request.body).encode()


async def attack(
    it: GatewayProcess, document: dict[str, Any], dice: Random, count: int, what: str
) -> Tally:
    """Send `count` requests, some at a time, and check every answer. `what` names the dice."""
    ended = await it.run("list the files here", session_id="s")
    await it.finished(ended)
    live = [await it.run("tool:hang {}") for _ in range(LIVE)]
    tally = Tally(runs={ended, *live})
    source = enumerate(requests(document, dice, [ended, "run_" + "f" * 32], live))
    async with anyio.create_task_group() as group:
        beat, heard = anyio.create_memory_object_stream[None](count)
        group.start_soon(_watch, it, heard, tally)
        async with anyio.create_task_group() as workers:
            for _ in range(WORKERS):
                workers.start_soon(_work, it, source, count, beat, tally, what)
        beat.close()
    for run_id in live:
        await it.post(f"/v1/runs/{run_id}/stop")
    return tally


async def _work(
    it: GatewayProcess,
    source: Iterator[tuple[int, Request]],
    count: int,
    beat: anyio.abc.ObjectSendStream[None],
    tally: Tally,
    what: str,
) -> None:
    for number, request in source:
        if number >= count:
            return
        if number % HEALTH_EVERY == 0:
            await beat.send(None)
        try:
            with anyio.fail_after(15):
                await _send(it, request, tally)
        except (Exception, TimeoutError) as error:
            raise AssertionError(f"{what}, request {number}: {request!r}"[:3000]) from error


async def _send(it: GatewayProcess, request: Request, tally: Tally) -> None:
    try:
        await _exchange(it, request, tally)
    except aiohttp.ClientResponseError:
        # What is not HTTP gets an answer with a body: nobody can tell that it was a HEAD.
        if request.method != "HEAD":
            raise
        tally.statuses[400] += 1


async def _exchange(it: GatewayProcess, request: Request, tally: Tally) -> None:
    async with it.http.request(
        request.method,
        URL(it.url + request.url, encoded=True),
        headers=request.headers,
        data=_encoded(request),
        allow_redirects=False,
    ) as response:
        endless = response.status == 200 and "/api/sessions/" in request.path
        if endless and request.path.endswith("/events"):
            body = b""  # it never ends; that it began is what there is to see
        else:
            body = await response.read()
        status, headers = response.status, response.headers
    tally.statuses[status] += 1
    assert status < 500, (status, body, [line for line in it.lines if '"error"' in line][-2:])
    for name, value in SECURITY.items():
        assert headers.get(name) == value, (status, name)
    if status >= 400 and request.method != "HEAD":
        fields = {name.lower(): value for name, value in headers.items()}
        check_error(status, fields, body)
    if status == 202:
        run_id = json.loads(body)["run_id"]
        replayed = headers.get("Idempotency-Replayed") == "true"
        assert replayed or run_id not in tally.runs
        tally.runs.add(run_id)


async def _watch(
    it: GatewayProcess, heard: anyio.abc.ObjectReceiveStream[None], tally: Tally
) -> None:
    async with heard:
        async for _ in heard:
            begun = time.monotonic()
            status, _ = await it.get("/health")
            assert status == 200
            tally.slowest_s = max(tally.slowest_s, time.monotonic() - begun)
