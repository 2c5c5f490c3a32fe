"""The model's stream is reset at each chunk: the turn is repeated and nothing is duplicated."""

from collections import Counter
from pathlib import Path

import anyio
import pytest

from holdfast.core.messages import User
from holdfast.core.types import Usage
from holdfast.errors import Transient
from holdfast.models.model import Request
from holdfast.models.peer import Peer
from tests.crash.evidence import ask_for, endings, lines, noted
from tests.fakes.gateway import GatewayProcess
from tests.fakes.model_server import SETTINGS, Abort, Ask, Reply, stream
from tests.models.wires import REMOTES, Remote, remote_gateway

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.fault("F-15"),
    pytest.mark.parametrize("remote", REMOTES, ids=lambda remote: str(remote.name)),
]

ANSWER = "the whole answer"


class Faulty:
    """A model whose first answer to `cut:N …` ends in a reset after N chunks of it."""

    def __init__(self, remote: Remote, answer: Reply) -> None:
        self._wire = remote.wire
        self._answer = answer
        self._asked: Counter[str] = Counter()

    def __call__(self, ask: Ask) -> Reply:
        if ask.messages[-1].role == "tool":
            return self._wire.say("done")
        words = next(m.text for m in reversed(ask.messages) if m.role == "user")
        self._asked[words] += 1
        if self._asked[words] > 1:
            return self._answer
        return stream(*self._answer.steps[: int(words.removeprefix("cut:"))], Abort())


def _usage(remote: Remote, answer: Reply, number: int) -> Usage:
    """The usage of a run whose first answer is cut after so many chunks of it."""
    parser = remote.parser(Peer(remote.name, "host", "m", "", SETTINGS))
    try:
        for step in answer.steps[:number]:
            assert isinstance(step, bytes)
            parser.feed(step)
        parser.end()
    except Transient:
        return _usage(remote, answer, len(answer.steps))
    # The answer may be whole when what it cost is still to come.
    return parser.answer(Request("m", "", [User("hello")], [])).usage


async def _read(it: GatewayProcess, text: str, usage: Usage) -> None:
    with noted(text):
        run_id = await it.run(text)
        events = await it.events(run_id)
        done = await it.status(run_id)
        assert endings(events) == ["run.completed"]
        assert done["output"] == events.text == ANSWER
        assert done["usage"]["input_tokens"] == usage.input_tokens
        assert done["usage"]["output_tokens"] == usage.output_tokens
        assert done["usage"]["total_tokens"] == usage.total_tokens
        for name in ("run.started", "tool.started", "tool.completed"):
            assert events.names.count(name) <= 1, events.names


@pytest.mark.promise("RUN-07")
async def test_a_stream_reset_at_any_chunk_gives_the_text_once_and_the_usage_once(
    tmp_path: Path, remote: Remote
) -> None:
    answer = remote.wire.say(ANSWER, 4)
    assert _usage(remote, answer, 0) == Usage(7, 4)
    async with (
        remote_gateway(tmp_path, remote, Faulty(remote, answer)) as it,
        anyio.create_task_group() as together,
    ):
        for number in range(len(answer.steps)):
            usage = _usage(remote, answer, number)
            together.start_soon(_read, it, f"cut:{number}", usage)


async def test_a_stream_reset_inside_a_call_runs_the_call_once(
    tmp_path: Path, remote: Remote
) -> None:
    effects = tmp_path / "effects"
    arguments = ask_for("bump", path=effects, tag="x").partition(" ")[2]
    answer = remote.wire.call([("bump", arguments)])
    async with remote_gateway(tmp_path, remote, Faulty(remote, answer)) as it:
        async with anyio.create_task_group() as together:
            for number in range(len(answer.steps)):
                together.start_soon(it.finished, await it.run(f"cut:{number}"))
        assert len(lines(effects)) == len(answer.steps)
