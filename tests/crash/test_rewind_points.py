"""kill -9 at every sync, rename and removal of an undo and of a redo, for every such point.

After each the gateway is started again: messages and files are both where they were, or both
where they were to go, and never in between; the other way leads back.
"""

import json
from pathlib import Path

import aiohttp
import pytest

from tests.crash import kills
from tests.crash.evidence import THOROUGH, facts, noted
from tests.fakes.gateway import GatewayProcess

pytestmark = [pytest.mark.anyio, pytest.mark.debian("strace")]

HERE = "s"
BEFORE = {"a": "one", "b": "one"}
AFTER = {"a": "two", "c": "new"}


async def _work(it: GatewayProcess) -> Path:
    """Have two messages change files; the second creates and deletes too."""
    for at, contents in enumerate((BEFORE, AFTER)):
        calls = [{"path": name, "content": text} for name, text in contents.items()]
        for call in calls:
            text = f"tool:write_file {json.dumps(call)}"
            if at:
                text += "\n"
            await it.finished(await it.run(text, session_id=HERE))
    return Path((await it.get(f"/api/sessions/{HERE}"))[1]["workspace"])


def _files(workspace: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in workspace.iterdir()}


async def _said(it: GatewayProcess) -> int:
    _, body = await it.get(f"/api/sessions/{HERE}/messages")
    return sum(m["role"] == "user" for m in body["data"])


async def _go(it: GatewayProcess, way: str, point: str, key: str) -> int:
    url, body = f"{it.url}/api/sessions/{HERE}/{way}", {"point": point} if point else {}
    headers = {"Idempotency-Key": key}
    async with it.http.post(url, json=body, headers=headers) as response:
        return response.status


async def _answers(it: GatewayProcess) -> bool:
    try:
        return it.alive and (await it.get("/health"))[0] == 200
    except aiohttp.ClientError:
        await it.ended()
        return False


@pytest.mark.fault("F-01")
@pytest.mark.promise("UNDO-03")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("call", ["fsync", "fdatasync", "renameat", "unlinkat"])
async def test_a_kill_at_any_point_of_a_rewind_leaves_messages_and_files_together(
    it: GatewayProcess, call: str
) -> None:
    workspace = await _work(it)
    _, listed = await it.get(f"/api/sessions/{HERE}/points")
    point = listed["data"][2]["point"]
    there = (_files(workspace), await _said(it))
    back = (BEFORE, 2)
    assert there == ({**BEFORE, **AFTER}, 4)
    number, cuts, through = 0, 0, set[str]()
    ways = {"rewind": (point, there, back), "redo": ("", back, there)}
    while len(through) < 2:
        number += 1 if THOROUGH or number < 4 else 2
        for way, (goes_to, source, target) in ways.items():
            key, status = f"{way}-{number}", 0
            with noted(f"killed at {call} {number} of a {way}"):
                async with kills.attached(it, call, number, workers=True):
                    try:
                        status = await _go(it, way, goes_to, key)
                    except aiohttp.ClientError:
                        cuts += 1
                        await it.ended()
                if status:
                    through.add(way)
                if not await _answers(it):
                    await it.start()
                assert (_files(workspace), await _said(it)) in (source, target)
                assert await _go(it, way, goes_to, key) == 200
                assert (_files(workspace), await _said(it)) == target
    assert cuts >= 1
    done = facts(it.home, "session.rewound")
    assert len({fact["rewind_id"] for fact in done}) == len(done), "none was carried out twice"
