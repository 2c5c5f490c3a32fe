"""A test environment: a home, a working directory, a model, and terminals.

The terminal embeds the engine; or a gateway runs in the same home and the terminal is its client.
"""

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio

from holdfast.cli.tui.asked import READ_FIRST
from holdfast.cli.tui.ui import MEANS
from holdfast.core.inbox import Mode
from holdfast.host.lock import SOCKET
from tests.fakes import model_server as says
from tests.fakes.emulator import screen
from tests.fakes.gateway import GatewayProcess, Stream, read_events, unstarted
from tests.fakes.model_server import ModelServer, Reply, serve
from tests.fakes.screen import Screen

PLUGINS = 'plugins = ["tests.fakes.tools", "tests.fakes.clinging"]\n'
ASKS = "approval ("


@dataclass(frozen=True, slots=True)
class Desk:
    """Somewhere to sit. `gateway` is started if the test says so."""

    gateway: GatewayProcess
    model: ModelServer
    work: Path

    def terminal(
        self, *words: str, columns: int = 100, rows: int = 30
    ) -> AbstractAsyncContextManager[Screen]:
        """`holdfast WORDS` on a terminal of its own; ready when it says so."""
        return _ready(self.gateway, self.work, words, columns, rows)

    def bare(self, *words: str) -> AbstractAsyncContextManager[Screen]:
        """The same, ready or not."""
        return screen(self.gateway.environment, self.work, *words)

    async def run(self, text: str, until: str) -> str:
        """Begin a run of another session, as another terminal would; its id, after an event."""
        connector = aiohttp.UnixConnector(str(self.gateway.home / SOCKET))
        async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
            async with http.post("/v1/runs", json={"input": text}) as response:
                run_id = str((await response.json())["run_id"])
            async with http.get(f"/v1/runs/{run_id}/events") as response:
                await read_events(response, Stream(response.status), until)
        return run_id

    def told(self) -> list[str]:
        """The last words of every request to the model, in order."""
        found = []
        for request in self.model.requests:
            content = request.body["messages"][-1]["content"]
            found.append(content if isinstance(content, str) else json.dumps(content))
        return found

    def heard(self) -> list[str]:
        """What the user has said in the session, as the latest request has it."""
        said = self.model.requests[-1].body["messages"]
        return [m["content"] for m in said if m["role"] == "user"]


@asynccontextmanager
async def _ready(
    gateway: GatewayProcess, work: Path, words: tuple[str, ...], columns: int, rows: int
) -> AsyncIterator[Screen]:
    environment = {"PAGER": "no-such-pager", **gateway.environment}  # then there is our own
    async with screen(environment, work, *words, columns=columns, rows=rows) as it:
        await it.until("/help lists")
        yield it


@asynccontextmanager
async def desk(directory: Path, *, served: bool = False, config: str = "") -> AsyncIterator[Desk]:
    """One, with a gateway at work in its home if it is to be `served`."""
    work = directory / "work"
    work.mkdir()
    async with serve() as model, unstarted(directory, model.base_url) as gateway:
        (gateway.home / "config.toml").write_text(PLUGINS + config)
        if served:
            await gateway.start()
        yield Desk(gateway, model, work)


def gated(text: str = "half") -> tuple[Reply, anyio.Event]:
    """An answer that has begun and waits, and what lets it end."""
    gate = anyio.Event()
    reply = says.stream(says.token(text), says.Wait(gate), says.finish(), says.usage(7, 1))
    return reply, gate


def idle(shown: str) -> bool:
    """Whether nothing is unfinished: else the status line ends so."""
    return not shown.rstrip().endswith(("Esc stops", "stopping …"))


def sleeper(seconds: int = 120) -> tuple[str, str]:
    """A foreground sleep, and what tells its process from others."""
    name = f"{seconds}.{secrets.randbelow(10**9):09}"
    return f"sleep {name}", name


async def switch(it: Screen, mode: Mode) -> None:
    """Press Shift-Tab until a message during a run has that mode; the first mode is interrupt."""
    for each in (Mode.QUEUE, Mode.STEER, Mode.INTERRUPT):
        await it.key("BTab")
        await it.until(MEANS[each])
        if each is mode:
            return


async def approve(it: Screen, choice: str = "o") -> None:
    """Answer the question on the screen. One that has only just appeared is not answered yet."""
    await it.until(ASKS)
    await it.type(choice)
    while True:
        await it.key("Enter")
        shown = await it.until(lambda t: ASKS not in t or READ_FIRST in t)
        if ASKS not in shown:
            return


async def begin(it: Screen, command: str) -> None:
    """Have a command run in the foreground, with somebody's approval where it takes one."""
    await it.say(f"tool:terminal {json.dumps({'command': command})}")
    shown = await it.until(lambda t: ASKS in t or "terminal  " in t)
    if ASKS in shown:
        await approve(it)
