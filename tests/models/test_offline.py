"""The `offline` provider: which words mean which call, and what it says otherwise."""

import json

import pytest

from holdfast.core.messages import Assistant, Image, Message, Proposal, ToolResult, User
from holdfast.core.types import CallId
from holdfast.models.model import Answer, Request, Text, ToolSpec
from holdfast.models.offline import HELP, NOTE, UNSEEN, Offline

pytestmark = pytest.mark.anyio

NOTED = "[System note: Your previous turn was cut by a gateway restart. Go on.]"


def spec(name: str, *arguments: str) -> ToolSpec:
    return ToolSpec(name, "", {"type": "object", "properties": {a: {} for a in arguments}})


FILES = (
    spec("list_files", "path"),
    spec("read_file", "path", "offset", "limit"),
    spec("write_file", "path", "content"),
    spec("patch", "path", "old", "new", "all"),
    spec("search_files", "pattern", "path"),
)


async def ask(*messages: Message, tools: tuple[ToolSpec, ...] = FILES) -> Answer:
    pieces = [p async for p in Offline().stream(Request("", "", messages, tools))]
    last = pieces[-1]
    assert isinstance(last, Answer)
    assert last.text == "".join(p.text for p in pieces if isinstance(p, Text))
    return last


@pytest.mark.parametrize(
    ("words", "tool", "arguments"),
    [
        ("list the files here", "list_files", {}),
        ("List files.", "list_files", {}),
        ("list files in src", "list_files", {"path": "src"}),
        ("show my files in src/a", "list_files", {"path": "src/a"}),
        ("ls", "list_files", {}),
        ("  ls src\n", "list_files", {"path": "src"}),
        ("read notes.txt", "read_file", {"path": "notes.txt"}),
        ("read the file notes.txt", "read_file", {"path": "notes.txt"}),
        ("cat a/b.py", "read_file", {"path": "a/b.py"}),
        ('show "my notes.txt"', "read_file", {"path": "my notes.txt"}),
        ("write a.txt: hi: you", "write_file", {"path": "a.txt", "content": "hi: you"}),
        ("write a.txt\none\n two", "write_file", {"path": "a.txt", "content": "one\n two"}),
        ("write a.txt:", "write_file", {"path": "a.txt", "content": ""}),
        ('write "a b": x', "write_file", {"path": "a b", "content": "x"}),
        ("search TODO", "search_files", {"pattern": "TODO"}),
        ("search for TODO in src", "search_files", {"pattern": "TODO", "path": "src"}),
        ('find "two words"', "search_files", {"pattern": "two words"}),
        ("grep TODO src", "search_files", {"pattern": "TODO", "path": "src"}),
        ('replace "a b" with "" in x.txt', "patch", {"path": "x.txt", "old": "a b", "new": ""}),
    ],
)
async def test_a_command_becomes_the_call_it_means(
    words: str, tool: str, arguments: dict[str, str]
) -> None:
    (proposal,) = (await ask(User(words))).calls
    assert proposal.tool == tool
    assert json.loads(proposal.arguments) == arguments


@pytest.mark.parametrize(
    "words", ["help", "hello", "read me a story", "find out more", "write", "", "what is love?"]
)
async def test_other_messages_are_answered_with_help(words: str) -> None:
    answer = await ask(User(words))
    assert answer == Answer(HELP)
    for part in ("No model", "OPENAI_API_KEY", "OPENAI_BASE_URL", "HOLDFAST_MODEL", "doctor"):
        assert part in answer.text


async def test_a_command_is_run_where_a_terminal_is_offered() -> None:
    (proposal,) = (await ask(User("!ls -l | wc"), tools=(spec("terminal", "command"),))).calls
    assert proposal.tool == "terminal"
    assert json.loads(proposal.arguments) == {"command": "ls -l | wc"}


async def test_tools_that_are_not_offered_are_not_asked_for() -> None:
    answer = await ask(User("!ls"))
    assert not answer.calls
    assert "Running commands is not possible here" in answer.text
    assert not (await ask(User("ls"), tools=())).calls


async def test_results_are_handed_over_as_what_they_are() -> None:
    calls = tuple(Proposal(CallId(i), "read_file", "{}") for i in "ab")
    results = [ToolResult(CallId("a"), "first"), ToolResult(CallId("b"), "second")]
    answer = await ask(User("read x"), Assistant("", calls), *results)
    assert answer == Answer(f"{NOTE}\nfirst\nsecond")


async def test_the_resume_note_is_not_read_as_a_command() -> None:
    call = Assistant("", (Proposal(CallId("a"), "read_file", "{}"),))
    (proposal,) = (await ask(User(f"{NOTED}\n\nread x"))).calls
    assert proposal.tool == "read_file"
    answer = await ask(User("read x"), call, ToolResult(CallId("a"), "text"), User(NOTED))
    assert answer.text == f"{NOTE}\ntext"


async def test_a_new_command_after_an_answer_is_a_new_command() -> None:
    call = Assistant("", (Proposal(CallId("a"), "read_file", "{}"),))
    done = ToolResult(CallId("a"), "text")
    (proposal,) = (await ask(User("read x"), call, done, Assistant("text"), User("ls"))).calls
    assert proposal.tool == "list_files"


async def test_it_says_that_it_cannot_see_images() -> None:
    picture = (Image("image/png", b"png"),)
    assert await ask(User("what is this?", picture)) == Answer(UNSEEN + HELP)
    assert await ask(User("ls"), Assistant("a.txt"), User("", picture)) == Answer(UNSEEN + HELP)
    (proposal,) = (await ask(User("read x", picture))).calls
    assert proposal.tool == "read_file"
    call, done = Assistant("", (proposal,)), ToolResult(proposal.call_id, "text")
    for after in ((), (User(NOTED),)):
        assert await ask(User("read x", picture), call, done, *after) == Answer(
            f"{UNSEEN}{NOTE}\ntext"
        )
    assert await ask(User("a", picture), Assistant(HELP), User("b")) == Answer(HELP)
