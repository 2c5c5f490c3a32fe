"""The processes of a bench: the two servers, the scripted model, the driver.

Each is a real process on loopback, started here and ended here by its pid, whatever happens.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = sys.executable
HOLDFAST = str(Path(PYTHON).with_name("holdfast"))
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


class Broken(Exception):
    """A process of the bench did not do its part."""


def cpu_ms(pid: int) -> float:
    """User and system time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_MS


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def environment(**more: str) -> dict[str, str]:
    """Ours without what would bend a figure: bytecode is kept, no other Holdfast leaks in."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONDONTWRITEBYTECODE" and not name.startswith(("HOLDFAST_", "OPENAI_"))
    }
    return kept | more


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server under test, before it runs."""

    name: str
    argv: Sequence[str]
    env: dict[str, str]
    port: int
    key: str
    home: Path


def floor(home: Path, model: str) -> Contestant:
    """The bare path."""
    port = free_port()
    argv = [PYTHON, "-m", "bench.floor", "--port", str(port), "--db", str(home), "--model", model]
    return Contestant("floor", argv, environment(), port, "", home)


def holdfast(home: Path, model: str) -> Contestant:
    """The gateway as a user starts it."""
    port, key = free_port(), secrets.token_hex(16)
    env = environment(
        HOLDFAST_HOME=str(home),
        HOLDFAST_API_KEY=key,
        HOLDFAST_MODEL="openai/bench",
        OPENAI_BASE_URL=model,
        OPENAI_API_KEY=f"sk-{secrets.token_urlsafe(30)}",  # as unlike other text as a real one
    )
    return Contestant(
        "holdfast", [HOLDFAST, "gateway", "run", "--port", str(port)], env, port, key, home
    )


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers."""

    pid: int
    started_at: int  # monotonic ns
    ready_ms: float


@contextmanager
def process(
    argv: Sequence[str], env: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A child, ended with the block: asked first, killed after five seconds."""
    with log.open("ab") as sink:
        child = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def serving(contestant: Contestant, patience_s: float = 20.0) -> Iterator[Running]:
    """A contestant from its start until the block ends."""
    log = contestant.home.with_suffix(".log")
    started = time.monotonic_ns()
    with process(contestant.argv, contestant.env, log) as child:
        while not healthy(contestant.port):
            if child.poll() is not None or time.monotonic_ns() - started > patience_s * 1e9:
                raise Broken(f"{contestant.name} is not ready: {log.read_text()[-2000:]}")
            time.sleep(0.001)
        yield Running(child.pid, started, (time.monotonic_ns() - started) / 1e6)


def healthy(port: int) -> bool:
    """Whether GET /health/ready answers 200: work is taken."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as wire:
            wire.sendall(b"GET /health/ready HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port)
            return wire.recv(4096)[9:12] == b"200"
    except OSError:
        return False
