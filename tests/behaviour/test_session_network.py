"""The network of a session, through the gateway."""

import os
import sys

import pytest

from tests.behaviour.hands import children, command, does, until
from tests.fakes.gateway import GatewayProcess

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]

PORT = 3000
NAMESPACE = "readlink /proc/self/ns/net"
SERVE = f"{sys.executable} -I -m http.server {PORT} --bind 127.0.0.1"
FETCH = f"until (exec 3<>/dev/tcp/127.0.0.1/{PORT}) 2>/dev/null; do sleep 0.1; done; echo reached"


def members(namespace: str) -> set[int]:
    """The living processes in a network namespace."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/ns/net") == namespace:
                found.add(int(name))
        except OSError:
            continue
    return found


@pytest.mark.promise("NET-01")
async def test_a_server_of_one_run_is_reached_by_the_next_run(it: GatewayProcess) -> None:
    await does(it, command(SERVE, background=True), session_id="s")
    assert (await does(it, command(FETCH), session_id="s"))["output"] == "reached\n"


@pytest.mark.promise("NET-03")
async def test_a_killed_gateway_leaves_no_process_in_the_network(it: GatewayProcess) -> None:
    await does(it, command("sleep 1000", background=True), session_id="s")
    namespace = (await does(it, command(NAMESPACE), session_id="s"))["output"].strip()
    assert members(namespace)
    await it.kill()
    await until(lambda: not members(namespace), within_s=2)


@pytest.mark.promise("NET-03")
async def test_a_network_ends_with_its_run_unless_a_process_needs_it(it: GatewayProcess) -> None:
    namespace = (await does(it, command(NAMESPACE), session_id="s"))["output"].strip()
    await until(lambda: not members(namespace))
    assert not children(it.pid)
