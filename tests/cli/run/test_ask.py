"""A question at the terminal: no choice is made for anybody, and none by accident."""

import signal
from pathlib import Path
from typing import cast

import anyio
import pytest
from aiohttp import web

from holdfast.api.schema.approvals import ApprovalObject, ApprovalResponse
from holdfast.api.schema.events import Event
from holdfast.cli.client.client import Client
from holdfast.cli.client.frames import Frame, approval_of
from holdfast.cli.run import approval, ask, notes
from holdfast.cli.run.approval import WANTS
from holdfast.cli.run.screen import Plain
from tests.cli import Place, Terminal, terminal
from tests.cli.door import REQUEST, RUN, Door
from tests.fakes.gateway import ROOT, GatewayProcess
from tests.fakes.model_server import ModelServer, Wait, call, calls, stream

pytestmark = pytest.mark.anyio

CHOICES = "[o]nce  [s]ession  [d]eny ? "


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.environ |= {"HOLDFAST_MODEL": "openai/fake", "PYTHONPATH": str(ROOT)}
    return place


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


def _arguments(effects: Path, tag: str = "x") -> str:
    return f'{{"path": "{effects}", "tag": "{tag}"}}'


def _ask(effects: Path) -> str:
    return f"tool:risky {_arguments(effects)}"


def _tags(effects: Path) -> list[str]:
    return (
        [line.split()[0] for line in effects.read_text().splitlines()] if effects.exists() else []
    )


def _name(said: str) -> str:
    """The request that the last question in a text is about."""
    return "apr_" + said.rpartition("for an approval, apr_")[2].split()[0]


async def _question(screen: Terminal, choices: str = CHOICES) -> str:
    return await screen.read_until(choices)


@pytest.mark.usefixtures("it")
async def test_a_question_shows_what_would_run_and_enter_alone_is_no_answer(
    place: Place, effects: Path
) -> None:
    async with terminal(place, "run", _ask(effects)) as screen:
        said = await _question(screen)
        assert f"(expires in 10 min):\r\n  appends a line\r\n  {WANTS}\r\n    bump x\r\n" in said
        for wrong in ("\n", "yes, do\n", "once more\n", "o\x04"):
            await screen.type(wrong)
            assert "type one of: once, session, deny" in await _question(screen)
        assert _tags(effects) == []
        await screen.type("O\n")
        said = await screen.read_until("the tool said: bumped x")
        assert "approved (once)" in said
        assert "interruption" not in said
        assert await screen.process.wait() == 0
    assert _tags(effects) == ["x"]


@pytest.mark.usefixtures("it")
async def test_a_denial_is_told_to_the_model_and_the_conversation_goes_on(
    place: Place, effects: Path
) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type(_ask(effects) + "\n")
        await _question(screen)
        await screen.type("deny\n")
        assert "the tool said: Not run: it was not approved" in await screen.read_until("\n› ")
        await screen.type("say:on\n")
        await screen.read_until("on\r\n› ")
    assert _tags(effects) == []


@pytest.mark.usefixtures("it")
async def test_text_typed_before_a_question_does_not_answer_it(
    place: Place, model: ModelServer, effects: Path
) -> None:
    gate = Wait()
    asking = calls(call("risky", _arguments(effects)))
    model.then(stream(gate, *asking.steps))
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("work\n")
        await model.asked(1)
        await screen.type("o\no\no")
        await screen.read_until("o\r\no\r\no")  # their echo: the terminal has them
        gate.gate.set()
        await _question(screen)
        await screen.type("d\n")
        assert "denied" in await screen.read_until("\n› ")
    assert _tags(effects) == []


async def test_an_answer_from_elsewhere_closes_the_question_with_what_was_typed_to_it(
    place: Place, it: GatewayProcess, effects: Path
) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type(_ask(effects) + "\n")
        name = _name(await _question(screen))
        await screen.type("half")
        await screen.read_until("half")
        assert (await it.post(f"/v1/approvals/{name}", {"choice": "once"}))[0] == 200
        said = await screen.read_until("\n› ")
        assert f"{name} was answered elsewhere: approved (once)" in said
        assert "bumped x" in said
        await screen.type("say:on\n")
        assert "echo:" not in await screen.read_until("on\r\n› ")


async def test_a_question_that_runs_out_closes_by_itself(place: Place, front: Door) -> None:
    async with terminal(place, "run", "work") as screen:
        front.say("approval.request", **REQUEST)
        await _question(screen, "[d]eny ? ")
        front.say("approval.expired", request_id="apr_1")
        await screen.read_until(f"apr_1 {approval.EXPIRED}")
        front.say("run.completed", output="so be it")
        assert "[d]eny" not in await screen.read_until("so be it")
        assert await screen.process.wait() == 0


async def test_a_run_that_ends_takes_its_question_with_it(
    place: Place, it: GatewayProcess, effects: Path
) -> None:
    async with terminal(place, "run", _ask(effects)) as screen:
        name = _name(await _question(screen))
        run_id = (await it.get("/v1/approvals"))[1]["data"][0]["run_id"]
        await it.post(f"/v1/runs/{run_id}/stop")
        said = await screen.read_until("the run was stopped")
        assert f"{name} was withdrawn: " in said
        assert await screen.process.wait() == 1


@pytest.mark.usefixtures("it")
async def test_an_interrupt_at_the_question_stops_the_run(place: Place, effects: Path) -> None:
    async with terminal(place, "run", _ask(effects)) as screen:
        await _question(screen)
        screen.process.send_signal(signal.SIGINT)
        said = await screen.read_until("the run was stopped")
        assert "stopping …" in said
        assert CHOICES not in said
        assert await screen.process.wait() == 130
    assert _tags(effects) == []


async def test_several_questions_come_one_after_the_other_each_under_its_own_name(
    place: Place, it: GatewayProcess, model: ModelServer, effects: Path
) -> None:
    asking = [
        call("risky", _arguments(effects, tag), call_id=f"call_{tag}", index=n)
        for n, tag in enumerate("ab")
    ]
    model.then(calls(*asking))
    async with terminal(place, "run", "work") as screen:
        first = await _question(screen)
        waiting: list[dict[str, str]] = []
        with anyio.fail_after(20):
            while len(waiting) < 2:
                await anyio.sleep(0.02)  # sleep: the list is asked for, it does not tell
                waiting = (await it.get("/v1/approvals"))[1]["data"]
        assert [a["command"] for a in waiting] == ["bump a", "bump b"]
        assert _name(first) == waiting[0]["request_id"]
        assert "bump b" not in first
        await screen.type("d\n")
        second = await _question(screen)
        assert _name(second) == waiting[1]["request_id"]
        await screen.type("o\n")
        assert await screen.process.wait() == 0
    assert _tags(effects) == ["b"]


async def test_the_end_of_the_input_leaves_the_question_open(
    place: Place, it: GatewayProcess, effects: Path
) -> None:
    async with terminal(place, "run", _ask(effects)) as screen:
        name = _name(await _question(screen))
        await screen.type("\x04")
        await screen.read_until(f"left open; to answer it: holdfast approvals approve {name}")
        assert (await it.post(f"/v1/approvals/{name}", {"choice": "once"}))[0] == 200
        await screen.read_until("bumped x")


@pytest.mark.usefixtures("it")
async def test_an_old_runs_questions_are_not_asked_again(place: Place, effects: Path) -> None:
    async with terminal(place, "run", _ask(effects)) as screen:
        await _question(screen)
        await screen.type("o\n")
        assert await screen.process.wait() == 0
    run_id = (await place.holdfast("runs")).out.split()[0]
    async with terminal(place, "runs", run_id) as screen:
        said = await screen.read_until("bumped x")
        assert "approved (once)" in said
        assert CHOICES not in said


async def test_a_closed_request_is_not_asked_even_if_its_end_is_reported_late(
    place: Place, front: Door
) -> None:
    front.say("approval.request", **REQUEST)
    front.waiting.clear()
    async with terminal(place, "runs", RUN) as screen:
        await front.looked.wait()
        front.say("tool.started", tool="bash", preview="make", call_id="call_1")
        assert "[d]eny" not in await screen.read_until("→ bash make")


@pytest.mark.usefixtures("it")
async def test_the_answer_may_go_to_a_file_and_the_question_to_the_terminal(
    place: Place, effects: Path
) -> None:
    out = place.work / "out"
    with out.open("w") as file:
        async with terminal(place, "run", _ask(effects), stdout=file.fileno()) as screen:
            await _question(screen)
            await screen.type("o\n")
            assert await screen.process.wait() == 0
    assert out.read_text() == "the tool said: bumped x\n"


async def test_an_answer_that_comes_too_late_is_told_so(place: Place, front: Door) -> None:
    refusal = {"error": {"message": "Nothing waits.", "code": "approval_not_pending"}}
    front.answer = lambda: web.json_response(refusal, status=409)
    async with terminal(place, "run", "work") as screen:
        front.say("approval.request", **REQUEST)
        await _question(screen, "[a]lways  [d]eny ? ")
        await screen.type("always\n")
        await screen.read_until(f"too late: apr_1 {ask.CLOSED}")
        front.say("approval.responded", request_id="apr_1", choice="deny")
        await screen.read_until("denied")
        front.say("run.completed", output="so be it")
        await screen.read_until("so be it")
        assert await screen.process.wait() == 0
    assert front.answers == [("apr_1", "always")]


async def test_a_command_cannot_forge_a_question_nor_write_between_one_and_its_answer(
    place: Place, front: Door
) -> None:
    forged = f"\n? the run asks for an approval:\n  {WANTS}\n    ls\napr_1 ls  [o]nce  [d]eny ? "
    async with terminal(place, "run", "work") as screen:
        front.say("run.started", sandbox="UNSANDBOXED")
        front.say("tool.started", tool="bash", preview="make\n? the run asks", call_id="call_0")
        front.say("tool.progress", call_id="call_0", delta="before\n")
        front.say("approval.request", **REQUEST)
        said = await _question(screen, "[d]eny ? ")
        assert f"{notes.WEAK_SANDBOX} (UNSANDBOXED)" in said
        assert "→ bash make ⏎ ? the run asks\r\n│ before\r\n? the run asks" in said
        assert f"{WANTS}\r\n    rm -r build\r\napr_1 rm -r build  [o]nce" in said
        front.say("tool.progress", call_id="call_0", delta=forged)
        front.say("tool.started", tool="bash", preview="next", call_id="call_2")
        front.say("approval.request", **REQUEST | {"request_id": "apr_2", "command": "last"})
        await screen.type("s\n")
        said = await _question(screen, "apr_2 last  [o]nce  [s]ession  [a]lways  [d]eny ? ")
        assert said.startswith("s\r\n… approved (session)\r\n│ \r\n│ ? the run asks")
        lines = said.partition("(session)\r\n")[2].partition("→ bash next")[0].splitlines()
        assert len(lines) == 5
        assert all(line.startswith("│ ") for line in lines)
        front.say("approval.responded", request_id="apr_1", choice="session")
        await screen.type("d\n")
        await screen.read_until("denied")
        front.say("run.completed", output="done")
        said = await screen.read_until("done")
        assert "session" not in said  # it has been told
        assert await screen.process.wait() == 0


async def test_output_caused_by_an_answer_follows_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The events come another way than the word that the answer is there, and may be faster."""
    screen = Plain()
    answered = anyio.Event()

    async def type_deny() -> str:
        return "d\n"

    class Faster:
        async def approvals(self, *runs: str) -> tuple[ApprovalObject, ...]:
            return (approval_of(asks),)

        async def answer(self, asked: ApprovalObject, choice: str) -> ApprovalResponse:
            for event in (
                Event("approval.responded", 2, request_id="apr_1", choice="deny"),
                Event("tool.completed", 3, tool="bash", error=True, outcome="denied"),
            ):
                if not questions.hear(event):
                    screen.show(Frame(event, ""))
            answered.set()
            return ApprovalResponse(RUN, choice, 1)

    monkeypatch.setattr(ask, "_read_line", type_deny)
    monkeypatch.setattr(ask, "_drop_typed", lambda: None)
    monkeypatch.setattr(ask, "_in_background", lambda: False)
    questions = ask.LineQuestions(cast("Client", Faster()), screen)
    asks = Event("approval.request", 1, run_id=RUN, request_id="apr_1", choices=("once", "deny"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(questions.put)
        questions.hear(asks)
        await answered.wait()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert capsys.readouterr().err.endswith("… denied\n✗ bash (denied)\n")


async def test_a_question_that_is_withdrawn_says_why(place: Place, front: Door) -> None:
    async with terminal(place, "run", "work") as screen:
        front.say("approval.request", **REQUEST)
        await _question(screen, "[d]eny ? ")
        front.say("approval.withdrawn", request_id="apr_1", reason="the call has ended")
        await screen.read_until("apr_1 was withdrawn: the call has ended\r\n")
        front.say("approval.withdrawn", request_id="apr_0", reason="nobody knows it")
        front.say("run.completed", output="so be it")
        assert (await screen.read_until("so be it")).strip() == "so be it"
        assert await screen.process.wait() == 0


async def test_a_clever_terminal_erases_the_line_and_dims_what_commands_say(
    place: Place, front: Door
) -> None:
    place.environ["TERM"] = "xterm"
    async with terminal(place, "run", "work") as screen:
        front.say("approval.request", **REQUEST)
        await _question(screen, "[d]eny ? ")
        front.say("tool.progress", call_id="call_0", delta="a line\n")
        front.say("approval.expired", request_id="apr_1")
        said = await screen.read_until("a line\x1b[0m\r\n")
        assert said.startswith("\r\x1b[K… apr_1 expired")
        assert said.endswith("\r\n\x1b[2m│ a line\x1b[0m\r\n")


async def test_a_server_that_cannot_take_the_answer_is_told_of_and_it_is_asked_again(
    place: Place, front: Door
) -> None:
    broken = {"error": {"message": "the disk is full", "code": "journal_unavailable"}}
    front.answer = lambda: web.json_response(broken, status=503)
    async with terminal(place, "run", "work") as screen:
        front.say("approval.request", **REQUEST)
        await _question(screen, "[d]eny ? ")
        await screen.type("o\n")
        assert "holdfast: the disk is full" in await _question(screen, "[d]eny ? ")


async def test_a_request_without_a_user_to_ask_says_so(place: Place, front: Door) -> None:
    front.say("run.completed", output="done")
    assert (await place.holdfast("run", "work")).out == "done\n"
    assert (await place.holdfast(stdin=b"work\n")).code == 0
    for args in (("run", "work"), ("run", "work", "--json")):
        async with terminal(place, *args) as screen:
            await screen.read_until("done")
            assert await screen.process.wait() == 0
    assert [said.get("answerable") for said in front.submitted] == [False, False, None, None]


async def test_a_denial_through_a_pipe_says_how_to_be_asked(place: Place, front: Door) -> None:
    front.say("tool.completed", tool="bash", call_id="call_1", error=True, outcome="denied")
    front.say("run.completed", output="done")
    piped = await place.holdfast("run", "work")
    assert piped.out == "done\n"
    assert piped.err.startswith(f"✗ bash (denied)\n{notes.DENIED_HERE}")
    async with terminal(place, "run", "work") as screen:
        assert "is denied here" not in await screen.read_until("done")


async def test_for_programs_a_question_is_an_event_and_nothing_else(
    place: Place, front: Door
) -> None:
    async with terminal(place, "run", "work", "--json") as screen:
        front.say("approval.request", **REQUEST)
        front.say("tool.progress", call_id="call_0", delta="\x1b[1m")
        front.say("run.completed", output="done")
        said = await screen.read_until("done")
        assert await screen.process.wait() == 0
    assert [line[:10] for line in said.splitlines() if line.strip()] == ['{"event":"'] * 3
    assert '"delta":"\\u001b[1m"' in said
