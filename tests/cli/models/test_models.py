"""`holdfast models`: what there is, what is used and why; choosing and trying."""

import json
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from holdfast.cli.models.models import BUILTIN_ONLY, NO_MODEL
from tests.cli import Place
from tests.fakes import model_server as says
from tests.fakes import ollama
from tests.fakes.model_server import ModelServer, refuse, serve

pytestmark = pytest.mark.anyio


def table(server: ModelServer, name: str = "work", key: str = "key-canary") -> str:
    return (
        f'[models.{name}]\nprovider = "openai"\nbase_url = "{server.base_url}"\napi_key = "{key}"\n'
    )


async def listed(place: Place, *more: str) -> dict[str, Any]:
    result = await place.holdfast("models", "list", "--json", *more)
    assert result.code == 0, result
    return dict(json.loads(result.out))


@asynccontextmanager
async def counting(names: Sequence[str]) -> AsyncIterator[tuple[int, list[str | None]]]:
    """A server on this machine that lists models; its port, and the keys it was shown."""
    seen: list[str | None] = []

    async def models(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        entries = [{"id": name, "owned_by": "vllm"} for name in names]
        return web.json_response({"object": "list", "data": entries})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1], seen
    finally:
        await runner.cleanup()


@pytest.mark.promise("MODEL-08")
async def test_the_list_says_what_is_in_use_and_why(place: Place) -> None:
    place.configure(
        'model = "work/large"\nfallbacks = ["groq/x"]\n'
        '[models.work]\nprovider = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n'
        'context_tokens = 9000\nusd_per_m_input = 1\nusd_per_m_output = 2\napi_key = "k-canary"\n'
        '[models.groq]\napi_key = "gsk-canary"\n'
    )
    report = await listed(place)
    assert report["model"] == "work/large"
    assert report["reason"] == f"set by {place.home}/config.toml"
    rows = {row["name"]: row for row in report["models"]}
    assert [(name, row["role"]) for name, row in rows.items()] == [
        ("work/large", "in use"),
        ("groq/x", "fallback"),
        ("groq/llama-3.3-70b-versatile", ""),
    ]
    assert (rows["work/large"]["window"], rows["work/large"]["usd_per_m_output"]) == (9000, 2.0)
    assert rows["groq/llama-3.3-70b-versatile"]["window"] == 131_072
    plain = await place.holdfast("models")
    assert plain.out.startswith("* work/large ")
    assert "canary" not in plain.out + json.dumps(report)


async def test_the_models_of_one_server_are_asked_of_it(place: Place) -> None:
    async with serve() as server:
        place.configure(table(server))
        report = await listed(place, "work")
        assert [row["name"] for row in report["models"]] == ["work/fake-small", "work/fake-large"]
        unknown = await place.holdfast("models", "list", "nowhere")
    assert unknown.code == 2


@pytest.mark.promise("MODEL-08")
async def test_a_server_on_this_machine_is_used_if_nothing_is_configured(place: Place) -> None:
    del place.environ["HOLDFAST_PROBE_LOCAL"]
    async with serve(lambda _: ollama.say("well"), wire=ollama.WIRE) as server:
        server.models = ["an-embedder", "qwen3:8b"]
        place.configure(f"probe_ports = [{server.base_url.rpartition(':')[2]}]\n")
        report: dict[str, Any] = {"model": "offline"}
        while report["model"] == "offline":  # it does not wait long for an answer
            report = await listed(place)
        assert report["model"] == "ollama/qwen3:8b"
        assert server.base_url in report["reason"]
        result = await place.holdfast("run", "hello")
        while result.out != "well\n":
            result = await place.holdfast("run", "hello")
        assert result.code == 0
        assert f"model ollama/qwen3:8b: {report['reason']}" in result.err
        doctor: dict[str, Any] = {"model": "offline"}
        while doctor["model"] == "offline":
            doctor = json.loads((await place.holdfast("doctor", "--json")).out)
        assert (doctor["model"], doctor["model_reason"]) == (report["model"], report["reason"])
        config = ""
        while report["model"] not in config:
            config = (await place.holdfast("config")).out
        assert report["reason"] in config


@pytest.mark.promise("MODEL-08")
async def test_nobody_is_probed_if_a_model_is_configured_or_the_probe_is_off(place: Place) -> None:
    async with serve() as server, counting(["m"]) as (port, seen):
        place.configure(f"probe_ports = [{port}]\n")
        place.environ["HOLDFAST_PROBE_LOCAL"] = "0"
        assert (await listed(place))["model"] == "offline"
        assert "no model is configured" in (await place.holdfast("run", "hi")).err
        del place.environ["HOLDFAST_PROBE_LOCAL"]
        place.configure(f'probe_ports = [{port}]\nmodel = "work/m"\n' + table(server))
        assert (await place.holdfast("run", "say:yes")).out == "yes\n"
        assert (await place.holdfast("doctor")).code == 0
    assert seen == []


@pytest.mark.promise("MODEL-09")
async def test_the_probe_shows_nobody_a_key(place: Place) -> None:
    del place.environ["HOLDFAST_PROBE_LOCAL"]
    async with counting(["m"]) as (port, seen):
        place.configure(
            f'probe_ports = [{port}]\nmodel = "offline"\n[models.groq]\napi_key = "k"\n'
        )
        place.environ["OPENAI_API_KEY"] = "sk-canary"
        while not seen:  # it does not wait long for an answer
            await listed(place)
    assert set(seen) == {None}


async def test_use_saves_the_model_and_nothing_else(place: Place) -> None:
    place.configure('# mine\n[models.groq]\napi_key = "gsk"\n')
    result = await place.holdfast("models", "use", "groq/some")
    assert (result.code, result.err) == (0, "")
    text = (place.home / "config.toml").read_text()
    assert tomllib.loads(text) == {"model": "groq/some", "models": {"groq": {"api_key": "gsk"}}}
    assert "# mine" in text
    await place.holdfast("models", "use", "groq")
    assert (await listed(place))["model"] == "groq/llama-3.3-70b-versatile"
    keyless = await place.holdfast("models", "use", "xai")
    assert keyless.code == 0
    assert "XAI_API_KEY" in keyless.err
    wrong = await place.holdfast("models", "use", "acme/x")
    assert (wrong.code, wrong.out) == (2, "")
    assert (await listed(place))["model"].startswith("xai/")


async def test_a_model_is_tried_with_one_request(place: Place) -> None:
    async with serve() as server:
        place.configure(table(server) + table(server, "other"))
        report = json.loads((await place.holdfast("models", "test", "work/m", "--json")).out)
        assert report["model"] == "work/m"
        assert report["input_tokens"] > 0
        assert [seen.body["model"] for seen in server.requests] == ["m"]
        server.then(refuse(401, "no such key"))
        refused = await place.holdfast("models", "test", "other/m")
    assert (refused.code, refused.out) == (4, "")
    assert "check models.other.api_key" in refused.err
    gone = await place.holdfast("models", "test", "other/m")
    assert gone.code == 75


async def test_every_key_of_a_pool_is_tried(place: Place) -> None:
    async with serve() as server:
        pool = table(server).replace('api_key = "key-canary"', 'api_keys = ["k-1", "k-2", "k-3"]')
        place.configure(pool)
        server.then(says.say("ready"), refuse(401, "no such key"), says.say("ready"))
        result = await place.holdfast("models", "test", "work/m", "--json")
        keys = [seen.headers["Authorization"] for seen in server.requests]
    assert keys == ["Bearer k-1", "Bearer k-2", "Bearer k-3"]
    assert result.code == 4
    tried = json.loads(result.out)["keys"]
    assert [(one["key"], "error" in one) for one in tried] == [(1, False), (2, True), (3, False)]
    assert "k-2" not in result.out + result.err


async def test_offline_cannot_be_tried_and_only_the_built_in_model_is_fetched(place: Place) -> None:
    tried = await place.holdfast("models", "test")
    assert (tried.code, tried.err) == (2, f"holdfast: {NO_MODEL}\n")
    for what in ("pull", "remove"):
        other = await place.holdfast("models", what, "groq/x")
        assert (other.code, other.err) == (2, f"holdfast: {BUILTIN_ONLY}\n")
    assert (await place.holdfast("models", "remove", "builtin")).code == 0
