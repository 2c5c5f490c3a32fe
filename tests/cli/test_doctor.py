"""`holdfast doctor`: the truth about the set-up, quickly, and what to do next."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli import Place, read_until
from tests.fakes.model_server import serve

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def examine(place: Place, code: int = 0) -> dict[str, Any]:
    result = await place.holdfast("doctor", "--json")
    assert result.code == code, result
    report: dict[str, Any] = json.loads(result.out)
    report["checks"] = {check["name"]: check for check in report["checks"]}
    return report


async def test_a_fresh_home_is_usable_and_stays_untouched(place: Place) -> None:
    report = await examine(place)
    assert report["usable"]
    assert report["model"] == "offline"
    assert "OPENAI_API_KEY" in report["checks"]["model"]["next_step"]
    assert not place.home.exists()


async def test_a_model_that_answers_is_well(place: Place) -> None:
    async with serve() as server:
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "HOLDFAST_MODEL": "openai/fake"}
        report = await examine(place)
    assert report["checks"]["model"]["verdict"] == "ok"
    assert report["set"]["model"] == {
        "value": "openai/fake",
        "origin": "environment HOLDFAST_MODEL",
    }


async def test_a_model_that_cannot_be_reached_needs_mending(place: Place) -> None:
    place.environ |= {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "sk-canary"}
    report = await examine(place, code=1)
    assert not report["usable"]
    assert report["checks"]["model"]["verdict"] == "bad"
    assert "OPENAI_BASE_URL" in report["checks"]["model"]["next_step"]
    assert "canary" not in json.dumps(report)


async def test_an_open_host_without_names_is_pointed_out(place: Place) -> None:
    place.configure('[gateway]\nhost = "0.0.0.0"\n')
    report = await examine(place)
    assert report["checks"]["door"]["verdict"] == "note"
    assert "allowed_hosts" in report["checks"]["door"]["next_step"]


async def test_a_key_that_others_can_read_is_pointed_out(place: Place) -> None:
    place.configure('[gateway]\napi_key = "0123456789abcdef"\n')
    (place.home / "config.toml").chmod(0o644)
    report = await examine(place)
    assert report["checks"]["config"]["next_step"] == f"chmod 600 {place.home}/config.toml"


async def test_the_owner_of_the_home_is_seen(place: Place) -> None:
    async with place.started("gateway", "run", "--port", "0") as gateway:
        await read_until(gateway.stderr, "ready on")
        report = await examine(place)
    assert report["checks"]["owner"]["finding"] == "a gateway serves the home: ok"


async def test_it_speaks_plainly_and_soon_without_a_network(place: Place) -> None:
    place.environ |= {"HOLDFAST_MODEL": "openai/m", "OPENAI_API_KEY": "sk"}
    place.environ["OPENAI_BASE_URL"] = "http://127.0.0.1:9/v1"
    begun = time.monotonic()
    result = await place.holdfast("doctor")
    assert time.monotonic() - begun < 5.0  # a second when the machine is quiet
    assert result.code == 1
    assert "✗ model" in result.out
    assert "Next:" in result.out
