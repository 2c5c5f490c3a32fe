"""Questions of a run at a real terminal are never answered by accident (HALT-09)."""

import json
import os
import signal

import anyio
import pytest

from holdfast.cli.run.approval import WANTS
from holdfast.cli.tui.asked import ASKS_YOU, EXPLAIN, NO_ANSWER, NOT_WHOLE, READ_FIRST
from holdfast.cli.tui.attention import notification
from holdfast.cli.tui.input.answers import FLOW_S, SEEN_S
from holdfast.cli.tui.pager import KEYS
from tests.behaviour.desk import ASKS, Desk, approve, idle
from tests.behaviour.hands import command
from tests.fakes import model_server as says
from tests.fakes.emulator import Emulator
from tests.fakes.screen import Screen

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]


def _ask(question: str) -> str:
    return f"tool:ask {json.dumps({'question': question, 'options': []})}"


async def _answer_elsewhere(at: Desk, words: str) -> str:
    """Answer the one run there is, over HTTP; its id."""
    (run,) = (await at.gateway.get("/v1/runs"))[1]["data"]
    status, _ = await at.gateway.post(f"/v1/runs/{run['run_id']}/steer", {"input": words})
    assert status == 200
    return str(run["run_id"])


async def _read(it: Screen, question: str) -> None:
    """Return when the question is there, and has been for long enough to be read."""
    await it.until(lambda t: f"  {question}" in t and "your answer ?" in t)
    await _enter(it, "type an answer; then Enter")


async def _enter(it: Screen, wanted: str) -> None:
    """Enter, a second time if the question had only just appeared and took no answer."""
    await it.key("Enter")
    if wanted not in await it.until(lambda t: wanted in t or READ_FIRST in t):
        await anyio.sleep(FLOW_S)  # sleep: that long it takes none
        await it.key("Enter")
        await it.until(wanted)


async def test_words_typed_to_a_question_are_its_answer(alone: Desk) -> None:
    async with alone.terminal() as it:
        await it.say(_ask("Which colour?"))
        await _read(it, "Which colour?")
        await it.say("green")
        await it.until("the tool said: green")
    assert len(alone.told()) == 2


@pytest.mark.promise("HALT-09")
async def test_half_an_answer_to_a_question_that_closes_stays_in_the_line(served: Desk) -> None:
    async with served.terminal() as it:
        await it.say(_ask("Which colour?"))
        await it.until("your answer ?")
        await it.type("say:my own")
        await it.until("your answer ? say:my own")
        await _answer_elsewhere(served, "theirs")
        await it.until(lambda t: "the tool said: theirs" in t and "› say:my own" in t)
        await it.say(" words")
        await it.until("\nmy own words")
    assert served.heard()[-1] == "say:my own words"


@pytest.mark.promise("HALT-09", "HALT-01")
async def test_an_answer_that_was_sent_too_late_is_the_next_input(served: Desk) -> None:
    """The terminal stands still while the question is answered elsewhere, its keys behind that."""
    async with served.terminal() as it:
        await it.say(_ask("Which colour?"))
        await _read(it, "Which colour?")
        os.kill(it.pid, signal.SIGSTOP)
        await it.say("say:my own words")
        await served.gateway.finished(await _answer_elsewhere(served, "theirs"))
        os.kill(it.pid, signal.SIGCONT)
        await it.until(lambda t: idle(t) and "\nmy own words" in t)
        assert "the tool said: theirs" in await it.said()
    assert served.told()[-1] == "say:my own words"
    assert sum("my own words" in words for words in served.told()) == 1


@pytest.mark.promise("HALT-09")
async def test_an_answer_to_one_question_is_never_taken_for_another(served: Desk) -> None:
    async with served.terminal() as it:
        await it.say(_ask("First?") + "\n" + _ask("Second?"))
        await _read(it, "First?")
        os.kill(it.pid, signal.SIGSTOP)
        await it.say("meant for the first")
        run_id = await _answer_elsewhere(served, "theirs")
        first = await served.gateway.events(run_id, until="question.asked")
        await served.gateway.events(run_id, first.frames[-1].id, until="question.asked")
        os.kill(it.pid, signal.SIGCONT)
        await it.until(lambda t: "› meant for the first" in t or READ_FIRST in t)
        shown = await it.until("meant for the first")
        status = await served.gateway.status(run_id)
    if READ_FIRST in shown:
        assert status["question"]["question"] == "Second?"
    results = [m for r in served.model.requests for m in r.body["messages"] if m["role"] == "tool"]
    assert not [m for m in results if "meant" in m["content"]]


@pytest.mark.promise("HALT-01", "HALT-09")
async def test_words_typed_before_an_approval_that_closes_stay_in_the_line(served: Desk) -> None:
    async with served.terminal() as it:
        await it.say(command("touch made"))
        await it.until(ASKS)
        await it.type("say:not that one")
        await it.until("? say:not that one")
        (asked,) = (await served.gateway.get("/v1/approvals"))[1]["data"]
        path = f"/v1/approvals/{asked['request_id']}"
        assert (await served.gateway.post(path, {"choice": "deny"}))[0] == 200
        await it.until("› say:not that one")
        await it.key("Enter")
        await it.until("\nnot that one")
    assert not (served.work / "made").exists()


async def test_nothing_is_chosen_beforehand_and_what_was_being_typed_answers_nothing(
    alone: Desk,
) -> None:
    gate = says.Wait()
    arguments = json.dumps({"command": "touch made"})
    asks = (*says.call("terminal", arguments), says.finish("tool_calls"), says.DONE)
    alone.model.then(says.stream(says.token("so"), gate, *asks))
    async with alone.terminal() as it:
        await it.say("go on")
        await it.until("so")
        await it.type("once more, ")
        await it.until("› once more,")
        gate.gate.set()
        shown = await it.until(ASKS)
        assert WANTS in shown and "touch made" in shown
        assert "once more" not in shown
        await _enter(it, NO_ANSWER)
        assert not (alone.work / "made").exists()
        await approve(it, "d")
        await it.until(lambda t: "denied: touch made" in t and "› once more," in t)
        assert not (alone.work / "made").exists()
        await it.key("C-u")
        await it.say(command("touch made"))
        await approve(it, "once")
        await it.until(lambda t: "approved (once): touch made" in t and "exit_code" in t)
        assert (alone.work / "made").exists()


async def test_all_of_what_would_run_is_shown_on_a_key(alone: Desk) -> None:
    lines = "\n".join(f"touch file-{n}" for n in range(60))
    async with alone.terminal() as it:
        await it.say(command(lines))
        shown = await it.until("more lines: Ctrl-O shows all")
        assert "| touch file-0\n" in shown and "| touch file-59\n" in shown
        assert "| touch file-30\n" not in shown
        await it.key("C-o")
        seen = await it.until(KEYS)
        await it.type("G")
        seen += await it.until("| touch file-59\n")
        for _ in range(3):
            await it.type("b")
            await anyio.sleep(0.1)  # sleep: pages look alike
            seen += await it.text()
        assert all(f"    | touch file-{n}\n" in seen for n in range(60))
        await it.type("q")
        await it.until(ASKS)


async def test_a_yes_counts_only_for_what_was_shown_whole(alone: Desk) -> None:
    lines = "\n".join(f"touch file-{n}" for n in range(60))
    async with alone.terminal() as it:
        await it.say(command(lines, unsandboxed=True))
        await it.until("approval (UNSANDBOXED; ")  # also where the line that says so is cut
        await it.type("once")
        await _enter(it, NOT_WHOLE)
        assert not (alone.work / "file-0").exists()
        await it.key("C-u", "C-o")
        await it.until(KEYS)
        await it.type("q")
        await approve(it, "once")
        await it.until("approved (once)")
        await it.until("exit_code")
        assert (alone.work / "file-59").exists()


async def _press(it: Screen, key: str, gone: str = ASKS) -> None:
    """Press one key once the question has been there for long enough to be read."""
    await it.until(ASKS)
    await anyio.sleep(SEEN_S)  # sleep: before that it is not an answer
    await it.type(key)
    await it.until(lambda t: gone not in t)


@pytest.mark.promise("TERM-01")
async def test_one_key_answers_without_enter(alone: Desk) -> None:
    async with alone.terminal() as it:
        await it.say(command("touch made"))
        await _press(it, "n")
        await it.until("denied: touch made")
        assert not (alone.work / "made").exists()
        await it.say(command("touch made"))
        await _press(it, "y")
        await it.until(lambda t: "approved (once): touch made" in t and "exit_code" in t)
        assert (alone.work / "made").exists()


@pytest.mark.promise("TERM-01")
async def test_a_sentence_is_no_answer_and_does_not_end_the_run(alone: Desk) -> None:
    async with alone.terminal() as it:
        await it.say(command("touch made"))
        await it.until(ASKS)
        await anyio.sleep(SEEN_S)  # sleep: from here on a key may answer
        await it.say("yes and always")
        shown = await it.until(NO_ANSWER)
        assert ASKS in shown and "? yes and always" in shown
        await it.key("C-u")
        await _press(it, "n")
        await it.until(lambda t: idle(t) and "denied: touch made" in t)
        assert "■ interrupted" not in await it.said()
    assert len(alone.told()) == 2  # the message and the result: the sentence was not sent


@pytest.mark.promise("TERM-02")
async def test_a_question_rings_and_the_title_of_the_window_says_so(alone: Desk) -> None:
    async with alone.terminal() as it:
        assert isinstance(it, Emulator)
        await it.say(command("touch made"))
        await it.until(ASKS)
        assert it.title.endswith("· needs you")
        assert notification(f"{ASKS_YOU}: touch made", old=False).encode() in it.written
        await _press(it, "n")
        await it.until(idle)
        await it.until(lambda _: it.title.endswith("· ready"))
        await it.key("C-d")
        await it.ended()
        assert b"\x1b[23;2t" in it.written


@pytest.mark.promise("TERM-01")
async def test_a_denial_has_a_reason_that_the_model_reads(alone: Desk) -> None:
    async with alone.terminal() as it:
        await it.say(command("touch made"))
        await it.until(ASKS)
        await it.key("Tab")
        await it.until(EXPLAIN)
        await it.say("yes is wrong: use git")
        await it.until(lambda t: idle(t) and "use git)" in t)
    assert not (alone.work / "made").exists()
    assert "yes is wrong: use git" in alone.told()[-1]
