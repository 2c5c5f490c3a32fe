"""Under a real systemd: the installed unit, restart, stop, and automatic restarts."""

import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio
import pytest

from holdfast.cli.service.units import NAME
from holdfast.host.lock import SOCKET, read_owner, take_lock
from tests.behaviour.hands import approve, carrying, command, running
from tests.cli import Place
from tests.crash.evidence import begun, facts
from tests.fakes.gateway import GatewayProcess, unstarted
from tests.fakes.model_server import ModelServer, Wait, stream, token
from tests.service.manager import Systemd, skip_without, user_manager

pytestmark = [pytest.mark.anyio, pytest.mark.debian("systemd")]

# What the service and systemd say is heard, with how each life began and ended.
HEARD = """[Service]
StandardError=append:{said}
ExecStartPost=/bin/sh -c 'echo "began $$MAINPID" >&2'
ExecStopPost=/bin/sh -c 'echo "ended $$SERVICE_RESULT $$EXIT_CODE $$EXIT_STATUS" >&2'
"""
WELL = "ended success exited 0"


@dataclass(frozen=True, slots=True)
class Service:
    """A home, a user manager, and whoever speaks to the gateway as its client."""

    place: Place
    systemd: Systemd
    it: GatewayProcess

    async def holdfast(self, *words: str) -> str:
        """A command that must succeed; what it says."""
        done = await self.place.holdfast(*words)
        assert done.code == 0, (words, done, self.systemd.lines[-20:])
        return done.out

    async def install(self, *settings: str) -> None:
        """Install the unit, with settings of the test's."""
        await self.holdfast("gateway", "install")
        more = self.place.root / f".config/systemd/user/{NAME}.d/test.conf"
        more.parent.mkdir(exist_ok=True)
        said = HEARD.format(said=self.place.root / "said")
        more.write_text(said + "".join(f"{line}\n" for line in settings))
        await self.systemd.ctl("daemon-reload")

    async def began(self) -> int:
        """The process that serves next, once it does."""
        pid = int((await self.systemd.hears("began ")).split()[1])
        owner = read_owner(self.place.home)
        assert owner.pid == str(pid)
        self.it.url = owner.address
        return pid

    async def order(self, path: str) -> int:
        """The operator's word at the operator's own door."""
        connector = aiohttp.UnixConnector(str(self.place.home / SOCKET))
        async with (
            aiohttp.ClientSession("http://localhost", connector=connector) as http,
            http.post(f"/v1/gateway/{path}") as response,
        ):
            return response.status

    async def shows(self, *names: str) -> tuple[str, ...]:
        """What systemd knows of the unit."""
        found = await self.systemd.show(NAME, *names)
        return tuple(found[name] for name in names)

    def said(self, kind: str) -> list[str]:
        """What the journal holds of what was wanted, or of the state."""
        return [str(f[kind]) for f in facts(self.place.home, f"gateway.{kind}")]


@asynccontextmanager
async def logged_in(place: Place, model: ModelServer) -> AsyncIterator[Service]:
    """While somebody is: a user's services end when that user has left."""
    skip_without()
    config = f'[gateway]\nport = 0\nworkspace_roots = ["{place.work}"]\n'
    async with (
        unstarted(place.root, model.base_url, config) as it,
        user_manager(place.root, it.environment) as systemd,
    ):
        place.environ.update(systemd.environ)
        yield Service(place, systemd, it)
        await it.http.close()


@pytest.fixture
async def service(tmp_path: Path, model: ModelServer) -> AsyncIterator[Service]:
    async with logged_in(Place(tmp_path), model) as service:
        yield service


@pytest.mark.promise("STOP-13")
async def test_installed_it_is_active_only_once_it_serves(service: Service) -> None:
    await service.install()
    assert (lock := take_lock(service.place.home)) is not None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.systemd.ctl, "start", NAME)
        await service.systemd.hears("waiting for it")
        assert await service.shows("ActiveState", "SubState") == ("activating", "start")
        lock.release()
    pid = await service.began()
    state = await service.shows("ActiveState", "SubState", "MainPID", "Type")
    assert state == ("active", "running", str(pid), "notify")
    (words,) = await service.shows("StatusText")
    assert f"ready on {service.it.url}" in words
    lines = (await service.holdfast("gateway", "status")).splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert (shown["state"], shown["wanted"], shown["pid"]) == ("ready", "running", str(pid))
    assert shown["unit"] == str(service.place.root / ".config/systemd/user" / NAME)
    assert (service.place.root / ".config/systemd/user/default.target.wants" / NAME).is_symlink()
    logs = await service.place.holdfast("gateway", "logs")
    assert logs.code == 1 and f"systemctl --user status {NAME}" in logs.err, logs
    assert "Removed" in await service.holdfast("gateway", "uninstall")
    await service.systemd.hears(WELL)
    assert await service.shows("LoadState", "ActiveState") == ("not-found", "inactive")


@pytest.mark.promise("STOP-07", "STOP-11")
@pytest.mark.parametrize("policy", ["always", "on-failure", "no"])
async def test_a_restart_comes_back_at_once_whatever_the_unit_says_of_restarts(
    service: Service, model: ModelServer, policy: str
) -> None:
    # What systemd would start again by itself would come after ten minutes.
    await service.install(f"Restart={policy}", "RestartSec=600")
    await service.holdfast("gateway", "start")
    first = await service.began()
    model.then(stream(token("half"), Wait()))
    run_id = await service.it.run("say:whole")
    await begun(service.it, run_id, "message.delta")

    done = await service.holdfast("gateway", "restart")
    await service.systemd.hears(WELL)
    second = await service.began()
    assert f"pid {second}" in done
    assert (await service.it.finished(run_id))["output"] == "whole"

    assert await service.order("restart") == 202
    await service.systemd.hears(WELL)
    third = await service.began()
    assert (await service.it.finished(await service.it.run("say:still")))["output"] == "still"

    assert len({first, second, third}) == 3
    state = await service.shows("ActiveState", "MainPID", "Result", "NRestarts")
    assert state == ("active", str(third), "success", "0")
    assert (service.said("wanted"), service.said("state")) == (
        ["running"] * 2,
        ["draining", "stopped"] * 2,
    )
    (cut,) = facts(service.place.home, "run.interrupted")
    assert (cut["cause"], cut["reason"]) == ("restart_timeout", "Gateway restarting")


@pytest.mark.promise("STOP-11")
@pytest.mark.parametrize("by_command", [True, False], ids=["command", "door"])
async def test_a_stop_stays_down_though_the_unit_says_always(
    service: Service, by_command: bool
) -> None:
    await service.install("RestartSec=0")
    await service.holdfast("gateway", "start")
    first = await service.began()
    if by_command:
        assert await service.holdfast("gateway", "stop") == "Stopped.\n"
    else:
        assert await service.order("stop") == 202
    await service.systemd.hears(WELL)
    await service.systemd.ctl("stop", NAME)  # returns when whatever goes on is over
    state = await service.shows("ActiveState", "SubState", "Result", "NRestarts")
    assert state == ("inactive", "dead", "success", "0")
    assert (service.said("wanted"), service.said("state")[-1]) == (["stopped"], "stopped")
    assert (await service.place.holdfast("gateway", "status")).code == 3
    await service.holdfast("gateway", "start")
    assert await service.began() != first
    assert service.said("wanted") == ["stopped", "running"]


@pytest.mark.promise("STOP-11")
async def test_a_stop_holds_also_while_systemd_is_about_to_start_it_again(service: Service) -> None:
    await service.install("RestartSec=600")
    await service.holdfast("gateway", "start")
    os.kill(await service.began(), signal.SIGKILL)
    await service.systemd.hears("ended signal killed KILL")
    await service.holdfast("gateway", "stop")
    assert await service.shows("ActiveState", "SubState") == ("inactive", "dead")
    assert service.said("wanted") == ["stopped"]


@pytest.mark.promise("STOP-06", "STOP-11")
@pytest.mark.debian("bwrap")
async def test_killed_it_is_started_again_and_none_of_its_commands_lives(
    service: Service, model: ModelServer
) -> None:
    await service.install("RestartSec=0")
    await service.holdfast("gateway", "start")
    first = await service.began()
    mark = secrets.token_hex(8)
    script = f"trap '' TERM HUP; echo up; while :; do sleep 1000; done; : {mark}"
    run_id = await service.it.run(command(script), workspace=str(service.place.work))
    await approve(service.it, run_id)
    assert await running(mark)
    os.kill(first, signal.SIGKILL)
    await service.systemd.hears("ended signal killed KILL")
    second = await service.began()
    assert not carrying(mark), "a command has outlived its gateway"
    assert "It may have had effects" in (await service.it.finished(run_id))["output"]
    assert await service.shows("NRestarts", "MainPID") == ("1", str(second))
    assert (service.said("wanted"), service.said("state")) == ([], []), "nobody has said a word"
    (cut,) = facts(service.place.home, "run.interrupted")
    assert (cut["run_id"], cut["cause"]) == (run_id, "crash")


@pytest.mark.fault("F-24")
async def test_a_gateway_that_misses_the_watchdog_is_restarted(
    service: Service, model: ModelServer
) -> None:
    await service.install("WatchdogSec=4", "RestartSec=0")
    await service.holdfast("gateway", "start")
    first = await service.began()
    model.then(stream(token("half"), Wait()))
    run_id = await service.it.run("say:whole")
    await begun(service.it, run_id, "message.delta")
    os.kill(first, signal.SIGSTOP)
    await service.systemd.hears("ended watchdog killed ABRT")
    assert await service.began() != first
    assert (await service.it.finished(run_id))["output"] == "whole"
    (cut,) = facts(service.place.home, "run.interrupted")
    assert (cut["run_id"], cut["cause"]) == (run_id, "crash")


@pytest.mark.fault("F-25")
async def test_a_configuration_error_is_reported_and_not_restarted(service: Service) -> None:
    await service.install("RestartSec=0")
    config = service.place.home / "config.toml"
    good = config.read_text()
    config.write_text(good + 'host = "192.0.2.1"\n')
    failed = await service.place.holdfast("gateway", "start")
    assert failed.code == 1 and NAME in failed.err, failed
    assert "192.0.2.1" in await service.systemd.hears("192.0.2.1")
    await service.systemd.hears("ended exit-code exited 78")
    names = ("ActiveState", "SubState", "ExecMainStatus", "NRestarts")
    assert await service.shows(*names) == ("failed", "failed", "78", "0")
    config.write_text(good)
    await service.holdfast("gateway", "start")
    await service.began()


@pytest.mark.promise("STOP-11")
async def test_an_installed_unit_starts_at_the_next_login(
    tmp_path: Path, model: ModelServer
) -> None:
    place = Place(tmp_path)
    model.then(stream(token("half"), Wait()))
    async with logged_in(place, model) as service:
        await service.install()
        await service.holdfast("gateway", "start")
        first = await service.began()
        run_id = await service.it.run("say:whole")
        await begun(service.it, run_id, "message.delta")
    async with logged_in(place, model) as service:
        assert await service.began() != first
        assert (await service.it.finished(run_id))["output"] == "whole"
        assert (service.said("wanted"), service.said("state")) == ([], ["draining", "running"])
