"""Several models at once: which one a run uses, key pools, fallbacks across servers."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import anthropic
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer, refuse, serve

pytestmark = pytest.mark.anyio


def table(name: str, server: ModelServer, keys: str, provider: str = "openai") -> str:
    return (
        f'[models.{name}]\nprovider = "{provider}"\nbase_url = "{server.base_url}"\n'
        f"api_keys = [{keys}]\n"
    )


def keys_seen(server: ModelServer) -> list[str]:
    names = ("Authorization", "x-api-key")
    return [next(r.headers[n] for n in names if n in r.headers) for r in server.requests]


@asynccontextmanager
async def two_servers(tmp_path: Path, first: str) -> AsyncIterator[tuple[Any, Any, GatewayProcess]]:
    """A gateway with a server of each of two protocols; `first` is above the tables."""
    async with (
        serve() as one,
        serve(lambda _: anthropic.say("from the other"), wire=anthropic.WIRE) as other,
    ):
        config = first + table("one", one, '"key-1a", "key-1b"')
        config += table("other", other, '"key-2"', "anthropic") + 'model = "claude-x"\n'
        async with gateway(tmp_path, config=config) as it:
            yield one, other, it


@pytest.mark.promise("MODEL-10")
async def test_a_run_uses_the_model_that_it_names(tmp_path: Path) -> None:
    async with two_servers(tmp_path, 'model = "one/m"\n') as (one, other, it):
        assert [m["id"] for m in (await it.get("/v1/models"))[1]["data"]] == [
            "one/m",
            "other/claude-x",
        ]
        assert (await it.get("/v1/models/other/claude-x"))[0] == 200
        assert (await it.get("/v1/models/other/unlisted"))[0] == 404
        for model, output in ((None, "mine"), ("other/any", "from the other")):
            done = await it.finished(await it.run("say:mine", model=model))
            assert (done["model"], done["output"]) == (model or "one/m", output)
        assert [r.body["model"] for r in (*one.requests, *other.requests)] == ["m", "any"]
        refused = await it.post("/v1/runs", {"input": "x", "model": "groq/x"})
        assert (refused[0], refused[1]["error"]["code"]) == (400, "model_not_served")


@pytest.mark.promise("MODEL-08")
async def test_a_gateway_says_which_model_it_uses_and_why(tmp_path: Path) -> None:
    async with two_servers(tmp_path, 'model = "one/m"\n') as (_, _, it):
        assert f"set by {it.home}/config.toml" in await it.said("Model one/m: ")
        details = (await it.get("/health/detailed"))[1]
        assert details["model_reason"] == f"set by {it.home}/config.toml"


@pytest.mark.promise("MODEL-09")
async def test_the_next_key_of_a_pool_is_used_if_one_fails(tmp_path: Path) -> None:
    async with two_servers(tmp_path, 'model = "one/m"\nfallbacks = ["other/y"]\n') as (one, _, it):
        one.then(refuse(401, "that key is revoked"))
        run_id = await it.run("say:yes")
        done = await it.finished(run_id)
        assert (done["status"], done["model"], done["output"]) == ("completed", "one/m", "yes")
        assert keys_seen(one) == ["Bearer key-1a", "Bearer key-1b"]
        retries = [f for f in (await it.events(run_id)).frames if f.event == "model.retry"]
        assert [f.data["next_model"] for f in retries] == ["one/m"]


@pytest.mark.promise("MODEL-01", "MODEL-09")
async def test_a_fallback_may_speak_another_protocol_and_gets_only_its_own_key(
    tmp_path: Path,
) -> None:
    async with two_servers(tmp_path, 'model = "one/m"\nfallbacks = ["other/y"]\n') as (
        one,
        other,
        it,
    ):
        one.then(refuse(503, "down"), refuse(503, "down"))
        done = await it.finished(await it.run("hello"))
        assert done["output"] == "from the other"
        assert keys_seen(one) == ["Bearer key-1a", "Bearer key-1b"]
        assert keys_seen(other) == ["key-2"]


async def test_a_configured_model_without_a_key_is_a_mistake_of_the_configuration(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path) as it:
        await it.stop()
        file = it.home / "config.toml"
        file.write_text(f'model = "offline"\nfallbacks = ["groq/x"]\n{file.read_text()}')
        result = await it.holdfast("gateway", "run", "--port", "0")
    assert result.returncode == 78
    assert b"GROQ_API_KEY" in result.stderr


def test_only_the_provider_that_is_used_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from holdfast.app.models import ModelBuilder\n"
        "from holdfast.config.load import load\n"
        f"environ = {{'HOLDFAST_HOME': {str(tmp_path)!r}, 'OPENAI_API_KEY': 'k', "
        "'ANTHROPIC_API_KEY': 'k', 'GEMINI_API_KEY': 'k', 'HOLDFAST_MODEL': 'openai/m'}\n"
        "ModelBuilder(load(environ, {})).build()\n"
        "names = ('openai', 'anthropic', 'gemini', 'ollama', 'responses', 'offline', 'scripted')\n"
        "print(*[n for n in names if f'holdfast.models.{n}' in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["openai"]
