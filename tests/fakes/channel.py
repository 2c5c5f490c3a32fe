"""A platform in memory: it answers what the test tells it to, and keeps what it was given."""

from collections import defaultdict, deque

import anyio

from holdfast.channels.channel import Accepted, ChannelCapabilities, Outgoing, Sent, Take
from holdfast.core.address import Address, ChatType

PATIENCE_S = 20.0  # a net below a test that would wait for ever


class Chat:
    """A channel with any number of chats. Without an answer of the test it accepts."""

    trouble = ""

    def __init__(
        self,
        name: str = "chat",
        *,
        edits: bool = True,
        typing: bool = False,
        idempotent: bool = False,
    ) -> None:
        self.name = name
        self.capabilities = ChannelCapabilities(
            late=True,
            answerable=True,
            edits=edits,
            buttons=True,
            threads=True,
            typing=typing,
            attachments=False,
            alerts=False,
            max_length=4096,
            idempotent_send=idempotent,
        )
        self.sent: list[Outgoing] = []  # every try, in order
        self.typed: list[Address] = []
        self._answers: defaultdict[str, deque[Sent | Exception | anyio.Event]] = defaultdict(deque)
        self._came = anyio.Event()

    def address(self, chat: str, thread: str = "") -> Address:
        return Address(platform=self.name, chat_type=ChatType.DIRECT, chat=chat, thread=thread)

    def answer(self, chat: str, *answers: Sent | Exception | anyio.Event) -> None:
        """What comes of the next tries there. An event: nothing, until it is set."""
        self._answers[chat].extend(answers)

    def texts(self, chat: str) -> list[str]:
        """What was tried there."""
        return [m.text for m in self.sent if m.address.chat == chat]

    async def came(self, times: int, chat: str = "") -> Outgoing:
        """The try with that number, from 1, there or anywhere, once it is there."""
        with anyio.fail_after(PATIENCE_S):
            while len(tries := [m for m in self.sent if chat in ("", m.address.chat)]) < times:
                await self._came.wait()
        return tries[times - 1]

    async def typed_times(self, times: int) -> None:
        """Return when it was shown that often that somebody types."""
        with anyio.fail_after(PATIENCE_S):
            while len(self.typed) < times:
                await self._came.wait()

    async def receive(self, cursor: str, take: Take) -> None:
        await anyio.sleep_forever()

    def split(self, text: str) -> tuple[str, ...]:
        return (text,)

    async def deliver(self, message: Outgoing) -> Sent:
        self.sent.append(message)
        number = len(self.sent)
        self._wake()
        answers = self._answers[message.address.chat]
        answer = answers.popleft() if answers else None
        if isinstance(answer, anyio.Event):
            await answer.wait()
            answer = None
        if isinstance(answer, Exception):
            raise answer
        return Accepted(message.edit or f"m{number}") if answer is None else answer

    async def show_typing(self, address: Address) -> None:
        self.typed.append(address)
        self._wake()

    async def aclose(self) -> None:
        """Nothing is held."""

    def _wake(self) -> None:
        self._came.set()
        self._came = anyio.Event()
