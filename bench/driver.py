"""The client, a process of its own: it starts runs and reads every event of each.

`python -m bench.driver JOB` with the job as JSON; the report is one line of JSON. Times are
taken when the bytes arrive. Connections are opened before the clock starts and kept.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import anyio
import msgspec

from bench.connection import Connection
from bench.processes import cpu_ms

GRACE_S = 20.0  # for the runs that have begun when the time is over


class Server(msgspec.Struct, frozen=True):
    """Where it listens, and the key that opens it."""

    port: int
    key: str


class Load(msgspec.Struct, frozen=True, tag=True):
    """Keep `at_once` runs going until `runs` are done or `seconds` are over."""

    server: Server
    at_once: int
    runs: int
    seconds: float
    text: str
    warmup: int = 0
    session: str = ""
    pids: dict[str, int] = {}


class Hold(msgspec.Struct, frozen=True, tag=True):
    """Start runs, wait until each has sent a token, hang up."""

    server: Server
    runs: int
    text: str


class Collect(msgspec.Struct, frozen=True, tag=True):
    """Read runs to their end, from a server that may not be up yet."""

    server: Server
    run_ids: list[str]
    seconds: float


Job = Load | Hold | Collect


class Loaded(msgspec.Struct, frozen=True):
    """What a load came to; the lists are in order of completion."""

    elapsed_s: float
    accept_ms: list[float]
    first_ms: list[float]
    done_ms: list[float]
    lag_ms: dict[str, float]  # from the model's writing a token to its arrival
    tokens: int  # without those of turns that were cut
    voids: int  # such turns: the model was asked again
    failures: int  # runs that did not complete, or not in time
    cpu_ms: dict[str, float]


class Held(msgspec.Struct, frozen=True):
    run_ids: list[str]


class Collected(msgspec.Struct, frozen=True):
    """When the last run ended, by the clock that all processes share."""

    last_end_at: int
    completed: int


def post(server: Server, text: str, session: str) -> bytes:
    """The bytes of POST /v1/runs."""
    ask = {"input": text} | ({"session_id": session} if session else {})
    body = msgspec.json.encode(ask)
    head = (
        f"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Authorization: Bearer {server.key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def events(server: Server, run_id: str) -> bytes:
    """The bytes of GET /v1/runs/{id}/events."""
    return (
        f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        f"Authorization: Bearer {server.key}\r\n\r\n"
    ).encode()


def run_id_of(connection: Connection) -> str:
    """The run a POST has started; anything but 202 ends the bench."""
    if connection.status != 202:
        raise SystemExit(f"POST /v1/runs: {connection.status} {connection.body[:300]!r}")
    return str(msgspec.json.decode(connection.body)["run_id"])


async def connect(server: Server) -> Connection:
    """A fresh connection."""
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(Connection, "127.0.0.1", server.port))[1]


@asynccontextmanager
async def connections(server: Server, count: int) -> AsyncIterator[list[Connection]]:
    """Open connections, closed at the end."""
    opened = [await connect(server) for _ in range(count)]
    try:
        yield opened
    finally:
        for connection in opened:
            connection.close()


class Tally:
    """What the workers of one load have seen."""

    def __init__(self) -> None:
        self.accept: list[int] = []
        self.first: list[int] = []
        self.done: list[int] = []
        self.last_at = 0
        self.begun = 0
        self.completed = 0

    def add(self, started: int, accepted: int, connection: Connection) -> None:
        self.completed += connection.terminal == b"completed"
        self.accept.append(accepted - started)
        self.first.append(connection.first_at - started)
        self.done.append(connection.done_at - started)
        self.last_at = max(self.last_at, connection.done_at)


async def work(
    job: Load, connection: Connection, claim: Callable[[], bool], tally: Tally
) -> Connection:
    """Runs one after the other on one connection."""
    request = post(job.server, job.text, job.session)
    while claim():
        tally.begun += 1
        if connection.closed:
            connection = await connect(job.server)
        started = time.monotonic_ns()
        await connection.ask(request)
        accepted = connection.done_at
        await connection.ask(events(job.server, run_id_of(connection)))
        tally.add(started, accepted, connection)
    return connection


def claims(runs: int, seconds: float) -> Callable[[], bool]:
    """Whether one more run may start."""
    until = time.monotonic() + seconds
    left = iter(range(runs))
    return lambda: next(left, None) is not None and time.monotonic() < until


async def load(job: Load) -> Loaded:
    tally = Tally()
    async with connections(job.server, job.at_once) as opened:
        warm = msgspec.structs.replace(job, session="")  # a session's first turn stays its first
        await each(warm, opened, claims(job.warmup, 10.0), Tally())
        before = {name: cpu_ms(pid) for name, pid in job.pids.items()}
        own = time.process_time()
        started = time.monotonic_ns()
        with anyio.move_on_after(job.seconds + GRACE_S):
            await each(job, opened, claims(job.runs, job.seconds), tally)
        spent = {name: cpu_ms(pid) - before[name] for name, pid in job.pids.items()}
        spent["driver"] = (time.process_time() - own) * 1e3
    lags = [lag for connection in opened for lag in connection.lags]
    return Loaded(
        elapsed_s=(tally.last_at - started) / 1e9,
        accept_ms=list(ms(tally.accept)),
        first_ms=list(ms(tally.first)),
        done_ms=list(ms(tally.done)),
        lag_ms=percentiles(lags),
        tokens=len(lags),
        voids=sum(connection.voids for connection in opened),
        failures=tally.begun - tally.completed,
        cpu_ms=spent,
    )


async def each(
    job: Load, opened: list[Connection], claim: Callable[[], bool], tally: Tally
) -> None:
    """All connections at work, until there is nothing left to claim."""

    async def slot(n: int) -> None:
        opened[n] = await work(job, opened[n], claim, tally)

    async with anyio.create_task_group() as tasks:
        for n in range(len(opened)):
            tasks.start_soon(slot, n)


def percentiles(times: list[int]) -> dict[str, float]:
    """ns in, ms out."""
    ranked = sorted(times)
    return {f"p{p}": ranked[len(ranked) * p // 100] / 1e6 for p in (50, 95, 99) if ranked}


def ms(times: list[int]) -> Iterator[float]:
    return (round(t / 1e6, 3) for t in times)


async def hold(job: Hold) -> Held:
    run_ids: list[str] = []
    async with connections(job.server, job.runs) as opened:

        async def begin(connection: Connection) -> None:
            await connection.ask(post(job.server, job.text, ""))
            run_ids.append(run_id_of(connection))
            with anyio.CancelScope() as scope:
                connection.on_delta = scope.cancel
                await connection.ask(events(job.server, run_ids[-1]))

        async with anyio.create_task_group() as tasks:
            for connection in opened:
                tasks.start_soon(begin, connection)
    return Held(run_ids)


async def collect(job: Collect) -> Collected:
    ended: list[int] = []

    async def follow(run_id: str) -> None:
        connection = await connect(job.server)
        await connection.ask(events(job.server, run_id))
        while connection.status == 503:  # it listens but is not ready
            await anyio.sleep(0.003)
            await connection.ask(events(job.server, run_id))
        connection.close()
        if connection.terminal == b"completed":
            ended.append(connection.done_at)

    with anyio.move_on_after(job.seconds):
        while not await up(job.server):  # noqa: ASYNC110  nobody tells us when a port opens
            await anyio.sleep(0.003)
        async with anyio.create_task_group() as tasks:
            for run_id in job.run_ids:
                tasks.start_soon(follow, run_id)
    return Collected(max(ended, default=0), len(ended))


async def up(server: Server) -> bool:
    """Whether the server takes connections."""
    try:
        (await connect(server)).close()
    except OSError:
        return False
    return True


async def perform(job: Job) -> Loaded | Held | Collected:
    """Do what the job says."""
    match job:
        case Load():
            return await load(job)
        case Hold():
            return await hold(job)
        case Collect():
            return await collect(job)


if __name__ == "__main__":
    outcome = anyio.run(perform, msgspec.json.decode(sys.argv[1], type=Job))
    print(msgspec.json.encode(outcome).decode())
