"""Helpers to let a gateway's model run commands, and to check the results."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio

from tests.fakes.gateway import GatewayProcess, Stream

T = TypeVar("T")


def command(text: str, **arguments: object) -> str:
    """Words that make the scripted model run `text` in the terminal."""
    return f"tool:terminal {json.dumps({'command': text, **arguments})}"


def process(action: str, **arguments: object) -> str:
    """Words that make the scripted model use the process tool."""
    return f"tool:process {json.dumps({'action': action, **arguments})}"


async def asked(it: GatewayProcess, run_id: str, after: int = 0) -> dict[str, Any]:
    """The request a run waits with, once it does."""
    stream = await it.events(run_id, after, until="approval.request")
    return next(f.data for f in stream.frames if f.event == "approval.request")


async def approve(it: GatewayProcess, run_id: str, choice: str = "once") -> dict[str, Any]:
    """Answer the run's question; what it was."""
    question = await asked(it, run_id)
    status, answer = await it.post(
        f"/v1/runs/{run_id}/approval",
        {"choice": choice, "request_id": question["request_id"]},
    )
    assert status == 200, answer
    return question


async def output(it: GatewayProcess, run_id: str) -> dict[str, Any]:
    """What the last tool call of a finished run gave the model, if that was an object."""
    done = await it.finished(run_id)
    assert done["status"] == "completed", done
    text = str(done["output"]).removeprefix("the tool said: ")
    found: dict[str, Any] = json.loads(text)
    return found


async def does(it: GatewayProcess, text: str, **fields: object) -> dict[str, Any]:
    """Run a command to its end, approved once if it asks; what the model was told."""
    run_id = await it.run(text, **fields)
    stream = await it.events(run_id, until="approval.request")
    if "approval.request" in stream.names:
        await approve(it, run_id)
    return await output(it, run_id)


def started(stream: Stream) -> list[str]:
    """The tools that a run has started."""
    return [f.data["tool"] for f in stream.frames if f.event == "tool.started"]


def audit(it: GatewayProcess, run_id: str = "") -> list[dict[str, Any]]:
    """The audit's entries, oldest first."""
    lines = (it.home / "audit.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    return [e for e in entries if run_id in ("", e.get("run_id"))]


def children(pid: int) -> set[int]:
    """Every process that descends from `pid`."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(name)] = int(fields[1])
    found = {pid}
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def carrying(token: str) -> set[int]:
    """The living processes that have `token` among their arguments."""
    return set(_carrying(token))


def _carrying(token: str) -> dict[int, str]:
    """The same, each with the name of its program."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if token.encode() in words:
            found[int(name)] = os.path.basename(words.split(b"\0")[0]).decode()
    return found


async def until(holds: Callable[[], T], within_s: float = 20.0) -> T:
    """What `holds` returns once that is something. For what another process does unseen by us."""
    with anyio.fail_after(within_s):
        while not (found := holds()):  # noqa: ASYNC110  another process does it
            await anyio.sleep(0.01)  # sleep: nobody tells us of it
    return found


async def running(token: str) -> set[int]:
    """The processes that have `token` among their arguments, once the command itself is one."""

    def up() -> set[int]:
        found = _carrying(token)
        begun = any(not name.startswith(("python", "bwrap")) for name in found.values())
        return set(found) if begun else set()  # until then, only what is to start it

    return await until(up)


async def gone(token: str, within_s: float) -> None:
    """Return when no process has `token` among its arguments any more."""
    await until(lambda: not carrying(token), within_s)


async def told_late(it: GatewayProcess, session: str, text: str) -> str:
    """What the session was told by itself that contains `text`, once it was."""
    with anyio.fail_after(20):
        while True:
            _, body = await it.get(f"/api/sessions/{session}/messages")
            said = [str(m["content"]) for m in body["data"] if m["role"] == "user"]
            if found := [words for words in said if text in words]:
                return found[-1]
            await anyio.sleep(0.05)  # sleep: there is no event for a message that was read
