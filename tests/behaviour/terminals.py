"""Terminal commands for tests: a client of a gateway, and the operator's socket itself."""

from pathlib import Path
from typing import Any

import aiohttp

from holdfast.config.load import load
from holdfast.config.settings import Config
from holdfast.host.lock import SOCKET
from tests.fakes import model_server as says
from tests.fakes.gateway import GatewayProcess
from tests.fakes.model_server import ModelServer

HERE = "here"


def configured(home: Path) -> Config:
    return load({"HOME": str(home.parent), "HOLDFAST_HOME": str(home)}, {})


def ignored(note: str) -> None:
    """Why it waits, where an owner comes or goes."""


async def at_work(it: GatewayProcess, model: ModelServer, session: str = HERE) -> str:
    """A run that has said a word and will not say another."""
    model.then(says.stream(says.token("a"), says.Wait(), says.finish(), says.DONE))
    run_id = await it.run("first", session_id=session)
    await it.events(run_id, until="message.delta")
    return run_id


async def said(it: GatewayProcess, text: str, session: str = HERE) -> str:
    """A run to its end."""
    run_id = await it.run(text, session_id=session)
    assert (await it.finished(run_id))["status"] == "completed"
    return run_id


def risky(effects: Path, *tags: str) -> str:
    return "\n".join(f'tool:risky {{"path": "{effects}", "tag": "{tag}"}}' for tag in tags)


class Door:
    """The operator's socket, with requests as one likes."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def give(self, body: Any, session: str = HERE, key: str = "") -> tuple[int, Any]:
        """POST a command; status and answer."""
        headers = {"Idempotency-Key": key} if key else {}
        path = f"/v1/operator/sessions/{session}/command"
        async with self._http.post(path, json=body, headers=headers) as response:
            return response.status, await response.json()


async def command(it: GatewayProcess, session: str, text: str) -> dict[str, Any]:
    """What a slash command says, at the operator's door."""
    connector = aiohttp.UnixConnector(str(it.home / SOCKET))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
        path = f"/v1/operator/sessions/{session}/command"
        async with http.post(path, json={"input": text}) as response:
            assert response.status == 200, await response.text()
            return dict(await response.json())
