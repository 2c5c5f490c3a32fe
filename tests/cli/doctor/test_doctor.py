"""`holdfast doctor`: the truth about the set-up, quickly, and what to do next."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.lock import take_lock
from holdfast.journal.audit import FILE, Audit, AuditEntry
from holdfast.tools.exec.spawn import Execution
from tests.cli import Place, read_until
from tests.fakes.model_server import Wait, serve, stream
from tests.tools.exec.test_spawn import keeper, parent

pytestmark = pytest.mark.anyio


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


async def test_it_says_how_the_memory_of_commands_is_bounded(place: Place) -> None:
    finding = (await examine(place))["checks"]["memory"]["finding"]
    assert "terminal.memory_mb is 0" in finding and "no cgroup" in finding
    place.configure("[terminal]\nmemory_mb = 100\n")
    finding = (await examine(place))["checks"]["memory"]["finding"]
    assert "each process (400 MiB)" in finding and "no cgroup" in finding


async def test_a_key_that_others_can_read_is_pointed_out(place: Place) -> None:
    place.configure('[gateway]\napi_key = "0123456789abcdef"\n')
    (place.home / "config.toml").chmod(0o644)
    report = await examine(place)
    assert report["checks"]["config"]["next_step"] == f"chmod 600 {place.home}/config.toml"


@pytest.mark.parametrize(("key", "told"), [("x", True), ("ollama", True), ("sk-12345", False)])
async def test_a_key_that_is_too_short_to_be_hidden_is_pointed_out(
    place: Place, key: str, told: bool
) -> None:
    place.configure(f'[openai]\napi_key = "{key}"\nbase_url = "http://127.0.0.1:9"\n')
    checks = (await examine(place, 1))["checks"]  # that server is not there
    assert ("secrets" in checks) is told
    if told:
        assert checks["secrets"]["verdict"] == "note"
        assert "openai.api_key" in checks["secrets"]["finding"]


async def test_the_owner_of_the_home_is_seen(place: Place) -> None:
    async with place.started("gateway", "run", "--port", "0") as gateway:
        said = await read_until(gateway.stderr, " (model")
        address = said.rpartition("ready on ")[2].partition(" ")[0]
        report = await examine(place)
    assert report["checks"]["owner"]["finding"] == (
        f"a gateway (pid {gateway.pid}) serves the home: ok"
    )
    finding = report["checks"]["door"]["finding"]
    assert finding == f"open on {address}, its key is in {place.home}/api_key"


async def test_a_terminal_that_owns_the_home_is_called_one(place: Place) -> None:
    async with serve() as server:
        server.then(stream(Wait()))
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "HOLDFAST_MODEL": "openai/fake"}
        async with place.started("run", "hi") as terminal:
            await server.asked(1)
            report = await examine(place)
    assert report["checks"]["owner"]["finding"] == (
        f"a terminal (pid {terminal.pid}) serves the home, and no gateway does: ok"
    )
    assert report["checks"]["door"]["finding"].startswith(
        "http://127.0.0.1:8642 once a gateway runs, its key will be made, in "
    )


async def test_an_owner_that_does_not_answer_needs_mending(place: Place) -> None:
    lock = take_lock(place.home)
    assert lock is not None
    lock.describe("terminal", "")
    report = await examine(place, code=1)
    lock.release()
    assert "a terminal (pid " in report["checks"]["owner"]["finding"]
    assert "does not answer" in report["checks"]["owner"]["finding"]


async def test_a_home_that_cannot_be_made_is_found_by_trying(place: Place) -> None:
    place.environ["HOLDFAST_HOME"] = "/proc/hf/home"
    report = await examine(place, code=78)
    assert not report["usable"]
    assert report["checks"]["home"]["verdict"] == "bad"
    assert "cannot be made: in /proc:" in report["checks"]["home"]["finding"]
    place.environ["HOLDFAST_HOME"] = "/proc"
    assert (await examine(place, code=1))["checks"]["home"]["verdict"] == "bad"


async def test_a_plugin_that_is_not_there_needs_mending(place: Place) -> None:
    place.configure('plugins = ["nope"]\n')
    report = await examine(place, code=1)
    assert report["checks"]["plugins"]["verdict"] == "bad"
    assert "plugin nope cannot be imported" in report["checks"]["plugins"]["finding"]


async def test_a_plugin_that_fails_needs_mending_too(place: Place) -> None:
    (place.work / "broken.py").write_text("1 / 0\n")
    place.environ["PYTHONPATH"] = str(place.work)
    place.configure('plugins = ["broken"]\n')
    report = await examine(place, code=1)
    assert "ZeroDivisionError" in report["checks"]["plugins"]["finding"]


@pytest.mark.fault("F-25")
async def test_a_wrong_configuration_is_told_beside_what_can_be_seen_without_one(
    place: Place,
) -> None:
    place.configure("[gateway]\nprot = 1\n")
    result = await place.holdfast("doctor")
    assert (result.code, result.err) == (78, "")
    assert f"✗ config   {place.home}/config.toml: unknown key gateway.prot\n" in result.out
    assert "did you mean port = 8642 under [gateway]?" in result.out
    assert "✓ version" in result.out
    assert "✓ owner" in result.out

    report = await examine(place, code=78)
    assert (report["usable"], report["model"], report["set"]) == (False, None, {})


async def test_a_variable_that_only_looks_like_ours_is_pointed_out(place: Place) -> None:
    place.environ["HOLDFAST_MODLE"] = "openai/m"
    report = await examine(place)
    assert report["checks"]["environ"]["verdict"] == "note"
    assert report["checks"]["environ"]["next_step"] == (
        "HOLDFAST_MODLE: did you mean HOLDFAST_MODEL?"
    )


async def test_it_speaks_plainly_and_soon_without_a_network(place: Place) -> None:
    place.environ |= {"HOLDFAST_MODEL": "openai/m", "OPENAI_API_KEY": "sk"}
    place.environ["OPENAI_BASE_URL"] = "http://127.0.0.1:9/v1"
    begun = time.monotonic()
    result = await place.holdfast("doctor")
    assert time.monotonic() - begun < 5.0  # a second when the machine is quiet
    assert result.code == 1
    assert "✗ model" in result.out
    assert "Next:" in result.out


async def test_a_broken_audit_is_told_of_with_the_command_to_look_at_it(place: Place) -> None:
    place.home.mkdir(mode=0o700)
    ledger = Audit(place.home / FILE, time.time)
    for kind in ("approval.granted", "call.denied"):
        ledger.append(AuditEntry(kind=kind))
    ledger.close()
    assert (await examine(place))["checks"]["audit"]["finding"] == "complete, 2 entries"
    file = place.home / FILE
    file.write_text(file.read_text().replace("granted", "refused"))
    broken = (await examine(place, code=1))["checks"]["audit"]
    assert (broken["verdict"], broken["next_step"]) == ("bad", "look at it: holdfast audit verify")
    assert "is broken at line 1: " in broken["finding"]
    with file.open("ab") as more:
        more.truncate(5 * 1024 * 1024)
    long = (await examine(place))["checks"]["audit"]
    assert (long["verdict"], "holdfast audit verify" in long["finding"]) == ("ok", True)


@pytest.mark.fault("F-19")
async def test_processes_that_go_on_without_a_gateway_are_listed(
    place: Place, tmp_path: Path
) -> None:
    place.configure("")
    assert "processes" not in (await examine(place))["checks"]
    os.mkfifo(tmp_path / "go")
    script = "echo > go; exec sleep 1000"
    order = Execution(("/bin/sh", "-c", script), str(tmp_path), {"PATH": "/usr/bin:/bin"}, 60.0)
    async with keeper(place.home) as it:
        pid = int(await it.start("stray", order))
        (tmp_path / "go").read_bytes()
        os.kill(parent(pid), signal.SIGKILL)  # its shim
        await it.kill()
    try:
        check = (await examine(place))["checks"]["processes"]
    finally:
        os.kill(pid, signal.SIGKILL)
    assert check["verdict"] == "note"
    assert str(pid) in check["finding"]
