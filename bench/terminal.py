"""How long somebody at a terminal waits: for the prompt, and for one answer to one question."""

import os
import pty
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.processes import HOLDFAST, PYTHON, environment
from bench.sections import Bench, say
from bench.table import Figure, figure

PROMPT = "›".encode()


def terminal(bench: Bench) -> Iterator[Figure]:
    """The prompt on a pseudo-terminal, `--help` and a one-shot run, each beside `python -c pass`."""
    if "holdfast" not in bench.names:
        return
    work = bench.home / "terminal-work"
    work.mkdir()
    asks: dict[str, Callable[[], float]] = {
        "pass": lambda: _command([PYTHON, "-c", "pass"], bench, work),
        "prompt": lambda: _prompt(bench, work),
        "--help": lambda: _command([HOLDFAST, "--help"], bench, work),
        "one shot": lambda: _command([HOLDFAST, "run", "say:hello"], bench, work),
    }
    times: dict[str, list[float]] = {name: [] for name in asks}
    for n in range(6 if bench.quick else 21):
        for name, ask in asks.items():
            waited = ask()
            if n:  # the first one compiles
                times[name].append(waited)
    say(f"  terminal ms: { {name: [round(t) for t in taken] for name, taken in times.items()} }")
    bare = statistics.median(times.pop("pass"))
    for name, taken in times.items():
        values = {"floor": bare, "holdfast": statistics.median(taken)}
        yield figure(f"{name} ms (floor: python -c pass)", values)


def _environment(bench: Bench) -> dict[str, str]:
    return environment(
        HOLDFAST_HOME=str(bench.home / "terminal"),
        HOLDFAST_MODEL="openai/scripted",
        OPENAI_BASE_URL=bench.model.url,
        TERM="xterm-256color",
    )


def _command(argv: list[str], bench: Bench, work: Path) -> float:
    """The ms that a command takes from its start to its end."""
    started = time.perf_counter()
    subprocess.run(
        argv,
        env=_environment(bench),
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=True,
    )
    return (time.perf_counter() - started) * 1e3


def _prompt(bench: Bench, work: Path) -> float:
    """The ms from the start of `holdfast` to a prompt that takes keys."""
    keyboard, inside = pty.openpty()
    started = time.perf_counter()
    process = subprocess.Popen(
        [HOLDFAST], stdin=inside, stdout=inside, stderr=inside, env=_environment(bench), cwd=work
    )
    os.close(inside)
    try:
        seen = b""
        while PROMPT not in seen:
            seen += os.read(keyboard, 1 << 16)
        return (time.perf_counter() - started) * 1e3
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)
