"""Messages to the supervisor, and its reaction to a process that sends none."""

import signal
from pathlib import Path

import anyio
import pytest

from holdfast.host.notify import Notifier, feed
from tests.crash.evidence import UNKNOWN, endings, facts, results
from tests.fakes.gateway import gateway, unstarted
from tests.fakes.model_server import ModelServer
from tests.fakes.supervisor import ear

pytestmark = pytest.mark.anyio

WATCHDOG_S = 4.0


@pytest.mark.fault("F-24")
async def test_a_blocked_loop_feeds_no_watchdog_and_the_next_start_recovers(
    tmp_path: Path, model: ModelServer
) -> None:
    with ear() as heard:
        variables = {"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
        async with unstarted(tmp_path, model.base_url, **variables) as it:
            plugins = 'plugins = ["tests.fakes.tools", "tests.fakes.blocking"]\n'
            (it.home / "config.toml").write_text(plugins)
            await it.start()
            await heard.hears("READY=1")
            await heard.hears("WATCHDOG=1")
            done = await it.run("say:before", session_id="other")
            assert (await it.finished(done))["output"] == "before"
            blocked = await it.run("tool:block {}", session_id="blocked")
            await heard.silence(WATCHDOG_S)
            it.signal(signal.SIGABRT)  # as systemd does
            assert await it.ended() == -signal.SIGABRT
            await it.start()
            await heard.hears("READY=1")
            assert endings(await it.events(blocked)) == ["run.completed"]
            assert any(text.startswith(UNKNOWN) for text in results(model))
            (cut,) = facts(it.home, "run.interrupted")
            assert (cut["run_id"], cut["cause"]) == (blocked, "crash")
            await heard.hears("WATCHDOG=1")


async def test_it_says_when_it_serves_and_when_it_ends(tmp_path: Path) -> None:
    with ear() as heard:
        async with gateway(tmp_path, NOTIFY_SOCKET=heard.address) as it:
            await heard.hears("READY=1")
            assert f"STATUS=Holdfast 0.1.0 ready on {it.url} (model offline)" in heard.lines
            it.signal(signal.SIGTERM)
            await heard.hears("STOPPING=1")
            assert await it.ended() == 0
        assert any(line.startswith("STATUS=Shutting down (SIGTERM); 0") for line in heard.lines)
        assert "WATCHDOG=1" not in heard.lines, "nobody has asked for it"


async def test_a_waiting_instance_names_the_owner_of_the_home(tmp_path: Path) -> None:
    with ear() as heard:
        async with (
            gateway(tmp_path) as it,
            unstarted(tmp_path, NOTIFY_SOCKET=heard.address) as second,
        ):
            await second.start(wait=False)
            await second.said("waiting for it")
            (line,) = await heard.message()
            assert line.startswith("STATUS=") and f"pid {it.pid}" in line


async def test_notify_variables_are_not_passed_to_children(
    tmp_path: Path, model: ModelServer
) -> None:
    with ear() as heard:
        variables = {"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": "60000000"}
        async with gateway(tmp_path, model.base_url, **variables) as it:
            await it.finished(await it.run("tool:exposed {}"))
            (shown,) = results(model)
            assert "HOLDFAST_HOME" in shown and "NOTIFY" not in shown and "WATCHDOG" not in shown


async def test_a_sign_of_life_is_given_only_after_an_answer(tmp_path: Path) -> None:
    """The journal's writer hangs: the loop turns, and still nothing is said."""
    asked, answer = anyio.Event(), anyio.Event()

    async def answered() -> None:
        asked.set()
        await answer.wait()

    with ear(tmp_path) as heard:
        notifier = Notifier(heard.address)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed, notifier, 60.0, answered)
            await asked.wait()
            notifier.tell("STATUS=the loop turns")
            assert await heard.message() == ["STATUS=the loop turns"]
            answer.set()
            assert await heard.message() == ["WATCHDOG=1"]
            tasks.cancel_scope.cancel()
        notifier.close()


@pytest.mark.parametrize("address", ["", "/no/such/socket", "vsock:2:1", "@nobody-listens-here"])
def test_without_a_notify_socket_nothing_is_sent_and_nothing_fails(address: str) -> None:
    notifier = Notifier(address)
    notifier.tell("READY=1")
    notifier.close()
