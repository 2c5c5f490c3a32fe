"""kill -9 in the middle of a model's stream, and between two attempts, with every provider."""

from pathlib import Path

import anyio
import pytest

from tests.crash.evidence import endings
from tests.fakes.model_server import Ask, Reply, Wait, stream
from tests.models.wires import REMOTES, Remote, remote_gateway

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.fault("F-15"),
    pytest.mark.parametrize("remote", REMOTES, ids=lambda remote: str(remote.name)),
]

ANSWER = "the whole answer"


async def test_a_run_whose_stream_is_cut_by_a_kill_answers_once(
    tmp_path: Path, remote: Remote
) -> None:
    answer = remote.wire.say(ANSWER, 4)
    replies = iter([stream(*answer.steps[: len(answer.steps) // 2], Wait()), answer])
    async with remote_gateway(tmp_path, remote, lambda ask: next(replies)) as it:
        run_id = await it.run("go")
        with anyio.fail_after(20):
            await it.events(run_id, until="message.delta")
        await it.kill()
        await it.start()
        done = await it.finished(run_id)
        events = await it.events(run_id)
    assert (done["output"], events.text) == (ANSWER, ANSWER)
    assert endings(events) == ["run.completed"]
    assert {"run.resumed", "message.void"} <= set(events.names)
    assert done["usage"]["total_tokens"] == 11, "the usage of the answer that counts, once"


async def test_a_run_that_is_killed_between_two_attempts_goes_on_with_the_next(
    tmp_path: Path, remote: Remote
) -> None:
    asked: list[str] = []
    second = anyio.Event()

    def play(ask: Ask) -> Reply:
        asked.append(ask.model)
        if ask.model == "fake":
            return remote.wire.refuse(503, "busy")
        if not second.is_set():
            second.set()
            return stream(Wait())
        return remote.wire.say(ANSWER, 4)

    fallback = f'fallbacks = ["{remote.name}/spare"]\n'
    async with remote_gateway(tmp_path, remote, play, fallback) as it:
        run_id = await it.run("go")
        with anyio.fail_after(20):
            await second.wait()
        await it.kill()
        await it.start()
        done = await it.finished(run_id)
    assert (done["status"], done["output"]) == ("completed", ANSWER)
    assert done["model"] == f"{remote.name}/spare"
    assert asked == ["fake", "spare", "spare"], "it goes on with the model it had come to"
