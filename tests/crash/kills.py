"""Kill a process at exactly its Nth system call of a kind, before the call is made.

Counts are per thread: of a journal's writer, of the loop. `at` is a wrapper to start a
process under; `attached` goes to one that runs already, and so counts from then on.
(--seccomp-bpf would be faster, but with it strace 6.1 does not count.)
"""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from tests.fakes.gateway import GatewayProcess

LET_GO_S = 5.0


_NOT_EXECUTED = ("-b", "execve")  # programs that the process executes are not traced: much faster


def at(call: str, number: int, path: Path | None = None) -> tuple[str, ...]:
    """Start under this and die at the `number`th `call` (on `path`) of any one thread."""
    return ("strace", *_NOT_EXECUTED, *_options(call, number, "signal=KILL", path))


def failing(call: str, number: int, error: str, path: Path | None = None) -> tuple[str, ...]:
    """Start under this and have the `number`th `call` (on `path`) fail with `error`."""
    return ("strace", *_NOT_EXECUTED, *_options(call, number, f"error={error}", path))


def with_executed(wrapper: tuple[str, ...]) -> tuple[str, ...]:
    """Trace the programs that the process executes too, as a spawner does its shims."""
    assert wrapper[1:3] == _NOT_EXECUTED
    return (wrapper[0], *wrapper[3:])


def _options(call: str, number: int, fault: str, path: Path | None) -> tuple[str, ...]:
    only = ("-P", str(path)) if path is not None else ()
    inject = f"inject={call}:{fault}:when={number}"
    return ("-D", "-f", "-qq", "-o", os.devnull, *only, "-e", f"trace={call}", "-e", inject)


@asynccontextmanager
async def attached(
    it: GatewayProcess, call: str, number: int, path: Path | None = None, *, workers: bool = False
) -> AsyncIterator[None]:
    """Meanwhile it dies at its `number`th `call`: by the loop's thread, or by any if it is said so.

    That is with `workers`, or on `path`. Then also what it starts is traced, and dies so.
    """
    threads = ("-f",) if workers or path is not None else ()
    only = ("-P", str(path)) if path is not None else ()
    inject = f"inject={call}:signal=KILL:when={number}"
    command = ("strace", *threads, "-o", os.devnull, *only, "-e", f"trace={call}", "-e", inject)
    async with await anyio.open_process((*command, "-p", str(it.pid)), stderr=PIPE) as strace:
        assert strace.stderr is not None
        said = ""
        async for text in TextReceiveStream(strace.stderr):
            said += text
            if "attached" in said:
                break
        else:
            pytest.skip(f"strace may not attach to a process here: {said.strip()}")
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(strace.pid, signal.SIGTERM)  # it lets go of what is still alive
            with anyio.move_on_after(LET_GO_S, shield=True):
                await strace.wait()
            with suppress(ProcessLookupError):
                strace.kill()  # what dies while it lets go of it, it would wait for, for ever


def shims(pid: int) -> list[int]:
    """The children of `pid` that watch over a command."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[1]) == pid and b"calls.pyc" in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
    return found


def kill(pid: int) -> None:
    """kill -9, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
