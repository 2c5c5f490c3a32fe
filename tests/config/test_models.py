"""Tables of models: `[models.NAME]`, keys in the environment, and what is chosen."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.config import process as configuration
from holdfast.config import settings, vendors
from holdfast.config.home import known_secrets
from holdfast.config.load import load
from holdfast.config.settings import Config
from holdfast.config.vendors import BY_NAME, VARIABLES, VENDORS
from holdfast.errors import Misconfigured
from tests.config.test_settings import complaint, load_file


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def keys(config: Config, name: str) -> list[str]:
    return [key.reveal() for key in config.models[name].keys]


def test_a_table_is_a_server_with_its_keys(home: Path) -> None:
    config = load_file(
        home,
        """
        model = "work/large"
        fallbacks = ["groq/x", "ollama/y"]
        small_model = "work/small"
        [models.work]
        provider = "openai"
        base_url = "https://llm.example.org/v1"
        api_keys = ["k1", "k2"]
        stall_s = 5
        context_tokens = 32000
        usd_per_m_input = 1
        usd_per_m_output = 2
        usd_per_m_cached = 0.5
        [models.groq]
        api_key = "gsk"
        """,
    )
    work = config.models["work"]
    assert keys(config, "work") == ["k1", "k2"]
    assert (work.base_url, work.vendor.wire) == ("https://llm.example.org/v1", "openai")
    assert (work.written.stall_s, work.written.usd_per_m_cached) == (5.0, 0.5)
    assert (config.provider, config.model_name, config.small_model) == (
        "work",
        "large",
        "work/small",
    )
    assert config.models["groq"].base_url == BY_NAME["groq"].base_url
    assert config.models["ollama"].keys == ()  # it is named, and needs neither table nor key


def test_the_section_openai_is_a_table_of_models(home: Path) -> None:
    for section in ("[openai]", "[models.openai]"):
        config = load_file(home, f'{section}\nbase_url = "http://h/v1"\nstall_s = 5\n')
        assert config.openai.base_url == config.models["openai"].base_url == "http://h/v1"
        assert config.openai.stall_s == config.models["openai"].written.stall_s == 5.0
    both = '[openai]\nstall_s = 5\n[models.openai]\nstall_s = 5.0\napi_keys = ["a", "b"]\n'
    config = load_file(home, both, {"OPENAI_API_KEY": "c"})
    assert keys(config, "openai") == ["c", "a", "b"]
    assert config.origins["models.openai.api_keys.2"] == str(home / "config.toml")


def test_two_values_for_the_same_setting_are_refused(home: Path) -> None:
    wrong, instead = complaint(home, "[openai]\nstall_s = 5\n[models.openai]\nstall_s = 6\n")
    assert wrong == "FILE: openai.stall_s and models.openai.stall_s differ"
    assert instead == "keep one of them: [openai] means [models.openai]"


@pytest.mark.parametrize(
    ("text", "wrong", "instead"),
    [
        (
            '[models.groq]\napikey = "k"',
            "FILE: unknown key models.groq.apikey",
            'did you mean api_key = "sk-…" under [models.groq]?',
        ),
        (
            '[models.groq]\nstall_s = "5"',
            'FILE: models.groq.stall_s is "5"',
            "it must be a number of seconds, 0 to 86400; write stall_s = 120.0 under [models.groq]",
        ),
        (
            "[models.groq]\napi_key = 5",
            "FILE: models.groq.api_key is not usable as a key",
            'it must be a text of visible characters; write api_key = "sk-…" under [models.groq]',
        ),
        (
            '[models.groq]\napi_keys = ["a", ""]',
            "FILE: models.groq.api_keys is not usable as a key",
            "it must be texts of visible characters; "
            'write api_keys = ["sk-…1", "sk-…2"] under [models.groq]',
        ),
        (
            '[models.work]\nbase_url = "http://h"',
            "FILE: models.work.provider is missing",
            'write provider = "openai" under [models.work]; known are ' + ", ".join(BY_NAME),
        ),
        (
            '[models.work]\nprovider = "gorq"',
            'FILE: models.work.provider is "gorq"',
            'write provider = "groq" under [models.work]; known are ' + ", ".join(BY_NAME),
        ),
        (
            '[models.openai]\nprovider = "groq"',
            'FILE: models.openai.provider is "groq"',
            'write "openai" or "responses", or call the table [models.groq]',
        ),
        (
            "models = 1",
            "FILE: models is a section",
            'write [models.openai] on its own line, and below it keys like api_key = "sk-…"',
        ),
        (
            "[models.offline]",
            "FILE: models.offline is no usable name",
            "use letters, digits, - and _, and none of builtin, offline",
        ),
        (
            '[model.groq]\napi_key = "k"',
            "FILE: unknown key model.groq",
            "did you mean [models.openai]?",
        ),
    ],
)
def test_what_is_wrong_in_a_table_is_named_with_what_to_write_instead(
    home: Path, text: str, wrong: str, instead: str
) -> None:
    assert complaint(home, text) == (wrong, instead)


def test_a_fallback_of_an_unknown_provider_is_refused(home: Path) -> None:
    wrong, _ = complaint(home, 'fallbacks = ["acme/x"]')
    assert wrong == 'FILE: fallbacks is "acme/x" and there is no provider "acme"'


@pytest.mark.promise("MODEL-08")
@pytest.mark.parametrize("vendor", [v for v in VENDORS if v.variables and v.name != "responses"])
def test_a_key_in_the_environment_is_enough(home: Path, vendor: object) -> None:
    one = BY_NAME[getattr(vendor, "name", "")]
    for variable in one.variables:
        config = load_file(home, "", {variable: "key-canary"})
        assert config.model == f"{one.name}/{one.model}"
        assert config.model_reason.startswith(
            f"there is a key in environment {variable} and no model is named"
        )
        assert keys(config, one.name) == ["key-canary"]
        assert known_secrets(config) == ["key-canary"]
        assert "canary" not in f"{config!r} {list(settings.shown(config))}"


@pytest.mark.promise("MODEL-08")
@pytest.mark.parametrize(
    ("text", "environ", "model"),
    [
        ('model = "ollama/q"', {"OPENAI_API_KEY": "k"}, "ollama/q"),
        ('[models.groq]\napi_key = "k"', {"OPENAI_API_KEY": "k"}, "groq/llama-3.3-70b-versatile"),
        ("[models.groq]\nstall_s = 5", {"OPENAI_API_KEY": "k"}, "openai/gpt-5-mini"),
        ("", {"GROQ_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, "anthropic/claude-sonnet-4-5"),
        ("", {"GOOGLE_API_KEY": "k", "OPENAI_BASE_URL": "http://h"}, "openai/default"),
        ("", {"GOOGLE_API_KEY": "k", "XAI_API_KEY": "k"}, "xai/grok-4"),
        ("", {"GOOGLE_API_KEY": "k"}, "gemini/gemini-2.5-flash"),
        ("", {"GEMINI_API_KEY": "k", "XAI_API_KEY": "k"}, "gemini/gemini-2.5-flash"),
        ('[models.w]\nprovider = "openai"\nbase_url = "http://h"', {}, "w/default"),
        ('[models.w]\nprovider = "ollama"\nmodel = "q"', {}, "w/q"),
    ],
)
def test_the_configuration_comes_before_the_environment_and_that_in_a_fixed_order(
    home: Path, text: str, environ: Mapping[str, str], model: str
) -> None:
    assert load_file(home, text, environ).model == model


def test_a_key_that_may_be_for_something_else_is_used_with_a_word_about_it(home: Path) -> None:
    doubt = vendors.DOUBTFUL["GOOGLE_API_KEY"]
    assert doubt in load_file(home, "", {"GOOGLE_API_KEY": "k"}).model_reason
    assert doubt not in load_file(home, "", {"GEMINI_API_KEY": "k"}).model_reason


@pytest.mark.promise("MODEL-09")
def test_a_key_goes_only_to_the_address_of_its_vendor(home: Path) -> None:
    environ = {"GROQ_API_KEY": "gsk", "OPENAI_API_KEY": "sk"}
    text = '[models.groq]\nbase_url = "https://other.example.org/v1"\n'
    text += f'[models.mine]\nprovider = "openai"\nbase_url = "{BY_NAME["groq"].base_url}/"\n'
    text += '[models.own]\nprovider = "openai"\nbase_url = "https://own.example.org/v1"\n'
    config = load_file(home, text, environ)
    assert keys(config, "groq") == []
    assert keys(config, "mine") == ["gsk"]
    assert keys(config, "own") == []
    assert keys(config, "openai") == ["sk"]


def test_every_vendors_key_leaves_the_environment_and_comes_back_for_a_successor(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(home))
    for name in VARIABLES:
        monkeypatch.setenv(name, f"canary-{name}")
    config = configuration.from_process({})
    assert not set(VARIABLES) & set(os.environ)
    assert {f"canary-{name}" for name in VARIABLES} <= set(known_secrets(config))
    given = configuration.environment(config)
    assert {name: given[name] for name in VARIABLES} == {n: f"canary-{n}" for n in VARIABLES}


@pytest.mark.promise("MODEL-08")
def test_a_server_for_which_no_model_is_named_is_said_and_no_other_is_looked_for(
    home: Path,
) -> None:
    config = load_file(home, '[models.ollama]\nbase_url = "http://box:11434"\n')
    assert (config.model, config.is_open) == ("offline", False)
    assert config.model_reason.startswith("[models.ollama] names no model")
    assert load_file(home, "").is_open


def test_a_key_that_cannot_be_one_is_named(home: Path) -> None:
    with pytest.raises(Misconfigured, match="GROQ_API_KEY is not usable as a key"):
        load({"HOLDFAST_HOME": str(home), "GROQ_API_KEY": "a b"}, {})


def test_the_documents_name_every_vendor_with_its_key_and_default_model() -> None:
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    named = [(v.name, *v.variables, *([v.model] if v.model else [])) for v in VENDORS]
    assert [word for row in named for word in row if f"`{word}`" not in text] == []


def test_the_probe_can_be_turned_off(home: Path) -> None:
    assert load_file(home, "").probe_local
    assert not load_file(home, "probe_local = false").probe_local
    assert not load_file(home, "", {"HOLDFAST_PROBE_LOCAL": "0"}).probe_local
