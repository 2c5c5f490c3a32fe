"""The model's stream is reset at each chunk: the turn is repeated and nothing is duplicated."""

from collections import Counter
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from holdfast.core.events import MessageDelta
from holdfast.core.run.limits import Limits
from holdfast.core.run.run import MessageVoided, ModelFailed, RunCompleted
from holdfast.core.types import Fact, Usage
from holdfast.host.machine import SystemClock
from tests.crash.evidence import ask_for, endings, lines, noted
from tests.engine.workshop import finished, follow, serving, submit
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import (
    Abort,
    Ask,
    Reply,
    call,
    calls,
    react,
    say,
    serve,
    server_at,
    stream,
)
from tests.models.wires import REMOTES, Remote

pytestmark = pytest.mark.anyio

ANSWER = say("the whole answer", tokens=4)
COST = ANSWER.steps[-2]


class Faulty:
    """A model whose first answer to `cut:N …` ends in a reset after N chunks of it."""

    def __init__(self, answers: dict[str, Reply]) -> None:
        self._answers = answers
        self._asked: Counter[str] = Counter()

    def __call__(self, ask: Ask) -> Reply:
        words = next(m.text for m in reversed(ask.messages) if m.role == "user")
        marker, _, rest = words.partition(" ")
        if not marker.startswith("cut:") or ask.messages[-1].role == "tool":
            return react(ask)
        reply = self._answers[rest.partition(" ")[0]]
        self._asked[words] += 1
        if self._asked[words] > 1:
            return reply
        return stream(*reply.steps[: int(marker[4:])], Abort())


async def _read(it: GatewayProcess, text: str, expected: str, usage: dict[str, int]) -> None:
    with noted(text):
        run_id = await it.run(text)
        events = await it.events(run_id)
        done = await it.status(run_id)
        assert endings(events) == ["run.completed"]
        assert done["output"] == events.text == expected
        assert done["usage"] == usage
        for name in ("run.started", "tool.started", "tool.completed"):
            assert events.names.count(name) <= 1, events.names


@pytest.mark.fault("F-15")
@pytest.mark.promise("RUN-07")
async def test_a_stream_reset_at_any_chunk_gives_the_text_once_and_the_usage_once(
    tmp_path: Path,
) -> None:
    whole = {"input_tokens": 7, "output_tokens": 4, "total_tokens": 11}
    unsaid = dict.fromkeys(whole, 0)  # the answer was whole, what it cost was not said yet
    async with (
        serve(Faulty({"text": ANSWER})) as model,
        gateway(tmp_path, model.base_url) as it,
        anyio.create_task_group() as together,
    ):
        for number in range(len(ANSWER.steps)):
            usage = unsaid if ANSWER.steps[number] == COST else whole
            together.start_soon(_read, it, f"cut:{number} text", "the whole answer", usage)


@pytest.mark.fault("F-15")
async def test_a_stream_reset_inside_a_call_runs_the_call_once(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    arguments = ask_for("bump", path=effects, tag="x").partition(" ")[2]
    answer = calls(call("bump", arguments, parts=4))
    async with (
        serve(Faulty({"call": answer})) as model,
        gateway(tmp_path, model.base_url) as it,
    ):
        async with anyio.create_task_group() as together:
            for number in range(len(answer.steps)):
                together.start_soon(it.finished, await it.run(f"cut:{number} call"))
        assert len(lines(effects)) == len(answer.steps)


@pytest.mark.fault("F-15")
@pytest.mark.parametrize("remote", REMOTES, ids=lambda remote: str(remote.name))
async def test_with_every_provider_a_reset_gives_the_text_once_and_the_usage_once(
    tmp_path: Path, remote: Remote
) -> None:
    wire = remote.wire
    answer = wire.say("the whole answer", 4)
    asked: Counter[str] = Counter()

    def play(ask: Ask) -> Reply:
        words = ask.messages[-1].text
        asked[words] += 1
        first = asked[words] == 1
        return stream(*answer.steps[: int(words)], Abort()) if first else answer

    async with (
        serve(play, wire=wire) as server,
        aclosing(remote.create(server_at(server.base_url, provider=remote.name))) as model,
        serving(tmp_path, model, clock=SystemClock(), limits=Limits(backoff_s=0.01)) as service,
    ):
        runs = [await submit(service, str(number)) for number in range(len(answer.steps))]
        for number, run_id in enumerate(runs):
            with noted(f"reset after {number} chunks"):
                view = await finished(service, run_id)
                assert isinstance(view.ending, RunCompleted)
                assert view.ending.output == "the whole answer"
                records = [record.fact for record in await follow(service, run_id)]
                assert _shown(records) == "the whole answer"
                again = asked[str(number)] > 1
                assert sum(isinstance(fact, ModelFailed) for fact in records) == again
                # It may break off when the answer is whole and its usage is still to come.
                assert view.usage == Usage(7, 4) or (not again and view.usage == Usage())
        assert sum(asked.values()) > len(runs)


def _shown(facts: list[Fact]) -> str:
    """The text that readers have at the end."""
    text = ""
    for fact in facts:
        if isinstance(fact, MessageVoided):
            text = ""
        elif isinstance(fact, MessageDelta):
            text += fact.text
    return text
