"""Changed files over HTTP: events, and the diff of a run and of a session."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal.versions import DIRECTORY
from tests.behaviour.hands import audit
from tests.behaviour.terminals import command
from tests.fakes.gateway import KEY, GatewayProcess

pytestmark = [pytest.mark.anyio, pytest.mark.promise("EDIT-03")]


def calls(*asked: tuple[str, dict[str, Any]]) -> str:
    return "\n".join(f"tool:{name} {json.dumps(arguments)}" for name, arguments in asked)


def write(path: str, content: str) -> tuple[str, dict[str, Any]]:
    return "write_file", {"path": path, "content": content}


def patch(path: str, old: str, new: str) -> tuple[str, dict[str, Any]]:
    return "patch", {"path": path, "old": old, "new": new}


def name_of(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


async def diff(it: GatewayProcess, path: str) -> list[dict[str, Any]]:
    status, body = await it.get(path)
    assert (status, body["object"]) == (200, "list"), body
    assert body["added"] == sum(one["added"] for one in body["data"])
    files: list[dict[str, Any]] = body["data"]
    return files


async def test_each_changed_file_is_an_event_before_the_end_of_its_call(
    it: GatewayProcess,
) -> None:
    run_id = await it.run(
        calls(write("a.txt", "one\ntwo\n"), patch("a.txt", "two", "2\n3")), session_id="s"
    )
    await it.finished(run_id)
    stream = await it.events(run_id)
    of_tools = [f for f in stream.frames if f.event.startswith(("tool.", "file."))]
    assert [f.event for f in of_tools] == ["tool.started", "file.changed", "tool.completed"] * 2
    first, second = (f.data for f in of_tools if f.event == "file.changed")
    assert first["call_id"] == of_tools[0].data["call_id"]
    shown = ("path", "kind", "added", "removed", "before", "after", "binary")
    one, two = "one\ntwo\n", "one\n2\n3\n"
    assert [first[n] for n in shown] == ["a.txt", "created", 2, 0, "", name_of(one), False]
    assert [second[n] for n in shown] == [
        *("a.txt", "patched", 2, 1, name_of(one), name_of(two), False)
    ]


async def test_several_changes_of_a_file_are_one_diff_of_the_run_and_of_the_session(
    it: GatewayProcess,
) -> None:
    first = await it.run(calls(write("a.txt", "one\n"), write("d/b.txt", "b\n")), session_id="s")
    await it.finished(first)
    edits = calls(patch("a.txt", "one", "two"), patch("a.txt", "two", "three"))
    second = await it.run(edits, session_id="s")
    await it.finished(second)
    (found,) = await diff(it, f"/v1/runs/{second}/diff")
    assert (found["kind"], found["added"], found["removed"]) == ("patched", 1, 1)
    assert (found["before"], found["after"]) == (name_of("one\n"), name_of("three\n"))
    assert found["diff"].endswith("@@ -1 +1 @@\n-one\n+three\n")
    whole = await diff(it, "/api/sessions/s/diff")
    assert [(f["path"], f["kind"], f["added"], f["removed"]) for f in whole] == [
        ("a.txt", "created", 1, 0),
        ("d/b.txt", "created", 1, 0),
    ]
    assert whole[0]["diff"].endswith("--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+three\n")
    assert [f["path"] for f in await diff(it, "/api/sessions/s/diff?path=./d/")] == ["d/b.txt"]
    event = next(f for f in (await it.events(second)).frames if f.event == "file.changed")
    (by_call,) = await diff(it, f"/v1/runs/{second}/diff?call_id={event.data['call_id']}")
    assert by_call["after"] == name_of("two\n")


async def test_as_a_patch_it_is_one_text(it: GatewayProcess) -> None:
    run_id = await it.run(calls(write("a.txt", "one\n"), write("b.txt", "b\n")), session_id="s")
    await it.finished(run_id)
    headers = {"Accept": "text/x-diff"}
    async with it.http.get(f"{it.url}/v1/runs/{run_id}/diff", headers=headers) as response:
        assert response.content_type == "text/x-diff"
        text = await response.text()
    assert text.count("diff --git ") == 2


async def test_a_version_that_is_no_longer_kept_is_said(it: GatewayProcess) -> None:
    run_id = await it.run(calls(write("a.txt", "one\n"), write("a.txt", "two\n")), session_id="s")
    await it.finished(run_id)
    (it.home / DIRECTORY / name_of("two\n")).unlink()
    (found,) = await diff(it, f"/v1/runs/{run_id}/diff")
    assert (found["pruned"], found["diff"], found["kind"]) == (True, "", "created")


async def test_a_known_secret_is_in_no_diff(it: GatewayProcess) -> None:
    run_id = await it.run("say:hello", session_id="s")
    await it.finished(run_id)
    status, body = await it.get("/api/sessions/s")
    assert status == 200
    put(Path(body["workspace"]) / "key.txt", f"old\nkey = {KEY}\n")
    run_id = await it.run(calls(patch("key.txt", "old", "new")), session_id="s")
    await it.finished(run_id)
    (found,) = await diff(it, f"/v1/runs/{run_id}/diff")
    assert "-old\n+new\n key = " in found["diff"]
    assert KEY not in found["diff"]


async def test_a_child_run_s_changes_are_those_of_its_parent(it: GatewayProcess) -> None:
    task = f"tool:delegate_task {json.dumps({'task': calls(write('child.txt', 'x'))})}"
    run_id = await it.run(task, session_id="s")
    await it.finished(run_id)
    assert [f["path"] for f in await diff(it, f"/v1/runs/{run_id}/diff")] == ["child.txt"]
    assert [f["path"] for f in await diff(it, "/api/sessions/s/diff")] == ["child.txt"]


async def test_what_does_not_exist_is_not_found(it: GatewayProcess) -> None:
    await it.finished(await it.run("say:hello", session_id="s"))
    assert await diff(it, "/api/sessions/s/diff") == []
    for path, code in (
        (f"/v1/runs/run_{'0' * 32}/diff", "run_not_found"),
        ("/api/sessions/other/diff", "session_not_found"),
    ):
        status, body = await it.get(path)
        assert (status, body["error"]["code"]) == (404, code)


@pytest.mark.promise("EDIT-05")
async def test_each_call_that_changed_files_is_an_entry_of_the_audit(it: GatewayProcess) -> None:
    run_id = await it.run(calls(write("a.txt", "one\n"), ("list_files", {})), session_id="s")
    await it.finished(run_id)
    (entry,) = [e for e in audit(it, run_id) if e["kind"] == "files.changed"]
    (fact,) = [f.data for f in (await it.events(run_id)).frames if f.event == "file.changed"]
    assert entry["what"] == f"created - {fact['after']} a.txt"
    assert (entry["call_id"], entry["result"]) == (fact["call_id"], "created a.txt")
    shown = (await it.holdfast("audit", "--run", run_id)).stdout.decode()
    assert "files.changed" in shown and "created a.txt" in shown
    assert (await it.holdfast("audit", "verify")).returncode == 0


@pytest.mark.promise("UNDO-05")
async def test_what_was_undone_is_no_change_of_the_session_any_more(it: GatewayProcess) -> None:
    await it.finished(await it.run(calls(write("a.txt", "one\n")), session_id="s"))
    run_id = await it.run(calls(patch("a.txt", "one", "two"), write("b.txt", "b")), session_id="s")
    await it.finished(run_id)
    for order, after in (("/undo", ["one\n"]), ("/redo", ["two\n", "b"])):
        await command(it, "s", order)
        found = await diff(it, "/api/sessions/s/diff")
        assert [one["after"] for one in found] == list(map(name_of, after))
        assert len(await diff(it, f"/v1/runs/{run_id}/diff")) == 2  # this is what it did
