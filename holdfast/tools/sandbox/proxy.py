"""The filtering proxy: what a confined command reaches of the network, host by host.

A command sees an HTTP proxy on its own loopback and nothing else. The proxy's socket was
made inside the command's network namespace and handed out (door.py), so connections arrive
here without a bridge in between, from this command and no other.

A host is reached if it was granted by name: `example.org` (ports 80 and 443), `*.example.org`
(everything below it), `example.org:8080`. Any other is asked about, once for a command:
whoever connects to it is held until there is an answer, and a no is a 403 in words. A name is resolved once, every answer is checked, and the checked address is the
one connected to; addresses of this machine and of private networks are refused whatever the
name was. Decimal and octal spellings need no care: what is checked is what they resolve to.
Not looked into: what goes through a tunnel. Who grants a host grants what its servers pass on.
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

PORT = 3128  # in a namespace of one command nothing else can have it
HEAD_S = 30.0
CONNECT_S = 30.0
MAX_HEAD = 64 * 1024
CONNECTIONS = 64  # at once, of one command; the rest wait in the kernel and cost us nothing
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
            # Of IPv6 only what is routed at all, less what carries an IPv4 address inside.
            *("::/3", "4000::/2", "8000::/1", "2001::/23", "2001:db8::/32", "2002::/16"),
            "3fff::/20",
        ),
    )
)

Ask = Callable[[str, int], Awaitable[bool]]
Resolve = Callable[[str, int], Awaitable[list[str]]]
Denied = Callable[[str], bool]


def denied(address: str) -> bool:
    """Whether `address` is of this machine, a private network or a special kind."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return any(ip in network for network in _DENIED if network.version == ip.version)


def granted(hosts: Sequence[str], host: str, port: int) -> bool:
    """Whether one of `hosts` means this host and port."""
    for grant in hosts:
        name, colon, wanted = grant.lower().partition(":")
        if (wanted == str(port)) if colon else (port in _USUAL):
            if host == name or (name.startswith("*.") and host.endswith(name[1:])):
                return True
    return False


def grant(host: str, port: int) -> str:
    """What would have to be granted for this host and port."""
    return host if port in _USUAL else f"{host}:{port}"


async def resolve(host: str, port: int) -> list[str]:
    """Every address of `host`."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@asynccontextmanager
async def serve(
    hosts: Sequence[str],
    ask: Ask,
    *,
    resolve: Resolve = resolve,
    denied: Denied = denied,
) -> AsyncIterator[int]:
    """Serve one command. Yields the fd that `Sandbox.confine` takes as its `door`.

    `ask` is asked about a host that was not granted, and must not raise.
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
    """Where a request wants to go, and the head to send there; a tunnel sends none."""

    host: str
    port: int
    head: bytes


class _No(Exception):
    """The request ends here, with this status and these words."""

    def __init__(self, status: str, words: str) -> None:
        super().__init__(words)
        body = f"Holdfast: {words}\n".encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        self.answer = head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


class _Asked:
    """A question about one host, and its answer once there is one."""

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
        """Take the listening socket from the door and serve it until cancelled."""
        ours.settimeout(0)
        await anyio.wait_readable(ours)
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        if not fds:
            return  # the command ended before it had a door
        async with await SocketListener.from_socket(socket.socket(fileno=fds[0])) as listener:
            async with anyio.create_task_group() as tasks:
                while True:
                    await self._room.acquire()  # first: who is accepted holds a descriptor
                    tasks.start_soon(self._connection, await listener.accept())

    async def _connection(self, client: SocketStream) -> None:
        try:
            async with client:
                try:
                    await self._handle(client)
                except _No as no:
                    await client.send(no.answer)
        except (anyio.BrokenResourceError, anyio.EndOfStream, TimeoutError):
            return  # the command went away, or never said what it wants
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
                    raise _No("403 Forbidden", f"{where[0]} lies in a network that is not allowed.")
                return await self._first(addresses, target.port)
        except (OSError, UnicodeError):
            raise _No("502 Bad Gateway", f"{where[0]}:{where[1]} cannot be reached.") from None

    async def _allowed(self, host: str, port: int) -> bool:
        """What somebody says about it; all who want to know wait for the same answer."""
        name = grant(host, port)
        if (asked := self._asked.get(name)) is not None:
            await asked.answered.wait()
            return asked.allowed
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
            await server.aclose()  # one of this machine's own addresses
        raise OSError("no address answers")


async def _read_head(client: ByteStream) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > MAX_HEAD:
            raise _No("431 Request Header Fields Too Large", "the request's head is too long.")
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
        raise _No("400 Bad Request", "this is no request to a proxy.") from None
    if not port or _NAME.fullmatch(host) is None:
        raise _No("400 Bad Request", "the request names no host and port.")
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
        return  # one side is gone; the other ends by itself
