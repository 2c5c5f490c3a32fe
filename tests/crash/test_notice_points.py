"""kill -9 at each sync on the path of a notice to the home channel: it is sent once."""

from pathlib import Path

import pytest

from holdfast.core.chat.notices import NOT_RECEIVING
from tests.behaviour.chats import OWNER, bot
from tests.crash import kills
from tests.crash.evidence import facts, noted
from tests.crash.test_chat_points import copies, is_said, quiet
from tests.fakes.model_server import ModelServer
from tests.fakes.telegram import Fail

pytestmark = [pytest.mark.anyio, pytest.mark.debian("strace")]

NOTICE = f"telegram {NOT_RECEIVING}"
REFUSED = Fail(401, "Unauthorized")


@pytest.mark.fault("F-07")
@pytest.mark.promise("CHAT-03")
async def test_the_home_is_told_of_an_outage_once_wherever_it_is_killed(
    tmp_path: Path, model: ModelServer
) -> None:
    """What is synced there is written already; the first is the update that ends the poll."""
    for sync, what in ((2, "queued"), (3, "being sent"), (4, "sent")):
        (place := tmp_path / str(sync)).mkdir()
        with noted(f"killed when the notice was {what}"):
            await _kill_at(place, model, sync)


async def _kill_at(tmp_path: Path, model: ModelServer, sync: int) -> None:
    async with bot(tmp_path, model.base_url) as it:
        chat, wal = it.telegram.private(OWNER), it.gateway.home / "journal.db-wal"
        it.telegram.say(chat, "/home")
        await it.until(lambda: it.telegram.sent(chat))
        assert await quiet(it, lambda: True)
        it.telegram.then("getUpdates", REFUSED)
        async with kills.attached(it.gateway, "fdatasync", sync, wal):
            it.telegram.say(it.telegram.group(), "not for the bot")
            await it.gateway.ended()
        it.telegram.then("getUpdates", REFUSED)  # also in its next life
        polls = len(it.telegram.made("getUpdates"))
        await it.gateway.start()
        await it.telegram.until(lambda: len(it.telegram.made("getUpdates")) > polls + 1)
        assert await quiet(it, lambda: is_said(it, chat, NOTICE))
        assert len(copies(it, chat, NOTICE)) == 1
        queued = [f for f in facts(it.gateway.home, "delivery.queued") if NOTICE in f["text"]]
        assert len(queued) == 1
