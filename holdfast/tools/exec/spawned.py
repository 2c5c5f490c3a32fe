"""A command that was started: its running shim, its end, and how it is killed."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.to_thread

from holdfast.tools.exec import record, shim
from holdfast.tools.exec.stdin import CommandInput

PATIENCE_S = shim.GRACE_S + shim.LAST_S + 0.2  # for a shim to kill its command
WRITING_S = 2.0  # for a shim to write its record on a busy disk, after its command has ended


class RunningShim:
    """A running shim, held by its pidfd."""

    def __init__(self, pidfd: int, reap: Callable[[], object], stdin: CommandInput) -> None:
        self._pidfd = pidfd
        self._reap = reap  # called at its end, if it is our child
        self.stdin = stdin
        self.gone = anyio.Event()
        self.let_go = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._on_end)

    def _on_end(self) -> None:
        self._reap()
        self._close()

    def release(self) -> None:
        """Let go of the shim and let it run. Its waiters are woken at once."""
        if not self.gone.is_set():
            self.let_go = True
            self._close()

    def _close(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.stdin.close()
        self.gone.set()

    def send(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if not self.gone.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def stop(self) -> bool:
        """Tell it to end its command; return whether it did so in time."""
        self.send(signal.SIGTERM)
        with anyio.move_on_after(PATIENCE_S):
            await self.gone.wait()
        return self.gone.is_set()


class SpawnedProcess:
    """A command that was started, and may have ended by now. `pid` is 0 if it is unknown."""

    def __init__(
        self,
        claim: record.Claim,
        pid: int,
        folder: record.Folder,
        launched: RunningShim,
        clock: Callable[[], float],
    ) -> None:
        self.call_id = claim.call_id
        self.detach = claim.detach
        self.pid = pid
        self.spool = folder.spool
        self._folder = folder
        self._shim = launched
        self._clock = clock
        self._settling = anyio.Lock()
        self._cause = record.ExitCause.LOST  # recorded if its shim records nothing

    @property
    def running(self) -> bool:
        """Return whether its shim was still running at the last check of the event loop."""
        return self.end is None if self._shim.let_go else not self._shim.gone.is_set()

    @property
    def end(self) -> record.Ended | None:
        """The recorded end, if there is one."""
        return self._folder.result()

    def is_settled(self) -> bool:
        """Return whether it has ended with a record, or its record was removed."""
        try:
            return not self.running and (self.end is not None or not self._folder.is_claimed())
        except OSError:  # the record cannot be read now
            return False

    async def wait(self) -> record.Ended:
        """Wait for its end and return how it ended.

        Raises `ClosedResourceError` if the spawner is closed first, and `OSError` if it has ended
        but the record cannot be read now; then call it again.
        """
        await self._shim.gone.wait()
        async with self._settling:
            if ended := self._folder.result():
                return ended
            if self._shim.let_go:
                raise anyio.ClosedResourceError
            return await record.settle(self._folder, self._clock, self._cause)

    async def kill(self, cause: record.ExitCause = record.ExitCause.KILLED) -> record.Ended:
        """Tell it to end, then force it. The shim continues by itself if the caller is cancelled.

        `cause` is recorded if its shim records nothing.
        """
        if not await self._shim.stop():
            await self._force(cause)
        return await self.wait()

    async def _force(self, cause: record.ExitCause) -> None:
        """Kill a shim that does not end, unless it only needs more time to write its record."""
        with suppress(OSError):  # /proc cannot be read: kill it at once
            if not await anyio.to_thread.run_sync(record.left, self._folder.claim()):
                with anyio.move_on_after(WRITING_S):
                    await self._shim.gone.wait()
        if not self._shim.gone.is_set():
            self._cause = cause
            self._shim.send(signal.SIGKILL)

    def release(self) -> None:
        """Let go of it and let it run."""
        self._shim.release()

    async def write(self, data: bytes) -> None:
        """Write to its stdin; `ToolFailed` if that is closed."""
        await self._shim.stdin.write(data)

    async def close_stdin(self) -> None:
        """Close its stdin."""
        await self._shim.stdin.end()
