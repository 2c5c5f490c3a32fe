"""A refused Telegram token does not stop the gateway, and is reported everywhere."""

import json
from pathlib import Path

import pytest

from holdfast.cli.exits import Code
from holdfast.cli.service.service import RECEIVES_NOTHING
from holdfast.core.chat.notices import NOT_RECEIVING
from tests.behaviour.chats import OWNER, bot
from tests.fakes.model_server import ModelServer
from tests.fakes.telegram import Fail


@pytest.mark.promise("CHAT-03")
@pytest.mark.parametrize("status", [401, 404])
async def test_after_a_refusal_it_listens_again_and_the_home_is_told(
    tmp_path: Path, model: ModelServer, status: int
) -> None:
    async with bot(tmp_path, model.base_url) as it:
        chat = it.telegram.private(OWNER)
        it.telegram.say(chat, "/home")
        await it.until(lambda: it.telegram.sent(chat))
        it.telegram.then("getUpdates", Fail(status, "Unauthorized"), Fail(status, "Unauthorized"))
        it.telegram.say(chat, "/usage")  # ends the poll under way
        refused = len(it.telegram.made("getUpdates"))
        await it.telegram.until(lambda: len(it.telegram.made("getUpdates")) > refused + 1)
        _, health = await it.gateway.get("/health/detailed")
        assert "TELEGRAM_BOT_TOKEN" in health["channels"]["telegram"]
        it.telegram.say(chat, "say:still here")
        await it.hears(chat, "still here")
        await it.hears(chat, f"telegram {NOT_RECEIVING}")
        news = [text for text in it.said(chat) if NOT_RECEIVING in text]
        assert len(news) == 1


@pytest.mark.promise("CHAT-03")
async def test_while_it_is_refused_the_status_says_so_and_is_not_well(
    tmp_path: Path, model: ModelServer
) -> None:
    async with bot(tmp_path, model.base_url) as it:
        it.telegram.then("getUpdates", *[Fail(401, "Unauthorized")] * 50)
        it.telegram.say(it.telegram.private(OWNER), "/usage")  # ends the poll under way
        await it.gateway.said("a channel cannot be used")
        told = await it.gateway.holdfast("gateway", "status", "--json")
        assert told.returncode == Code.FAILED
        assert RECEIVES_NOTHING.format("telegram") in json.loads(told.stdout)["state"]
