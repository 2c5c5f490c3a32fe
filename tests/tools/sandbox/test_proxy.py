"""The filtering proxy, as a confined command uses it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from holdfast.errors import ToolFailed
from holdfast.tools.sandbox import listener, proxy
from holdfast.tools.sandbox.sandbox import CommandProfile, Sandbox
from tests.bwrap import NOWHERE

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]

FETCH = """
import sys, urllib.request
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            print(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except OSError as error:
        print("failed", error)
"""

TUNNEL = """
import http.client, os, sys
host, port = sys.argv[1:]
near = int(os.environ["http_proxy"].rpartition(":")[2])
to = http.client.HTTPConnection("127.0.0.1", near, timeout=10)
to.set_tunnel(host, int(port))
try:
    to.request("GET", "/through")
    print(to.getresponse().read().decode())
except OSError as error:
    print(error)
"""


class Internet:
    """One server, which answers to every name; and what it was asked."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[str] = []
        self.address = "127.0.0.1"

    async def answer(self, client: SocketStream) -> None:
        async with client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await client.receive()
            lines = head.decode().split("\r\n")
            host = next(line for line in lines if line.lower().startswith("host:"))
            self.asked.append(f"{lines[0]} {host}")
            await client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n")
            await client.send(b"hello")

    async def resolve(self, host: str, port: int) -> list[str]:
        return [self.address]


@pytest.fixture
async def internet() -> AsyncIterator[Internet]:
    found = Internet()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        found.port = listener.extra(SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, found.answer)
            yield found
            tasks.cancel_scope.cancel()


class Machine:
    """A sandbox with a workspace, and a proxy to the internet of this test."""

    def __init__(self, root: Path, internet: Internet) -> None:
        self.workspace = root / "holdfast" / "workspaces" / "one"
        self.workspace.mkdir(parents=True)
        (root / "user").mkdir()
        path = ["/usr/bin", "/bin"]
        self.sandbox = Sandbox(root / "holdfast", root / "user", allow_none=False, exec_path=path)
        self.internet = internet
        self.asked: list[tuple[str, int]] = []
        self.answer = False
        self.denied: proxy.Denied = lambda _: False

    async def run(self, script: str, *arguments: str, hosts: tuple[str, ...] = ()) -> str:
        """Run Python code inside, with these hosts granted, and return what it says."""
        argv = ["python3", "-I", "-c", script, *arguments]
        profile = CommandProfile(str(self.workspace), hosts=hosts)
        async with self._serve(hosts) as door:
            confined = self.sandbox.confine(profile, argv, str(self.workspace), door=door)
            try:
                done = await anyio.run_process(
                    confined.argv,
                    input=b"",
                    env=confined.env,
                    cwd=confined.cwd,
                    pass_fds=confined.pass_fds,
                )
            finally:
                confined.close()
        return done.stdout.decode().strip()

    async def ask(self, host: str, port: int) -> bool:
        """Somebody who answers at once."""
        self.asked.append((host, port))
        return self.answer

    @asynccontextmanager
    async def _serve(self, hosts: tuple[str, ...]) -> AsyncIterator[int]:
        async with proxy.serve(
            hosts,
            self.ask,
            resolve=self.internet.resolve,
            denied=self.denied,
        ) as door:
            yield door


@pytest.fixture
async def machine(tmp_path: Path, internet: Internet) -> Machine:
    found = Machine(tmp_path, internet)
    await found.sandbox.probe()
    assert found.sandbox.filters_hosts
    return found


async def test_a_granted_host_is_reached_by_name(machine: Machine, internet: Internet) -> None:
    grant = f"good.example:{internet.port}"
    said = await machine.run(FETCH, f"http://{grant}/path?a=b", hosts=(grant,))
    assert said == "200 hello"
    assert internet.asked == [f"GET /path?a=b HTTP/1.1 Host: {grant}"]
    assert machine.asked == []


async def test_a_granted_host_is_reached_through_a_tunnel(
    machine: Machine, internet: Internet
) -> None:
    grant = f"good.example:{internet.port}"
    assert await machine.run(TUNNEL, "good.example", str(internet.port), hosts=(grant,)) == "hello"
    assert internet.asked[0].startswith("GET /through")


async def test_another_host_is_refused_with_a_message_and_reported_once(
    machine: Machine, internet: Internet
) -> None:
    said = await machine.run(
        FETCH, "http://evil.example/", "http://evil.example/again", hosts=("good.example",)
    )
    assert said.splitlines() == [
        "403 Holdfast: evil.example:80 is not allowed for this command.",
        "403 Holdfast: evil.example:80 is not allowed for this command.",
    ]
    tunnel = await machine.run(TUNNEL, "evil.example", "443")
    assert "403" in tunnel
    assert machine.asked == [("evil.example", 80), ("evil.example", 443)]
    assert internet.asked == []


async def test_a_host_that_the_user_allows_is_reachable_from_then_on(
    machine: Machine, internet: Internet
) -> None:
    machine.answer = True
    url = f"http://new.example:{internet.port}/"
    assert await machine.run(FETCH, url, url) == "200 hello\n200 hello"
    assert machine.asked == [("new.example", internet.port)]


PARALLEL = """
import concurrent.futures, sys, urllib.request
def fetch(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(*pool.map(fetch, sys.argv[1:]))
"""


async def test_connections_are_held_while_the_question_is_open_and_share_its_answer(
    machine: Machine, internet: Internet
) -> None:
    asked, answer = anyio.Event(), anyio.Event()
    questions: list[str] = []

    async def ask(host: str, port: int) -> bool:
        questions.append(host)
        asked.set()
        await answer.wait()
        return True

    async def somebody() -> None:
        await asked.wait()
        assert internet.asked == []
        answer.set()

    machine.ask = ask  # type: ignore[method-assign]
    async with anyio.create_task_group() as group:
        group.start_soon(somebody)
        urls = [f"http://new.example:{internet.port}/{n}" for n in range(8)]
        said = await machine.run(PARALLEL, *urls)
    assert said == " ".join(["hello"] * 8)
    assert questions == ["new.example"]


async def test_a_command_asks_about_a_limited_number_of_hosts(machine: Machine) -> None:
    urls = [f"http://h{number}.example/" for number in range(proxy.QUESTIONS + 10)]
    said = await machine.run(FETCH, *urls)
    assert said.count("is not allowed for this command") == len(urls)
    assert len(machine.asked) == proxy.QUESTIONS


async def test_an_allowed_host_in_a_private_network_is_still_refused(
    machine: Machine, internet: Internet
) -> None:
    machine.answer, machine.denied = True, proxy.denied
    said = await machine.run(FETCH, "http://new.example/")
    assert said == f"403 Holdfast: {proxy.FORBIDDEN_NETWORK.format('new.example')}"
    assert internet.asked == []


def test_the_user_is_asked_about_the_grant_that_is_missing() -> None:
    for host, port in (("a.example", 80), ("a.example", 443), ("a.example", 8080)):
        assert proxy.granted((proxy.grant(host, port),), host, port)
    assert proxy.grant("a.example", 443) == "a.example"


async def test_a_granted_name_that_leads_into_a_private_network_is_refused(
    machine: Machine, internet: Internet
) -> None:
    machine.denied = proxy.denied
    grant = f"good.example:{internet.port}"
    said = await machine.run(FETCH, f"http://{grant}/", hosts=(grant,))
    assert said == f"403 Holdfast: {proxy.FORBIDDEN_NETWORK.format('good.example')}"
    assert internet.asked == []


async def test_without_a_proxy_there_is_no_network(machine: Machine, internet: Internet) -> None:
    workspace = str(machine.workspace)
    url = f"http://127.0.0.1:{internet.port}/"
    confined = machine.sandbox.confine(
        CommandProfile(workspace), ["python3", "-I", "-c", FETCH, url], workspace
    )
    done = await anyio.run_process(
        confined.argv, input=b"", env=confined.env, cwd=workspace, pass_fds=confined.pass_fds
    )
    confined.close()
    assert b"failed" in done.stdout
    assert internet.asked == []


async def test_only_proxy_requests_are_accepted(machine: Machine, internet: Internet) -> None:
    script = (
        "import os, socket, sys\n"
        "near = int(os.environ['http_proxy'].rpartition(':')[2])\n"
        "for request in sys.argv[1:]:\n"
        "    with socket.create_connection(('127.0.0.1', near)) as to:\n"
        "        to.sendall(request.encode() + b'\\r\\n\\r\\n')\n"
        "        print(to.recv(4096).split()[1].decode())"
    )
    bad = ["GET / HTTP/1.1", "CONNECT host HTTP/1.1", "rubbish", "GET ftp://a/ HTTP/1.1"]
    bad += ["CONNECT a:x HTTP/1.1", "GET http://ä/ HTTP/1.1", "GET http://[::1/ HTTP/1.1"]
    assert (await machine.run(script, *bad)).split() == ["400"] * len(bad)
    assert internet.asked == []


async def test_the_command_does_not_hold_the_gateways_end(machine: Machine) -> None:
    said = await machine.run("import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))")
    assert said == "[0, 1, 2, 3]"  # the last one lists them


async def test_a_command_has_a_limited_number_of_processes(machine: Machine) -> None:
    script = "import resource; print(*resource.getrlimit(resource.RLIMIT_NPROC))"
    limits = {int(limit) for limit in (await machine.run(script)).split()}
    assert max(limits) <= listener.PROCESSES


async def test_a_sandbox_without_host_filter_grants_no_host(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "h", tmp_path / "u", allow_none=False, exec_path=[], site=NOWHERE)
    (tmp_path / "h").mkdir()
    (tmp_path / "u").mkdir()
    await sandbox.probe()
    assert not sandbox.filters_hosts
    with pytest.raises(ToolFailed, match="no network"):
        sandbox.confine(CommandProfile(str(tmp_path / "w"), hosts=("good.example",)), ["true"], "/")


@pytest.mark.parametrize(
    "address",
    """
    127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 100.100.100.200 0.0.0.0
    192.0.0.192 168.63.129.16 224.0.0.1 255.255.255.255 198.18.0.1 ::1 :: ::ffff:127.0.0.1
    ::169.254.169.254 64:ff9b::a9fe:a9fe 2002:a9fe:a9fe:: fe80::1 fe80::1%eth0 fc00::1 fd00::1
    ff02::1 2001::1 2001:db8::1
    """.split(),
)
def test_private_and_special_addresses_are_denied(address: str) -> None:
    assert proxy.denied(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "151.101.0.223", "2606:4700::1111", "2a04:4e42::223"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert not proxy.denied(address)


@pytest.mark.parametrize(
    ("grant", "host", "port", "expected"),
    [
        ("packages.example", "packages.example", 443, True),
        ("Packages.example", "packages.example", 80, True),
        ("packages.example", "packages.example", 22, False),
        ("packages.example", "evilpackages.example", 443, False),
        ("packages.example", "a.packages.example", 443, False),
        ("*.packages.example", "a.packages.example", 443, True),
        ("*.packages.example", "packages.example", 443, False),
        ("*.packages.example", "evilpackages.example", 443, False),
        ("packages.example:8080", "packages.example", 8080, True),
        ("packages.example:8080", "packages.example", 443, False),
    ],
)
def test_a_grant_matches_exactly_its_hosts_and_ports(
    grant: str, host: str, port: int, expected: bool
) -> None:
    assert proxy.granted((grant,), host, port) is expected
