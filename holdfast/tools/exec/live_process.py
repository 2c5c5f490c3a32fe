"""A command that runs, and what it was started with."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
from msgspec import field

from holdfast.core.types import Part, ProcessId, SessionKey, Value
from holdfast.errors import ToolFailed
from holdfast.tools.exec.output import Output
from holdfast.tools.exec.record import Ended
from holdfast.tools.exec.spawned import SpawnedProcess
from holdfast.tools.fs.roots import below
from holdfast.tools.sandbox.sandbox import CommandProfile


class CommandClock(Protocol):
    """The wall clock and the way to wait on it."""

    def now(self) -> float:
        """Seconds since the epoch."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


class CommandSpec(Value):
    """A command to start."""

    shown: str  # its text in lists
    argv: tuple[str, ...]
    cwd: str
    profile: CommandProfile
    timeout_s: float
    memory_mb: int
    background: bool
    pty: bool
    stdin: bytes | None  # the whole input, then stdin is closed; None: stdin stays open
    open_input: bool = False  # the user approved that input may be written later
    detach: bool = False
    pass_fds: tuple[int, ...] = ()
    unchanged: Callable[[], Awaitable[bool]] | None = None  # last check before the start, if any


class Changed(ToolFailed):
    """The command was not started, because its files changed after the approval."""


class LiveProcess(Part):
    """A process that this gateway started or adopted; it runs or has ended."""

    id: ProcessId
    session: SessionKey
    command: str
    process: SpawnedProcess
    output: Output
    started_at: float
    ended: Ended | None = None
    workspace: str = ""  # the workspace it may write to; empty: unlimited or unknown
    open_input: bool = False  # more input may be written to it
    harmless: bool = False  # it ran without approval, because it only reads
    refused: list[str] = []  # hosts that it was not allowed to connect to
    notes: tuple[str, ...] = ()  # about files it left that the user's programs would run
    over: anyio.Event = field(default_factory=anyio.Event)  # set at its end

    def can_write_to(self, workspace: str) -> bool:
        """Return whether it can write to `workspace`: both overlap, and it is not read-only."""
        if not self.workspace:
            return True
        near = below(self.workspace, workspace) or below(workspace, self.workspace)
        return near and not self.harmless

    def end(self, ended: Ended) -> None:
        """Record the end and wake the waiters. Called once, by the task that watches it."""
        self.ended = ended
        self.over.set()

    async def wait(self) -> Ended:
        """Wait for its end and return how it ended."""
        while self.ended is None:
            await self.over.wait()
        return self.ended
