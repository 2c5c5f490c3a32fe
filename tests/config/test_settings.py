"""Configuration: where a value comes from, and what the operator is told when one is wrong."""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import anyio.to_thread
import pytest

from holdfast.config import process as configuration
from holdfast.config import settings
from holdfast.config.home import api_key, known_secrets
from holdfast.config.load import ENVIRONMENT, load
from holdfast.config.models import WITHOUT_TABLE
from holdfast.config.secrets import Secret
from holdfast.config.settings import Config
from holdfast.config.vendors import BY_NAME
from holdfast.core.approval.approval import ApprovalMode
from holdfast.core.session.session import OnStart
from holdfast.errors import Misconfigured

KNOWN = ", ".join((*BY_NAME, *WITHOUT_TABLE))


def load_file(home: Path, text: str, environ: Mapping[str, str] | None = None) -> Config:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)
    return load({"HOME": str(home.parent), "HOLDFAST_HOME": str(home), **(environ or {})}, {})


def complaint(
    home: Path, text: str = "", environ: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """What is wrong and what to write instead, with the file's path cut out."""
    with pytest.raises(Misconfigured) as caught:
        load_file(home, text, environ)
    told = str(caught.value), caught.value.hint
    assert "\n" not in "".join(told)
    return told[0].replace(str(home / "config.toml"), "FILE"), told[1]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_without_anything_the_defaults_hold_and_nothing_is_created(home: Path) -> None:
    config = load({"HOME": "/nowhere", "HOLDFAST_HOME": str(home)}, {})
    assert (config.gateway.host, config.gateway.port) == ("127.0.0.1", 8642)
    assert config.recovery.on_start is OnStart.RESUME
    assert set(config.origins.values()) == {"default"}
    assert not home.exists()


def test_the_home_is_below_the_users_unless_it_is_named(tmp_path: Path) -> None:
    assert load({"HOME": str(tmp_path)}, {}).home == tmp_path / ".holdfast"
    assert load({"HOME": str(tmp_path), "HOLDFAST_HOME": ""}, {}).home == tmp_path / ".holdfast"
    assert load({"HOME": str(tmp_path), "HOLDFAST_HOME": "~/h"}, {}).home == tmp_path / "h"


def test_a_flag_wins_over_the_environment_and_that_over_the_file(home: Path) -> None:
    file = "[gateway]\nport = 1001\n"
    config = load_file(home, file)
    assert config.gateway.port == 1001
    assert config.origins["gateway.port"] == str(home / "config.toml")

    environ = {"HOLDFAST_HOME": str(home), "HOLDFAST_PORT": "1002"}
    config = load(environ, {})
    assert config.gateway.port == 1002
    assert config.origins["gateway.port"] == "environment HOLDFAST_PORT"

    config = load(environ, {"gateway.port": "1003"})
    assert config.gateway.port == 1003
    assert config.origins["gateway.port"] == "flag"


def test_every_key_can_be_set_in_the_file(home: Path) -> None:
    config = load_file(
        home,
        """
        model = "openai/m"
        fallbacks = ["openai/n"]
        small_model = "openai/s"
        probe_local = false
        probe_ports = [11434]
        plugins = ["more"]
        [openai]
        base_url = "http://localhost:1/v1"
        api_key = "sk-1"
        stall_s = 5
        context_tokens = 128000
        usd_per_m_input = 0.25
        usd_per_m_output = 2
        [builtin]
        idle_s = 30
        threads = 2
        [gateway]
        host = "0.0.0.0"
        port = 0
        api_key = "0123456789abcdef"
        allowed_hosts = ["a.example"]
        allowed_origins = ["https://b.example"]
        drain_s = 1.5
        workspace_roots = ["/srv"]
        [limits]
        running = 1
        queued = 2
        turns = 3
        model_attempts = 4
        run_usd = 2.5
        body_mb = 5
        body_s = 6
        headers_s = 7
        queued_mb = 8
        [recovery]
        on_start = "wait"
        [journal]
        low_water_mb = 0
        ballast_mb = 0
        retention_h = 48
        versions_days = 7
        [approval]
        mode = "sandboxed"
        expiry_s = 60
        [sandbox]
        allow_none = true
        container = "/srv/rootfs"
        [terminal]
        memory_mb = 512
        [cli]
        busy = "queue"
        notify = false
        [log]
        level = "debug"
        """,
    )
    assert set(config.origins.values()) == {str(home / "config.toml")}
    assert config.openai.stall_s == 5.0
    assert config.openai.usd_per_m_output == 2.0
    assert (config.cli.busy, config.cli.notify) == ("queue", False)
    assert config.gateway.workspace_roots == ("/srv",)
    assert config.recovery.on_start is OnStart.WAIT
    assert (config.approval.mode, config.sandbox.allow_none) == (ApprovalMode.SANDBOXED, True)
    assert config.sandbox.container == "/srv/rootfs"
    assert (config.provider, config.model_name) == ("openai", "m")


@pytest.mark.fault("F-25")
@pytest.mark.parametrize(
    ("text", "wrong", "instead"),
    [
        (
            "[gateway]\nprot = 1",
            "FILE: unknown key gateway.prot",
            "did you mean port = 8642 under [gateway]?",
        ),
        (
            "port = 1",
            "FILE: unknown key port",
            "did you mean port = 8642 under [gateway]?",
        ),
        (
            "[gatway]\nport = 1",
            "FILE: unknown key gatway.port",
            "did you mean port = 8642 under [gateway]?",
        ),
        (
            '[openai]\nmodel = "openai/gpt-x"',
            "FILE: unknown key openai.model",
            'did you mean model = "openai/gpt-5-mini" above the first section?',
        ),
        (
            '[opnai]\napi_key = "sk-1"',
            "FILE: unknown key opnai.api_key",
            'did you mean api_key = "sk-…" under [openai]?',
        ),
        (
            "zzz = 1",
            "FILE: unknown key zzz",
            "known are model, fallbacks, small_model, probe_local, probe_ports, plugins, [openai], "
            "[builtin], [gateway], [limits], [recovery], [journal], [approval], [sandbox], "
            "[terminal], [cli], [log], [models.NAME], [channels.NAME]",
        ),
        (
            "[log]\nzzz = 1",
            "FILE: unknown key log.zzz",
            "known are log.level",
        ),
        (
            "gateway = 1",
            "FILE: gateway is a section",
            "write [gateway] on its own line",
        ),
        (
            '[gateway]\nport = "80"',
            'FILE: gateway.port is "80"',
            "it must be a whole number from 0 to 65535; write port = 8642 under [gateway]",
        ),
        (
            "[gateway]\nport = 70000",
            "FILE: gateway.port is 70000",
            "it must be a whole number from 0 to 65535; write port = 8642 under [gateway]",
        ),
        (
            "[limits]\nrunning = true",
            "FILE: limits.running is true",
            "it must be a whole number, at least 1; write running = 1024 under [limits]",
        ),
        (
            "[gateway]\ndrain_s = inf",
            "FILE: gateway.drain_s is Infinity",
            "it must be a number of seconds, 0 to 86400; write drain_s = 0.0 under [gateway]",
        ),
        (
            '[recovery]\non_start = "never"',
            'FILE: recovery.on_start is "never"',
            'it must be "resume", "wait" or "suspend"; write on_start = "resume" under [recovery]',
        ),
        (
            '[log]\nlevel = "loud"',
            'FILE: log.level is "loud"',
            'it must be "debug", "info", "warning" or "error"; write level = "info" under [log]',
        ),
        (
            "plugins = [1]",
            "FILE: plugins is [1]",
            'it must be a list of texts; write plugins = ["my_tools"] above the first section',
        ),
        (
            '[gateway]\nworkspace_roots = ["srv"]',
            'FILE: gateway.workspace_roots is ["srv"]',
            "it must be a list of absolute directories; "
            'write workspace_roots = ["/srv/work"] under [gateway]',
        ),
        (
            '[sandbox]\ncontainer = "--privileged"',
            'FILE: sandbox.container is "--privileged"',
            "it must be the name of an image, or an absolute directory; "
            'write container = "docker.io/library/python:3.13" under [sandbox]',
        ),
        (
            '[openai]\nbase_url = "localhost:1"',
            'FILE: openai.base_url is "localhost:1"',
            "it must be an address with http:// or https://; "
            'write base_url = "https://api.openai.com/v1" under [openai]',
        ),
        (
            '[gateway]\napi_key = "short-secret"',
            "FILE: gateway.api_key is too short",
            "it must be at least 16 visible characters; "
            'write api_key = "<the output of: openssl rand -hex 32>" under [gateway]',
        ),
        (
            '[gateway]\napi_key = ""',
            "FILE: gateway.api_key is empty",
            "it must be at least 16 visible characters; "
            'write api_key = "<the output of: openssl rand -hex 32>" under [gateway]',
        ),
        (
            "[openai]\napi_key = 5",
            "FILE: openai.api_key is not usable as a key",
            'it must be a text of visible characters; write api_key = "sk-…" under [openai]',
        ),
        (
            "[gateway\nport = 1",
            "FILE is not TOML: Expected ']' at the end of a table declaration "
            "(at line 1, column 9)",
            "mend that line",
        ),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_what_to_write_instead(
    home: Path, text: str, wrong: str, instead: str
) -> None:
    assert complaint(home, text) == (wrong, instead)


@pytest.mark.parametrize(
    ("environ", "wrong", "instead"),
    [
        (
            {"HOLDFAST_PORT": "http"},
            'HOLDFAST_PORT is "http"',
            "it must be a whole number from 0 to 65535, like 8642",
        ),
        (
            {"HOLDFAST_API_KEY": ""},
            "HOLDFAST_API_KEY is empty",
            "it must be at least 16 visible characters, like <the output of: openssl rand -hex 32>",
        ),
        (
            {"HOLDFAST_API_KEY": "short"},
            "HOLDFAST_API_KEY is too short",
            "it must be at least 16 visible characters, like <the output of: openssl rand -hex 32>",
        ),
        (
            {"HOLDFAST_API_KEY": "0123456789 abcdef"},
            "HOLDFAST_API_KEY is not usable as a key",
            "it must be at least 16 visible characters, like <the output of: openssl rand -hex 32>",
        ),
        (
            {"HOLDFAST_MODEL": "gpt-5"},
            'HOLDFAST_MODEL is "gpt-5" and there is no provider "gpt-5"',
            f"known are {KNOWN}; write provider/name, like openai/gpt-5",
        ),
        (
            {"HOLDFAST_MODEL": "acme/large"},
            'HOLDFAST_MODEL is "acme/large" and there is no provider "acme"',
            f"known are {KNOWN}; write provider/name, like openai/large",
        ),
        (
            {"HOLDFAST_MODEL": "openai/"},
            'HOLDFAST_MODEL is "openai/" and names no model',
            "write provider/name, like openai/gpt-5-mini",
        ),
    ],
)
def test_what_is_wrong_in_the_environment_is_named_too(
    home: Path, environ: Mapping[str, str], wrong: str, instead: str
) -> None:
    assert complaint(home, environ=environ) == (wrong, instead)


def test_an_empty_variable_is_as_good_as_none(home: Path) -> None:
    config = load_file(home, "", {"HOLDFAST_MODEL": "", "OPENAI_API_KEY": "", "HOLDFAST_PORT": ""})
    assert set(config.origins.values()) == {"default"}


def test_variables_that_only_look_like_ours_are_found() -> None:
    environ = dict.fromkeys(ENVIRONMENT, "x") | {
        "HOLDFAST_HOME": "/h",
        "HOLDFAST_DEBUG": "1",
        "HOLDFAST_MODLE": "openai/m",
        "HOLDFAST_WEATHER": "fair",
        "HOLDFAST_TORTURE_ROUNDS": "3",
        "HOLDFAST_FUZZ_SEED": "1",
        "HOLDFAST_RESTARTS": "9",
        "PATH": "/bin",
    }
    found = dict(configuration.unknown_variables(environ))
    assert list(found) == ["HOLDFAST_MODLE", "HOLDFAST_WEATHER"]
    assert found["HOLDFAST_MODLE"] == "did you mean HOLDFAST_MODEL?"
    assert found["HOLDFAST_WEATHER"].startswith("known are HOLDFAST_MODEL, ")


def test_a_file_that_is_no_text_is_named(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_bytes(b"\xff")
    with pytest.raises(Misconfigured, match="is not UTF-8 text"):
        load({"HOLDFAST_HOME": str(home)}, {})


def test_a_file_that_is_a_directory_is_named(home: Path) -> None:
    (home / "config.toml").mkdir(parents=True)
    with pytest.raises(Misconfigured, match="config.toml cannot be read: Is a directory"):
        load({"HOLDFAST_HOME": str(home)}, {})


def test_a_home_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(Misconfigured, match="file is a file"):
        load({"HOLDFAST_HOME": str(file)}, {})
    with pytest.raises(Misconfigured, match="lies below .*, which is a file"):
        load({"HOLDFAST_HOME": str(file / "below")}, {})
    with pytest.raises(Misconfigured, match="too long a path for a socket"):
        load({"HOLDFAST_HOME": str(tmp_path / ("x" * 100))}, {})


def test_a_home_that_cannot_be_made_is_refused_whatever_the_permissions_say(
    tmp_path: Path,
) -> None:
    with pytest.raises(Misconfigured, match="the home /proc/hf/home cannot be made: "):
        load({"HOLDFAST_HOME": "/proc/hf/home"}, {})
    load({"HOLDFAST_HOME": str(tmp_path / "hf" / "home")}, {})
    assert os.listdir(tmp_path) == []


@pytest.fixture
def not_root() -> Iterator[None]:
    """Root may write everywhere; what one may do is asked of the real user, so be another."""
    before = os.getuid()
    os.setreuid(before or 65534, -1)
    yield
    os.setreuid(before, -1)


@pytest.mark.usefixtures("not_root")
def test_a_home_that_cannot_be_written_is_refused(home: Path) -> None:
    home.mkdir(mode=0o500)
    with pytest.raises(Misconfigured, match="is not writable"):
        load({"HOLDFAST_HOME": str(home)}, {})
    with pytest.raises(Misconfigured, match="cannot be made: .* is not writable"):
        load({"HOLDFAST_HOME": str(home / "below")}, {})


@pytest.mark.parametrize(
    ("environ", "model", "why"),
    [
        ({"HOLDFAST_MODEL": "openai/m"}, "openai/m", "set by environment HOLDFAST_MODEL"),
        (
            {"HOLDFAST_MODEL": "offline", "OPENAI_API_KEY": "sk"},
            "offline",
            "set by environment HOLDFAST_MODEL",
        ),
        (
            {"OPENAI_API_KEY": "sk"},
            "openai/gpt-5-mini",
            "there is a key in environment OPENAI_API_KEY and no model is named",
        ),
        (
            {"OPENAI_BASE_URL": "http://localhost:1/v1"},
            "openai/default",
            "there is a server in environment OPENAI_BASE_URL and no model is named, "
            'so it is asked for "default"',
        ),
        ({}, "offline", "no model is configured: holdfast setup finds what is there"),
    ],
)
def test_the_model_is_the_first_hit_and_says_why(
    home: Path, environ: Mapping[str, str], model: str, why: str
) -> None:
    config = load_file(home, "", environ)
    assert (config.model, config.model_reason) == (model, why)


def test_at_a_vendors_address_its_own_key_counts_and_goes_nowhere_else(home: Path) -> None:
    environ = {"OPENAI_API_KEY": "sk-openai", "GROQ_API_KEY": "gsk"}
    at_groq = load_file(home, '[openai]\nbase_url = "https://api.groq.com/openai/v1/"\n', environ)
    elsewhere = load_file(home, '[openai]\nbase_url = "https://api.mistral.ai/v1"\n', environ)
    assert [c.openai.api_key and c.openai.api_key.reveal() for c in (at_groq, elsewhere)] == [
        "gsk",
        "sk-openai",
    ]
    assert at_groq.origins["openai.api_key"] == "environment GROQ_API_KEY"
    assert load_file(home, "", {"GROQ_API_KEY": "gsk"}).provider == "groq"


def test_a_secret_is_not_printed_by_accident(home: Path) -> None:
    config = load_file(home, '[openai]\napi_key = "sk-canary"\n')
    assert config.openai.api_key is not None
    assert config.openai.api_key.reveal() == "sk-canary"
    secret = config.openai.api_key
    printed = f"{config!r} {secret} {secret!r} {list(settings.shown(config))}"
    assert "canary" not in printed
    assert "canary" not in str(complaint(home, '[gateway]\napi_key = "canary"\n'))


def test_the_given_key_is_the_key(home: Path) -> None:
    config = load_file(home, "", {"HOLDFAST_API_KEY": "0123456789abcdef"})
    assert api_key(config).reveal() == "0123456789abcdef"
    assert not (home / "api_key").exists()


def test_a_key_is_made_once_and_only_the_owner_may_read_it(home: Path) -> None:
    config = load({"HOLDFAST_HOME": str(home)}, {})
    key = api_key(config).reveal()
    assert len(bytes.fromhex(key)) == 32
    assert api_key(config).reveal() == key
    assert stat.S_IMODE((home / "api_key").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert os.listdir(home) == ["api_key"]


def test_a_damaged_key_file_is_named_and_not_replaced(home: Path) -> None:
    config = load_file(home, "")
    (home / "api_key").write_text("x\n")
    with pytest.raises(Misconfigured, match="api_key holds no key of 16 characters") as caught:
        api_key(config)
    assert caught.value.hint == "delete it for a new one"


@pytest.mark.anyio
async def test_concurrent_processes_get_the_same_key(home: Path) -> None:
    config = load({"HOLDFAST_HOME": str(home)}, {})
    keys: list[Secret] = []

    async def need() -> None:
        keys.append(await anyio.to_thread.run_sync(api_key, config))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(need)
    assert len({key.reveal() for key in keys}) == 1
    assert os.listdir(home) == ["api_key"]


@pytest.mark.fault("F-39")
def test_every_secret_is_known_also_the_generated_one_once_it_is_there(home: Path) -> None:
    config = load_file(home, '[openai]\napi_key = "sk-from-the-file"\n')
    assert known_secrets(config) == ["sk-from-the-file"]
    assert not (home / "api_key").exists()
    generated = api_key(config).reveal()
    assert known_secrets(config) == ["sk-from-the-file", generated]
    own = load_file(home, "", {"HOLDFAST_API_KEY": "0123456789abcdef", "OPENAI_API_KEY": "sk-env"})
    assert known_secrets(own) == ["sk-env", "0123456789abcdef"]
    (home / "api_key").write_text("short\n")
    assert known_secrets(load_file(home, "")) == []


@pytest.mark.fault("F-39")
def test_secrets_leave_the_environment_and_nothing_else_does(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(home))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    monkeypatch.setenv("HOLDFAST_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("HOLDFAST_PORT", "1234")
    before = dict(os.environ)
    config = configuration.from_process({})
    gone = {"OPENAI_API_KEY", "HOLDFAST_API_KEY"}
    assert dict(os.environ) == {k: v for k, v in before.items() if k not in gone}
    assert known_secrets(config) == ["sk-env", "0123456789abcdef"]
    assert config.gateway.port == 1234
