"""Health, models, capabilities and the OpenAPI document."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis

from holdfast import __version__
from tests.fakes.gateway import GatewayProcess

pytestmark = pytest.mark.anyio


async def test_health_needs_no_key_and_discloses_little(it: GatewayProcess) -> None:
    for path in ("/health", "/v1/health"):
        async with it.http.get(it.url + path, headers={"Authorization": ""}) as response:
            assert response.status == 200
            assert await response.json() == {"status": "ok", "version": __version__}


async def test_detailed_health_counts_what_is_going_on(it: GatewayProcess) -> None:
    busy = await it.run("tool:hang {}", session_id="s")
    await it.events(busy, until="tool.started")
    await it.run("waits", session_id="s")
    status, body = await it.get("/health/detailed")
    assert (status, body["status"]) == (200, "ok")
    assert body["checks"] == {"process": "ready", "journal": "ok", "audit": "ok"}
    assert body["runs"] == {"running": 1, "queued": 1, "waiting": 0}
    assert body["model"] == "openai/fake"
    assert body["loop_lag_ms"] >= 0 and body["uptime_s"] >= 0


async def test_the_configured_model_is_listed_and_can_be_looked_up(it: GatewayProcess) -> None:
    status, body = await it.get("/v1/models")
    assert (status, body["object"]) == (200, "list")
    (only,) = body["data"]
    assert only["id"] == "openai/fake" and only["object"] == "model"
    assert {"created", "owned_by"} <= set(only)
    assert await it.get("/v1/models/openai/fake") == (200, only)
    status, body = await it.get("/v1/models/gpt-17")
    assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_capabilities_name_what_there_is_and_what_there_is_not(it: GatewayProcess) -> None:
    status, body = await it.get("/v1/capabilities")
    assert (status, body["object"]) == (200, "hermes.api_server.capabilities")
    assert all(isinstance(value, bool) for value in body["features"].values())
    assert body["features"]["runs"] and body["features"]["run_events_resume"]
    assert body["features"]["run_approval"] and not body["features"]["chat_completions"]
    for endpoint in body["endpoints"]:
        method, path = endpoint.split(" ")
        path = re.sub(r"{.*?}", "x", path)
        async with it.http.request(method, it.url + path, json={}) as response:
            answer = await response.json()
            missing = answer.get("error", {}).get("code")
            assert missing not in ("not_found", "method_not_allowed"), endpoint


async def test_the_openapi_document_is_one_and_names_every_route(it: GatewayProcess) -> None:
    _, document = await it.get("/openapi.json")
    _, capabilities = await it.get("/v1/capabilities")
    loaded = schemathesis.openapi.from_dict(document)
    assert sum(1 for _ in loaded.get_all_operations()) == len(list(_operations(document)))
    endpoints = {re.sub(r":[^}]*}", "}", e) for e in capabilities["endpoints"]}
    assert {f"{method} {path}" for method, path in _operations(document)} == endpoints
    assert document["info"]["version"] == __version__


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for path, item in document["paths"].items():
        yield from ((method.upper(), path) for method in item)
