"""A gateway with a Telegram bot, for tests that write to it like a user."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from tests.fakes import telegram as fake
from tests.fakes.gateway import GatewayProcess, unstarted
from tests.fakes.telegram import Chat, Json, Telegram

OWNER, GUEST, STRANGER = 1001, 1002, 6666


@dataclass(slots=True)
class Bot:
    """The two ends: the platform and the gateway."""

    telegram: Telegram
    gateway: GatewayProcess

    def said(self, chat: Chat) -> list[str]:
        """What the bot has said there, oldest first, as it stands now."""
        return [str(m["text"]) for m in self.telegram.sent(chat)]

    async def hears(self, chat: Chat, text: str, times: int = 1) -> Json:
        """Wait until the bot has said something with `text` in it, so often; the last of them."""
        return await self.until(
            lambda: [m for m in self.telegram.sent(chat) if text in m["text"]], times
        )

    async def until(self, found: Callable[[], list[Json]], times: int = 1) -> Json:
        """Wait until so many are found; the last of them."""
        try:
            with anyio.fail_after(30):
                await self.telegram.until(lambda: len(found()) >= times)
        except TimeoutError:
            raise AssertionError(
                f"{self.telegram.accepted=}\n" + "\n".join(self.gateway.lines[-30:])
            ) from None
        return found()[times - 1]

    def buttons(self, message: Json) -> dict[str, str]:
        """What the buttons of a message say, and what each sends."""
        rows = message.get("reply_markup", {}).get("inline_keyboard", [])
        return {b["text"]: b["callback_data"] for row in rows for b in row}


CONFIG = """
[channels.telegram]
base_url = "{url}"
poll_s = 5
users = {{ "1001" = ["admin"], "1002" = ["run", "approve"] }}
chats = ["dm", "group"]
"""


@asynccontextmanager
async def unstarted_bot(
    directory: Path, model_url: str = "", more: str = "", head: str = "", **environment: str
) -> AsyncIterator[Bot]:
    """The platform is up; starting the gateway is left to the test."""
    async with fake.serve() as telegram:
        config = head + CONFIG.format(url=telegram.address) + more
        async with unstarted(
            directory, model_url, config, TELEGRAM_BOT_TOKEN=telegram.token, **environment
        ) as process:
            yield Bot(telegram, process)


@asynccontextmanager
async def bot(
    directory: Path, model_url: str = "", more: str = "", head: str = "", **environment: str
) -> AsyncIterator[Bot]:
    """Both are up."""
    async with unstarted_bot(directory, model_url, more, head, **environment) as both:
        await both.gateway.start()
        yield both
