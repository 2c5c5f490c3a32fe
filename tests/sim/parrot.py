"""A model for simulations: it repeats each text, in pieces, after random delays.

It is asked by the engine alone, so it sees what the engine does: `heard` is told of every
request, `busy` who is being answered.
"""

from asyncio import sleep
from collections.abc import AsyncGenerator, Awaitable, Callable
from random import Random

from holdfast.core.messages import Message, User
from holdfast.core.types import Usage
from holdfast.errors import Transient
from holdfast.models.model import Answer, Piece, Request, Text

PAUSES = (0.0, 0.0, 0.01, 0.3, 2.0)  # before each piece
PIECES = 3


def reply_to(text: str) -> str:
    """What it answers."""
    return f"You said: {text}"


def words_of(message: User) -> str:
    """What was written, without the note that a run which was cut gets before it."""
    return message.text.rpartition("\n\n")[2]


class Parrot:
    """`heard` gets each request's messages and the chat they are of; a chat is what comes first."""

    name = "parrot"

    def __init__(
        self, random: Random, heard: Callable[[str, list[Message]], Awaitable[None]]
    ) -> None:
        self._random = random
        self._heard = heard
        self._failed: set[str] = set()
        self.busy: list[str] = []

    async def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        messages = list(request.messages)
        last = messages[-1]
        assert isinstance(last, User)
        words = words_of(last)
        chat = words.partition(" ")[0]
        await self._heard(chat, messages)
        self.busy.append(chat)
        try:
            for n in range(self._random.randrange(PIECES)):
                await self._pause()
                yield Text(f"{n}, ")
                self._fail_sometimes(words)
            await self._pause()
            yield Answer(reply_to(words), usage=Usage(1, 1))
        finally:
            self.busy.remove(chat)

    async def _pause(self) -> None:
        if pause := self._random.choice(PAUSES):
            await sleep(pause)  # sleep: in virtual time
        else:
            await sleep(0)

    def _fail_sometimes(self, words: str) -> None:
        """Once about the same words: nobody is to give up."""
        if words not in self._failed and self._random.random() < 0.1:
            self._failed.add(words)
            raise Transient("the line is bad")

    async def check(self) -> str:
        return self.name

    async def aclose(self) -> None:
        """Nothing is held."""
