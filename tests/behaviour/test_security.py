"""Authentication and origin checks on every route."""

import re
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from yarl import URL

from tests.behaviour import ledger
from tests.behaviour.wire import SECURITY, Answer, check_error, exchange, head
from tests.fakes.gateway import KEY, GatewayProcess, gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

OPEN = {"/health", "/health/ready", "/v1/health"}
FRIEND = "https://app.example.org"
UNKNOWN_RUN = "run_" + "0" * 32
BODIES = {
    "/v1/runs": {"input": "hello"},
    "/steer": {"input": "left"},
    "/approval": {"choice": "once"},
}


async def _routes(it: GatewayProcess, run_id: str) -> list[tuple[str, str]]:
    """Every route of the document, with a run that exists and one that does not; and none."""
    _, document = await it.get("/openapi.json")
    found = [
        (
            method.upper(),
            re.sub(r"{(session_id|model_id|name|request_id)}", "s", path).replace("{run_id}", run),
        )
        for path, item in document["paths"].items()
        for method in item
        for run in ((run_id, UNKNOWN_RUN) if "{run_id}" in path else ("",))
    ]
    assert len(found) > 15
    nowhere = ("/", "/nowhere", "/v1/runs/", "/v2/runs", "/v1//runs", "/..%2f", "/v1/healthy")
    unknown = [(m, path) for path in nowhere for m in ("GET", "POST")]
    return [
        *found,
        *unknown,
        ("DELETE", "/v1/runs"),
        ("PUT", "/openapi.json"),
        ("HEAD", "/v1/runs"),
    ]


async def _busy(it: GatewayProcess) -> str:
    """A run in the middle of a tool, which will leave nothing more behind."""
    await it.finished(await it.run("tool:list_files {}", session_id="busy"))
    run_id = await it.run("tool:hang {}", session_id="busy")
    await it.events(run_id, until="tool.started")
    return run_id


def _body_of(path: str) -> dict[str, str] | None:
    return next((b for end, b in BODIES.items() if path.endswith(end)), None)


async def _ask(
    it: GatewayProcess, method: str, path: str, headers: dict[str, str], data: bytes | None = None
) -> Answer:
    """One request with just these headers; a body only where the route wants one."""
    if data is None and method == "POST" and (body := _body_of(path)) is not None:
        data = msgspec.json.encode(body)
        headers = {"Content-Type": "application/json", **headers}
    async with (
        aiohttp.ClientSession() as client,
        client.request(
            method, URL(it.url + path, encoded=True), headers=headers, data=data
        ) as response,
    ):
        fields = {name.lower(): value for name, value in response.headers.items()}
        endless = response.status == 200 and path.startswith("/api/") and path.endswith("/events")
        return Answer(response.status, fields, b"" if endless else await response.read())


def _refused(answer: Answer, status: int, what: object) -> dict[str, str]:
    assert answer.status == status, (what, answer)
    _headers_are_set(answer, what)
    if not answer.body:  # HEAD
        return {}
    return dict(answer.error)


def _headers_are_set(answer: Answer, what: object) -> None:
    missing = {k: answer.headers.get(k) for k, v in SECURITY.items() if answer.headers.get(k) != v}
    assert not missing, (what, missing)
    assert "permissions-policy" in answer.headers, what


WRONG_BEARERS = {
    "none": {},
    "empty": {"Authorization": ""},
    "no token": {"Authorization": "Bearer"},
    "empty token": {"Authorization": "Bearer "},
    "wrong": {"Authorization": "Bearer " + "x" * len(KEY)},
    "beginning": {"Authorization": f"Bearer {KEY[:-1]}"},
    "longer": {"Authorization": f"Bearer {KEY}x"},
    "other case": {"Authorization": f"Bearer {KEY.upper()}"},
    "another scheme": {"Authorization": f"Basic {KEY}"},
    "no scheme": {"Authorization": KEY},
    "twice": {"Authorization": f"Bearer {KEY} {KEY}"},
    "another header": {"X-Api-Key": KEY},
    "a cookie": {"Cookie": f"token={KEY}"},
}


@pytest.mark.promise("RUN-06")
@pytest.mark.fault("F-31")
async def test_without_the_right_key_every_route_answers_401_and_does_nothing(
    it: GatewayProcess,
) -> None:
    run_id = await _busy(it)
    routes = await _routes(it, run_id)
    before = ledger.holdings(it.home)
    said = set()
    for method, path in routes:
        for name, headers in WRONG_BEARERS.items():
            answer = await _ask(it, method, path, headers)
            if path in OPEN and method == "GET":
                assert answer.status == 200
                continue
            error = _refused(answer, 401, (method, path, name))
            said.add(answer.body)
            if error:
                assert (error["message"], error["code"]) == ("Invalid API key", "invalid_api_key")
    assert len(said - {b""}) == 1, "a 401 must not tell what exists"
    assert (await it.status(run_id))["status"] == "running", "somebody without a key stopped it"
    assert ledger.holdings(it.home) == before
    assert not [line for line in it.lines if KEY in line]


OPERATORS = ("/v1/rules", "/v1/sandbox/")  # the key of the API is no administrator's


@pytest.mark.promise("RUN-06")
async def test_with_the_right_key_every_route_works(it: GatewayProcess) -> None:
    run_id = (await it.finished(await it.run("hello", session_id="s")))["run_id"]
    for scheme in ("Bearer", "bearer", "BEARER"):
        for method, path in await _routes(it, run_id):
            answer = await _ask(it, method, path, {"Authorization": f"{scheme} {KEY}"})
            if path.startswith(OPERATORS):
                assert (answer.status, answer.error["code"]) == (403, "admin_only"), (method, path)
                continue
            assert answer.status not in (401, 403, 421), (method, path)
            assert answer.status < 500
            _headers_are_set(answer, (method, path))
            if answer.status >= 400 and answer.body:
                assert answer.error["message"]


@pytest.mark.fault("F-31")
@pytest.mark.promise("RUN-18")
async def test_foreign_hosts_and_origins_are_turned_away_on_every_route(it: GatewayProcess) -> None:
    run_id = await it.run("hello")
    await it.finished(run_id)
    before = ledger.holdings(it.home)
    right = {"Authorization": f"Bearer {KEY}"}
    hosts = (
        "evil.example",
        "evil.example:8642",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil",
        "[::2]",
    )
    origins = ("https://evil.example", "null", "http://127.0.0.1:1", it.url, "")
    for method, path in await _routes(it, run_id):
        for host in hosts:
            answer = await _ask(it, method, path, {**right, "Host": host})
            _refused(answer, 421, (method, path, host))
        for origin in origins:
            answer = await _ask(it, method, path, {**right, "Origin": origin})
            _refused(answer, 403, (method, path, origin))
            assert "access-control-allow-origin" not in answer.headers
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8642"):
        assert (await _ask(it, "GET", "/v1/runs", {**right, "Host": host})).status == 200
    assert ledger.holdings(it.home) == before


@pytest.mark.fault("F-31")
async def test_a_key_in_the_url_is_refused_even_if_it_is_right(it: GatewayProcess) -> None:
    run_id = await it.run("hello")
    await it.finished(run_id)
    before = ledger.holdings(it.home)
    right = {"Authorization": f"Bearer {KEY}"}
    for method, path in await _routes(it, run_id):
        for name in ("token", "api_key", "key", "access_token", "Token", "API_KEY"):
            for headers in ({}, right):
                answer = await _ask(it, method, f"{path}?x=1&{name}={KEY}", headers)
                error = _refused(answer, 400, (method, path, name))
                assert not error or KEY not in error["message"]
    assert ledger.holdings(it.home) == before
    assert not [line for line in it.lines if KEY in line], "the key is in the log"


@pytest.mark.fault("F-31")
async def test_a_body_that_does_not_say_it_is_json_is_refused(it: GatewayProcess) -> None:
    run_id = await _busy(it)
    before = ledger.holdings(it.home)
    types = (
        "text/plain",
        "text/plain; charset=utf-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "text/json",
        "nonsense",
    )
    for path in ("/v1/runs", f"/v1/runs/{run_id}/steer", f"/v1/runs/{run_id}/approval"):
        data = msgspec.json.encode(_body_of(path))
        for content in types:
            headers = {"Authorization": f"Bearer {KEY}", "Content-Type": content}
            error = _refused(await _ask(it, "POST", path, headers, data), 415, (path, content))
            assert "application/json" in error["message"]
    assert ledger.holdings(it.home) == before
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "Application/JSON; charset=utf-8"}
    assert (await _ask(it, "POST", "/v1/runs", headers, b'{"input": "x"}')).status == 202


@pytest.mark.promise("RUN-18")
async def test_an_allowed_origin_gets_the_cors_headers_on_everything(
    model: ModelServer, tmp_path: Path
) -> None:
    config = f'[gateway]\nallowed_origins = ["{FRIEND}"]\n'
    async with gateway(tmp_path, model.base_url, config=config) as it:
        run_id = await it.run("hello")
        await it.finished(run_id)
        friend = {"Authorization": f"Bearer {KEY}", "Origin": FRIEND}
        seen = set()
        for method, path in await _routes(it, run_id):
            for headers in (friend, {"Origin": FRIEND}):
                answer = await _ask(it, method, path, headers)
                seen.add(answer.status)
                _headers_are_set(answer, (method, path))
                _cors_is_set(answer, (method, path))
        assert {200, 202, 401, 404, 405, 409} <= seen

        stream = await _ask(it, "GET", f"/v1/runs/{run_id}/events", friend)
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert b"run.completed" in stream.body
        _cors_is_set(stream, "SSE")

        asking = {
            "Origin": FRIEND,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, last-event-id",
        }
        for path in ("/v1/runs", f"/v1/runs/{run_id}/stop", "/nowhere"):
            preflight = await _ask(it, "OPTIONS", path, asking)
            assert preflight.status in (200, 204)
            _cors_is_set(preflight, path)
            _headers_are_set(preflight, path)
        for origin in ("https://evil.example", FRIEND + ".evil.example", FRIEND.upper(), "null"):
            answer = await _ask(it, "OPTIONS", "/v1/runs", {**asking, "Origin": origin})
            _refused(answer, 403, origin)
            assert "access-control-allow-origin" not in answer.headers
        without = await _ask(it, "GET", "/v1/runs", {"Authorization": f"Bearer {KEY}"})
        assert without.status == 200 and "access-control-allow-origin" not in without.headers


def _cors_is_set(answer: Answer, what: object) -> None:
    got = answer.headers
    assert got.get("access-control-allow-origin") == FRIEND, what
    assert "origin" in got.get("vary", "").lower(), what
    methods = {m.strip() for m in got["access-control-allow-methods"].split(",")}
    assert {"GET", "POST", "PATCH", "DELETE", "OPTIONS"} <= methods
    allowed = {h.strip().lower() for h in got["access-control-allow-headers"].split(",")}
    assert {"authorization", "content-type", "idempotency-key", "last-event-id"} <= allowed
    exposed = {h.strip().lower() for h in got["access-control-expose-headers"].split(",")}
    assert {"idempotency-replayed", "retry-after"} <= exposed
    assert "access-control-allow-credentials" not in got


@pytest.mark.promise("RUN-18")
async def test_security_headers_are_on_every_kind_of_answer(it: GatewayProcess) -> None:
    run_id = await it.run("hello")
    last = (await it.events(run_id)).frames[-1].id
    right = {"Authorization": f"Bearer {KEY}"}
    json = {**right, "Content-Type": "application/json"}
    kinds = {
        200: ("GET", f"/v1/runs/{run_id}/events", right, None),
        202: ("POST", "/v1/runs", json, b'{"input": "x"}'),
        204: ("GET", f"/v1/runs/{run_id}/events?after={last}", right, None),
        400: ("POST", "/v1/runs", json, b"{"),
        401: ("GET", "/v1/runs", {}, None),
        403: ("GET", "/health", {"Origin": "https://evil.example"}, None),
        404: ("GET", "/nowhere", right, None),
        405: ("DELETE", "/v1/runs", right, None),
        409: ("POST", f"/v1/runs/{run_id}/steer", json, b'{"input": "x"}'),
        413: ("POST", "/v1/runs", json, b" " * (11 << 20)),
        415: ("POST", "/v1/runs", {**right, "Content-Type": "text/plain"}, b"{}"),
        421: ("GET", "/health", {"Host": "evil.example"}, None),
    }
    for status, (method, path, headers, data) in kinds.items():
        answer = await _ask(it, method, path, headers, data)
        assert answer.status == status, (method, path, answer.status)
        _headers_are_set(answer, status)


def _malformed() -> Iterator[tuple[str, bytes]]:
    yield "a header with a NUL", head("GET", "/health", f"Authorization: Bearer {KEY}\0")
    yield "a header that is none", head("GET", "/health", f"Bearer {KEY}")
    yield "a header that is too long", head("GET", "/health", f"X-Key: {KEY}{'a' * 9000}")
    yield "a method that is none", f"{KEY} / HTTP/1.1\r\n\r\n".encode()
    yield "a second request that is none", head("GET", "/health") + f"{KEY} x\r\n\r\n".encode()
    yield "a path that is too long", head("GET", f"/v1/runs/{KEY}{'a' * 9000}")
    yield "a path that is no text", b"GET /\xff\xfe HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    yield "a port that is none", head("GET", f"http://x:99999999/{KEY}")
    yield "TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n"
    yield "two hosts", head("GET", "/health", "Host: localhost")
    yield "two lengths", head("POST", "/v1/runs", "Content-Length: 1", "Content-Length: 2") + b"{}"
    yield "a length that is none", head("POST", "/v1/runs", "Content-Length: -1")
    chunked = ("Transfer-Encoding: chunked", "Content-Type: application/json")
    yield "a chunk that is none", head("POST", "/v1/runs", *chunked) + KEY.encode() + b"\r\n"
    yield "an unknown HTTP", f"GET /?{KEY} HTTP/9.9\r\n\r\n".encode()


@pytest.mark.fault("F-31")
@pytest.mark.promise("RUN-18", "RUN-24")
async def test_a_request_that_is_not_http_is_refused_like_any_other_and_not_quoted(
    it: GatewayProcess,
) -> None:
    before = ledger.holdings(it.home)
    for name, request in _malformed():
        answer = await exchange(it.url, request)
        if name == "a second request that is none":
            continue  # its own answer comes second; what matters is the log
        assert 400 <= answer.status < 500, (name, answer)
        _headers_are_set(answer, name)
        check_error(answer.status, answer.headers, answer.body)
        assert KEY.encode() not in answer.body, name
    assert ledger.holdings(it.home) == before
    assert (await it.get("/health"))[0] == 200
    assert not [line for line in it.lines if KEY in line], "the key is in the log"
