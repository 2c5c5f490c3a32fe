"""The filtering proxy: lets a confined command connect to allowed hosts only.

The command sees an HTTP proxy on loopback and no other network. The proxy's socket was created
inside the session's network namespace and sent to the gateway (listener.py). So connections arrive
here without a bridge in between, and only from commands of this session. Each command has a port of
its own, so a question names the command that the port was made for.

A host is allowed if it was granted by name: `example.org` (ports 80 and 443), `*.example.org` (all
subdomains), `example.org:8080`. For any other host the user is asked, once per command.
Connections to it wait for the answer; a refusal is a 403 with an explanation. The number of
hosts that one command can ask for is limited; further ones are refused.

A name is resolved once, every resulting address is checked, and the connection goes to a checked
address. Addresses of this machine and of private networks are refused, whatever the name was.
Decimal and octal spellings need no special handling, because the resolved address is checked.

The content of a tunnel is not inspected: granting a host also grants everything that its servers
pass on.
"""

import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream

from holdfast.core.types import Value

FORBIDDEN_NETWORK = "{} is in a network that is not allowed."
HEAD_S = 30.0
CONNECT_S = 30.0
MAX_HEAD = 64 * 1024
CONNECTIONS = 64  # of one command at a time; further ones wait in the kernel
QUESTIONS = 64  # hosts that one command can ask for; each is audited and named in its result
_CHUNK = 64 * 1024
_USUAL = (80, 443)
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.ASCII)

_DENIED = tuple(
    map(
        ipaddress.ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
            *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24"),
            *("192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32"),  # the last: Azure's metadata
            # IPv6: everything that is not routed, and ranges that embed an IPv4 address.
            *("::/3", "4000::/2", "8000::/1", "2001::/23", "2001:db8::/32", "2002::/16"),
            "3fff::/20",
        ),
    )
)

Ask = Callable[[str, int], Awaitable[bool]]
Resolve = Callable[[str, int], Awaitable[list[str]]]
Denied = Callable[[str], bool]


def denied(address: str) -> bool:
    """Return whether `address` belongs to this machine, a private network or a special range."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return any(ip in network for network in _DENIED if network.version == ip.version)


def granted(hosts: Sequence[str], host: str, port: int) -> bool:
    """Return whether one of `hosts` matches this host and port."""
    for grant in hosts:
        name, colon, wanted = grant.lower().partition(":")
        if (wanted == str(port)) if colon else (port in _USUAL):
            if host == name or (name.startswith("*.") and host.endswith(name[1:])):
                return True
    return False


def grant(host: str, port: int) -> str:
    """Return the grant that would allow this host and port."""
    return host if port in _USUAL else f"{host}:{port}"


async def resolve(host: str, port: int) -> list[str]:
    """Return every address of `host`."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@asynccontextmanager
async def serve(
    hosts: Sequence[str], ask: Ask, *, resolve: Resolve = resolve, denied: Denied = denied
) -> AsyncIterator[int]:
    """Serve one command. Yields the fd to pass to `Sandbox.confine` as `door`.

    `ask` is called for a host that was not granted, and must not raise.
    """
    ours, door = socket.socketpair()
    proxy = _Proxy(tuple(hosts), ask, resolve, denied)
    with ours, door:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(proxy.run, ours)
            try:
                yield door.fileno()
            finally:
                tasks.cancel_scope.cancel()


class _Target(Value):
    """The target of a request, and the head to send to it; empty for a tunnel."""

    host: str
    port: int
    head: bytes


class _No(Exception):
    """The request is refused with this status and message."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        body = f"Holdfast: {message}\n".encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        self.answer = head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


class _Asked:
    """A question about one host, and its answer when there is one."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.allowed = False


class _Proxy:
    def __init__(self, hosts: tuple[str, ...], ask: Ask, resolve: Resolve, denied: Denied) -> None:
        self._hosts = hosts
        self._ask = ask
        self._resolve = resolve
        self._denied = denied
        self._asked: dict[str, _Asked] = {}
        self._room = anyio.Semaphore(CONNECTIONS)

    async def run(self, ours: socket.socket) -> None:
        """Receive the listening socket from the sandbox and serve it until cancelled."""
        ours.settimeout(0)
        await anyio.wait_readable(ours)
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        if not fds:
            return  # the command ended before it sent a socket
        async with await SocketListener.from_socket(socket.socket(fileno=fds[0])) as listener:
            async with anyio.create_task_group() as tasks:
                while True:
                    # Before `accept`, because every accepted connection uses a descriptor.
                    await self._room.acquire()
                    tasks.start_soon(self._connection, await listener.accept())

    async def _connection(self, client: SocketStream) -> None:
        try:
            async with client:
                try:
                    await self._handle(client)
                except _No as no:
                    await client.send(no.answer)
        except (anyio.BrokenResourceError, anyio.EndOfStream, TimeoutError):
            return  # the command ended, or sent no complete request
        finally:
            self._room.release()

    async def _handle(self, client: SocketStream) -> None:
        with anyio.fail_after(HEAD_S):
            head, rest = await _read_head(client)
        target = _parse(head)
        async with await self._connect(target) as server:
            if target.head:
                await server.send(target.head + rest)
            else:
                await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
                if rest:
                    await server.send(rest)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_pump, client, server)
                tasks.start_soon(_pump, server, client)

    async def _connect(self, target: _Target) -> SocketStream:
        where = (target.host, target.port)
        if not (granted(self._hosts, *where) or await self._allowed(*where)):
            raise _No("403 Forbidden", f"{where[0]}:{where[1]} is not allowed for this command.")
        try:
            with anyio.fail_after(CONNECT_S):
                addresses = await self._resolve(*where)
                if any(map(self._denied, addresses)):
                    raise _No("403 Forbidden", FORBIDDEN_NETWORK.format(where[0]))
                return await self._first(addresses, target.port)
        except (OSError, UnicodeError):
            raise _No("502 Bad Gateway", f"{where[0]}:{where[1]} cannot be reached.") from None

    async def _allowed(self, host: str, port: int) -> bool:
        """Ask the user about a host, once; concurrent connections wait for the same answer."""
        name = grant(host, port)
        if (asked := self._asked.get(name)) is not None:
            await asked.answered.wait()
            return asked.allowed
        if len(self._asked) >= QUESTIONS:
            return False
        asked = self._asked[name] = _Asked()
        asked.allowed = await self._ask(host, port)
        asked.answered.set()
        return asked.allowed

    async def _first(self, addresses: Sequence[str], port: int) -> SocketStream:
        for address in addresses:
            try:
                server = await anyio.connect_tcp(address, port)
            except OSError:
                continue
            near = server.extra(SocketAttribute.local_address)[0]
            if near != address or ipaddress.ip_address(address).is_loopback:
                return server
            await server.aclose()  # it was one of this machine's own addresses
        raise OSError("no address answers")


async def _read_head(client: ByteStream) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > MAX_HEAD:
            raise _No("431 Request Header Fields Too Large", "the request headers are too long.")
        data += await client.receive(_CHUNK)
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _parse(head: bytes) -> _Target:
    line, _, fields = head.decode("latin-1").partition("\r\n")
    method, _, rest = line.partition(" ")
    address, _, version = rest.partition(" ")
    try:
        if not version.startswith("HTTP/1."):
            raise ValueError(version)
        url = urlsplit(f"//{address}" if method == "CONNECT" else address)
        host = (url.hostname or "").rstrip(".")
        port = url.port or {"http": 80, "": 0}[url.scheme]
    except (ValueError, KeyError):
        raise _No("400 Bad Request", "this is not a request to a proxy.") from None
    if not port or _NAME.fullmatch(host) is None:
        raise _No("400 Bad Request", "the request has no valid host and port.")
    if method == "CONNECT":
        return _Target(host, port, b"")
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    dropped = ("host:", "connection:", "proxy-", "keep-alive:")
    kept = [f for f in fields.split("\r\n") if f and not f.lower().startswith(dropped)]
    lines = [f"{method} {path} HTTP/1.1", f"Host: {url.netloc.rpartition('@')[2]}"]
    return _Target(
        host, port, "\r\n".join([*lines, *kept, "Connection: close", "", ""]).encode("latin-1")
    )


async def _pump(source: SocketStream, sink: SocketStream) -> None:
    try:
        async for chunk in source:
            await sink.send(chunk)
        await sink.send_eof()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        return  # one side is closed; the other direction ends by itself
