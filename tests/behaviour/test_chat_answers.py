"""A short text in a chat answers an approval if nothing else can be meant."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.commands.messages import MEANS
from holdfast.core.inbox import Mode
from tests.behaviour.chats import GUEST, OWNER, Bot, bot
from tests.behaviour.hands import command
from tests.behaviour.test_chats import asked_of, owners, question_in, settled
from tests.fakes.model_server import ModelServer
from tests.fakes.telegram import Fail

pytestmark = pytest.mark.promise("CHAT-05")


@pytest.fixture
async def both(tmp_path: Path, model: ModelServer) -> AsyncIterator[Bot]:
    async with bot(tmp_path, model.base_url) as it:
        yield it


@pytest.mark.parametrize(("word", "then"), [("Yes", "Allowed once"), ("no", "Denied")])
async def test_a_short_reply_answers_an_approval(
    both: Bot, model: ModelServer, word: str, then: str
) -> None:
    chat = owners(both)
    question = await question_in(both, chat, "echo hello > made; cat made")
    both.telegram.say(chat, word)
    changed = await both.hears(chat, then)
    assert changed["message_id"] == question["message_id"]
    await both.hears(chat, "the tool said: ")
    assert all(word not in text for text in asked_of(model))


async def test_after_a_restart_and_as_a_reply_it_answers_too(both: Bot) -> None:
    chat = owners(both)
    question = await question_in(both, chat, "echo hello > made; cat made")
    await settled(both, chat)
    await both.gateway.kill()
    await both.gateway.start()
    both.telegram.say(chat, "yes", reply_to=question["message_id"])
    await both.hears(chat, "Allowed once")


async def test_words_that_say_more_or_reply_to_something_else_are_a_message(
    both: Bot, model: ModelServer
) -> None:
    chat = owners(both)
    earlier = both.telegram.say(chat, "say:before")
    await both.hears(chat, "before")
    question = await question_in(both, chat, "echo hello > made; cat made")
    for words, reply_to in (("say:yes please", 0), ("yes", earlier["message_id"])):
        both.telegram.say(chat, words, reply_to=reply_to)
    await settled(both, owners(both))
    assert not [text for text in both.said(chat) if "Allowed" in text]
    shown = both.telegram.messages[chat.id, question["message_id"]]
    assert both.buttons(shown)  # it still waits: the messages are read behind its answer
    both.telegram.say(chat, "yes", reply_to=question["message_id"])
    await both.hears(chat, "Allowed once")
    await both.hears(chat, "echo: ")  # to the last of them
    assert any("say:yes please" in str(request.body) for request in model.requests)


async def test_a_yes_of_one_who_may_not_answer_is_their_own_message(both: Bot) -> None:
    group = both.telegram.group()
    question = await question_in(both, group, "echo hello > made", OWNER)
    both.telegram.say(group, "yes", GUEST)
    await settled(both, owners(both))
    shown = both.telegram.messages[group.id, question["message_id"]]
    assert both.buttons(shown)  # it still waits


def delegating(task: str) -> str:
    return f"tool:delegate_task {json.dumps({'task': task, 'background': True})}"


@pytest.mark.fault("F-33")
@pytest.mark.parametrize("asks", ["by a question", "in its answer"])
async def test_a_yes_to_what_was_said_below_is_no_answer_to_the_request_of_a_task(
    both: Bot, asks: str
) -> None:
    chat = owners(both)
    both.telegram.say(chat, delegating(command("echo evil > made; cat made")))
    question = await both.hears(chat, "May this run?")
    ask, answer = 'tool:ask {"question": "Shall I go on?"}', "say:Shall I go on?"
    both.telegram.say(chat, ask if asks == "by a question" else answer)
    await both.hears(chat, "Shall I go on?")
    both.telegram.say(chat, "yes")
    await both.hears(chat, "the tool said: yes" if asks == "by a question" else "echo: yes")
    shown = both.telegram.messages[chat.id, question["message_id"]]
    assert both.buttons(shown)  # it still waits
    both.telegram.say(chat, "yes", reply_to=question["message_id"])
    await both.hears(chat, "Allowed once")


@pytest.mark.fault("F-33")
async def test_a_question_that_was_not_shown_whole_is_not_allowed(both: Bot) -> None:
    chat = owners(both)
    both.telegram.then("sendMessage", Fail(403, "Forbidden: not this"))
    both.telegram.say(chat, command("echo evil > made\n" + "echo good\n" * 600))
    last = await both.until(lambda: [m for m in both.telegram.sent(chat) if both.buttons(m)])
    assert "evil" not in "".join(both.said(chat))
    both.telegram.click(last, both.buttons(last)["Allow once"])
    await settled(both, chat)
    assert both.buttons(both.telegram.messages[chat.id, last["message_id"]])  # it still waits
    both.telegram.click(last, both.buttons(last)["Deny"])
    await both.hears(chat, "Denied")


async def test_a_steered_run_shows_what_it_has_finished(both: Bot, model: ModelServer) -> None:
    chat = owners(both)
    both.telegram.say(chat, "/busy steer")
    await both.hears(chat, MEANS[Mode.STEER])
    both.telegram.say(chat, "slow:1 the first answer")
    await model.asked(1)
    both.telegram.say(chat, "say:the second answer")
    await both.hears(chat, "the second answer")
    said = [text for text in both.said(chat) if "answer" in text]
    assert len(said) == 2 and "the first answer" in said[0]


@pytest.mark.promise("CHAT-04")
async def test_a_model_that_cannot_be_used_is_told_of_without_its_address(
    both: Bot, model: ModelServer
) -> None:
    chat = owners(both)
    both.telegram.say(chat, "fail:400")
    await both.until(lambda: [m for m in both.telegram.sent(chat) if "(run " in m["text"]])
    assert not [text for text in both.said(chat) if "127.0.0.1" in text or "http" in text]
