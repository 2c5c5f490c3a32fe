"""What is known of a model: from the configuration, its server's list, or the shipped table."""

from contextlib import aclosing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from holdfast.app.models import ModelBuilder
from holdfast.config.load import load
from holdfast.config.settings import Config
from holdfast.core.messages import User
from holdfast.models import windows
from holdfast.models.model import Candidate, Request
from tests.fakes import ollama
from tests.fakes.model_server import serve

pytestmark = pytest.mark.anyio


def configured(home: Path, text: str) -> Config:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)
    return load({"HOLDFAST_HOME": str(home)}, {})


async def ask(candidate: Candidate) -> None:
    request = Request(candidate.name.partition("/")[2], "", (User("hello"),), ())
    async with aclosing(candidate.model.stream(request)) as pieces:
        async for _ in pieces:
            pass


async def test_the_window_is_asked_of_the_server_once_the_model_is_used(tmp_path: Path) -> None:
    async with serve(lambda _: ollama.say("well"), wire=ollama.WIRE) as server:
        server.models = ["llama3.1:8b"]
        config = configured(
            tmp_path,
            f'model = "ollama/llama3.1:8b"\n[models.ollama]\nbase_url = "{server.base_url}"\n',
        )
        builder = ModelBuilder(config)
        models = builder.build()
        assert models.main.window == windows.OLLAMA
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(builder.learn)
            await ask(models.main)
            with anyio.fail_after(30):
                while models.named("").window != ollama.WINDOW:
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        await builder.aclose()


async def test_a_server_that_lists_nothing_leaves_the_shipped_window(tmp_path: Path) -> None:
    async with serve() as server:
        server.refuse_models = ollama.refuse(500, "no")
        config = configured(
            tmp_path,
            f'model = "openai/gpt-4o"\n[openai]\nbase_url = "{server.base_url}"\n',
        )
        builder = ModelBuilder(config)
        models = builder.build()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(builder.learn)
            await ask(models.main)
            tasks.cancel_scope.cancel()
        assert models.named("").window == 128_000
        await builder.aclose()


def test_the_configuration_wins_over_the_table(tmp_path: Path) -> None:
    text = 'model = "openai/gpt-4o"\n[openai]\napi_key = "k"\ncontext_tokens = 9\nusd_per_m_input = 7\n'
    main = ModelBuilder(configured(tmp_path, text)).build().main
    assert (main.window, main.price.input) == (9, 7.0)


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-4o-mini", 128_000),
        ("gpt-4.1-nano", 1_047_576),
        ("gpt-4", 8_192),
        ("openai/gpt-5-mini", 400_000),
        ("claude-sonnet-4-5", 200_000),
        ("gemini-2.5-flash", 1_048_576),
        ("llama3.1:8b", 131_072),
        ("qwen2.5:7b", 32_768),
        ("unheard-of", 0),
    ],
)
def test_well_known_models_have_a_window(model: str, window: int) -> None:
    assert windows.window(model) == window


def test_a_price_is_known_only_at_the_vendors_own_server(tmp_path: Path) -> None:
    own = configured(tmp_path, '[openai]\napi_key = "k"\n').models["openai"]
    assert own.price("gpt-5-mini-2025-08-07").input == 0.25
    assert not own.price("gpt-5-minimal").known
    elsewhere = configured(tmp_path, '[openai]\nbase_url = "http://h/v1"\n').models["openai"]
    assert not elsewhere.price("gpt-5-mini").known
    here = configured(tmp_path, 'model = "ollama/x"\n').models["ollama"]
    assert here.price("x").free
