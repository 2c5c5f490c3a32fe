"""A real gateway process in a home of its own, and a client that speaks its API.

`async with gateway(tmp_path, model_url) as it` starts `holdfast gateway run`; it can be
killed, told to stop and started again over the same home. Nothing here sleeps: starting
waits for the line that says ready, ending waits for the process.
"""

import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.abc
import msgspec
from anyio.streams.text import TextReceiveStream

from tests.fakes import forks, tools

ROOT = Path(__file__).parents[2]
KEY = "test-key-0123456789abcdef"
TERMINAL = ("run.completed", "run.failed", "run.cancelled")


@dataclass(frozen=True, slots=True)
class Frame:
    """One SSE frame."""

    id: int
    data: dict[str, Any]
    raw: bytes

    @property
    def event(self) -> str:
        return str(self.data["event"])


@dataclass(slots=True)
class Stream:
    """What one reading of an event stream gave."""

    status: int
    frames: list[Frame] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    raw: bytes = b""

    @property
    def names(self) -> list[str]:
        return [f.event for f in self.frames]

    @property
    def text(self) -> str:
        """The streamed text that counts: what a void withdrew is gone."""
        turns: dict[int, str] = {}
        for frame in self.frames:
            if frame.event == "message.delta":
                turns[frame.data["turn"]] = turns.get(frame.data["turn"], "") + frame.data["delta"]
            elif frame.event == "message.void":
                turns.pop(frame.data["turn"], None)
        return turns[max(turns)] if turns else ""

    @property
    def closed(self) -> bool:
        return "stream closed" in self.comments


class GatewayProcess:
    """One home, and at most one gateway process over it."""

    def __init__(
        self, home: Path, environment: Mapping[str, str], tasks: anyio.abc.TaskGroup
    ) -> None:
        self.home = home
        self.url = ""
        self.lines: list[str] = []
        self.environment = dict(environment)
        self._tasks = tasks
        self._process: anyio.abc.Process | None = None
        self._ready = anyio.Event()
        self._line = anyio.Event()
        self._silent = True  # nothing more will be said: no process has its end of the pipe
        self._session: aiohttp.ClientSession | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self, *wrapper: str, wait: bool = True) -> None:
        """Start it, under `wrapper` (strace, …) if given; by default wait until it is ready."""
        self._ready = anyio.Event()
        self.lines.clear()
        args = ("gateway", "run", "--port", "0")
        environment = self.environment | ({tools.TRACED: "1"} if wrapper[:1] == ("strace",) else {})
        self._process = await forks.start(
            args, env=environment, cwd=self.home, stdin=None, stdout=None, wrapper=wrapper
        )
        self._silent = False
        self._tasks.start_soon(self._read_stderr, self._process)
        if wait:
            await self.ready()

    async def holdfast(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        """Run another command of `holdfast` in the same environment, to its end."""
        return await forks.run(words, env=self.environment, cwd=self.home)

    async def ready(self) -> None:
        """Return when it says that it serves."""
        assert await self.comes_up(), "it ended; it said:\n" + "\n".join(self.lines[-20:])

    async def comes_up(self) -> bool:
        """Whether it gets to serve; False: it ended before."""
        with anyio.fail_after(30):
            while not self._ready.is_set():
                if self._silent:
                    await self.ended()
                    return False
                await self._line.wait()
        return True

    async def said(self, text: str) -> str:
        """The first line since its start that contains `text`, waiting for it."""
        with anyio.fail_after(30):
            while not (found := [line for line in self.lines if text in line]):
                assert not self._silent, f"it ended and never said {text!r}"
                await self._line.wait()
        return found[0]

    async def _read_stderr(self, process: anyio.abc.Process) -> None:
        assert process.stderr is not None
        rest = ""
        with suppress(anyio.ClosedResourceError):  # a tracer may outlive it with the pipe open
            async for text in TextReceiveStream(process.stderr, errors="replace"):
                *lines, rest = (rest + text).split("\n")
                if process is not self._process:
                    continue  # the last words of an earlier life
                self.lines += lines
                for line in lines:
                    if (ready := re.search(r"ready on (http://\S+)", line)) is not None:
                        self.url = ready[1]
                        self._ready.set()
                self._heard()
        if process is self._process:
            self._silent = True
            self._heard()

    def _heard(self) -> None:
        self._line.set()
        self._line = anyio.Event()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    @property
    def alive(self) -> bool:
        """Whether it runs at this moment."""
        assert self._process is not None
        return not forks.ended(self._process)

    async def ended(self) -> int:
        """Its exit code, when it has ended."""
        assert self._process is not None
        code = await self._process.wait()
        if self._session is not None:
            await self._session.close()
            self._session = None
        return code

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self._process is not None
        with suppress(ProcessLookupError):  # it may be gone before we are told
            self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    async def close(self) -> None:
        """Whatever it is doing: it is gone afterwards."""
        if self._process is not None:
            await self.kill()
            await self._process.aclose()

    @property
    def http(self) -> aiohttp.ClientSession:
        """A client with the right key. `http.get(it.url + path)`."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {KEY}"},
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=60),
            )
        return self._session

    async def post(
        self, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """POST JSON; status and decoded answer."""
        async with self.http.post(self.url + path, json=body, headers=headers) as response:
            return response.status, await _json(response)

    async def get(self, path: str) -> tuple[int, Any]:
        """GET; status and decoded answer."""
        async with self.http.get(self.url + path) as response:
            return response.status, await _json(response)

    async def run(self, text: str, **fields: object) -> str:
        """Start a run; its id."""
        status, body = await self.post("/v1/runs", {"input": text, **fields})
        assert status == 202, body
        return str(body["run_id"])

    async def status(self, run_id: str) -> dict[str, Any]:
        """The run's status object."""
        status, body = await self.get(f"/v1/runs/{run_id}")
        assert status == 200, body
        return dict(body)

    async def events(self, run_id: str, after: int = 0, until: str = "") -> Stream:
        """Read the run's events to their end, or to the first one called `until`."""
        headers = {"Last-Event-ID": str(after)} if after else None
        async with self.http.get(
            f"{self.url}/v1/runs/{run_id}/events", headers=headers
        ) as response:
            stream = Stream(response.status)
            if response.status == 200:
                await read_events(response, stream, until)
            return stream

    async def finished(self, run_id: str) -> dict[str, Any]:
        """The run's status once it has ended, however long that takes.

        A reader who is too slow is cut, and comes back.
        """
        after = 0
        while True:
            stream = await self.events(run_id, after)
            found = await self.status(run_id)
            if stream.status != 200 or f"run.{found['status']}" in TERMINAL:
                return found
            after = stream.frames[-1].id if stream.frames else after


async def read_events(response: aiohttp.ClientResponse, into: Stream, until: str = "") -> None:
    """Read events as they come, so that what was read is there even if the rest never comes.

    With `until`, the last frame is the first one so called, whatever came in the same packet.
    """
    rest = b""
    async for data in response.content.iter_any():
        into.raw += data
        *blocks, rest = (rest + data).split(b"\n\n")
        for block in blocks:
            _take(into, block)
            if until and until in into.names:
                return


def _take(stream: Stream, block: bytes) -> None:
    identifier, data = 0, b""
    for line in block.split(b"\n"):
        if line.startswith(b":"):
            stream.comments.append(line[1:].strip().decode())
        elif line.startswith(b"id: "):
            identifier = int(line[4:])
        elif line.startswith(b"data: "):
            data = line[6:]
    if data:
        stream.frames.append(Frame(identifier, msgspec.json.decode(data), block))


def files(home: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file below a home and what is in it; a gateway at work may take some away meanwhile."""
    for directory, _, names in os.walk(home):
        for name in sorted(names):
            with suppress(OSError):  # it is gone, or a socket
                path = Path(directory, name)
                yield path, path.read_bytes()


async def _json(response: aiohttp.ClientResponse) -> Any:
    body = await response.read()
    return msgspec.json.decode(body) if body else None


@asynccontextmanager
async def gateway(
    directory: Path, model_url: str = "", config: str = "", **environment: str
) -> AsyncIterator[GatewayProcess]:
    """A gateway process over a home in `directory`, started; gone afterwards.

    Without `model_url` it runs with `offline`. `config` is the text of its config.toml;
    tests.fakes.tools is always loaded as a plugin.
    """
    async with unstarted(directory, model_url, config, **environment) as process:
        await process.start()
        yield process


@asynccontextmanager
async def unstarted(
    directory: Path, model_url: str = "", config: str = "", **environment: str
) -> AsyncIterator[GatewayProcess]:
    """The same, but starting it is left to the test. Two of them may share a home."""
    home = directory / "home"
    home.mkdir(exist_ok=True)
    plugins = 'plugins = ["tests.fakes.tools"]\n'
    (home / "config.toml").write_text(plugins + config)
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOLDFAST_HOME": str(home),
        "HOLDFAST_API_KEY": KEY,
        "HOLDFAST_PROBE_LOCAL": "0",  # what runs on this machine is not the test's business
        **({"HOLDFAST_MODEL": "openai/fake", "OPENAI_BASE_URL": model_url} if model_url else {}),
        **({"OPENAI_API_KEY": "sk-test"} if model_url else {}),
        **environment,
    }
    async with anyio.create_task_group() as tasks:
        process = GatewayProcess(home, variables, tasks)
        try:
            yield process
        finally:
            with anyio.CancelScope(shield=True):
                await process.close()
            tasks.cancel_scope.cancel()
