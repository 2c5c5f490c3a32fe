"""The channels' tables: what they mean, and what the operator is told when one is wrong."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from msgspec.structs import fields

from holdfast import channels, connect, plugins
from holdfast.channels.channel import ChannelKind
from holdfast.channels.telegram.api import HINT
from holdfast.channels.telegram.channel import BAD_TOKEN, Telegram
from holdfast.channels.webhook import BAD_SECRET, MAKE_SECRET
from holdfast.config import process as configuration
from holdfast.config import settings
from holdfast.config.channels import Common
from holdfast.config.home import known_secrets
from holdfast.config.load import load
from holdfast.config.settings import Config
from holdfast.core.address import ChatType, Daily, Groups, Idle, Never
from holdfast.core.approval.approval import Role
from holdfast.core.chat.access import PlatformAccess
from holdfast.core.chat.delivery import OnAmbiguous
from holdfast.core.inbox import Mode
from holdfast.errors import Misconfigured
from tests.fakes.clock import ManualClock
from tests.fakes.hooked import Hooked

TOKEN = "12345:AA-canary_token"
TELEGRAM = "[channels.telegram]\n"
WEBHOOK = '[channels.webhook]\nurl = "https://example.org/in"\n'
PLUGIN = 'plugins = ["tests.fakes.hooked"]\n[channels.hooked]\n'
UNDER = "under [channels.telegram]"
USERS = f'users = {{ "12345" = ["run", "approve"] }} {UNDER}'


def load_file(home: Path, text: str, **environ: str) -> Config:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)
    return load({"HOME": str(home.parent), "HOLDFAST_HOME": str(home), **environ}, {})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def complaint(home: Path, text: str, **environ: str) -> tuple[str, str]:
    """What is wrong and what to write instead, at the latest when the channels are made."""
    with pytest.raises(Misconfigured) as caught:
        connect.connect(load_file(home, text, **environ), ManualClock())
    told = str(caught.value), caught.value.hint
    assert "\n" not in "".join(told)
    assert "canary" not in "".join(told)
    wrong, instead = (line.replace(str(home / "config.toml"), "FILE") for line in told)
    return wrong, instead


@pytest.mark.fault("F-25")
@pytest.mark.parametrize(
    ("text", "wrong", "instead"),
    [
        (
            "channels = 1",
            "FILE: channels is a section",
            "write [channels.telegram] on its own line, and below it what is to hold for it",
        ),
        (
            "[channels]\ntelegram = true",
            "FILE: channels.telegram is no table",
            "write [channels.telegram] on its own line, and below it what is to hold for it",
        ),
        (
            "[channels]\npairing = false",
            "FILE: channels.pairing is no table",
            "write [channels.telegram] on its own line, and below it what is to hold for it",
        ),
        (
            "[chanels.telegram]\npairing = false",
            "FILE: unknown key chanels.telegram",
            "did you mean [channels.telegram]?",
        ),
        (
            "[channels.telegrm]",
            "FILE: unknown channel telegrm",
            "did you mean [channels.telegram]?",
        ),
        ("[channels.irc]", "FILE: unknown channel irc", "known are telegram, webhook"),
        (
            'plugins = ["tests.fakes.hooked"]\n[channels.hoked]',
            "FILE: unknown channel hoked",
            "did you mean [channels.hooked]?",
        ),
        (
            TELEGRAM + "usrs = {}",
            "FILE: unknown key channels.telegram.usrs",
            f"did you mean {USERS}?",
        ),
        (
            TELEGRAM + "pol_s = 3",
            "FILE: unknown key channels.telegram.pol_s",
            f"did you mean poll_s = 25 {UNDER}?",
        ),
        (
            TELEGRAM + 'TELEGRAM_BOT_TOKN = "canary"',
            "FILE: unknown key channels.telegram.TELEGRAM_BOT_TOKN",
            f'did you mean TELEGRAM_BOT_TOKEN = "…" {UNDER}?',
        ),
        (
            TELEGRAM + "zzz = 1",
            "FILE: unknown key channels.telegram.zzz",
            "known are enabled, users, chats, pairing, groups, reset, busy, on_ambiguous, progress, "
            "webhook_url, base_url, poll_s, answer_s, connect_s, TELEGRAM_BOT_TOKEN",
        ),
        (
            TELEGRAM + 'enabled = "yes"',
            'FILE: channels.telegram.enabled is "yes"',
            f"it must be true or false; write enabled = true {UNDER}",
        ),
        (
            TELEGRAM + 'users = ["1"]',
            'FILE: channels.telegram.users is ["1"]',
            "it must be the platform's ids of users, each with its roles "
            f"(read, run, approve, admin); write {USERS}",
        ),
        (
            TELEGRAM + 'users = { "1" = ["run"], "2" = ["admn"] }',
            'FILE: channels.telegram.users."2" is ["admn"]',
            "it must be a list of roles, which are read, run, approve, admin; "
            f'write users."2" = ["run", "approve"] {UNDER}',
        ),
        (
            TELEGRAM + 'users = { "1" = "run" }',
            'FILE: channels.telegram.users."1" is "run"',
            "it must be a list of roles, which are read, run, approve, admin; "
            f'write users."1" = ["run", "approve"] {UNDER}',
        ),
        (
            TELEGRAM + 'users = { " 1" = ["run"] }',
            'FILE: channels.telegram.users has an id " 1"',
            "write it as the platform has it, without spaces around it",
        ),
        (
            TELEGRAM + 'chats = ["private"]',
            'FILE: channels.telegram.chats is ["private"]',
            f'it must be a list of "dm", "group" and "channel"; write chats = ["dm"] {UNDER}',
        ),
        (
            TELEGRAM + 'groups = "each"',
            'FILE: channels.telegram.groups is "each"',
            f'it must be "per_user" or "shared"; write groups = "per_user" {UNDER}',
        ),
        *(
            (
                f'{TELEGRAM}reset = "{said}"',
                f'FILE: channels.telegram.reset is "{said}"',
                'it must be "none", "idle:" and minutes, or "daily:" and an hour from 0 to 23; '
                f'write reset = "idle:120" {UNDER}',
            )
            for said in ("never", "idle", "idle:0", "idle:-1", "idle:1h", "daily:24", "daily:")
        ),
        (
            TELEGRAM + 'busy = "wait"',
            'FILE: channels.telegram.busy is "wait"',
            f'it must be "interrupt", "queue" or "steer"; write busy = "interrupt" {UNDER}',
        ),
        (
            TELEGRAM + 'on_ambiguous = "drop"',
            'FILE: channels.telegram.on_ambiguous is "drop"',
            f'it must be "resend_marked" or "hold"; write on_ambiguous = "resend_marked" {UNDER}',
        ),
        (
            TELEGRAM + "TELEGRAM_BOT_TOKEN = 5",
            "FILE: channels.telegram.TELEGRAM_BOT_TOKEN is not usable as a secret",
            "it must be a text of visible characters",
        ),
        (
            TELEGRAM + 'TELEGRAM_BOT_TOKEN = "canary"',
            BAD_TOKEN,
            HINT,
        ),
        (
            TELEGRAM,
            "telegram is on and there is no TELEGRAM_BOT_TOKEN",
            'set TELEGRAM_BOT_TOKEN, or write TELEGRAM_BOT_TOKEN = "…" under [channels.telegram] '
            "in FILE, or enabled = false to do without it",
        ),
        (
            WEBHOOK + 'HOLDFAST_WEBHOOK_SECRET = "canary"',
            BAD_SECRET,
            MAKE_SECRET,
        ),
        (
            PLUGIN + 'HOOKED_TOKEN = "canary"\nroom = "x"\nsize = 0',
            "FILE: channels.hooked.size is 0",
            "it must be int >= 1; write size = 3 under [channels.hooked]",
        ),
        (
            PLUGIN + 'HOOKED_TOKEN = "canary"',
            "FILE: channels.hooked.room is missing",
            "write room = … under [channels.hooked]",
        ),
        (
            PLUGIN + 'room = "x"',
            "hooked is on and there is no HOOKED_TOKEN",
            'set HOOKED_TOKEN, or write HOOKED_TOKEN = "…" under [channels.hooked] in FILE, '
            "or enabled = false to do without it",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_to_write_instead(
    home: Path, text: str, wrong: str, instead: str
) -> None:
    assert complaint(home, text) == (wrong, instead)


@pytest.mark.fault("F-25")
@pytest.mark.parametrize("text", ["[channels.webhook]\n", '[channels.webhook]\nurl = "example"\n'])
def test_what_a_channel_cannot_do_without_is_named(home: Path, text: str) -> None:
    wrong, instead = complaint(home, text)
    assert wrong.startswith("FILE: channels.webhook.url is ")
    assert "write url = " in instead
    assert instead.endswith(" under [channels.webhook]")


@pytest.mark.fault("F-25")
def test_a_gateway_with_a_wrong_table_ends_at_once_with_one_line(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(TELEGRAM + 'reset = "sometimes"\n')
    environ = {"PATH": os.environ["PATH"], "HOME": str(home.parent), "HOLDFAST_HOME": str(home)}
    for args in (("gateway", "run", "--port", "0"), ("config",)):
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *args],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (78, "")
        (line,) = done.stderr.splitlines()
        assert "channels.telegram.reset" in line


def test_a_token_in_the_environment_is_all_that_telegram_needs(home: Path) -> None:
    config = load_file(home, "", TELEGRAM_BOT_TOKEN=TOKEN)
    (connected,) = connect.connect(config, ManualClock()).values()
    assert isinstance(connected.channel, Telegram)
    assert connected.rules == PlatformAccess({}, frozenset({ChatType.DIRECT}), True)
    assert connect.found(config) == (
        "chats on telegram (by TELEGRAM_BOT_TOKEN; users are let in only by pairing)"
    )
    off = load_file(home, TELEGRAM + "enabled = false\n", TELEGRAM_BOT_TOKEN=TOKEN)
    assert connect.connect(off, ManualClock()) == {}
    assert connect.found(off) == ""


def test_without_anything_there_is_no_channel(home: Path) -> None:
    config = load_file(home, "", TELEGRAM_BOT_TOKEN="", HOLDFAST_WEBHOOK_SECRET=" ")
    assert config.channels.tables == {}
    assert connect.connect(config, ManualClock()) == {}


def test_a_secret_alone_does_not_set_up_what_needs_more(home: Path) -> None:
    config = load_file(home, "", HOLDFAST_WEBHOOK_SECRET="whsec_x")
    assert config.channels.tables == {}
    assert list(config.channels.secrets) == ["HOLDFAST_WEBHOOK_SECRET"]


def test_a_table_says_who_is_let_in_and_how_things_go(home: Path) -> None:
    text = f"""
    [channels.telegram]
    TELEGRAM_BOT_TOKEN = "{TOKEN}"
    users = {{ "12345" = ["admin"], "678" = ["run", "approve"], "9" = [] }}
    chats = ["dm", "group"]
    pairing = false
    groups = "shared"
    reset = "idle:120"
    busy = "queue"
    on_ambiguous = "hold"
    progress = false
    poll_s = 5
    """
    config = load_file(home, text)
    (it,) = connect.connect(config, ManualClock()).values()
    users = {"12345": {Role.ADMIN}, "678": {Role.RUN, Role.APPROVE}, "9": set[Role]()}
    assert it.rules.users == users
    assert it.rules.chats == {ChatType.DIRECT, ChatType.GROUP}
    assert not it.rules.pairing
    assert (it.groups, it.reset, it.busy) == (Groups.SHARED, Idle(120.0), Mode.QUEUE)
    assert (it.on_ambiguous, it.progress) == (OnAmbiguous.HOLD, False)
    assert connect.found(config) == "chats on telegram"
    assert set(config.origins.values()) == {"default", str(home / "config.toml")}


def test_a_day_begins_at_an_hour_of_the_local_clock(home: Path) -> None:
    assert connect.reset("none", 0.0) == Never()
    assert connect.reset("daily:04", 3600.0) == Daily(4, 3600.0)
    config = load_file(home, TELEGRAM + 'reset = "daily:4"\n', TELEGRAM_BOT_TOKEN=TOKEN)
    (it,) = connect.connect(config, ManualClock()).values()
    assert isinstance(it.reset, Daily)
    assert it.reset.hour == 4


def test_a_plugin_brings_a_channel_with_settings_and_secrets_of_its_own(home: Path) -> None:
    text = PLUGIN + 'room = "blue"\nHOOKED_TOKEN = ""\npairing = false\n'
    config = load_file(home, text, HOOKED_TOKEN="canary")
    (it,) = connect.connect(config, ManualClock()).values()
    assert isinstance(it.channel, Hooked)
    assert it.channel.settings is not None
    assert (it.channel.settings.room, it.channel.settings.size) == ("blue", 3)
    assert it.channel.token == "canary"
    assert not it.rules.pairing


def test_what_is_not_set_up_is_not_even_imported() -> None:
    code = (
        "import sys; from holdfast import connect; from holdfast.config import load; from holdfast.host import machine\n"
        "c = load.load({'HOLDFAST_HOME': '/tmp/nowhere-holdfast'}, {})\n"
        "connect.connect(c, machine.SystemClock())\n"
        "print(*sorted(m for m in sys.modules if 'telegram' in m or 'webhook' in m))"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == ""


def _kinds() -> Iterator[ChannelKind]:
    for module in iter_modules(channels.__path__, "holdfast.channels."):
        if hasattr(found := import_module(module.name), "CHANNEL"):
            assert module.name == f"holdfast.channels.{found.CHANNEL.name}"
            yield found.CHANNEL


def test_our_own_channels_are_known_with_their_secrets() -> None:
    assert {kind.name: kind.secrets for kind in _kinds()} == dict(channels.OWN)
    assert set(plugins.find_channels(channels.OWN)) == set(channels.OWN)


def test_no_setting_of_a_channel_has_the_name_of_one_that_all_have() -> None:
    common = {field.name for field in fields(Common)}
    for kind in _kinds():
        assert not common & {field.encode_name for field in fields(kind.settings)}


def test_a_plugin_may_not_take_the_name_of_a_channel(home: Path) -> None:
    with pytest.raises(Misconfigured, match="has a channel telegram, which exists already"):
        plugins.find_channels((), ["tests.config.test_channels"])


def test_the_settings_in_the_documentation_are_settings(home: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "channels.md").read_text()
    tables = [block.partition("```")[0] for block in text.split("```toml\n")[1:]]
    assert len(tables) == 4
    for table in tables:
        load_file(home, table.replace("…", "x"))
    defaults = load_file(home, tables[0]).channels.tables["telegram"]
    assert defaults.common == Common()
    assert defaults.written == {field.name for field in fields(Common)}


CHANNELS = (ChannelKind("telegram", Common, (), lambda *_: Hooked()),)


def _shown(config: Config) -> Mapping[str, tuple[object, str]]:
    return {key: (value, origin) for key, value, origin in settings.shown(config)}


def test_everything_is_shown_but_secrets(home: Path) -> None:
    text = f'{TELEGRAM}users = {{ "1" = ["run", "approve"] }}\npoll_s = 5\n'
    config = load_file(home, text, TELEGRAM_BOT_TOKEN=TOKEN)
    file, shown = str(home / "config.toml"), _shown(config)
    assert shown["channels.telegram.users"] == ({"1": ["approve", "run"]}, file)
    assert shown["channels.telegram.poll_s"] == (5, file)
    assert shown["channels.telegram.reset"] == ("none", "default")
    assert shown["channels.telegram.enabled"] == (True, "default")
    secret, origin = shown["channels.telegram.TELEGRAM_BOT_TOKEN"]
    assert (str(secret), origin) == ("********", "environment TELEGRAM_BOT_TOKEN")
    plain = {k: v for k, (v, _) in shown.items() if k.startswith("channels.") and v is not secret}
    assert json.loads(json.dumps(plain)) == plain
    assert "canary" not in f"{config!r} {shown}"
    found = _shown(load_file(home, "", TELEGRAM_BOT_TOKEN=TOKEN))
    assert found["channels.telegram.enabled"] == (True, "environment TELEGRAM_BOT_TOKEN")


def test_the_environment_wins_over_the_file(home: Path) -> None:
    text = f'{TELEGRAM}TELEGRAM_BOT_TOKEN = "1:other"\n'
    config = load_file(home, text, TELEGRAM_BOT_TOKEN=TOKEN)
    given = config.channels.secrets["TELEGRAM_BOT_TOKEN"]
    assert (given.secret.reveal(), given.origin) == (TOKEN, "environment TELEGRAM_BOT_TOKEN")


@pytest.fixture
def environ(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "HOLDFAST_HOME": str(home),
        "TELEGRAM_BOT_TOKEN": TOKEN,
        "HOLDFAST_WEBHOOK_SECRET": "whsec_canary",
        "HOOKED_TOKEN": "hooked-canary",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environ")
def test_secrets_leave_the_environment_and_are_known_for_what_they_are(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(PLUGIN + 'HOOKED_TOKEN = ""\nroom = "x"\n')
    config = configuration.from_process({})
    secrets = {
        "TELEGRAM_BOT_TOKEN": TOKEN,
        "HOLDFAST_WEBHOOK_SECRET": "whsec_canary",
        "HOOKED_TOKEN": "hooked-canary",
    }
    assert not set(secrets) & set(os.environ)
    assert set(known_secrets(config)) == set(secrets.values())
    handed_on = configuration.environment(config)
    assert {name: handed_on[name] for name in secrets} == secrets
    assert list(configuration.unknown_variables(secrets)) == []


def test_a_secret_of_the_file_is_known_too_and_not_handed_on(home: Path) -> None:
    config = load_file(home, f'{TELEGRAM}TELEGRAM_BOT_TOKEN = "{TOKEN}"\n')
    assert known_secrets(config) == [TOKEN]
    assert "TELEGRAM_BOT_TOKEN" not in configuration.environment(config)
