"""The networks of sessions: one network namespace per session, shared by its confined commands.

A server that one command starts can be reached by the next command of the same session, and by
nothing else: not by other sessions, and from this machine only through a published port
(tools/exec/ports.py). The namespace has no way out but the proxy of each command (listener.py).

The gateway holds the namespace by descriptors and by its keeper (namespace.py), both of which are
gone as soon as the gateway is. A network is opened for the first command of a session and stays
open while a command runs or a run may start one.
"""

import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import Process, SocketStream, TaskGroup, TaskStatus

from holdfast.core.types import SessionKey
from holdfast.errors import ToolFailed
from holdfast.tools.fs.openat import descriptor

IDLE_S = 300.0  # before the network of a session without commands is closed, even during a run
MOST_IDLE = 64  # further ones are closed at once, the longest idle first
END_S = 2.0  # for the keeper to end by itself
START_S = 10.0  # for the keeper to create the namespaces
_MESSAGE = 500  # bytes
_SOURCE = Path(__file__).with_name("namespace.py").read_text("utf-8")


class NetworkClock(Protocol):
    """The clock that idle networks are closed by."""

    def now(self) -> float:
        """Seconds since the epoch."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


class Network:
    """An open network namespace. Commands in it keep it alive after `close`."""

    def __init__(self, control: socket.socket, namespaces: tuple[int, int]) -> None:
        self._control = control
        self._dialling = anyio.Lock()
        self.namespaces = namespaces  # user, network: to be joined in this order
        self.inode = os.fstat(namespaces[1]).st_ino

    async def connect(self, port: int) -> SocketStream:
        """Connect to a port on loopback there; `OSError` if nothing listens."""
        try:
            return await self._connect(socket.AF_INET, ("127.0.0.1", port))
        except ConnectionRefusedError:  # `localhost` is the other one for some servers
            return await self._connect(socket.AF_INET6, ("::1", port))

    async def _connect(self, family: int, address: tuple[str, int]) -> SocketStream:
        async with self._dialling:
            with anyio.CancelScope(shield=True):  # else the answer would be taken for the next one
                self._control.send(bytes([family]))
                (fd,) = await _receive(self._control, 1)
        with ExitStack() as clean:
            new = clean.enter_context(socket.socket(fileno=fd))
            new.settimeout(0)
            with suppress(BlockingIOError):
                new.connect(address)
            await anyio.wait_writable(new)
            if error := new.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, os.strerror(error))
            stream = await SocketStream.from_socket(new)
            clean.pop_all()
        return stream

    def close(self) -> None:
        """Close our descriptors of the namespaces."""
        for fd in self.namespaces:
            os.close(fd)


@asynccontextmanager
async def open_network() -> AsyncIterator[Network]:
    """Create a network namespace; `OSError` if this machine does not allow it."""
    with ExitStack() as clean:
        ours, theirs = socket.socketpair()
        clean.enter_context(ours).settimeout(0)
        with theirs:
            keeper = await _start_keeper(theirs.fileno())
        try:
            with anyio.fail_after(START_S):
                user, net = await _receive(ours, 2)
            network = Network(ours, (user, net))
            clean.callback(network.close)
            yield network
        finally:
            clean.close()  # so it ends by itself
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(END_S):
                    await keeper.wait()
                if keeper.returncode is None:
                    keeper.kill()
                    await keeper.wait()


async def _start_keeper(control: int) -> Process:
    # Shielded, because a process that starts while we are cancelled would never be waited for.
    with descriptor(os.open(os.devnull, os.O_RDWR)) as null, anyio.CancelScope(shield=True):
        keeper = await anyio.open_process(
            [sys.executable, "-I", "-S", "-c", _SOURCE, str(control)],
            pass_fds=[control],
            stdin=null,
            stdout=null,
            stderr=null,
            cwd="/",
            env={},
            start_new_session=True,
        )
    return keeper


async def _receive(control: socket.socket, number: int) -> list[int]:
    """Receive descriptors from the keeper; `OSError` if it has ended."""
    await anyio.wait_readable(control)
    said, fds, _, _ = socket.recv_fds(control, _MESSAGE, number)
    if len(fds) != number:
        raise OSError(said.decode(errors="replace") or "the keeper of the network has ended")
    return fds


class _SessionNetwork:
    """The network of one session, and how many commands use it."""

    def __init__(self) -> None:
        self.opening = anyio.Lock()
        self.network: Network | None = None
        self.users = 0
        self.idle_since = 0.0
        self.resting = False  # no run of the session is active
        self.scope = anyio.CancelScope()  # cancelled to close it


class Networks:
    """The networks of all sessions. `tasks` must live longer than every command."""

    def __init__(self, tasks: TaskGroup, clock: NetworkClock) -> None:
        self._tasks = tasks
        self._clock = clock
        self._all: dict[SessionKey, _SessionNetwork] = {}

    def find(self, session: SessionKey) -> Network | None:
        """Return the session's network, if it is open."""
        found = self._all.get(session)
        return found.network if found else None

    async def join(self, session: SessionKey, over: anyio.Event) -> Network:
        """Return the session's network, and keep it open until `over` is set.

        Raises `ToolFailed` if it cannot be opened now.
        """
        found = self._all.setdefault(session, _SessionNetwork())
        found.users += 1
        found.resting = False
        try:
            async with found.opening:
                if found.network is None:
                    found.network = await self._open(session, found)
        except BaseException:
            self._leave(session, found)
            raise
        self._tasks.start_soon(self._stay, session, found, over)
        return found.network

    def prepare(self, session: SessionKey) -> None:
        """Open the session's network meanwhile: a command is about to join it."""
        if session not in self._all:
            self._tasks.start_soon(self._prepare, session)

    async def _prepare(self, session: SessionKey) -> None:
        over = anyio.Event()
        over.set()
        with suppress(ToolFailed):  # the command that joins it will say so
            await self.join(session, over)

    def rest(self, session: SessionKey) -> None:
        """Close the session's network as soon as no command is in it: its run has ended."""
        if (found := self._all.get(session)) is not None:
            found.resting = True
            self._bound()

    async def _stay(self, session: SessionKey, found: _SessionNetwork, over: anyio.Event) -> None:
        try:
            await over.wait()
        finally:
            self._leave(session, found)

    def _leave(self, session: SessionKey, found: _SessionNetwork) -> None:
        found.users -= 1
        found.idle_since = self._clock.now()
        if found.network is None and not found.users:
            self._all.pop(session, None)
        self._bound()

    async def _open(self, session: SessionKey, found: _SessionNetwork) -> Network:
        opened: Network | OSError = await self._tasks.start(self._hold, session, found)
        if isinstance(opened, OSError):
            raise ToolFailed(f"Not started: {opened}. Try again.") from opened
        return opened

    async def _hold(
        self,
        session: SessionKey,
        found: _SessionNetwork,
        *,
        task_status: TaskStatus[Network | OSError],
    ) -> None:
        """Hold the network until it has been idle for long, or `_bound` closes it."""
        try:
            async with open_network() as network:
                task_status.started(network)
                with found.scope:
                    await self._idle(found)
                if self._all.get(session) is found:
                    del self._all[session]
        except OSError as error:
            task_status.started(error)

    async def _idle(self, found: _SessionNetwork) -> None:
        while True:
            left = found.idle_since + IDLE_S - self._clock.now()
            if not found.users and left <= 0:
                return
            await self._clock.sleep(max(left, 1.0) if not found.users else IDLE_S)

    def _bound(self) -> None:
        """Close networks without commands: those of resting sessions, and the oldest of many."""
        idle = {k: n for k, n in self._all.items() if n.network and not n.users}
        late = sorted(idle, key=lambda session: idle[session].idle_since)[:-MOST_IDLE]
        for session, found in idle.items():
            if found.resting or session in late:
                self._all.pop(session).scope.cancel()
