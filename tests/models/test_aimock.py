"""Every provider against aimock: model servers as others imitate them, in Node.js.

Install it with: npm install --no-save --no-package-lock --prefix .build/aimock @copilotkit/aimock
"""

import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from holdfast.core.messages import Assistant, Image, Message, ToolResult, User
from holdfast.core.types import Usage
from holdfast.errors import HoldfastError, Overflow, Rejected, Transient
from holdfast.models.model import Answer, ListedModel, RemoteModel, Request, Text, ToolSpec
from tests.fakes.gateway import ROOT
from tests.fakes.model_server import server_at
from tests.models.wires import REMOTES, Remote

pytestmark = pytest.mark.anyio

AIMOCK = ROOT / ".build/aimock/node_modules/@copilotkit/aimock/dist/cli.js"
MODELS = {
    "openai": "gpt-4o",
    "anthropic": "claude-opus-4-7",
    "ollama": "qwen3",
    "responses": "gpt-5",
    "gemini": "gemini-3-pro-preview",
}
THINKING = {"anthropic", "responses", "gemini"}  # those whose reasoning it sends as they do
COUNTED = {"openai", *THINKING}  # those whose usage it sends
LISTED = {"openai", "anthropic", "ollama", "responses"}
TOOLS = tuple(
    ToolSpec(name, name, {"type": "object", "properties": {"path": {"type": "string"}}})
    for name in ("ls", "cat")
)
USED = {"prompt_tokens": 11, "completion_tokens": 5, "input_tokens": 11, "output_tokens": 5}
CALLS = [{"name": "ls", "arguments": {"path": "ä"}}, {"name": "cat", "arguments": {"path": "b"}}]
ANSWERS: list[tuple[dict[str, object], dict[str, object]]] = [
    ({"userMessage": "think"}, {"content": "grün 日本", "reasoning": "let me see", "usage": USED}),
    (
        {"userMessage": "two calls", "hasToolResult": False},
        {"content": "I look.", "reasoning": "hm", "toolCalls": CALLS},
    ),
    ({"userMessage": "two calls", "toolResultContains": "second"}, {"content": "done"}),
    ({"userMessage": "cut"}, {"content": "a longer answer"}),
    ({"userMessage": "busy"}, {"error": {"message": "busy"}, "status": 503}),
    ({"userMessage": "slow down"}, {"error": {"message": "no"}, "status": 429, "retryAfter": 7}),
    ({"userMessage": "too long"}, {"error": {"message": "prompt is too long"}, "status": 400}),
    ({"userMessage": "wrong key"}, {"error": {"message": "no"}, "status": 401}),
]


@asynccontextmanager
async def aimock(directory: Path) -> AsyncIterator[str]:
    """The address of a running aimock."""
    if (node := shutil.which("node")) is None:
        pytest.skip("needs the program node")
    if not AIMOCK.exists():
        pytest.skip(f"needs the npm package @copilotkit/aimock in {ROOT / '.build/aimock'}")
    fixtures = [
        {
            "match": match,
            "response": response,
            "chunkSize": 3,
            **({"truncateAfterChunks": 4} if match["userMessage"] == "cut" else {}),
        }
        for match, response in ANSWERS
    ]
    path = directory / "fixtures.json"
    path.write_text(json.dumps({"fixtures": fixtures}))
    options = ("-p", "0", "--host", "127.0.0.1", "-f", str(path), "--strict")
    async with await anyio.open_process([node, str(AIMOCK), *options]) as process:
        try:
            assert process.stdout is not None
            said, output = "", TextReceiveStream(process.stdout)
            with anyio.fail_after(30):
                while (found := re.search(r"listening on (http://\S+)\n", said)) is None:
                    said += await output.receive()
            yield found[1]
        finally:
            process.terminate()


@pytest.fixture(params=REMOTES, ids=lambda remote: str(remote.name))
def remote(request: pytest.FixtureRequest) -> Remote:
    found: Remote = request.param
    return found


@pytest.fixture
async def model(remote: Remote, tmp_path: Path) -> AsyncIterator[RemoteModel]:
    async with aimock(tmp_path) as url:
        there = server_at(url + remote.wire.base, "sk-0123456789", provider=remote.name)
        async with aclosing(remote.create(there)) as model:
            yield model


async def ask(remote: Remote, model: RemoteModel, *messages: Message) -> Answer:
    pieces = [p async for p in model.stream(Request(MODELS[remote.name], "be", messages, TOOLS))]
    last = pieces[-1]
    assert isinstance(last, Answer)
    assert last.text == "".join(piece.text for piece in pieces if isinstance(piece, Text))
    return last


async def test_a_conversation_with_calls_is_understood_on_both_sides(
    remote: Remote, model: RemoteModel
) -> None:
    picture = Image("image/png", b"\x89PNG\r\n\x1a\n")
    found = await ask(remote, model, User("think", (picture,)))
    assert found.text == "grün 日本"
    assert found.reasoning == ("let me see" if remote.name in THINKING else "")
    assert found.usage == (Usage(11, 5) if remote.name in COUNTED else Usage())

    first = await ask(remote, model, User("two calls"))
    assert first.text == "I look."
    made = [(call.tool, json.loads(call.arguments)) for call in first.calls]
    assert made == [("ls", {"path": "ä"}), ("cat", {"path": "b"})]
    assert bool(first.opaque) == (remote.name in ("anthropic", "responses"))
    results = [
        ToolResult(call.call_id, text)
        for call, text in zip(first.calls, ("first", "second"), strict=True)
    ]
    said = Assistant(first.text, first.calls, first.opaque)
    last = await ask(remote, model, User("two calls"), said, *results)
    assert (last.text, last.calls) == ("done", ())

    if remote.name in LISTED:
        assert ListedModel("gpt-4o") in await model.list_models()


async def test_errors_and_cuts_say_who_acts_next(remote: Remote, model: RemoteModel) -> None:
    kinds: dict[str, type[HoldfastError]] = {
        "cut": Transient,
        "busy": Transient,
        "slow down": Transient,
        "too long": Overflow,
        "wrong key": Rejected,
    }
    for text, kind in kinds.items():
        with pytest.raises(kind) as caught:
            await ask(remote, model, User(text))
        if text == "slow down":
            assert isinstance(caught.value, Transient)
            assert caught.value.retry_after_s == 7.0
