"""kill -9 at every sync of run → task → its child → its end: one child, told of once.

The syncs lie between what is wanted and what is made, and between an end and its telling: a
child that is begun, made, finished and told of is four records in two streams.
"""

import aiohttp
import msgspec
import pytest

from tests.crash import kills
from tests.crash.evidence import endings, facts, noted, unfinished
from tests.fakes.gateway import GatewayProcess

pytestmark = [pytest.mark.anyio, pytest.mark.debian("strace")]


async def _post(it: GatewayProcess, body: dict[str, object], key: str) -> str:
    headers = {"Idempotency-Key": key}
    async with it.http.post(it.url + "/v1/runs", json=body, headers=headers) as response:
        assert response.status == 202, await response.text()
        return str((await response.json())["run_id"])


async def _walk(it: GatewayProcess, body: dict[str, object], key: str) -> bool:
    """Whether the process lives until the session of `key` has nothing more to do."""
    try:
        run_id = await _post(it, body, key)
        return bool(endings(await it.events(run_id))) and await _told(it, key)
    except aiohttp.ClientError:
        return False


async def _told(it: GatewayProcess, session: str) -> bool:
    """Whether the end of the session's child is told, and what came of that is over."""
    ended = told = False
    async with it.http.get(f"{it.url}/api/sessions/{session}/events") as response:
        async for line in response.content:
            if line.startswith(b"data:"):
                event = msgspec.json.decode(line[5:])
                told |= event["event"] == "subagent.completed"
                ended = event["event"] == "run.completed"
            if ended and told and not unfinished(it.home):
                return True
    return False


@pytest.mark.fault("F-01")
@pytest.mark.promise("LATE-07", "BACK-10")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("background", [False, True], ids=["waited for", "in the background"])
async def test_a_kill_at_any_sync_neither_loses_nor_doubles_a_task(
    it: GatewayProcess, *, background: bool
) -> None:
    number, cuts, through = 0, 0, False
    while not through:
        number += 1
        key = f"sync-{number}"
        asked = msgspec.json.encode({"task": f"say:done {key}", "background": background}).decode()
        body: dict[str, object] = {
            "input": f"tool:delegate_task {asked}",
            "session_id": key,
            "late": "events",
        }
        with noted(f"killed at fdatasync {number}"):
            assert await it.stop() == 0
            await it.start(*kills.at("fdatasync", number), wait=False)
            if not (up := await it.comes_up()):  # killed at a sync of the start itself
                await it.start()
            through = await _walk(it, body, key)
            if not up:
                assert through
                through = False
            elif not through:
                cuts += 1
                await it.ended()
                await it.start()
                assert await _walk(it, body, key)
            await _check(it, key, background=background)
    assert cuts >= 5, "the post, the task, its child and both ends have syncs of their own"


async def _check(it: GatewayProcess, key: str, *, background: bool) -> None:
    """What must hold for one session, whatever happened to the process meanwhile."""
    queued = [f for f in facts(it.home, "run.queued") if "parent" in f]
    mine = [f for f in queued if f["parent"]["session_id"] == key]
    assert len(mine) == 1
    child = mine[0]["run_id"]
    done = await it.status(child)
    assert (done["status"], done["output"]) == ("completed", f"done {key}")
    ended = [f for f in facts(it.home, "child.ended") if f["child"] == child]
    assert [f["status"] for f in ended] == ["completed"]
    _, said = await it.get(f"/api/sessions/{key}/messages")
    words = [m["content"] for m in said["data"] if m["role"] in ("user", "tool")]
    assert sum(f"\n{text}\n".count(f"\ndone {key}\n") for text in words) == 1, words
    news = [text for text in words if text.startswith("[Task ")]
    assert len(news) == background
