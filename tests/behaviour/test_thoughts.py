"""What a model keeps in its answer for itself comes back to it, also after a kill, unchanged."""

from pathlib import Path

import anyio
import msgspec
import pytest

from tests.fakes import anthropic, gemini, responses
from tests.fakes.gateway import gateway
from tests.fakes.model_server import Reply, Wait, Wire, serve, stream

pytestmark = pytest.mark.anyio

SIGNED = "c2lnbmVk+/=="  # base64, as signatures are
CALL = ("list_files", "{}")

ANSWERS = {
    "anthropic": (
        anthropic.WIRE,
        stream(
            anthropic.start(),
            *anthropic.thought("hm", 1, 0, SIGNED),
            *anthropic.tool_use(*CALL, 1, "c1"),
            *anthropic.finish("tool_use"),
        ),
    ),
    "responses": (
        responses.WIRE,
        stream(
            *responses.thought("hm", 1, 0, SIGNED),
            *responses.function_call(*CALL, 1, "c1"),
            responses.finish(),
        ),
    ),
    "gemini": (
        gemini.WIRE,
        stream(gemini.function_call("list_files", {}, SIGNED), gemini.finish()),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_what_a_model_signed_comes_back_after_a_kill_as_it_was(
    tmp_path: Path, name: str
) -> None:
    wire: Wire
    answer: Reply
    wire, answer = ANSWERS[name]
    async with serve(wire=wire) as server:
        table = f'[models.{name}]\nbase_url = "{server.base_url}"\napi_key = "key-of-a-test"\n'
        async with gateway(tmp_path, config=f'model = "{name}/fake"\n{table}') as it:
            server.then(answer, stream(Wait()), wire.say("nothing"))
            run_id = await it.run("what is here?")
            with anyio.fail_after(20):
                await it.events(run_id, until="tool.completed")  # so the answer is on disk
                await server.asked(2)
            await it.kill()
            await it.start()
            assert (await it.finished(run_id))["output"] == "nothing"
            server.then(wire.say("you are welcome"))
            again = await it.run("thanks", session_id=(await it.status(run_id))["session_id"])
            await it.finished(again)
    first, *others = (msgspec.json.encode(seen.body).decode() for seen in server.requests)
    assert SIGNED not in first
    assert [body.count(SIGNED) for body in others] == [1, 1, 1]
