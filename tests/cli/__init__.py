"""The command line, as a shell meets it: real processes in a home of their own."""

import os
import pty
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, Process

from holdfast.cli.run.notes import WEAK_SANDBOX
from tests.fakes import forks

COMMAND = forks.COMMAND


@dataclass(frozen=True, slots=True)
class Result:
    """What a command left: its exit code and what it said."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """What it said on stderr, except how well commands are confined on this machine."""
        lines = self.err.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(WEAK_SANDBOX))


class Place:
    """A home, a user and a directory to work in, all below one temporary directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.work = root / "work"
        self.work.mkdir()
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "HOLDFAST_HOME": str(self.home),
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
            "HOLDFAST_PULL": "0",
            "HOLDFAST_PROBE_LOCAL": "0",  # what runs on this machine is not the test's business
        }

    def configure(self, text: str) -> None:
        self.home.mkdir(exist_ok=True, mode=0o700)
        (self.home / "config.toml").write_text(text)

    async def holdfast(self, *args: str, stdin: bytes = b"", cwd: Path | None = None) -> Result:
        """Run a command to its end."""
        done = await forks.run(args, env=self.environ, cwd=cwd or self.work, stdin=stdin)
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    @asynccontextmanager
    async def started(self, *args: str) -> AsyncIterator[Process]:
        """A command that is running; killed at the end of the block if it still is."""
        process = await forks.start(args, stdin=forks.DEVNULL, cwd=self.work, env=self.environ)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.aclose()


@dataclass(slots=True)
class Terminal:
    """A terminal with `holdfast` in it."""

    process: Process
    keyboard: int
    _unread: bytes = b""  # that came in the same read as the text that was waited for

    async def type(self, text: str) -> None:
        os.write(self.keyboard, text.encode())

    async def read_until(self, text: str) -> str:
        """Return what it shows, up to and including `text`; what follows is read next."""
        wanted, seen = text.encode(), self._unread
        while wanted not in seen:
            await anyio.wait_readable(self.keyboard)
            seen += os.read(self.keyboard, 4096)
        end = seen.index(wanted) + len(wanted)
        self._unread = seen[end:]
        return seen[:end].decode()


@asynccontextmanager
async def terminal(place: Place, *args: str, stdout: int | None = None) -> AsyncIterator[Terminal]:
    """A command on a terminal, but for `stdout`; killed at the end of the block if it still runs."""
    keyboard, inside = pty.openpty()
    process = await forks.start(
        args,
        stdin=inside,
        stdout=inside if stdout is None else stdout,
        stderr=inside,
        cwd=place.work,
        env=place.environ,
    )
    os.close(inside)
    try:
        yield Terminal(process, keyboard)
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()
        os.close(keyboard)


async def read_until(stream: ByteReceiveStream | None, text: str) -> str:
    """What a process says, up to and including `text`."""
    assert stream is not None
    said = b""
    while text.encode() not in said:
        said += await stream.receive()
    return said.decode()


async def read_all(stream: ByteReceiveStream | None) -> str:
    """What a process says to its end."""
    assert stream is not None
    return b"".join([chunk async for chunk in stream]).decode()
