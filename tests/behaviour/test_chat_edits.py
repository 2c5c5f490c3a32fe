"""Edits that do not change the text are ignored: reactions, previews, moving locations."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.commands.messages import MEANS
from holdfast.core.inbox import Mode
from tests.behaviour.chats import OWNER, Bot, bot
from tests.behaviour.test_chats import asked_of, owners, settled
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.promise("CHAT-02")


@pytest.fixture
async def both(tmp_path: Path, model: ModelServer) -> AsyncIterator[Bot]:
    async with bot(tmp_path, model.base_url) as it:
        yield it


async def test_it_interrupts_nothing_and_starts_no_second_run(
    both: Bot, model: ModelServer
) -> None:
    chat = owners(both)
    said = both.telegram.say(chat, "slow:1 the words")
    await model.asked(1)
    both.telegram.edit(said, said["text"])
    await both.hears(chat, "the words")
    both.telegram.edit(said, said["text"])
    await settled(both, chat)
    assert len(model.requests) == 1
    assert len([t for t in both.said(chat) if "the words" in t]) == 1


async def test_it_is_known_after_a_restart(both: Bot, model: ModelServer) -> None:
    chat = owners(both)
    both.telegram.say(chat, "/busy queue")
    said = both.telegram.say(chat, "say:the words")
    await both.hears(chat, "the words")
    await both.gateway.kill()
    both.telegram.edit(said, said["text"])
    await both.gateway.start()
    both.telegram.say(chat, "say:the last")
    await both.hears(chat, "the last")
    assert asked_of(model) == ["say:the words", "say:the last"]


async def test_a_command_is_not_run_again(both: Bot) -> None:
    chat = owners(both)
    said = both.telegram.say(chat, "/busy queue")
    await both.hears(chat, MEANS[Mode.QUEUE])
    both.telegram.edit(said, said["text"])
    await settled(both, chat)
    assert len([t for t in both.said(chat) if MEANS[Mode.QUEUE] in t]) == 1


async def test_words_that_change_are_new_words_also_back_to_the_first(
    both: Bot, model: ModelServer
) -> None:
    chat = owners(both)
    said = both.telegram.say(chat, "say:one")
    await both.hears(chat, "one")
    for times, text in enumerate(("say:two", "say:one"), 2):
        both.telegram.edit(said, text)
        both.telegram.edit(said, text)
        await model.asked(times)
        await both.hears(chat, text.removeprefix("say:"), 1 if times == 2 else 2)
    await settled(both, chat)
    assert len(model.requests) == 3
    assert [text.rpartition("\n")[2] for text in asked_of(model)] == [
        "say:one",
        "say:two",
        "say:one",
    ]


async def test_a_location_that_moves_is_one_message(both: Bot, model: ModelServer) -> None:
    chat = both.telegram.private(OWNER)
    said = both.telegram.share(chat, latitude=48.1)
    await model.asked(1)
    for step in range(3):
        both.telegram.move(said, latitude=48.2 + step)
    await settled(both, chat)
    assert len(model.requests) == 1
