"""Published ports: forward connections on this machine's loopback into a session's network.

A port listens on 127.0.0.1 only, under the same number if that is free. It is open as long as its
process runs and the gateway does. Whoever may publish is decided elsewhere: by an approval, or by
the operator.
"""

import socket
from contextlib import suppress

import anyio
from anyio.abc import SocketListener, SocketStream, TaskGroup

from holdfast.core.types import Part, ProcessId
from holdfast.errors import ToolFailed
from holdfast.tools.sandbox.networks import Network

IN_ALL = 64  # published ports of this gateway
CONNECTIONS = 64  # of one port at a time; further ones wait in the kernel
_CHUNK = 64 * 1024
_HOST = "127.0.0.1"


class _Published(Part):
    """One open port."""

    host_port: int
    scope: anyio.CancelScope


class Ports:
    """The published ports of all processes. `tasks` must live longer than each of them."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._open: dict[tuple[ProcessId, int], _Published] = {}

    async def open(
        self, process_id: ProcessId, network: Network, port: int, host_port: int, over: anyio.Event
    ) -> int:
        """Forward a port until `over` is set, and return its number on this machine.

        That is `host_port`, which must be free then, or with 0 the same number or a free one. A
        port that is open already stays as it is.
        """
        if (found := self._open.get((process_id, port))) is not None:
            return found.host_port
        if len(self._open) >= IN_ALL:
            raise ToolFailed(f"{IN_ALL} ports are published on this gateway, the maximum.")
        listening = _listen(port, host_port)
        number: int = listening.getsockname()[1]
        published = _Published(number, anyio.CancelScope())
        self._open[process_id, port] = published
        listener = await SocketListener.from_socket(listening)
        self._tasks.start_soon(self._serve, (process_id, port), published, listener, network, over)
        return number

    def close(self, process_id: ProcessId, port: int) -> None:
        """Close a port with all its connections, if it is open."""
        if (found := self._open.get((process_id, port))) is not None:
            found.scope.cancel()

    async def _serve(
        self,
        name: tuple[ProcessId, int],
        published: _Published,
        listener: SocketListener,
        network: Network,
        over: anyio.Event,
    ) -> None:
        room = anyio.Semaphore(CONNECTIONS)

        async def accept() -> None:
            async with anyio.create_task_group() as connections:
                while True:
                    await room.acquire()  # before `accept`: every connection uses descriptors
                    connections.start_soon(
                        _forward, await listener.accept(), network, name[1], room
                    )

        try:
            with published.scope, suppress(OSError):  # out of descriptors: this port is closed
                async with listener, anyio.create_task_group() as group:
                    group.start_soon(accept)
                    await over.wait()
                    group.cancel_scope.cancel()
        finally:
            del self._open[name]


def _listen(port: int, host_port: int) -> socket.socket:
    for wanted in (host_port,) if host_port else (port, 0):
        listening = socket.socket()
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((_HOST, wanted))
            listening.listen(64)
        except OSError:
            listening.close()
        else:
            return listening
    raise ToolFailed(f"Port {host_port or port} of this machine is taken; choose another.")


async def _forward(
    client: SocketStream, network: Network, port: int, room: anyio.Semaphore
) -> None:
    try:
        async with client, await network.connect(port) as server:
            async with anyio.create_task_group() as group:
                group.start_soon(_pump, client, server)
                group.start_soon(_pump, server, client)
    except OSError:
        return  # nothing listens there
    finally:
        room.release()


async def _pump(source: SocketStream, sink: SocketStream) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        async for chunk in source:
            await sink.send(chunk)
        await sink.send_eof()
