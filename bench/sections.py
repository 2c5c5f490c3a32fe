"""What is measured: each section drives both servers in turn and yields figures.

Rounds are short and interleaved (floor, Holdfast, floor, …), so that what else the machine
does falls on both; a figure is the median of its rounds.
"""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.driver import Collect, Collected, Held, Hold, Job, Load, Loaded, Server
from bench.processes import (
    HOLDFAST,
    PYTHON,
    ROOT,
    Broken,
    Contestant,
    Running,
    environment,
    floor,
    holdfast,
    process,
    rss_mb,
    serving,
)
from bench.table import Figure, figure

T = TypeVar("T")
Values = dict[str, float]
Times = Callable[[Loaded], list[float]]
MAKERS = {"floor": floor, "holdfast": holdfast}
PATIENCE_S = 90.0  # for the driver, whatever its job
KILLED = 100
TURNS = 205


@dataclass(frozen=True, slots=True)
class Model:
    """The scripted model server."""

    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class Bench:
    """What a section needs to know: who runs, how long, and where."""

    names: Sequence[str]
    quick: bool
    home: Path
    model: Model

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 5

    @property
    def seconds(self) -> float:
        return 0.8 if self.quick else 2.0

    def contestant(self, name: str, section: str) -> Contestant:
        """A server with a fresh home."""
        home = self.home / f"{section}-{name}"
        home.mkdir()
        return MAKERS[name](home, self.model.url)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def scripted_model(home: Path, *flags: str) -> Iterator[Model]:
    """The scripted model server, up and listening."""
    log = home / f"model{''.join(flags)}-{time.monotonic_ns()}.log"
    argv = [PYTHON, "-m", "tests.fakes.model_server", "--port", "0", *flags]
    with process(argv, environment(), log) as child:
        deadline = time.monotonic() + 20
        while "\n" not in (text := log.read_text()):
            if child.poll() is not None or time.monotonic() > deadline:
                raise Broken(f"the scripted model does not start: {text[-2000:]}")
            time.sleep(0.01)
        yield Model(text.split()[2], child.pid)


@contextmanager
def driver(job: Job) -> Iterator[subprocess.Popen[bytes]]:
    """The driver at a job, in its own process; it does not outlive the block."""
    argv = [PYTHON, "-m", "bench.driver", msgspec.json.encode(job).decode()]
    with subprocess.Popen(argv, cwd=ROOT, env=environment(), stdout=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def drive(job: Job, outcome: type[T]) -> T:
    """Have the driver do a job and report."""
    with driver(job) as child:
        return report(child, outcome)


def report(child: subprocess.Popen[bytes], outcome: type[T]) -> T:
    """What the driver has to say when it is done."""
    try:
        out = child.communicate(timeout=PATIENCE_S)[0]
    except subprocess.TimeoutExpired:
        raise Broken(f"the driver was not done after {PATIENCE_S:.0f} s") from None
    if child.returncode:
        raise Broken("the driver failed, see above")
    return msgspec.json.decode(out, type=outcome)


def load(bench: Bench, contestant: Contestant, running: Running, job: Load) -> Loaded:
    """Drive one load; a run that did not complete ends the bench."""
    server = Server(contestant.port, contestant.key)
    pids = {"server": running.pid, "model": bench.model.pid}
    loaded = drive(msgspec.structs.replace(job, server=server, pids=pids), Loaded)
    if loaded.failures:
        done = len(loaded.done_ms)
        raise Broken(f"{contestant.name}: {loaded.failures} runs did not complete, {done} ended")
    return loaded


def interleaved(bench: Bench, section: str, rounds: int, job: Load) -> dict[str, list[Loaded]]:
    """The same load for each server in turn, `rounds` times."""
    seen: dict[str, list[Loaded]] = {name: [] for name in bench.names}
    with ExitStack() as up:
        servers = {}
        for name in bench.names:
            contestant = bench.contestant(name, section)
            servers[name] = (contestant, up.enter_context(serving(contestant)))
        for _ in range(rounds):
            for name, (contestant, running) in servers.items():
                loaded = load(bench, contestant, running, job)
                seen[name].append(loaded)
                per = {who: spent / len(loaded.done_ms) for who, spent in loaded.cpu_ms.items()}
                spent = ", ".join(f"{who} {cost:.2f}" for who, cost in per.items())
                rate = len(loaded.done_ms) / loaded.elapsed_s
                say(f"  {section} {name}: {rate:.0f} runs/s; CPU ms per run: {spent}")
                if loaded.lag_ms:
                    say(f"    lag ms {loaded.lag_ms}; turns asked again: {loaded.voids}")
    return seen


def over(seen: dict[str, list[Loaded]], of: Callable[[Loaded], float]) -> Values:
    """The median of a figure over its rounds, by server."""
    return {name: statistics.median(map(of, rounds)) for name, rounds in seen.items()}


def share(times: Times, percent: int) -> Callable[[Loaded], float]:
    """A percentile of some times of a load."""

    def of(loaded: Loaded) -> float:
        taken = sorted(times(loaded))
        return taken[min(len(taken) - 1, len(taken) * percent // 100)]

    return of


NOWHERE = Server(0, "")
TIMES: dict[str, Times] = {
    "accept": lambda r: r.accept_ms,
    "first event": lambda r: r.first_ms,
    "completion": lambda r: r.done_ms,
}


def throughput(bench: Bench) -> Iterator[Figure]:
    """Short runs, 1, 32 and 128 at a time."""
    for at_once in (1, 32, 128):
        job = Load(NOWHERE, at_once, 20_000, bench.seconds, "hello there", warmup=2 * at_once)
        seen = interleaved(bench, f"runs-{at_once}", bench.rounds, job)
        tail = f", {at_once} at a time"
        yield figure("runs/s" + tail, over(seen, lambda r: len(r.done_ms) / r.elapsed_s))
        cpu = over(seen, lambda r: r.cpu_ms["server"] / len(r.done_ms))
        yield figure("CPU ms per run" + tail, cpu)
        for what, times in TIMES.items():
            for percent in (50, 95, 99):
                yield figure(f"{what} ms p{percent}{tail}", over(seen, share(times, percent)))


def streams(bench: Bench) -> Iterator[Figure]:
    """Many runs at once, each streaming 20 tokens a second for 5 s (2 s when quick)."""
    seconds = 2 if bench.quick else 5
    tokens = 20 * seconds
    for count in (500, 1000):
        job = Load(NOWHERE, count, count, 10.0, f"tokens:{tokens}:{seconds}")
        seen = interleaved(bench, f"streams-{count}", 1 if bench.quick else 3, job)
        for name, rounds in seen.items():
            if any(r.tokens != count * tokens for r in rounds):
                seen_tokens = [r.tokens for r in rounds]
                raise Broken(f"{name}: {seen_tokens} tokens instead of {count * tokens} a round")
        head = f"{count} streams of {seconds} s, "
        yield figure(head + "s until all finished", over(seen, lambda r: r.elapsed_s))
        yield figure(head + "lag ms p50", over(seen, lambda r: r.lag_ms["p50"]))
        yield figure(head + "lag ms p99", over(seen, lambda r: r.lag_ms["p99"]))
        yield figure(head + "accept ms p99", over(seen, share(TIMES["accept"], 99)))
        cpu = over(seen, lambda r: r.cpu_ms["server"] * 1000 / r.tokens)
        yield figure(head + "CPU µs per token", cpu)


def start(bench: Bench) -> Iterator[Figure]:
    """From nothing to ready, memory when idle, and the cheapest command."""
    ready: dict[str, list[float]] = {name: [] for name in bench.names}
    memory: Values = {}
    contestants = {name: bench.contestant(name, "start") for name in bench.names}
    for n in range(3 if bench.quick else 7):
        for name, contestant in contestants.items():
            with serving(contestant) as running:
                if n:  # the first start compiles
                    ready[name].append(running.ready_ms)
                time.sleep(0.5)
                memory[name] = rss_mb(running.pid)
    say(f"  ready ms: {ready}")
    yield figure("ready ms", {name: statistics.median(times) for name, times in ready.items()})
    yield figure("idle RSS MB", memory)
    if "holdfast" in bench.names:
        yield figure("--version ms (floor: python -c pass)", version(10 if bench.quick else 30))


def version(rounds: int) -> Values:
    """`holdfast --version` against the bare interpreter, in turn."""
    commands = {"floor": [PYTHON, "-c", "pass"], "holdfast": [HOLDFAST, "--version"]}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, argv in commands.items():
            started = time.perf_counter()
            subprocess.run(argv, env=environment(), capture_output=True, timeout=20, check=True)
            times[name].append((time.perf_counter() - started) * 1e3)
    return {name: statistics.median(taken) for name, taken in times.items()}


def kill(bench: Bench) -> Iterator[Figure]:
    """kill -9 with runs in flight; from the next start until every one is finished.

    Before, the model would need minutes; the one given to the next start answers at once.
    """
    if "holdfast" not in bench.names:
        return
    times = []
    with scripted_model(bench.home, "--tokens=1200", "--seconds=120") as slow:
        for n in range(1 if bench.quick else 3):
            times.append(killed(bench.contestant("holdfast", f"kill-{n}"), slow))
    name = f"{KILLED} killed runs, ms from start to all finished"
    yield figure(name, {"holdfast": statistics.median(times)})


def killed(contestant: Contestant, slow: Model) -> float:
    """The ms from a start after kill -9 to the end of the last run that was in flight."""
    server = Server(contestant.port, contestant.key)
    before = replace(contestant, env=contestant.env | {"OPENAI_BASE_URL": slow.url})
    with serving(before) as running:
        held = drive(Hold(server, KILLED, "hello there"), Held)
        os.kill(running.pid, signal.SIGKILL)
    with driver(Collect(server, held.run_ids, 30.0)) as reader:
        time.sleep(0.5)  # the reader's own start must not be counted
        with serving(contestant) as again:
            collected = report(reader, Collected)
    if collected.completed < KILLED:
        raise Broken(f"only {collected.completed} of {KILLED} killed runs completed")
    taken = (collected.last_end_at - again.started_at) / 1e6
    say(f"  kill holdfast: {taken:.0f} ms, ready after {again.ready_ms:.0f} ms")
    return taken


def session(bench: Bench) -> Iterator[Figure]:
    """Turn 200 of a session against turn 1: medians of the turns around them."""
    if "holdfast" not in bench.names:
        return
    early, late = [], []
    contestant = bench.contestant("holdfast", "session")
    with serving(contestant) as running:
        for n in range(2 if bench.quick else 5):
            job = Load(NOWHERE, 1, TURNS, 60.0, "hello there", warmup=20, session=f"long-{n}")
            taken = load(bench, contestant, running, job).done_ms
            early += taken[:10]
            late += taken[-10:]
            say(f"  session holdfast: turns 1–10 {early[-10:]}, turns 196–205 {late[-10:]}")
    first, last = statistics.median(early), statistics.median(late)
    yield figure("turn 1, ms", {"holdfast": first})
    yield figure("turn 200, ms", {"holdfast": last})
    yield figure("turn 200 against turn 1", {"holdfast": last / first})


SECTIONS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "start": start,
    "throughput": throughput,
    "session": session,
    "kill": kill,
    "streams": streams,
}
