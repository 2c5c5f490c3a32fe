"""The `scripted` provider: which turn is played, and what a script can do."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.messages import Assistant, Image, Message, ToolResult, User
from holdfast.core.types import CallId, Usage
from holdfast.errors import Rejected, Transient
from holdfast.models.model import Answer, Piece, Reasoning, Request, Text
from holdfast.models.scripted import OVER, Scripted

pytestmark = pytest.mark.anyio


def say(text: str) -> dict[str, Any]:
    return {"do": "say", "text": text}


class Player:
    """Writes a script down and has it played."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "script.json"
        self.slept: list[float] = []
        self.model = Scripted(self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def play(self, *messages: Message) -> list[Piece]:
        request = Request(str(self.path), "", messages, [])
        return [piece async for piece in self.model.stream(request)]

    async def text(self, *messages: Message) -> str:
        last = (await self.play(*messages))[-1]
        assert isinstance(last, Answer)
        return last.text


@pytest.fixture
def player(tmp_path: Path) -> Player:
    return Player(tmp_path)


async def test_a_turn_is_played_step_by_step(player: Player) -> None:
    turn = [
        {"do": "think", "text": "hm"},
        say("Hel"),
        {"do": "wait", "seconds": 0.5},
        say("lo"),
        {"do": "spend", "input_tokens": 3, "output_tokens": 2},
        {"do": "call", "tool": "read_file", "arguments": {"path": "{input}"}},
    ]
    player.path.write_text(json.dumps([turn]))
    *pieces, last = await player.play(User('a "quoted" name'))
    assert pieces == [Reasoning("hm"), Text("Hel"), Text("lo")]
    assert isinstance(last, Answer)
    assert (last.text, last.reasoning, last.usage) == ("Hello", "hm", Usage(3, 2))
    assert [p.tool for p in last.calls] == ["read_file"]
    assert json.loads(last.calls[0].arguments) == {"path": 'a "quoted" name'}
    assert player.slept == [0.5]


async def test_a_list_of_turns_answers_the_conversation_in_order(player: Player) -> None:
    player.path.write_text(json.dumps([[say("one")], [say("two")]]))
    messages: list[Message] = [User("a")]
    for expected in ("one", "two", OVER, OVER):
        assert await player.text(*messages) == expected
        messages += [Assistant(expected), User("more")]


async def test_the_first_matching_rule_answers_the_last_message(player: Player) -> None:
    rules = [
        {"when": "file", "turns": [[{"do": "call", "tool": "ls"}], [say("it is {result}")]]},
        {"when": "", "turns": [[say("you said {input}")]]},
    ]
    player.path.write_text(json.dumps({"rules": rules}))
    assert await player.text(User("hi")) == "you said hi"
    messages: list[Message] = [User("hi"), Assistant("x"), User("which file?"), Assistant("")]
    result = ToolResult(CallId("c"), "a.txt")
    assert await player.text(*messages, result) == "it is a.txt"
    note = User("[System note: cut.]")
    assert await player.text(*messages, result, note) == "it is a.txt"
    assert await player.text(User("[System note: cut.]\n\nhi")) == "you said hi"


async def test_no_rule_that_fits_is_the_end_of_the_script(player: Player) -> None:
    player.path.write_text(json.dumps({"rules": []}))
    assert await player.text(User("hi")) == OVER


async def test_a_failure_can_pass_after_some_times(player: Player) -> None:
    fail = {"do": "fail", "as": "transient", "text": "busy", "retry_after_s": 3, "times": 2}
    player.path.write_text(json.dumps([[say("a"), fail, say("b")]]))
    for _ in range(2):
        with pytest.raises(Transient, match="busy") as caught:
            await player.play(User("hi"))
        assert caught.value.retry_after_s == 3
    assert await player.text(User("hi")) == "ab"
    with pytest.raises(Transient):
        await player.play(User("another conversation"))


@pytest.mark.parametrize(
    "text", ["{", "{}", '[[{"do": "dance"}]]', '{"rules": [{"when": "(", "turns": []}]}']
)
async def test_an_invalid_script_is_rejected_with_its_path(player: Player, text: str) -> None:
    player.path.write_text(text)
    with pytest.raises(Rejected, match="script.json"):
        await player.play(User("hi"))


async def test_a_missing_script_is_rejected_by_name(player: Player) -> None:
    with pytest.raises(Rejected, match="script.json"):
        await player.play(User("hi"))


async def test_a_script_can_tell_how_many_pictures_came(player: Player) -> None:
    rules = [{"when": "^$", "turns": [[say("only {images}")]]}]
    rules.append({"when": "look", "turns": [[say("{images} with: {input}")], [say("again")]]})
    player.path.write_text(json.dumps({"rules": rules}))
    pictures = (Image("image/png", b"png"), Image("image/gif", b"gif"))
    assert await player.text(User("look", pictures)) == "2 with: look"
    assert await player.text(User("look")) == "0 with: look"
    assert await player.text(User("look"), Assistant("seen"), User("", pictures[:1])) == "only 1"
