"""Reads show what is committed: nothing that a crash takes back.

A commit is held up from outside: by another process's write lock on the journal, or by a disk
whose every sync takes long.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import aiohttp
import anyio
import pytest

from tests.behaviour.hands import until
from tests.crash.evidence import ask_for, facts
from tests.fakes.gateway import GatewayProcess, unstarted
from tests.fakes.model_server import ModelServer, Wait, call, calls, stream, token

pytestmark = pytest.mark.anyio

READS = 20  # between what is on its way and the kill: each of them would show it


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Meanwhile nothing can be committed to the journal."""
    with closing(sqlite3.connect(home / "journal.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def _asked(home: Path) -> int:
    """How many requests the gateway has made up its mind to make."""
    audit = home / "audit.jsonl"
    return audit.read_text().count('"call.asked"') if audit.exists() else 0


async def _seen(it: GatewayProcess) -> set[str]:
    """The requests that a reader is shown."""
    _, listed = await it.get("/v1/approvals")
    return {asked["request_id"] for asked in listed["data"]}


@pytest.mark.promise("RUN-26")
async def test_uncommitted_facts_are_in_no_list_status_or_transcript(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    gate = anyio.Event()
    risky = ask_for("risky", path=tmp_path / "effects", tag="x").partition(" ")[2]
    model.then(stream(token("let me see"), Wait(gate), *calls(call("risky", risky)).steps))
    run_id = await it.run("go", session_id="s")
    await it.events(run_id, until="message.delta")
    with locked(it.home):
        gate.set()
        await until(lambda: _asked(it.home))
        for _ in range(READS):
            assert await _seen(it) == set()
            status = await it.status(run_id)
            assert (status["status"], status.get("approval")) == ("running", None)
            assert status["last_event"] != "approval.request"
        await it.kill()
    assert facts(it.home, "approval.requested") == []
    await it.start()
    assert (await it.status(run_id))["status"] in ("queued", "running", "completed")


@pytest.mark.promise("RUN-26")
@pytest.mark.debian("strace")
async def test_every_approval_that_was_ever_shown_is_there_after_a_kill(
    tmp_path: Path, model: ModelServer
) -> None:
    delay = "inject=fdatasync:delay_enter=30000"
    slow = ("-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", delay)
    async with unstarted(tmp_path, model.base_url) as it:
        await it.start("strace", "-D", "-f", *slow)
        shown: set[str] = set()

        async def post(tag: int) -> None:
            await it.post(
                "/v1/runs", {"input": ask_for("risky", path=tmp_path / "e", tag=str(tag))}
            )

        async def read() -> None:
            while len(shown) < 24:
                shown.update(await _seen(it))

        async with anyio.create_task_group() as clients:
            for number in range(64):
                clients.start_soon(_until_killed, post, number)
            await read()
            shown |= await _seen(it)
            await it.kill()
        made = {fact["request_id"] for fact in facts(it.home, "approval.requested")}
        assert shown <= made, f"{len(shown - made)} of {len(shown)} are gone"
        await it.start()
        assert shown <= await _seen(it)


async def _until_killed(post: Callable[[int], Awaitable[None]], number: int) -> None:
    with suppress(aiohttp.ClientError):  # it was killed before it answered
        await post(number)


@pytest.mark.promise("RUN-27")
async def test_an_approval_is_listed_and_answered_behind_a_thousand_newer_runs(
    tmp_path: Path, model: ModelServer
) -> None:
    effects = tmp_path / "effects"
    async with unstarted(tmp_path, model.base_url, "[limits]\nrunning = 1\n") as it:
        await it.start()
        waiting = await it.run(ask_for("risky", path=effects, tag="x"))
        await it.events(waiting, until="approval.request")
        blocking = await it.run("tool:hang {}")
        await it.events(blocking, until="tool.started")
        at_once = anyio.CapacityLimiter(64)

        async def later() -> None:
            async with at_once:
                await it.run("say:later")

        async with anyio.create_task_group() as clients:
            for _ in range(1001):
                clients.start_soon(later)
        (name,) = await _seen(it)
        code, answer = await it.post(f"/v1/approvals/{name}", {"choice": "once"})
        assert (code, answer["run_id"], answer["resolved"]) == (200, waiting, 1)
        await it.post(f"/v1/runs/{blocking}/stop")
        assert (await it.finished(waiting))["status"] == "completed"


async def test_approvals_come_page_by_page(it: GatewayProcess, tmp_path: Path) -> None:
    runs = [await it.run(ask_for("risky", path=tmp_path / "e", tag=str(n))) for n in range(3)]
    for run_id in runs:
        await it.events(run_id, until="approval.request")
    _, first = await it.get("/v1/approvals?limit=2")
    assert (len(first["data"]), first["has_more"]) == (2, True)
    _, rest = await it.get(f"/v1/approvals?limit=2&after={first['next']}")
    assert (rest["has_more"], "next" in rest) == (False, False)
    assert [a["run_id"] for a in first["data"] + rest["data"]] == runs
    for bad in ("after=x", "after=1e", "limit=0", "limit=1001"):
        code, answer = await it.get(f"/v1/approvals?{bad}")
        assert (code, answer["error"]["code"]) == (400, "invalid_request"), bad
