"""A question to the user: asked by a call that waits, answered once, and never lost."""

from pathlib import Path

import anyio
import msgspec
import pytest

from holdfast.tools.ask import NO_USER
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio


def _ask(question: str, *options: str) -> str:
    asked = {"question": question, "options": options}
    return f"tool:ask {msgspec.json.encode(asked).decode()}"


async def _asked(it: GatewayProcess, run_id: str) -> dict[str, object]:
    """What a run asks, once it does."""
    stream = await it.events(run_id, until="question.asked")
    return next(f.data for f in stream.frames if f.event == "question.asked")


@pytest.mark.promise("RUN-20", "RUN-19")
async def test_a_run_asks_and_the_next_words_to_it_are_the_answer(it: GatewayProcess) -> None:
    run_id = await it.run(_ask("Which colour?", "red", "blue"))
    asked = await _asked(it, run_id)
    assert (asked["question"], asked["options"]) == ("Which colour?", ["red", "blue"])
    status = await it.status(run_id)
    assert (status["status"], status["last_event"]) == ("running", "question.asked")
    question = {k: asked[k] for k in ("call_id", "question", "options")}
    assert status["question"] == question
    (listed,) = (await it.get("/v1/runs"))[1]["data"]
    assert (listed["status"], listed["question"]) == ("running", question)
    assert (await it.get("/health/detailed"))[1]["runs"]["running"] == 0
    answer = await it.post(f"/v1/runs/{run_id}/steer", {"input": "green, please"})
    assert answer == (200, {"object": "hermes.run.steer", "run_id": run_id, "accepted": True})
    stream = await it.events(run_id)
    names = [n for n in stream.names if not n.startswith("message.")]
    assert names == [
        "run.started",
        "tool.started",
        "question.asked",
        "question.answered",
        "tool.completed",
        "run.resumed",
        "run.completed",
    ]
    done = await it.status(run_id)
    assert done["output"] == "the tool said: green, please"
    assert "question" not in done


async def test_an_answer_that_names_its_question_answers_no_other(it: GatewayProcess) -> None:
    run_id = await it.run(_ask("First?") + "\n" + _ask("Second?"))
    first = await _asked(it, run_id)
    answers: list[int] = []

    async def say(words: str) -> None:
        body = {"input": words, "call_id": first["call_id"]}
        answers.append((await it.post(f"/v1/runs/{run_id}/steer", body))[0])

    async with anyio.create_task_group() as people:
        for number in range(5):
            people.start_soon(say, f"answer {number}")
    assert sorted(answers) == [200, 409, 409, 409, 409]
    stream = await it.events(run_id, after=int(str(first["seq"])), until="question.asked")
    second = next(f.data for f in stream.frames if f.event == "question.asked")
    assert second["question"] == "Second?"
    code, refused = await it.post(
        f"/v1/runs/{run_id}/steer", {"input": "late", "call_id": first["call_id"]}
    )
    assert (code, refused["error"]["code"]) == (409, "question_not_waiting")
    await it.post(f"/v1/runs/{run_id}/steer", {"input": "two", "call_id": second["call_id"]})
    assert (await it.finished(run_id))["output"] == "the tool said: two"


async def test_a_repeated_answer_counts_once(
    it: GatewayProcess,
) -> None:
    run_id = await it.run(_ask("First?") + "\n" + _ask("Second?"))
    first = await _asked(it, run_id)
    answer = {"input": "one", "call_id": first["call_id"]}
    path, key = f"/v1/runs/{run_id}/steer", {"Idempotency-Key": "k1"}
    statuses: list[int] = []

    async def say() -> None:
        statuses.append((await it.post(path, answer, key))[0])

    async with anyio.create_task_group() as again:
        for _ in range(5):
            again.start_soon(say)
    stream = await it.events(run_id, after=int(str(first["seq"])), until="question.asked")
    second = next(f.data for f in stream.frames if f.event == "question.asked")
    await it.kill()
    await it.start()
    await say()
    assert statuses == [200] * 6
    assert (await it.post(path, answer, {"Idempotency-Key": "k2"}))[0] == 409
    assert (await it.post(path, answer | {"input": "uno"}, key))[0] == 409, "those are others"
    await it.post(path, {"input": "two", "call_id": second["call_id"]}, {"Idempotency-Key": "k3"})
    assert (await it.finished(run_id))["output"] == "the tool said: two"
    await say()
    assert statuses[-1] == 200, "whatever has become of the run"


async def test_if_no_user_can_answer_the_model_is_told_to_decide(it: GatewayProcess) -> None:
    run_id = await it.run(_ask("Which colour?"), answerable=False)
    done = await it.finished(run_id)
    assert NO_USER in done["output"]


@pytest.mark.parametrize(
    "asked",
    [
        {"question": ""},
        {"question": "?", "options": ["x"] * 7},
        {"question": "?", "options": ["x" * 61]},
    ],
    ids=["no question", "too many options", "too long an option"],
)
async def test_invalid_questions_are_refused_with_a_message_to_the_model(
    it: GatewayProcess, asked: dict[str, object]
) -> None:
    run_id = await it.run(f"tool:ask {msgspec.json.encode(asked).decode()}")
    assert "do not fit ask" in (await it.finished(run_id))["output"]


@pytest.mark.fault("F-10")
async def test_a_question_survives_a_kill_and_is_answered_after_it(
    tmp_path: Path, model: ModelServer
) -> None:
    async with gateway(tmp_path, model.base_url) as it:
        run_id = await it.run(_ask("Which colour?", "red"))
        before = await _asked(it, run_id)
        await it.kill()
        await it.start()
        status = await it.status(run_id)
        assert (status["status"], status["question"]["call_id"]) == ("running", before["call_id"])
        body = {"input": "red", "call_id": before["call_id"]}
        assert (await it.post(f"/v1/runs/{run_id}/steer", body))[0] == 200
        await it.kill()
        await it.start()
        assert (await it.finished(run_id))["output"] == "the tool said: red"
        names = (await it.events(run_id)).names
        assert names.count("question.asked") == names.count("question.answered") == 1


async def test_a_run_that_is_stopped_waits_for_no_answer(it: GatewayProcess) -> None:
    run_id = await it.run(_ask("Which colour?"))
    await _asked(it, run_id)
    await it.post(f"/v1/runs/{run_id}/stop")
    done = await it.finished(run_id)
    assert done["status"] == "cancelled" and "question" not in done
    code, refused = await it.post(f"/v1/runs/{run_id}/steer", {"input": "red"})
    assert (code, refused["error"]["code"]) == (409, "run_not_accepting_steer")


async def test_a_run_that_waits_for_an_answer_occupies_no_slot(
    tmp_path: Path, model: ModelServer
) -> None:
    async with gateway(tmp_path, model.base_url, "[limits]\nrunning = 1\n") as it:
        await _asked(it, await it.run(_ask("Which colour?")))
        assert (await it.finished(await it.run("hello")))["output"] == "echo: hello"
