"""Commands over HTTP: confined, approved, followed live, and stopped with all their children."""

import json
import os
import secrets
import time
from pathlib import Path

import anyio
import pytest

from holdfast.core.approval.decision import CANNOT_BE_GIVEN
from holdfast.core.material import NOTE
from holdfast.tools.snapshot.snapshots import LOADED
from tests.behaviour.figures import note
from tests.behaviour.hands import (
    approve,
    asked,
    audit,
    carrying,
    children,
    command,
    does,
    gone,
    output,
    process,
    running,
    started,
    told_late,
    until,
)
from tests.fakes.gateway import GatewayProcess, Stream, gateway, read_events
from tests.fakes.model_server import ModelServer, serve
from tests.tools.hostile import HOSTILE

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]


@pytest.mark.promise("RUN-20")
async def test_a_harmless_command_runs_unasked_and_is_audited(it: GatewayProcess) -> None:
    run_id = await it.run(command("echo hello; pwd"))
    told = await output(it, run_id)
    stream = await it.events(run_id)
    assert "approval.request" not in stream.names
    assert told["exit_code"] == 0
    assert told["output"].startswith("hello\n")
    first = stream.frames[0].data
    assert (first["event"], first["sandbox"]) == ("run.started", "L2")
    (entry,) = audit(it, run_id)
    assert (entry["kind"], entry["result"], entry["posture"]) == ("call.allowed", "harmless", "L2")


async def test_the_sandbox_level_is_in_health_and_in_every_prompt(it: GatewayProcess) -> None:
    run_id = await it.run(command("make all"))
    question = await asked(it, run_id)
    assert "Sandbox: L2" in question["description"]
    assert question["command"] == "make all"
    _, health = await it.get("/health/detailed")
    assert health["sandbox"]["level"] == "L2"
    assert "bubblewrap" in health["sandbox"]["note"]


@pytest.mark.promise("RUN-20")
async def test_output_comes_while_the_command_runs_within_its_bounds(
    it: GatewayProcess, tmp_path: Path
) -> None:
    script = "for i in $(seq 1 40); do echo line $i; sleep 0.05; done; yes | head -c 300000"
    run_id = await it.run(command(script))
    await approve(it, run_id)
    stream = await it.events(run_id)
    progress = [f.data for f in stream.frames if f.event == "tool.progress"]
    assert progress[0]["delta"].startswith("line 1\n")
    times = [p["timestamp"] for p in progress]
    assert len(times) >= 3
    for i in range(len(times) - 4):
        assert times[i + 4] - times[i] >= 0.95, times
    assert sum(len(p["delta"].encode()) for p in progress) <= 64 * 1024
    settled = next(f for f in stream.frames if f.event == "tool.completed")
    assert all(p["seq"] < settled.id for p in progress)
    again = await it.events(run_id, after=stream.frames[0].id)
    assert [f.raw for f in again.frames] == [f.raw for f in stream.frames[1:]]


async def test_the_working_directory_is_kept_and_never_leaves_the_workspace(
    it: GatewayProcess,
) -> None:
    session = "walker"
    await does(it, command("mkdir -p a/b"), session_id=session)
    await output(it, await it.run(command("cd a/b"), session_id=session))
    told = await output(it, await it.run(command("pwd"), session_id=session))
    assert told["output"].endswith("/a/b\n")
    await it.kill()
    await it.start()
    told = await output(it, await it.run(command("pwd"), session_id=session))
    assert told["output"].endswith("/a/b\n")
    told = await does(it, command("cd /usr && pwd"), session_id=session)
    assert told["output"] == "/usr\n"
    told = await output(it, await it.run(command("pwd"), session_id=session))
    assert told["output"].endswith("/a/b\n")


@pytest.mark.fault("F-32")
async def test_no_hostile_command_runs_unasked_over_http(it: GatewayProcess) -> None:
    runs = [await it.run(command(text)) for text in HOSTILE]
    for text, run_id in zip(HOSTILE, runs, strict=True):
        stream = await it.events(run_id, until="approval.request")
        assert "approval.request" in stream.names, text
        assert not started(stream), text
    _, health = await it.get("/health/detailed")
    assert health["runs"]["running"] == 0
    assert health["runs"]["waiting"] == len(HOSTILE)
    told = await output(it, await it.run(command("echo not slowed")))  # nobody holds a place
    assert told["output"] == "not slowed\n"


@pytest.mark.fault("F-35")
@pytest.mark.promise("RUN-12")
async def test_without_a_user_to_ask_the_command_is_denied_and_the_model_told(
    it: GatewayProcess,
) -> None:
    run_id = await it.run(command("make all"), answerable=False)
    done = await it.finished(run_id)
    assert CANNOT_BE_GIVEN in done["output"]
    stream = await it.events(run_id)
    assert "approval.request" not in stream.names
    assert not started(stream)
    assert [e["kind"] for e in audit(it, run_id)] == ["call.denied"]


@pytest.mark.fault("F-33")
@pytest.mark.parametrize("what", ["script", "program"])
async def test_a_command_changed_after_its_approval_is_denied_and_audited(
    tmp_path: Path, model: ModelServer, what: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    script = work / "x.sh"
    script.write_text("#!/bin/sh\necho good > effect\n")
    script.chmod(0o755)
    text = "sh x.sh" if what == "script" else "./x.sh"
    config = f'[gateway]\nworkspace_roots = ["{work}"]\n[limits]\nrunning = 1\n'
    async with gateway(tmp_path, model.base_url, config) as it:
        run_id = await it.run(command(text), workspace=str(work))
        await asked(it, run_id)
        blocker = await it.run("tool:hang {}")  # takes the only place: nothing begins meanwhile
        await it.events(blocker, until="tool.started")
        await approve(it, run_id)
        script.write_text("#!/bin/sh\necho evil > effect\n")
        await it.post(f"/v1/runs/{blocker}/stop")
        done = await it.finished(run_id)
        assert "no longer what was approved" in done["output"]
        assert not (work / "effect").exists()
        assert [e["kind"] for e in audit(it, run_id)] == [
            "call.asked",
            "approval.answer",
            "call.denied",
        ]


@pytest.mark.promise("RUN-13")
async def test_a_session_grant_is_for_that_line_in_that_session_and_survives_a_restart(
    it: GatewayProcess,
) -> None:
    text = "chmod u+x ."
    run_id = await it.run(command(text), session_id="one")
    question = await approve(it, run_id, "session")
    assert "session" in question["choices"]
    assert text in question["description"]  # the rule, in full
    await it.finished(run_id)
    await it.kill()
    await it.start()
    again = await it.run(command(text), session_id="one")
    assert (await output(it, again))["exit_code"] == 0
    assert "approval.request" not in (await it.events(again)).names
    await asked(it, await it.run(command(text), session_id="two"))
    await asked(it, await it.run(command("chmod u+w ."), session_id="one"))


@pytest.mark.fault("F-36")
async def test_the_policy_is_out_of_the_agents_reach(it: GatewayProcess) -> None:
    before = (it.home / "config.toml").read_bytes()
    tries = [
        f"echo 'x = 1' > {it.home}/config.toml",
        f"rm -rf {it.home}/journal.db {it.home}/audit.jsonl",
        f"ln -s {it.home} h; echo x > h/config.toml",
        f"python3 -c \"open('{it.home}/config.toml','w')\"",
        f"cat {it.home}/api_key {it.home}/audit.jsonl",
        f"curl -s --unix-socket {it.home}/run/front.sock http://x/v1/approvals",
        f"kill -9 {it.pid}",
    ]
    for text in tries:
        told = await does(it, command(text))
        assert "x = 1" not in told["output"]
    file = f'tool:write_file {{"path": "{it.home}/config.toml", "content": "x"}}'
    await it.finished(await it.run(file))
    assert (it.home / "config.toml").read_bytes() == before
    assert it.alive
    assert len(audit(it)) >= 2 * len(tries)


@pytest.mark.fault("F-20")
@pytest.mark.promise("RUN-14", "RUN-15", "RUN-17")
async def test_a_stopped_pipeline_is_dead_and_its_run_cancelled(it: GatewayProcess) -> None:
    token = secrets.token_hex(8)
    text = command(f": {token}; sleep 1000 | cat")
    run_id = await it.run(text)
    await approve(it, run_id)
    await it.events(run_id, until="tool.started")
    await running(token)
    began = time.monotonic()
    status, body = await it.post(f"/v1/runs/{run_id}/stop")
    acknowledged = time.monotonic() - began
    assert (status, body) == (200, {"run_id": run_id, "status": "stopping"})
    stream = await it.events(run_id)
    took = time.monotonic() - began
    assert stream.names[-1] == "run.cancelled"
    assert not carrying(token), "cancelled means dead"
    assert acknowledged <= 0.5
    assert took <= 3
    note(f"stop: acknowledged {acknowledged * 1000:.0f} ms, over {took * 1000:.0f} ms")
    assert (await it.post(f"/v1/runs/{run_id}/stop"))[0] == 404


@pytest.mark.fault("F-20")
@pytest.mark.promise("RUN-14")
async def test_a_command_that_ignores_term_is_dead_within_three_seconds(
    it: GatewayProcess,
) -> None:
    token = secrets.token_hex(8)
    script = f"trap '' TERM HUP INT; echo ready; while :; do sleep 1; done; : {token}"
    run_id = await it.run(command(script))
    await approve(it, run_id)
    await it.events(run_id, until="tool.progress")
    began = time.monotonic()
    await it.post(f"/v1/runs/{run_id}/stop")
    second = await it.post(f"/v1/runs/{run_id}/stop")
    assert second == (200, {"run_id": run_id, "status": "stopping"})
    stream = await it.events(run_id)
    took = time.monotonic() - began
    assert stream.names[-1] == "run.cancelled"
    await gone(token, within_s=1)
    assert took <= 3.5
    note(f"resisting stop: {took:.2f} s")


@pytest.mark.fault("F-22")
async def test_endless_output_is_cut_and_the_run_sees_the_note(
    it: GatewayProcess, tmp_path: Path
) -> None:
    before = resident_mb(it.pid)
    seconds = float(os.environ.get("HOLDFAST_TORTURE_YES", "3"))
    told = await does(it, command("yes", timeout=seconds))
    assert told["truncated"]
    assert "not shown" in told["output"]
    assert len(told["output"].encode()) <= 33 * 1024
    grown = resident_mb(it.pid) - before
    assert grown <= 20
    note(f"yes for {seconds:g} s: +{grown:.1f} MiB, {told['output_bytes']} bytes")


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.fault("F-23")
async def test_a_command_that_eats_its_memory_is_killed_for_that(
    tmp_path: Path, model: ModelServer
) -> None:
    greedy = "perl -e 'push @x, q(x) x 2**20 while 1'"
    async with gateway(tmp_path, model.base_url, "[terminal]\nmemory_mb = 150\n") as it:
        pid = it.pid
        told = await does(it, command(greedy))
        assert told["error"] == "killed: memory"
        assert it.pid == pid and it.alive


@pytest.mark.fault("F-39")
async def test_no_secret_is_in_a_commands_reach_or_result(tmp_path: Path) -> None:
    canary = f"sk-{secrets.token_hex(16)}"
    async with serve() as model:
        async with gateway(tmp_path, model.base_url, OPENAI_API_KEY=canary) as it:
            half = len(canary) // 2
            leak = f"printf %s {canary[:half]}; sleep 0.4; echo {canary[half:]}; env; cat /proc/*/environ"
            run_id = await it.run(command(leak))
            await approve(it, run_id)
            done = await it.finished(run_id)
            stream = await it.events(run_id)
            assert canary not in stream.raw.decode()
            assert canary not in done["output"]
            assert "[redacted]" in done["output"]
            await it.stop()
        for path in it.home.rglob("*"):
            if path.is_file() and path.name != "config.toml":
                assert canary.encode() not in path.read_bytes(), path


@pytest.mark.promise("LATE-04")
async def test_over_http_a_background_process_says_that_no_notice_will_come(
    it: GatewayProcess,
) -> None:
    text = command("sleep 0.2; echo finished", background=True, notify_on_complete=True)
    told = await does(it, text, session_id="s")
    assert told["notify_on_complete"] is False
    assert "poll" in told["notify_unsupported"]
    waited = await output(
        it, await it.run(process("wait", process_id=told["process_id"]), session_id="s")
    )
    assert waited["exit_code"] == 0
    assert "finished" in waited["output"]


@pytest.mark.promise("LATE-05", "LATE-08", "MAT-12")
async def test_who_asks_for_late_events_hears_of_the_end_on_the_sessions_stream(
    it: GatewayProcess,
) -> None:
    text = command("echo done it", background=True, notify_on_complete=True)
    told = await does(it, text, session_id="s", late="events")
    assert told["notify_on_complete"] is True
    assert "notify_unsupported" not in told
    url = f"{it.url}/api/sessions/s/events"
    stream = Stream(200)
    async with it.http.get(url) as response:
        with anyio.fail_after(20):
            await read_events(response, stream, until="process.ended")
    ended = next(f.data for f in stream.frames if f.event == "process.ended")
    assert (ended["process_id"], ended["exit_code"]) == (told["process_id"], 0)
    assert "done it" in ended["output"]
    words = await told_late(it, "s", "has ended: exit code 0")
    head, _, material = words.partition("\n")
    assert told["process_id"] in head and "done it" not in head
    assert material.startswith("[material ") and NOTE in material and "done it" in material


@pytest.mark.promise("LATE-05", "STOP-06")
@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_background_process_dies_with_the_gateway_and_that_is_told(
    it: GatewayProcess, model: ModelServer, how: str
) -> None:
    token = secrets.token_hex(8)
    text = command(f"sleep 1000; : {token}", background=True, notify_on_complete=True)
    told = await does(it, text, session_id="s", late="events")
    await running(token)
    if how == "kill":
        await it.kill()
    else:
        await it.stop()
        assert not carrying(token)
    await gone(token, within_s=2)
    await it.start()
    assert told["process_id"] in await told_late(it, "s", "killed by the restart")


REACH = (
    'exec 3<>"/dev/tcp/127.0.0.1/${http_proxy##*:}"; '
    r"printf 'CONNECT nowhere.invalid:443 HTTP/1.1\r\n\r\n' >&3; head -n 1 <&3"
)


@pytest.mark.parametrize(
    ("choice", "answer"), [("deny", "403"), ("once", "502"), ("session", "502")]
)
async def test_the_user_is_asked_about_an_unknown_host_while_the_command_waits(
    it: GatewayProcess, choice: str, answer: str
) -> None:
    run_id = await it.run(command(REACH), session_id="s")
    first = await approve(it, run_id)
    stream = await it.events(run_id, until="tool.started")
    second = await asked(it, run_id, after=stream.frames[-1].id)
    assert second["request_id"] != first["request_id"]
    assert second["command"] == "connect to nowhere.invalid"
    status = await it.status(run_id)
    assert status["approval"]["request_id"] == second["request_id"]
    code, body = await it.post(f"/v1/approvals/{second['request_id']}", {"choice": choice})
    assert code == 200, body
    told = await output(it, run_id)
    assert f" {answer} " in told["output"]
    again = await it.run(command(REACH), session_id="s")
    await approve(it, again)
    stream = await it.events(again, until="tool.started")
    if choice == "session":  # this host, in this session: unasked from now on
        assert f" {answer} " in (await output(it, again))["output"]
    else:
        await asked(it, again, after=stream.frames[-1].id)


async def test_a_stop_while_a_host_is_asked_about_ends_run_and_question(
    it: GatewayProcess,
) -> None:
    run_id = await it.run(command(REACH))
    await approve(it, run_id)
    stream = await it.events(run_id, until="tool.started")
    await asked(it, run_id, after=stream.frames[-1].id)
    await it.post(f"/v1/runs/{run_id}/stop")
    assert (await it.events(run_id)).names[-1] == "run.cancelled"
    assert (await it.get("/v1/approvals"))[1]["data"] == []


@pytest.mark.promise("STOP-02")
async def test_a_run_that_has_ended_leaves_no_process_file_or_descriptor(
    it: GatewayProcess,
) -> None:
    async def one(text: str, *, stop: bool) -> None:
        run_id = await it.run(command(text))
        await approve(it, run_id)
        if stop:
            await it.events(run_id, until="tool.started")
            await it.post(f"/v1/runs/{run_id}/stop")
        await it.events(run_id)

    for _ in range(LOADED):  # workspaces whose snapshots stay open for the next command
        await one("make x; true", stop=False)
    before = len(os.listdir(f"/proc/{it.pid}/fd"))
    for _ in range(3):
        await one("make x; sleep 0.1", stop=False)
        await one("make x; sleep 1000", stop=True)
    await until(lambda: not children(it.pid))
    assert not list((it.home / "calls").iterdir())
    assert len(os.listdir(f"/proc/{it.pid}/fd")) <= before


@pytest.mark.promise("RUN-13")
@pytest.mark.fault("F-33")
async def test_a_session_grant_is_void_once_the_file_it_runs_has_changed(
    it: GatewayProcess,
) -> None:
    def write(text: str) -> str:
        return f"tool:write_file {json.dumps({'path': 'b.sh', 'content': text})}"

    await it.finished(await it.run(write("echo good"), session_id="s"))
    first = await it.run(command("bash b.sh"), session_id="s")
    question = await approve(it, first, "session")
    assert "b.sh" in question["description"]
    assert (await output(it, first))["output"] == "good\n"
    again = await it.run(command("bash b.sh"), session_id="s")
    assert (await output(it, again))["output"] == "good\n"
    await it.finished(await it.run(write("echo EVIL"), session_id="s"))
    await asked(it, await it.run(command("bash b.sh"), session_id="s"))


@pytest.mark.promise("RUN-13")
async def test_a_question_shows_the_input_and_that_it_goes_on_in_the_background(
    it: GatewayProcess,
) -> None:
    question = await asked(it, await it.run(command("bash", stdin="rm -rf x\necho done")))
    assert "| rm -rf x\n| echo done" in question["command"]
    assert question["choices"] == ["once", "deny"]
    question = await asked(it, await it.run(command("bash", background=True, stdin_open=True)))
    assert "background" in question["description"]
    assert "input later" in question["description"]
    assert question["choices"] == ["once", "deny"]
    foreground = await it.run(command("bash"), session_id="s")
    await approve(it, foreground, "session")
    await it.finished(foreground)
    await asked(it, await it.run(command("bash", background=True), session_id="s"))


async def test_input_written_to_a_process_is_audited(it: GatewayProcess) -> None:
    begun = await does(it, command("cat", background=True, stdin_open=True), session_id="s")
    words = process("write", process_id=begun["process_id"], text="hello there")
    await it.finished(await it.run(words, session_id="s"))
    assert any("hello there" in e.get("what", "") for e in audit(it))


@pytest.mark.promise("RUN-14")
async def test_a_stopped_run_takes_its_background_processes_with_it(it: GatewayProcess) -> None:
    token = secrets.token_hex(8)
    begin = command(f"sleep 1000; : {token}", background=True, notify_on_complete=True)
    run_id = await it.run(f"{begin}\ntool:hang {{}}", session_id="s", late="events")
    await approve(it, run_id)
    await running(token)
    stream = await it.events(run_id, until="tool.completed")
    await it.events(run_id, after=stream.frames[-1].id, until="tool.started")  # it hangs
    await it.post(f"/v1/runs/{run_id}/stop")
    assert (await it.events(run_id)).names[-1] == "run.cancelled"
    assert not carrying(token)
    _, body = await it.get("/api/sessions/s/messages")
    assert not [m for m in body["data"] if "has ended" in str(m["content"])]


async def test_commands_have_the_users_umask_and_default_signals(it: GatewayProcess) -> None:
    told = await does(it, command("umask; grep SigIgn /proc/self/status; yes | head -c 3"))
    users = os.umask(0o022)
    os.umask(users)
    first, second, *rest = told["output"].splitlines()
    assert int(first, 8) == users
    assert int(second.split()[1], 16) & 0x7FFFFFFF == 0
    assert rest == ["y", "y"]


@pytest.mark.promise("RUN-20")
async def test_the_last_output_of_a_command_is_shown_too(it: GatewayProcess) -> None:
    run_id = await it.run(command("echo one; sleep 0.3; echo last"))
    stream = await it.events(run_id)
    said = "".join(f.data["delta"] for f in stream.frames if f.event == "tool.progress")
    assert said == "one\nlast\n"
    assert stream.names.index("tool.completed") > max(
        i for i, name in enumerate(stream.names) if name == "tool.progress"
    )


async def test_a_refused_host_is_named_in_the_result(it: GatewayProcess) -> None:
    run_id = await it.run(command(REACH), answerable=True)
    await approve(it, run_id)
    stream = await it.events(run_id, until="tool.started")
    question = await asked(it, run_id, after=stream.frames[-1].id)
    assert "For: exec 3<>" in question["description"]
    await it.post(f"/v1/approvals/{question['request_id']}", {"choice": "deny"})
    assert "nowhere.invalid" in (await output(it, run_id))["note"]


async def test_people_are_told_how_a_command_ended_that_did_not_succeed(
    it: GatewayProcess,
) -> None:
    for text, summary in (("echo fine", None), ("ls no-such-file", "exit code 2")):
        stream = await it.events(await it.run(command(text)))
        done = next(f.data for f in stream.frames if f.event == "tool.completed")
        assert done.get("summary") == summary
        assert done["error"] is False
