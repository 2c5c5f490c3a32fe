"""What is a command and what is words; who may give one."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.commands.parse import GivenCommand, read
from holdfast.commands.status import NO_ACTIVE_RUN
from holdfast.core.approval.approval import Role
from holdfast.errors import Refused, Transient
from tests.commands.fake_chat import COMMANDS, FakeChat, told

WORDS = [
    "",
    "/",
    "//",
    "// a comment",
    "/ stop",
    "/etc/hosts is broken",
    "/stop/now",
    "/stop!",
    "/2",
    "/a-b",
    "/" + "a" * 33,
    "/stöp",
    "/ſtop",  # what Unicode folds to an s is none
    " /stop",
    "please /stop",
]


@pytest.mark.parametrize("text", WORDS)
def test_words_and_paths_are_no_commands(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("/stop", GivenCommand("stop", "")),
        ("/STOP", GivenCommand("stop", "")),
        ("/stop\n", GivenCommand("stop", "")),
        ("/queue  two words ", GivenCommand("queue", "two words")),
        ("/queue\nfirst\n\n  second", GivenCommand("queue", "first\n\n  second")),
        ("/queue /etc/hosts", GivenCommand("queue", "/etc/hosts")),
        ("/queue\u00a0these", GivenCommand("queue", "these")),
        ("/set_up x", GivenCommand("set_up", "x")),
        ("/" + "a" * 32, GivenCommand("a" * 32, "")),
    ],
)
def test_a_slash_and_a_name_is_a_command_in_any_case(text: str, call: GivenCommand) -> None:
    assert read(text) == call


@given(st.text() | st.text("/aS_ \n\t1-").map("/".__add__))
@example("/stop\x1c")
def test_any_text_is_words_or_a_name_with_all_that_stands_behind_it(text: str) -> None:
    call = read(text)
    if call is None:
        first = re.split(r"\s", text, maxsplit=1)[0]
        assert not re.fullmatch(r"/[a-zA-Z_]{1,32}", first)
    else:
        assert re.fullmatch(r"[a-z_]{1,32}", call.name)
        assert text[0] == "/" and text[1 : 1 + len(call.name)].lower() == call.name
        assert text[1 + len(call.name) :].strip() == call.rest


async def test_an_unknown_command_is_answered_with_the_nearest_and_not_passed_on() -> None:
    chat = FakeChat()
    assert await told(chat, "/stpo it") == (
        "There is no /stpo. Did you mean /stop? /help lists all commands."
    )
    assert await told(chat, "/zzzzzz") == "There is no /zzzzzz. /help lists all commands."
    assert chat.asked == []


async def test_the_nearest_is_one_that_the_speaker_may_use() -> None:
    assert "/restart" in await told(FakeChat(Role.ADMIN), "/restrat")
    assert "/restart" not in await told(FakeChat(Role.READ), "/restrat")


NEEDS = {
    Role.READ: {"status", "usage", "cost", "sessions", "help", "start", "context", "ps"},
    Role.APPROVE: {"approve", "deny"},
    Role.ADMIN: {"restart", "home"},
    Role.RUN: {
        *("new", "stop", "queue", "steer", "interrupt", "busy", "retry", "model", "resume"),
        *("undo", "rewind", "redo", "compact", "diff", "clear"),
    },
}


def test_every_command_needs_the_role_it_should() -> None:
    assert {(c.needs, c.name) for c in COMMANDS.values()} == {
        (role, name) for role, names in NEEDS.items() for name in names
    }


@pytest.mark.parametrize("name", sorted(n for r in NEEDS if r is not Role.READ for n in NEEDS[r]))
async def test_a_sender_without_the_role_is_refused(name: str) -> None:
    needs = COMMANDS[name].needs
    chat = FakeChat(*(set(Role) - {needs}))
    assert await told(chat, f"/{name}") == f"You may not use /{name}: it needs the role {needs}."
    assert chat.asked == []


async def test_every_role_includes_reading() -> None:
    assert NO_ACTIVE_RUN in await told(FakeChat(Role.APPROVE), "/status")


async def test_a_refusal_is_told_in_its_own_words() -> None:
    chat = FakeChat()
    chat.refusal = Refused("nothing_to_undo", "There is nothing to take back.")
    assert await told(chat, "/undo") == "There is nothing to take back."


async def test_a_transient_error_is_passed_on() -> None:
    chat = FakeChat()
    chat.refusal = Transient("the disk is full")
    with pytest.raises(Transient):
        await told(chat, "/undo")
