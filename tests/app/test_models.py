"""What is known of a model: from the configuration, its server's list, or the shipped table."""

from contextlib import aclosing
from datetime import date
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from holdfast.app.models import ModelBuilder
from holdfast.config.load import load
from holdfast.config.settings import Config
from holdfast.config.vendors import VENDORS
from holdfast.core.messages import User
from holdfast.errors import Misconfigured
from holdfast.models import windows
from holdfast.models.model import Candidate, ListedModel, Price, Request
from holdfast.models.openai_list import read_models
from tests.fakes import ollama
from tests.fakes.model_server import Reply, serve

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
    assert windows.shipped().window(model) == window


@pytest.mark.promise("SETUP-04")
@pytest.mark.parametrize(
    ("vendor", "model", "price"),
    [
        ("openai", "gpt-5-mini", (0.25, 2.0, 0.025)),
        ("anthropic", "claude-sonnet-4-5-20250929", (3.0, 15.0, 0.3)),
        ("gemini", "gemini-2.5-flash", (0.3, 2.5, 0.0)),
        ("groq", "llama-3.3-70b-versatile", (0.59, 0.79, 0.0)),
        ("mistral", "mistral-medium-latest", (0.4, 2.0, 0.0)),
        ("deepseek", "deepseek-chat", (0.28, 0.42, 0.028)),
        ("gemini", "gemini-2.5-pro", (0.0, 0.0, 0.0)),  # it depends on the request
        ("openai", "gpt-9", (0.0, 0.0, 0.0)),
    ],
)
def test_a_price_is_known_or_said_to_be_unknown(
    vendor: str, model: str, price: tuple[float, ...]
) -> None:
    found = windows.shipped().price(vendor, model)
    assert (found.input, found.output, found.cached) == price
    assert found.known == bool(price[0])


@pytest.mark.promise("SETUP-04")
def test_the_shipped_table_has_a_date_and_the_default_models_of_vendors() -> None:
    known = windows.shipped()
    assert date.fromisoformat(known.as_of).year >= 2025
    for vendor in VENDORS:
        if vendor.name in known.prices and vendor.model:
            assert known.window(vendor.model), vendor
    with_price = [v.name for v in VENDORS if known.price(v.name, v.model).known]
    assert {"openai", "anthropic", "gemini", "groq", "deepseek", "mistral"} <= set(with_price)


@pytest.mark.promise("SETUP-04")
def test_a_file_in_the_home_goes_before_the_shipped_table(tmp_path: Path) -> None:
    (tmp_path / windows.FILE).write_text(
        '{"as_of": "2027-01-01", "windows": {"gpt-5": 7, "new": 8}, '
        '"prices": {"openai": {"gpt-5": [1, 2]}, "xyz": {"m": [3, 4, 5]}}}'
    )
    known = configured(tmp_path, '[openai]\napi_key = "k"\n').models["openai"]
    assert (known.window("gpt-5"), known.window("new"), known.window("o3")) == (7, 8, 200_000)
    assert (known.price("gpt-5").input, known.price("gpt-5-mini").input) == (1, 0.25)
    assert windows.known(tmp_path).as_of == "2027-01-01"
    (tmp_path / windows.FILE).write_text('{"prizes": {}}')
    with pytest.raises(Misconfigured, match=windows.FILE):
        configured(tmp_path, "")


@pytest.mark.parametrize("model", ["claude-opus-9", "claude-x"])
def test_an_unknown_claude_has_no_window_until_its_server_says_one(model: str) -> None:
    assert windows.shipped().window(model) == 0


def test_a_price_is_known_only_at_the_vendors_own_server(tmp_path: Path) -> None:
    own = configured(tmp_path, '[openai]\napi_key = "k"\n').models["openai"]
    assert own.price("gpt-5-mini-2025-08-07").input == 0.25
    assert not own.price("gpt-5-minimal").known
    elsewhere = configured(tmp_path, '[openai]\nbase_url = "http://h/v1"\n').models["openai"]
    assert not elsewhere.price("gpt-5-mini").known
    here = configured(tmp_path, 'model = "ollama/x"\n').models["ollama"]
    assert here.price("x").free


@pytest.mark.promise("SETUP-04")
@pytest.mark.parametrize(
    ("entry", "listed"),
    [
        (
            b'{"id":"a/b","context_length":9,"pricing":{"prompt":"0.00000025","completion":"2e-6",'
            b'"input_cache_read":"0.000000025"}}',
            ListedModel("a/b", 9, Price(0.25, 2.0, 0.025)),
        ),
        (
            b'{"id":"f","pricing":{"prompt":"0","completion":"0"}}',
            ListedModel("f", 0, Price(free=True)),
        ),
        (b'{"id":"auto","pricing":{"prompt":"-1","completion":"-1"}}', ListedModel("auto")),
        (b'{"id":"x","pricing":{"prompt":"nan","completion":"1"}}', ListedModel("x")),
        (b'{"id":"x","pricing":{"prompt":"dear","completion":"1"}}', ListedModel("x")),
        (b'{"id":"t","pricing":{"input":3,"output":4}}', ListedModel("t")),
        (b'{"id":"m","max_context_length":131072}', ListedModel("m", 131_072)),
    ],
)
def test_windows_and_prices_are_read_from_a_servers_list(entry: bytes, listed: ListedModel) -> None:
    assert read_models(b'{"data":[%s]}' % entry) == [listed]


@pytest.mark.promise("SETUP-04")
async def test_the_price_is_asked_of_the_server_if_it_is_not_known(tmp_path: Path) -> None:
    async with serve() as server:
        body = b'{"data":[{"id":"m","pricing":{"prompt":"0.000003","completion":"0.000015"}}]}'
        server.refuse_models = Reply((body,), content_type="application/json", length=len(body))
        table = f'[models.w]\nprovider = "openai"\nbase_url = "{server.base_url}"\napi_key = "k"\n'
        builder = ModelBuilder(configured(tmp_path, f'model = "w/m"\n{table}'))
        models = builder.build()
        assert not models.main.price.known
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(builder.learn)
            await ask(models.main)
            with anyio.fail_after(30):
                while not models.named("").price.known:
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert models.named("").price == Price(3.0, 15.0)
        await builder.aclose()
