"""Undo, rewind and redo of a real gateway: over HTTP, at the terminal, and for all who read."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.cli.client.client import Client, connect
from holdfast.host.lock import SOCKET
from tests.behaviour.hands import approve, command, output
from tests.behaviour.terminals import configured
from tests.fakes.gateway import GatewayProcess, Stream, gateway, read_events
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

HERE = "s"


async def write(it: GatewayProcess, path: str, content: str, **fields: object) -> str:
    """Have a message written to a file; the run's id."""
    call = f"tool:write_file {json.dumps({'path': path, 'content': content})}"
    run_id = await it.run(call, session_id=HERE, **fields)
    assert (await it.finished(run_id))["status"] == "completed"
    return run_id


async def post(
    it: GatewayProcess, what: str, body: object = None, key: str = ""
) -> tuple[int, Any, bool]:
    headers = {"Idempotency-Key": key} if key else {}
    url = f"{it.url}/api/sessions/{HERE}/{what}"
    async with it.http.post(url, json=body or {}, headers=headers) as response:
        replayed = response.headers.get("Idempotency-Replayed") == "true"
        return response.status, await response.json(), replayed


async def workspace(it: GatewayProcess) -> Path:
    return Path((await it.get(f"/api/sessions/{HERE}"))[1]["workspace"])


async def said(it: GatewayProcess) -> list[str]:
    _, body = await it.get(f"/api/sessions/{HERE}/messages")
    return [m["content"] for m in body["data"] if m["role"] == "user"]


@pytest.fixture
async def desk(it: GatewayProcess) -> AsyncIterator[Client]:
    """A terminal beside a gateway."""
    notes: list[str] = []
    async with connect(configured(it.home), notes.append) as client:
        yield client


@pytest.mark.promise("UNDO-01", "UNDO-02")
async def test_points_are_listed_gone_back_to_and_left_again_over_http(it: GatewayProcess) -> None:
    first = await write(it, "a.txt", "one\n")
    second = await write(it, "a.txt", "two\nlines\n")
    status, points = await it.get(f"/api/sessions/{HERE}/points")
    assert status == 200
    assert [(p["number"], p["point"]) for p in points["data"]] == [(1, first), (2, second)]
    assert points["data"][1]["files"] == [{"path": "a.txt", "added": 2, "removed": 1}]
    file = await workspace(it) / "a.txt"

    status, done, _ = await post(it, "rewind", {"point": second}, key="k1")
    assert (status, done["runs"], done["redo"]) == (200, [second], False)
    assert [(f["path"], f["result"]) for f in done["files"]] == [("a.txt", "restored")]
    assert (file.read_text(), len(await said(it))) == ("one\n", 1)
    again = await post(it, "rewind", {"point": second}, key="k1")
    assert again == (200, done, True)

    assert (await post(it, "redo"))[0] == 200
    assert (file.read_text(), len(await said(it))) == ("two\nlines\n", 2)
    file.write_text("mine")
    status, refused, _ = await post(it, "rewind", {"point": first})
    assert (status, refused["error"]["code"]) == (409, "files_changed")
    assert "a.txt" in refused["error"]["message"]
    assert (await post(it, "rewind", {"what": "conversation"}))[0] == 200
    assert (file.read_text(), len(await said(it))) == ("mine", 1)
    status, forced, _ = await post(it, "rewind", {"point": first, "force": True})
    assert (status, forced["files"][0]["result"], file.exists()) == (200, "deleted", False)


async def test_requests_that_make_no_sense_are_refused(it: GatewayProcess) -> None:
    assert (await post(it, "rewind"))[0] == 404
    await write(it, "a.txt", "one\n")
    for body, status in (
        ({"point": "run_none"}, 404),
        ({"what": "nothing"}, 400),
        ({"point": 3}, 400),
        ({"force": "yes"}, 400),
    ):
        assert (await post(it, "rewind", body))[0] == status, body
    status, body, _ = await post(it, "redo")
    assert (status, body["error"]["code"]) == (409, "nothing_to_redo")
    await it.finished(await it.run("hello", session_id="other"))
    async with it.http.get(f"{it.url}/api/sessions/none/points") as response:
        assert response.status == 404


@pytest.mark.promise("UNDO-05")
async def test_the_stream_of_the_session_says_what_was_rewound(it: GatewayProcess) -> None:
    run_id = await write(it, "a.txt", "one\n")
    await post(it, "rewind")
    stream = Stream(200)
    async with it.http.get(f"{it.url}/api/sessions/{HERE}/events?after=0") as response:
        await read_events(response, stream, "session.rewound")
    last = stream.frames[-1].data
    assert (last["point"], last["runs"], last["what"]) == (run_id, [run_id], "both")
    assert [(f["path"], f["result"]) for f in last["restored"]] == [("a.txt", "deleted")]


@pytest.mark.promise("UNDO-05")
async def test_what_was_undone_is_found_in_no_search_export_or_resumed_conversation(
    it: GatewayProcess,
) -> None:
    await it.finished(await it.run("a heron stands", session_id=HERE))
    await it.finished(await it.run("a kingfisher waits", session_id=HERE))

    async def hits(word: str) -> int:
        connector = aiohttp.UnixConnector(str(it.home / SOCKET))
        async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
            async with http.get(f"/v1/operator/search?q={word}") as response:
                return len((await response.json())["data"])

    assert (await hits("heron"), await hits("kingfisher")) == (1, 1)
    await post(it, "rewind")
    assert (await hits("heron"), await hits("kingfisher")) == (1, 0)
    exported = await it.holdfast("sessions", "export", HERE, "--format", "json")
    messages = msgspec.json.decode(exported.stdout)["messages"]
    assert [m["content"] for m in messages if m["role"] == "user"] == ["a heron stands"]
    _, settled = await it.get(f"/api/sessions/{HERE}/messages?settled=true")
    assert [m["content"] for m in settled["data"] if m["role"] == "user"] == ["a heron stands"]
    await post(it, "redo")
    assert await hits("kingfisher") == 1


@pytest.mark.promise("UNDO-01")
async def test_at_the_terminal_the_message_comes_back_with_what_became_of_the_files(
    it: GatewayProcess, desk: Client
) -> None:
    await write(it, "a.txt", "one\n")
    text = (await said(it))[0]
    listed = await desk.command(HERE, "/rewind")
    assert listed.output.startswith("1. `") and "+1 −0 `a.txt`" in listed.output
    done = await desk.command(HERE, "/undo")
    assert (done.undone, done.output.splitlines()[1:]) == (text, ["- `a.txt` deleted"])
    assert not (await workspace(it) / "a.txt").exists()
    redone = await desk.command(HERE, "/redo")
    assert (redone.undone, redone.output.splitlines()[1:]) == (None, ["- `a.txt` restored"])
    assert (await workspace(it) / "a.txt").read_text() == "one\n"
    (await workspace(it) / "a.txt").write_text("mine")
    refused = await desk.command(HERE, "/undo")
    assert refused.undone is None and "`a.txt`" in refused.output
    assert await said(it) == [text]


@pytest.mark.promise("UNDO-01")
async def test_what_a_command_changed_is_undone_and_redone(
    tmp_path: Path, model: ModelServer
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.txt").write_text("one\n")
    (work / "old.sh").write_text("old\n")
    (work / "old.sh").chmod(0o755)
    (work / "link").symlink_to("a.txt")
    config = f'[gateway]\nworkspace_roots = ["{work}"]\n[sandbox]\nallow_none = true\n'
    before = seen(work)
    async with gateway(tmp_path, model.base_url, config) as it:
        script = "echo two >> a.txt; rm old.sh link; mkdir d; echo new > d/new.txt; ln -s d e"
        run_id = await it.run(command(script), workspace=str(work), session_id=HERE)
        await approve(it, run_id)
        assert (await output(it, run_id))["exit_code"] == 0
        after = seen(work)
        status, done, _ = await post(it, "rewind")
        assert (status, {f["result"] for f in done["files"]}) == (200, {"restored", "deleted"})
        assert seen(work) == before
        await it.kill()
        await it.start()
        assert (await post(it, "redo"))[0] == 200
        assert seen(work) == after


def seen(work: Path) -> dict[str, tuple[int, str]]:
    """Every file and link below, with its mode and its content or target."""
    return {
        str(p.relative_to(work)): (
            p.lstat().st_mode,
            os.readlink(p) if p.is_symlink() else p.read_text(),
        )
        for p in work.rglob("*")
        if p.is_symlink() or p.is_file()
    }
