"""A channel that is called over HTTP and says what a test tells it to: also the plugin that has it."""

from collections.abc import Callable
from typing import Annotated

import anyio
import msgspec
from msgspec import Meta

from holdfast.channels.channel import (
    Accepted,
    ChannelCapabilities,
    ChannelKind,
    Clock,
    Hook,
    HookAnswer,
    Incoming,
    Outgoing,
    Secret,
    Sent,
    Take,
)
from holdfast.core.address import Address, ChatType

TOKEN = "HOOKED_TOKEN"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    room: str
    size: Annotated[int, Meta(ge=1)] = 3


class Hooked:
    """Keeps what it hears and what it is to deliver."""

    name = "hooked"
    capabilities = ChannelCapabilities(
        late=True,
        answerable=True,
        edits=False,
        buttons=False,
        threads=False,
        typing=False,
        attachments=False,
        alerts=False,
        max_length=100,
        idempotent_send=True,
    )

    def __init__(self, settings: Settings | None = None, token: str = "") -> None:
        self.settings = settings
        self.token = token
        self.trouble = ""
        self.path = "hooked"
        self.heard: list[Hook] = []
        self.sent: list[Outgoing] = []
        self._delivered = anyio.Event()
        self.answer: Callable[[Hook], HookAnswer] = lambda hook: HookAnswer(200, b"taken")

    async def receive(self, cursor: str, take: Take) -> None:
        await anyio.sleep_forever()

    async def hear(self, hook: Hook) -> HookAnswer:
        self.heard.append(hook)
        return self.answer(hook)

    def split(self, text: str) -> tuple[str, ...]:
        return (text,)

    async def deliver(self, message: Outgoing) -> Sent:
        self.sent.append(message)
        self._delivered.set()
        self._delivered = anyio.Event()
        return Accepted(f"m{len(self.sent)}")

    async def delivered(self, number: int) -> Outgoing:
        """The message with that number, from 1, once it is there."""
        with anyio.fail_after(20):
            while len(self.sent) < number:
                await self._delivered.wait()
        return self.sent[number - 1]

    async def show_typing(self, address: Address) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing is held."""


def said(
    text: str, user: str = "678", number: int = 1, chat_type: ChatType = ChatType.DIRECT
) -> Incoming:
    """Something that somebody says there."""
    return Incoming(
        external_id=f"{user}:{number}",
        cursor="",
        address=Address(platform="hooked", chat_type=chat_type, chat=f"chat-{user}", user=user),
        name="Eve \u202eevE",
        text=text,
    )


def create(settings: Settings, secret: Secret, clock: Clock) -> Hooked:
    return Hooked(settings, secret(TOKEN))


CHANNELS = (ChannelKind("hooked", Settings, (TOKEN,), create),)
