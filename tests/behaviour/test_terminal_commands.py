"""Slash commands at the operator's socket: the same as in chats, for a terminal's session."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from holdfast import plugins
from holdfast.api.schema.runs import RunRequest
from holdfast.cli.client.client import Client, connect
from holdfast.commands import approvals, messages, sessions, status
from holdfast.config.process import LAUNCHD_LABEL
from holdfast.core.inbox import Mode
from holdfast.core.session.rewind import NO_POINT
from holdfast.engine.commands import session, terminal
from holdfast.engine.runs.rewinding import RUN_ACTIVE
from holdfast.tools.exec.missing import hint
from tests.behaviour.hands import audit
from tests.behaviour.terminals import HERE, at_work, configured, ignored, risky, said
from tests.fakes import model_server as says
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

LAUNCHD = {"XPC_SERVICE_NAME": LAUNCHD_LABEL}  # who starts again what ends with 75


@pytest.fixture
async def desk(it: GatewayProcess) -> AsyncIterator[Client]:
    """A terminal beside a gateway."""
    notes: list[str] = []
    async with connect(configured(it.home), notes.append) as client:
        yield client
    assert notes == []


async def reason(it: GatewayProcess, run_id: str) -> tuple[str, str]:
    """How a run ended, and why."""
    last = (await it.events(run_id)).frames[-1].data
    return last["event"], last.get("reason", "")


def asked(model: ModelServer) -> list[list[str]]:
    """What the model was given each time, but for the system's words."""
    every = ([m for m in r.body["messages"] if m["role"] != "system"] for r in model.requests)
    return [[m["content"] for m in messages] for messages in every]


async def test_all_commands_of_chats_are_listed(desk: Client) -> None:
    listed = await desk.commands()
    ours = plugins.find_commands().values()
    assert [(c.name, c.arguments, c.help) for c in listed] == [
        (c.name, c.arguments, c.help) for c in ours
    ]


async def test_help_start_and_what_there_is_not_are_answered_as_in_chats(desk: Client) -> None:
    shown = await desk.command(HERE, "/help")
    assert f"/status: {plugins.find_commands()['status'].help}" in shown.output
    assert (shown.session_id, shown.busy, shown.run_id, shown.undone) == (HERE, None, None, None)
    assert (await desk.command(HERE, "/HELP stop")).output.startswith("/stop: ")
    assert "an agent that works for you" in (await desk.command(HERE, "/start")).output
    wrong = "There is no /stauts. Did you mean /status? /help lists all commands."
    assert (await desk.command(HERE, "/stauts")).output == wrong


async def test_a_session_that_was_never_seen_is_an_empty_conversation(
    it: GatewayProcess, desk: Client
) -> None:
    answers = {
        "/status": status.NO_ACTIVE_RUN,
        "/stop": status.NOT_ACTIVE,
        "/queue": messages.NOTHING_WAITS,
        "/usage": "No tokens yet in this session.",
        "/sessions": sessions.NO_SESSIONS,
        "/resume": "There is no earlier session. /sessions lists what there is.",
        "/resume 4": "There is no session 4. /sessions lists what there is.",
        "/undo": NO_POINT,
        "/retry": NO_POINT,
        "/approve": approvals.NOTHING_WAITS,
        "/model big": session.MESSAGE_FIRST,
    }
    for text, answer in answers.items():
        done = await desk.command(HERE, text)
        assert done.output.startswith(answer), text
        assert (done.session_id, done.run_id) == (HERE, None)
    assert (await it.get(f"/api/sessions/{HERE}/messages"))[0] == 404, "nothing was written down"


async def test_status_tells_what_is_at_work_and_what_words_do_here(
    it: GatewayProcess, model: ModelServer, desk: Client
) -> None:
    run_id = await at_work(it, model)
    shown = (await desk.command(HERE, "/status", Mode.STEER)).output
    assert f"**Running:** `{run_id}`" in shown
    assert status.BUSY_MODE.format(mode="steer") in shown
    assert status.BUSY_MODE.format(mode="interrupt") in (await desk.command(HERE, "/status")).output


@pytest.mark.promise("SAY-01", "SAY-02")
async def test_a_wait_for_a_busy_model_is_told_with_its_reason_and_count(
    it: GatewayProcess, model: ModelServer, desk: Client
) -> None:
    model.then(says.refuse(429, "slow down", headers={"Retry-After": "40"}))
    run_id = await it.run("first", session_id=HERE)
    told = (await it.events(run_id, until="model.retry")).frames[-1].data
    assert (told["attempt"], told["attempts"], told["http_status"]) == (1, 12, 429)
    assert "slow down" in told["reason"] and 40 <= told["wait_s"] < 41
    shown = (await desk.command(HERE, "/status")).output
    assert status.NO_MODEL_YET.format(times="1 time") in shown
    await desk.command(HERE, "/stop")
    assert (await it.finished(run_id))["status"] == "cancelled", "a stop does not wait"


@pytest.mark.promise("SAY-05")
async def test_a_program_that_is_missing_is_named_to_model_and_person(
    it: GatewayProcess, model: ModelServer
) -> None:
    run_id = await it.run('tool:terminal {"command": "no-such-program-x --version"}')
    frames = (await it.events(run_id, until="approval.request")).frames
    if frames[-1].event == "approval.request":
        await it.post(f"/v1/runs/{run_id}/approval", {"choice": "once"})
    ended = [f.data for f in (await it.events(run_id)).frames if f.event == "tool.completed"]
    assert "no-such-program-x" in ended[0]["summary"]
    assert hint("no-such-program-x") in (await it.finished(run_id))["output"]


@pytest.mark.promise("HALT-01")
async def test_stop_stops_all_and_one_goes_on_in_the_session(
    it: GatewayProcess, model: ModelServer, desk: Client
) -> None:
    first, second = await at_work(it, model), await it.run("second", session_id=HERE)
    done = await desk.command(HERE, "/stop now!")
    assert (done.output, done.session_id) == ("Stopped: 2 runs.", HERE)
    stopped = ("run.cancelled", "Stopped at the terminal")
    assert [await reason(it, run_id) for run_id in (first, second)] == [stopped, stopped]
    await said(it, "third")
    assert asked(model)[-1][0] == "first", "it is the same conversation"
    assert asked(model)[-1][-1] == "third"


async def test_new_stops_what_is_at_work_and_names_a_session_that_is_none_yet(
    it: GatewayProcess, model: ModelServer, desk: Client
) -> None:
    run_id = await at_work(it, model)
    done = await desk.command(HERE, "/new")
    assert done.output == sessions.STARTED
    fresh = done.session_id
    assert fresh.startswith("ses_") and len(fresh) == 36 and fresh != HERE
    assert await reason(it, run_id) == ("run.cancelled", "superseded")
    assert (await it.get(f"/api/sessions/{fresh}/messages"))[0] == 404
    assert (await desk.command(fresh, "/new")).session_id not in (fresh, HERE)
    await said(it, "other words", fresh)
    assert asked(model)[-1] == ["other words"]


async def test_interrupt_takes_the_place_of_what_is_at_work(
    it: GatewayProcess, model: ModelServer, desk: Client
) -> None:
    first = await at_work(it, model)
    done = await desk.command(HERE, "/interrupt do\nthis instead", Mode.QUEUE)
    assert (done.output, done.session_id) == ("", HERE)
    assert done.run_id not in (None, first)
    assert await reason(it, first) == ("run.cancelled", "superseded")
    assert (await it.finished(str(done.run_id)))["output"] == "echo: do\nthis instead"


async def test_queue_waits_for_what_is_at_work(
    it: GatewayProcess, model: ModelServer, desk: Client
) -> None:
    first = await at_work(it, model)
    done = await desk.command(HERE, "/queue later", Mode.INTERRUPT)
    assert done.output == f"{messages.QUEUED}."
    assert done.run_id not in (None, first)
    assert (await desk.command(HERE, "/queue")).output == "Waiting: 1 run."
    await it.post(f"/v1/runs/{first}/stop")
    assert (await it.finished(str(done.run_id)))["output"] == "echo: later"


async def test_steer_is_read_by_what_is_at_work(
    it: GatewayProcess, model: ModelServer, desk: Client, tmp_path: Path
) -> None:
    gate = anyio.Event()
    effects = tmp_path / "effects"
    call = says.call("bump", f'{{"path": "{effects}", "tag": "x"}}')
    model.then(
        says.stream(says.token("a"), says.Wait(gate), *call, says.finish("tool_calls"), says.DONE)
    )
    first = await it.run("first", session_id=HERE)
    await it.events(first, until="message.delta")
    done = await desk.command(HERE, "/steer mind this")
    assert (done.output, done.run_id) == (messages.PASSED_ON, first)
    gate.set()
    assert (await it.finished(first))["output"] == "echo: mind this"


async def test_words_of_a_command_answer_what_the_run_asks(
    it: GatewayProcess, desk: Client
) -> None:
    run_id = await it.run('tool:ask {"question": "Which colour?"}', session_id=HERE)
    await it.events(run_id, until="question.asked")
    assert "It asks: `Which colour?`" in (await desk.command(HERE, "/status")).output
    done = await desk.command(HERE, "/queue green")
    assert (done.output, done.run_id) == ("Taken as the answer to its question.", run_id)
    assert (await it.finished(run_id))["output"] == "the tool said: green"


async def test_words_of_a_command_begin_a_session_where_the_terminal_is(
    it: GatewayProcess, desk: Client, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    done = await desk.command(HERE, "/queue begin", workspace=str(work))
    await it.finished(str(done.run_id))
    again = await desk.submit(RunRequest("go on", workspace=str(work), session_id=HERE))
    assert (await it.finished(again))["status"] == "completed"
    other = await desk.command(HERE, "/queue elsewhere", workspace=str(tmp_path))
    assert (await it.finished(str(other.run_id)))["output"] == "echo: elsewhere"


async def test_busy_tells_and_only_reports_what_was_chosen(desk: Client) -> None:
    shown = await desk.command(HERE, "/busy", Mode.STEER)
    assert shown.output.startswith("Now: steer.") and shown.busy is None
    chosen = await desk.command(HERE, "/busy Queue", Mode.STEER)
    assert (chosen.output, chosen.busy) == (
        messages.MEANS[Mode.QUEUE],
        "queue",
    )
    assert (await desk.command(HERE, "/busy")).output.startswith("Now: interrupt.")


async def test_model_is_chosen_for_the_session_from_the_next_run_on(
    it: GatewayProcess, desk: Client
) -> None:
    await said(it, "hello")
    assert "`openai/big`" in (await desk.command(HERE, "/model big")).output
    run_id = await said(it, "again")
    assert (await it.status(run_id))["model"] == "openai/big"
    refused = await desk.command(HERE, "/model other/big")
    assert refused.output == session.NO_SUCH_MODEL.format("openai")
    assert "`openai/fake`" in (await desk.command(HERE, "/model default")).output


async def test_approve_and_deny_count_as_answers_of_the_operator(
    it: GatewayProcess, desk: Client, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    run_id = await it.run(risky(effects, "one", "two"), session_id=HERE)
    first = await it.events(run_id, until="approval.request")
    assert status.NEEDS_APPROVAL in (await desk.command(HERE, "/status")).output
    assert (await desk.command("elsewhere", "/approve")).output == approvals.NOTHING_WAITS
    assert (await desk.command(HERE, "/approve")).output == "Allowed once: `bump one`"
    await it.events(run_id, first.frames[-1].id, until="approval.request")
    assert (await desk.command(HERE, "/deny")).output == "Denied: `bump two`"
    await it.finished(run_id)
    assert [line.split()[0] for line in effects.read_text().splitlines()] == ["one"]
    answers = [e for e in audit(it, run_id) if e["kind"] == "approval.answer"]
    assert [(e["choice"], e["rule"]) for e in answers] == [
        ("once", "operator (cli)"),
        ("deny", "operator (cli)"),
    ]


async def test_retry_says_the_last_words_again_in_place_of_what_came_of_them(
    it: GatewayProcess, model: ModelServer, desk: Client
) -> None:
    await said(it, "one")
    first = await said(it, "two")
    done = await desk.command(HERE, "/retry")
    assert done.output == "" and done.run_id not in (None, first)
    await it.finished(str(done.run_id))
    assert asked(model)[-1] == ["one", "echo: one", "two"]
    await at_work(it, model)
    busy = await desk.command(HERE, "/retry")
    assert (busy.output, busy.run_id) == (RUN_ACTIVE, None)


async def test_undo_takes_back_the_last_exchange_and_reports_its_words(
    it: GatewayProcess, model: ModelServer, desk: Client
) -> None:
    await said(it, "one")
    await said(it, "two\nlines")
    done = await desk.command(HERE, "/undo")
    assert done.output == "Undone: `two lines`"
    assert done.undone == "two\nlines"
    await said(it, "three")
    assert asked(model)[-1] == ["one", "echo: one", "three"]


async def test_usage_counts_what_the_session_has_spent(it: GatewayProcess, desk: Client) -> None:
    await said(it, "hello")
    await said(it, "elsewhere", "another")
    shown = (await desk.command(HERE, "/usage")).output
    assert shown.startswith("Tokens in this session: 10 (7 read, 3 written).")


async def test_sessions_are_numbered_as_they_began_and_resume_names_one(
    it: GatewayProcess, desk: Client
) -> None:
    for name in ("a", "b", "c"):
        await said(it, f"words of {name}", name)
    await said(it, "more", "a")  # its number does not change
    lines = (await desk.command("b", "/sessions")).output.splitlines()
    assert [line.partition(",")[0] for line in lines[:3]] == [
        "3. `words of c`",
        "2. `words of b`",
        "1. `words of a`",
    ]
    assert [line.endswith("**current**") for line in lines[:3]] == [False, True, False]
    back = await desk.command("b", "/resume 3")
    assert (back.session_id, back.output.partition(",")[0]) == (
        "c",
        "Back in session 3: `words of c`",
    )
    assert (await desk.command("b", "/resume 2")).session_id == "b"
    wrong = await desk.command("b", "/resume 4")
    assert (wrong.session_id, wrong.output.partition(".")[0]) == ("b", "There is no session 4")


async def test_resume_alone_goes_back_to_the_session_that_was_left(
    it: GatewayProcess, desk: Client
) -> None:
    await said(it, "mine", "mine")
    await said(it, "another terminal's", "theirs")
    first = (await desk.command("mine", "/new")).session_id
    fresh = (await desk.command(first, "/new")).session_id
    assert (await desk.command(fresh, "/resume")).session_id == "mine"
    assert (await desk.command("unheard-of", "/resume")).session_id == "theirs"
    assert (await desk.command("theirs", "/resume 1")).session_id == "mine"
    assert (await desk.command("mine", "/resume")).session_id == "theirs"


async def test_resume_ends_the_suspension_of_a_session(tmp_path: Path, model: ModelServer) -> None:
    config = '[recovery]\non_start = "suspend"\n'
    async with gateway(tmp_path, model.base_url, config) as it:
        await said(it, "one")
        await said(it, "elsewhere", "another")
        await at_work(it, model)
        await it.kill()
        await it.start()
        async with connect(configured(it.home), ignored) as desk:
            afresh = status.NEXT_IS_NEW
            assert afresh in (await desk.command(HERE, "/status")).output
            back = await desk.command(HERE, "/resume")
            assert back.session_id == HERE
            assert afresh not in (await desk.command(HERE, "/status")).output
        await said(it, "two")
        assert asked(model)[-1][0] == "one"


async def test_restart_restarts_the_gateway_and_what_is_at_work_goes_on(
    tmp_path: Path, model: ModelServer
) -> None:
    async with gateway(tmp_path, model.base_url, **LAUNCHD) as it:
        async with connect(configured(it.home), ignored) as desk:
            assert (await desk.command(HERE, "/restart 2")).output.startswith("Nothing was done")
            done = await desk.command(HERE, "/restart")
            assert done.output.startswith("Restarting.")
        assert await it.ended() == 75
        await it.start()
        async with connect(configured(it.home), ignored) as desk:
            assert status.NO_ACTIVE_RUN in (await desk.command(HERE, "/status")).output


@pytest.mark.promise("STOP-08")
async def test_nothing_is_restarted_from_a_terminal_that_would_not_come_back(
    it: GatewayProcess, desk: Client
) -> None:
    file = it.home / "config.toml"
    file.write_text(file.read_text() + "\n[gateway]\nprot = 1\n")
    assert "unknown key gateway.prot" in (await desk.command(HERE, "/restart")).output
    assert status.NO_ACTIVE_RUN in (await desk.command(HERE, "/status")).output


async def test_a_terminal_cannot_be_the_home_chat(desk: Client) -> None:
    answer = terminal.ONLY_A_CHAT
    assert (await desk.command(HERE, "/home")).output == answer
