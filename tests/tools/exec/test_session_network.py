"""The network of a session: its commands meet there, and no other process does."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from holdfast.core.types import Owner, SessionId, SessionKey
from holdfast.tools.terminal_arguments import TerminalArguments
from holdfast.tools.tool import Done
from tests.tools.exec.test_commands import KEY, Desk, desk, read

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]

OTHER = SessionKey(Owner("operator"), SessionId("two"))
PORT = 3000
SERVER = (
    "import http.server as h, sys\n"
    "class H(h.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers(); self.wfile.write(b'served')\n"
    f"s = h.HTTPServer(('127.0.0.1', {PORT}), H)\n"
    "print('listening', flush=True)\n"
    "s.serve_forever()\n"
)
FETCH = (
    "import urllib.request as u\n"
    f"print(u.urlopen('http://127.0.0.1:{PORT}/', timeout=5).read().decode())\n"
)


def python(source: str) -> str:
    return f"{sys.executable} -I -c '{source.replace(chr(39), chr(34))}'"


async def serving(it: Desk) -> None:
    """Start the server in the background of the first session, and wait until it listens."""
    found = await it.begin(python(SERVER), "server")
    await it.hands.lines(found, 0, ("listening",))


async def fetched(it: Desk, session: SessionKey, call: str) -> dict[str, Any]:
    """Ask the server from a command of this session."""
    context = replace(it.context(call), session=session)
    return read(await it.execute(context, TerminalArguments(python(FETCH))))


@pytest.mark.promise("NET-01")
async def test_the_next_command_reaches_a_server_in_the_background(tmp_path: Path) -> None:
    async with desk(tmp_path, "L2") as it:
        await serving(it)
        assert (await fetched(it, KEY, "one"))["output"] == "served\n"
        assert (await fetched(it, KEY, "two"))["output"] == "served\n"


@pytest.mark.promise("NET-02")
async def test_neither_another_session_nor_the_host_reaches_the_server(tmp_path: Path) -> None:
    async with desk(tmp_path, "L2") as it:
        await serving(it)
        assert "refused" in (await fetched(it, OTHER, "one"))["output"]
        with socket.socket() as out, pytest.raises(ConnectionRefusedError):
            out.connect(("127.0.0.1", PORT))
        assert (await fetched(it, KEY, "two"))["exit_code"] == 0


@pytest.mark.promise("NET-02")
async def test_a_command_reaches_no_port_of_the_host(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0)
        port = listener.getsockname()[1]
        async with desk(tmp_path, "L2") as it:
            await serving(it)  # from the second command on they join
            code = f'import socket; socket.create_connection(("127.0.0.1", {port}), 3)'
            told = await it.result(python(code), "out")
        assert told["exit_code"] == 1
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_commands_of_a_session_have_the_same_user_and_no_capabilities(tmp_path: Path) -> None:
    async with desk(tmp_path, "L2") as it:
        look = "cat /proc/self/status | grep -E '^(Uid|Gid|Cap)'; ls -l /proc/self/fd | wc -l"
        one = await it.result(look, "one")
        two = await it.result(look, "two")
        assert one["output"] == two["output"]
        lines = dict(line.split(":", 1) for line in one["output"].splitlines() if ":" in line)
        assert set(lines["Uid"].split()) == {str(os.getuid())}
        assert {int(value, 16) for name, value in lines.items() if name.startswith("Cap")} == {0}


async def test_commands_of_a_session_started_at_once_meet(tmp_path: Path) -> None:
    async with desk(tmp_path, "L2") as it:
        seen: list[str] = []

        async def look(call: str) -> None:
            seen.append((await it.result("readlink /proc/self/ns/net", call))["output"])

        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(look, f"call-{number}")
        assert len(set(seen)) == 1
        assert seen[0].strip() != os.readlink("/proc/self/ns/net")


async def test_each_command_has_a_proxy_of_its_own(tmp_path: Path) -> None:
    async with desk(tmp_path, "L2") as it:
        asked: list[str] = []

        def reach(call: str) -> Any:
            async def ask(host: str) -> bool:
                asked.append(f"{call} {host}")
                return False

            return it.execute(
                replace(it.context(call), may_reach=ask),
                TerminalArguments(python(FETCH.replace(f"127.0.0.1:{PORT}", f"{call}.example"))),
            )

        for call in ("one", "two"):
            assert isinstance(await reach(call), Done)
        assert asked == ["one one.example", "two two.example"]
