"""A model for chats: it lists the messages it has read, and acts if one asks it to.

A message of a chat has a mark in it, `c3#1`: the first of chat 3. An answer names all that were
said since the last one. A message with `act` in it makes one call first.
"""

import re
from asyncio import sleep
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from random import Random

from msgspec.json import encode

from holdfast.core.messages import Assistant, Message, Proposal, User
from holdfast.core.types import CallId, Usage
from holdfast.errors import Transient
from holdfast.models.model import Answer, Piece, Request, Text
from tests.sim.parrot import PAUSES

_MARK = re.compile(r"c(\d+)#(\d+)( act)?")
_HEARD = re.compile(r"heard((?: \d+)+)$")


def mark(chat: int, number: int) -> str:
    """What a message has in it."""
    return f"c{chat}#{number}"


def marks(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Chat and number of every message that the model reads, in order."""
    said = (m.text for m in messages if isinstance(m, User))
    return [(int(f[1]), int(f[2])) for text in said for f in _MARK.finditer(text)]


def heard(text: str) -> list[int] | None:
    """The messages that an answer is about; None: it is no answer of the model."""
    found = _HEARD.match(text)
    return [int(n) for n in found[1].split()] if found else None


def workspace_of(system: str) -> str:
    """What a session has of its own in its instructions."""
    return system.partition("Your workspace is ")[2].partition(". File tools")[0]


class Listener:
    """`asked` is told of every request before it is answered, and by which session."""

    name = "listener"

    def __init__(
        self, random: Random, asked: Callable[[str, Sequence[Message]], Awaitable[None]]
    ) -> None:
        self._random = random
        self._asked = asked
        self._failed: set[tuple[int, int]] = set()
        self.busy: list[str] = []

    async def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        session, messages = request.system, list(request.messages)  # it names the workspace
        await self._asked(session, messages)
        self.busy.append(session)
        try:
            for n in range(self._random.randrange(2)):
                await self._pause()
                yield Text(f"{n}, ")
                self._fail_sometimes(messages)
            await self._pause()
            yield _answer(messages)
        finally:
            self.busy.remove(session)

    async def _pause(self) -> None:
        await sleep(self._random.choice(PAUSES))  # sleep: in virtual time

    def _fail_sometimes(self, messages: Sequence[Message]) -> None:
        """Once about the same words: nobody is to give up."""
        last = marks(messages)[-1]
        if last not in self._failed and self._random.random() < 0.1:
            self._failed.add(last)
            raise Transient("the line is bad")

    async def check(self) -> str:
        return self.name

    async def aclose(self) -> None:
        """Nothing is held."""


def _answer(messages: Sequence[Message]) -> Answer:
    final = [n for n, m in enumerate(messages) if isinstance(m, Assistant) and not m.calls]
    open_ = messages[final[-1] + 1 :] if final else messages
    asked = {f[0] for m in open_ if isinstance(m, User) for f in _MARK.finditer(m.text) if f[3]}
    begun = {p.arguments for m in open_ if isinstance(m, Assistant) for p in m.calls}
    for what in sorted(asked):
        arguments = encode({"what": what.removesuffix(" act")}).decode()
        if arguments not in begun:
            call_id = CallId(f"call_{what.removesuffix(' act')}")
            return Answer("", calls=(Proposal(call_id, "act", arguments),), usage=Usage(1, 1))
    return Answer(f"heard {' '.join(str(n) for _, n in marks(open_))}", usage=Usage(1, 1))
