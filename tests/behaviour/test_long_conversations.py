"""Conversations that are longer than the model's window, through the API."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.commands import context
from tests.behaviour.terminals import command
from tests.fakes import model_server as says
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import Ask, ModelServer, Reply, serve

pytestmark = pytest.mark.anyio

WINDOW = 8_000
FACT = "The boat is called Marigold."


class SmallModel:
    """Reads at most `WINDOW` tokens, counts them, and summarizes when asked to."""

    def __init__(self) -> None:
        self.refused = 0
        self.summaries = 0

    def __call__(self, ask: Ask) -> Reply:
        tokens = sum(len(m.text) for m in ask.messages) // 4
        if tokens > WINDOW:
            self.refused += 1
            return says.refuse(
                400,
                f"This model's maximum context length is {WINDOW} tokens.",
                code="context_length_exceeded",
            )
        if "write the memory of an assistant" in ask.messages[0].text:
            self.summaries += 1
            kept = [s for s in ask.messages[-1].text.split("\n") if "Marigold" in s]
            return says.say("\n".join(kept) or "nothing to note", prompt=tokens)
        words = ask.messages[-1].text
        if "what is the boat called" in words:
            knows = any("Marigold" in m.text for m in ask.messages[:-1])
            return says.say("Marigold" if knows else "I do not know", prompt=tokens)
        return says.say("noted", prompt=tokens)


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with serve(SmallModel()) as server:
        yield server


KNOWN = f"[openai]\ncontext_tokens = {WINDOW}\n"


@pytest.mark.promise("CTX-01")
async def test_a_conversation_longer_than_the_window_goes_on(
    tmp_path: Path, model: ModelServer
) -> None:
    async with gateway(tmp_path, model.base_url, KNOWN) as it:
        await it.finished(await it.run(FACT, session_id="s"))
        for number in range(60):
            run = await it.finished(await it.run(f"{number} " + "word " * 300, session_id="s"))
            assert run["status"] == "completed", run
        asked = await it.finished(await it.run("what is the boat called?", session_id="s"))
        assert asked["output"] == "Marigold"
        status, body = await it.get("/api/sessions/s/messages")
        assert status == 200
        assert len(body["data"]) == 2 * 62, "people still read every message"
    assert isinstance(model.otherwise, SmallModel)
    assert model.otherwise.refused == 0, "it was compacted before the server refused"
    assert model.otherwise.summaries >= 1


@pytest.mark.promise("CTX-04")
async def test_a_user_can_compact_and_see_what_fills_the_window(
    tmp_path: Path, model: ModelServer
) -> None:
    async with gateway(tmp_path, model.base_url, KNOWN) as it:
        await it.finished(await it.run(FACT, session_id="s"))
        for number in range(12):
            await it.finished(await it.run(f"{number} " + "word " * 300, session_id="s"))
        before = (await command(it, "s", "/context"))["output"]
        assert "of 8,000 tokens" in before
        done = (await command(it, "s", "/compact the name of the boat"))["output"]
        assert context.COMPACTED.partition("{")[0] in done
        assert "Notes on" in (await command(it, "s", "/context"))["output"]
        asked = await it.finished(await it.run("what is the boat called?", session_id="s"))
        assert asked["output"] == "Marigold"
    instruction = next(
        r.body["messages"][0]["content"]
        for r in model.requests
        if "write the memory of an assistant" in str(r.body["messages"][0]["content"])
    )
    assert "the name of the boat" in instruction


@pytest.mark.promise("CTX-02")
async def test_a_refusal_for_length_is_answered_by_compacting_once(
    it: GatewayProcess, model: ModelServer
) -> None:
    """Nothing says here how much the model reads, so only its refusal can."""
    await it.finished(await it.run(FACT, session_id="s"))
    for number in range(40):
        run = await it.finished(await it.run(f"{number} " + "word " * 300, session_id="s"))
        assert run["status"] == "completed", run
    assert isinstance(model.otherwise, SmallModel)
    assert 1 <= model.otherwise.refused <= 12
    asked = await it.finished(await it.run("what is the boat called?", session_id="s"))
    assert asked["output"] == "Marigold"
