"""A conversation of a thousand turns with a model that reads 8,000 tokens at once."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from holdfast.core.messages import Assistant, ToolResult, User
from holdfast.core.run.call import OnCrash
from holdfast.core.run.run import RunCompleted
from holdfast.core.session.compaction import INSTRUCTION, estimate_all, tokens
from holdfast.core.types import SessionId, Usage
from holdfast.models.model import Answer, Piece, Request
from holdfast.tools.tool import Context, Done, Effect, Outcome, Tool, free
from tests.engine.workshop import ME, Played, call, finished, serving, submit

pytestmark = pytest.mark.anyio

TURNS = 1_000
WINDOW = 8_000
FACT = "The boat is called Marigold."
QUESTION = "What is the boat called?"


class Note(msgspec.Struct):
    text: str


async def _note(context: Context, arguments: Note) -> Outcome:
    return Done(f"noted {arguments.text} " + "line " * 200)


NOTE = Tool(
    name="note",
    description="Note something.",
    arguments=Note,
    effect=Effect.READ,
    on_crash=OnCrash.REPEAT,
    timeout_s=5.0,
    run=_note,
    preview=lambda arguments: arguments.text,
    permit=free,
)


class Reader:
    """A model that calls a tool for each message, checks what it reads, and counts it."""

    def __init__(self) -> None:
        self.calls = 0
        self.longest = 0
        self.summaries = 0

    def __call__(self, request: Request) -> Iterable[Piece]:
        used = estimate_all(request.messages) + tokens(request.system)
        self.longest = max(self.longest, used)
        if request.system.startswith(INSTRUCTION[:40]):
            self.summaries += 1
            lines = request.messages[-1].text.split("\n")
            return (Answer("\n".join({n for n in lines if FACT in n}), usage=Usage(used, 5)),)
        _check_pairs(request)
        last = request.messages[-1]
        if isinstance(last, ToolResult):
            return (Answer("done", usage=Usage(used, 5)),)
        if last.text.endswith(QUESTION):
            known = any(FACT in m.text for m in request.messages)
            return (Answer("Marigold" if known else "I do not know", usage=Usage(used, 5)),)
        self.calls += 1
        asked = call("note", '{"text": "this"}', f"c{self.calls}")
        return (Answer("", calls=(asked,), usage=Usage(used, 5)),)


def _check_pairs(request: Request) -> None:
    """Every call is followed by its result, and every result by nothing but its call."""
    proposed = [c.call_id for m in request.messages if isinstance(m, Assistant) for c in m.calls]
    settled = [m.call_id for m in request.messages if isinstance(m, ToolResult)]
    assert proposed == settled


@pytest.mark.promise("CTX-01")
async def test_a_thousand_turns_lose_nothing_and_never_fill_the_window(tmp_path: Path) -> None:
    reader = Reader()
    async with serving(tmp_path, Played(reader), window=WINDOW, tools=(NOTE,)) as service:
        await finished(service, await submit(service, FACT, "s"))
        for number in range(TURNS // 2 - 1):  # each message takes two turns
            view = await finished(service, await submit(service, f"message {number}", "s"))
            assert isinstance(view.ending, RunCompleted)
        view = await finished(service, await submit(service, QUESTION, "s"))
        assert isinstance(view.ending, RunCompleted) and view.ending.output == "Marigold"
    async with serving(tmp_path, Played(reader), window=WINDOW, tools=(NOTE,)) as service:
        view = await finished(service, await submit(service, QUESTION, "s"))
        assert isinstance(view.ending, RunCompleted) and view.ending.output == "Marigold"
        whole = await service.messages(ME, SessionId("s"))
    asked = [m.text for m in whole if isinstance(m, User)]
    assert asked == [FACT, *(f"message {n}" for n in range(TURNS // 2 - 1)), QUESTION, QUESTION]
    assert reader.calls == TURNS // 2, "no call is made twice"
    assert reader.longest < WINDOW, "the server never has a reason to refuse"
    assert reader.summaries > 10
