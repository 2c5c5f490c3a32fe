"""`holdfast pair`, `users` and `channels`, against a gateway that people write to."""

import base64
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from holdfast.cli.ops import channels, pair
from holdfast.core.chat.access import LISTED, WELCOME
from holdfast.journal import audit
from tests.cli import Place, read_until, terminal
from tests.fakes import webhook
from tests.fakes.gateway import ROOT, GatewayProcess, gateway
from tests.fakes.webhook import Platform

pytestmark = pytest.mark.anyio

SECRET = "whsec_" + base64.b64encode(b"canary-" * 5).decode()


@pytest.fixture
async def platform() -> AsyncIterator[Platform]:
    async with webhook.serve(SECRET) as it:
        yield it


@pytest.fixture
async def it(tmp_path: Path, platform: Platform) -> AsyncIterator[GatewayProcess]:
    config = f'[channels.webhook]\nurl = "{platform.url}"\nusers = {{ "boss" = ["admin"] }}\n'
    async with gateway(tmp_path, config=config, HOLDFAST_WEBHOOK_SECRET=SECRET) as process:
        platform.hook_url = f"{process.url}/hooks/webhook"
        yield process


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.environ |= {"PYTHONPATH": str(ROOT)}
    return place


async def code_of(platform: Platform, user: str, name: str = "") -> str:
    """Somebody writes for the first time; the code they are shown."""
    before = len(platform.shown(user))
    platform.say(user, user, "hello?", **({"name": name} if name else {}))
    with anyio.fail_after(30):
        await platform.until(lambda: len(platform.shown(user)) > before)
    return platform.shown(user)[-1].text.partition("holdfast pair ")[2].strip("`")


async def says(platform: Platform, user: str, text: str) -> None:
    """Return when that stands in their chat."""
    with anyio.fail_after(30):
        await platform.until(lambda: any(text in m.text for m in platform.shown(user)))


@pytest.mark.fault("F-34")
@pytest.mark.usefixtures("it")
async def test_a_stranger_is_let_in_told_so_heard_and_shut_out(
    place: Place, platform: Platform
) -> None:
    code = await code_of(platform, "678", "Eve\u202e\x1b[31m")
    waits = await place.holdfast("users")
    assert waits.code == 0
    boss, eve = waits.out.splitlines()
    assert boss.split() == [
        "webhook:boss",
        "admin,",
        "approve,",
        "read,",
        "run",
        "by",
        "configuration",
    ]
    assert eve.startswith("webhook:678 ")
    assert "waits, code expires in 10 min" in eve
    assert code not in waits.out
    assert "\x1b" not in waits.out

    done = await place.holdfast("pair", code[:4] + "-" + code[4:].lower(), "--yes")
    assert (done.code, done.err) == (0, "")
    who, name, roles, last = (line for line in done.out.splitlines()[1:])
    assert who == "id        678"
    assert name.endswith(f"Eve\\u{{202e}}\\u{{1b}}[31m  {pair.UNVERIFIED}")
    assert roles == "roles     run, approve"
    assert last == pair.LET_IN.format(user="webhook:678")
    await says(platform, "678", WELCOME)
    platform.say("678", "678", "list the files here")
    await says(platform, "678", "offline")
    platform.say("678", "678", "/help")
    await says(platform, "678", "/stop stops")
    assert (await place.holdfast("pair", code, "--yes")).code == 1, "it works once"

    removed = await place.holdfast("users", "remove", "webhook:678")
    assert (removed.code, removed.out) == (0, "webhook:678 is removed.\n")
    assert (await place.holdfast("users")).out == f"{boss}\n"
    assert await code_of(platform, "678") != code, "a stranger again"
    kinds = [line.kind for line in audit.read(place.home / audit.FILE, "")]
    decisions = [k for k in kinds if k.startswith(("pairing.", "user."))]
    assert decisions == ["pairing.confirmed", "pairing.failed", "user.removed"]


@pytest.mark.usefixtures("it")
async def test_at_a_terminal_pairing_needs_a_confirmation(place: Place, platform: Platform) -> None:
    code = await code_of(platform, "678")
    for answer in ("\n", "n\n"):
        async with terminal(place, "pair", code, "--roles", "read") as asked:
            said = await asked.read_until("Let them in with these roles? [y/N] ")
            assert "id        678" in said
            assert "roles     read" in said
            await asked.type(answer)
            assert pair.NOT_PAIRED in await asked.read_until("let in\r\n")
            assert await asked.process.wait() == 1
    async with terminal(place, "pair", code, "--roles", "read,run") as asked:
        await asked.read_until("[y/N] ")
        await asked.type("y\n")
        await asked.read_until("is let in; to undo: holdfast users remove webhook:678")
        assert await asked.process.wait() == 0
    (_, line) = (await place.holdfast("users", "list", "--json")).out.splitlines()
    eve = json.loads(line)
    assert (eve["user"], eve["roles"], eve["source"]) == ("678", ["read", "run"], "pairing")


@pytest.mark.usefixtures("it")
async def test_a_wrong_argument_is_refused_with_what_to_do(
    place: Place, platform: Platform
) -> None:
    code = await code_of(platform, "678")
    nobody = await place.holdfast("pair", code)
    assert nobody.code == 2
    assert pair.NO_TERMINAL in nobody.err
    roles = await place.holdfast("pair", code, "--roles", "run,root")
    assert (roles.code, roles.err) == (
        2,
        "holdfast: there is no role root; the roles are read, run, approve, admin\n",
    )
    assert (await place.holdfast("pair", code, "--roles", "")).code == 2
    unclear = await place.holdfast("users", "remove", "678")
    assert unclear.code == 2
    assert "as `holdfast users` shows it" in unclear.err
    listed = await place.holdfast("users", "remove", "webhook:boss")
    assert (listed.code, listed.out) == (1, "")
    assert LISTED.rstrip(".") in listed.err
    unknown = await place.holdfast("users", "remove", "webhook:9")
    assert (unknown.code, unknown.err) == (1, "holdfast: webhook:9 is not paired.\n")


@pytest.mark.usefixtures("it")
async def test_too_many_wrong_codes_are_refused_with_the_time_to_try_again(place: Place) -> None:
    script = (
        "import sys; from holdfast.cli.main import main\n"
        "print(*{main(['pair', 'WRONG', '--yes']) for _ in range(10)})"
    )
    done = await anyio.run_process(
        [sys.executable, "-c", script], env=place.environ, cwd=place.work
    )
    assert done.stdout.decode() == "1\n"
    assert "No such code: mistyped, used or expired." in done.stderr.decode()
    refused = await place.holdfast("pair", "WRONG", "--yes")
    assert refused.code == 75
    assert refused.err == ("holdfast: 10 wrong codes within an hour. Try again in 60 min.\n")


async def test_without_a_gateway_it_is_said_what_to_do(place: Place) -> None:
    for args in (("pair", "CODE", "--yes"), ("users",), ("users", "remove", "webhook:1")):
        result = await place.holdfast(*args)
        assert (result.code, result.out) == (75, "")
        assert result.err == (
            f"holdfast: no gateway serves {place.home}, so no chat messages are received; "
            "start one: holdfast gateway start\n"
        )
    assert not (place.home / "journal.db").exists()


async def test_a_terminal_that_has_the_home_is_no_gateway(place: Place) -> None:
    async with terminal(place) as chat:
        await chat.read_until("› ")
        await chat.type("hello\n")
        await chat.read_until("› ")
        result = await place.holdfast("users")
    assert result.code == 75
    assert f"a terminal serves {place.home}, and no gateway does" in result.err


async def test_each_channel_is_shown_with_how_it_is_doing(place: Place, platform: Platform) -> None:
    nothing = await place.holdfast("channels")
    assert (nothing.code, nothing.err) == (0, "")
    assert nothing.out == f"{channels.NO_CHANNEL}\n"
    place.configure(
        f'[channels.webhook]\nurl = "{platform.url}"\nHOLDFAST_WEBHOOK_SECRET = "{SECRET}"\n'
        "[channels.telegram]\nenabled = false\n"
    )
    asleep = await place.holdfast("channels")
    assert asleep.code == 1
    assert "no gateway serves" in asleep.out
    async with place.started("gateway", "run", "--port", "0") as process:
        ready = await read_until(process.stderr, "ready on")
        assert SECRET not in ready
        awake = await place.holdfast("channels")
        states = [
            json.loads(s) for s in (await place.holdfast("channels", "--json")).out.splitlines()
        ]
        doctor = await place.holdfast("doctor")
    file = place.home / "config.toml"
    assert awake.code == 0
    assert awake.out == (
        f"webhook      on, set by {file}\n"
        "  can          late, answerable, edits, buttons, threads, idempotent send\n"
        "  undelivered  0\n"
        f"telegram     off, set by {file}\n"
    )
    assert [(s["name"], s["on"], s["trouble"]) for s in states] == [
        ("webhook", True, ""),
        ("telegram", False, ""),
    ]
    assert "✓ channel  webhook receives\n" in doctor.out
    assert "canary" not in doctor.out + doctor.err + awake.out
    assert SECRET not in doctor.out + doctor.err + awake.out


@pytest.mark.usefixtures("it")
async def test_given_up_messages_and_channel_settings_are_shown(
    place: Place, platform: Platform
) -> None:
    platform.then(webhook.Say(400))
    platform.say("boss", "boss", "/help")
    told = "  undelivered  1, 1 given up; see: holdfast outbox\n"
    with anyio.fail_after(30):
        while told not in (shown := await place.holdfast("channels")).out:
            assert "undelivered" in shown.out, shown
    doctor = await place.holdfast("doctor")
    stuck = "! channel  webhook receives; messages that wait for you: 1 given up\n"
    assert stuck in doctor.out
    assert "  see them: holdfast outbox\n" in doctor.out
    users = '{ "boss" = ["admin"] }'
    assert f"  channels.webhook.users = {users}  # {place.home}/config.toml\n" in doctor.out
    assert users in (await place.holdfast("config")).out


async def test_the_doctor_tells_what_keeps_a_channel_from_being_had(place: Place) -> None:
    place.configure("[channels.telegram]\npairing = false\n")
    missing = await place.holdfast("doctor")
    assert missing.code == 1
    assert "✗ channel  telegram is on and there is no TELEGRAM_BOT_TOKEN\n" in missing.out
    place.environ["TELEGRAM_BOT_TOKEN"] = "12345:canary"
    shut = await place.holdfast("doctor")
    assert "! channel  telegram receives once a gateway runs, and no user is let in\n" in shut.out
    place.configure("")
    place.environ["HOLDFAST_WEBHOOK_SECRET"] = SECRET
    found = await place.holdfast("doctor")
    assert "✓ channel  telegram receives once a gateway runs\n" in found.out
    assert "! channel  HOLDFAST_WEBHOOK_SECRET is set, but webhook is not configured\n" in found.out
    shown = await place.holdfast("config")
    assert 'channels.telegram.TELEGRAM_BOT_TOKEN "********"' in shown.out
    for result in (missing, shut, found, shown):
        assert "canary" not in result.out + result.err
        assert SECRET not in result.out + result.err


@pytest.mark.fault("F-25")
async def test_a_gateway_without_its_secret_ends_with_one_line(place: Place) -> None:
    place.configure("[channels.telegram]\n")
    result = await place.holdfast("gateway", "run", "--port", "0")
    assert (result.code, result.out) == (78, "")
    (line,) = result.err.splitlines()
    assert line.startswith("holdfast: telegram is on and there is no TELEGRAM_BOT_TOKEN: set ")
