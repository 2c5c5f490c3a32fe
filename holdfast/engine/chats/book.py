"""The book of chats: what the journal stores about all chats, and the session of each.

It is one session of the gateway's own. Inbound messages, commands in chats, pairing and notices
read and write it here; they do not import each other.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from secrets import token_hex

import anyio
from msgspec import field

from holdfast.core import address
from holdfast.core.address import Condition, Why
from holdfast.core.chat import access
from holdfast.core.chat.chats import Chats as Known
from holdfast.core.chat.delivery import DeliveryQueued
from holdfast.core.inbox import Mode
from holdfast.core.intents import Submit
from holdfast.core.session.session import SessionStatus
from holdfast.core.types import OPERATOR, DeliveryId, Fact, Part, SessionId, SessionKey
from holdfast.engine.chats.places import ChatPlace, Connected
from holdfast.engine.clock import Clock
from holdfast.engine.life.gateway_state import Writing
from holdfast.engine.sessions import Sessions
from holdfast.gateway import Gateway

NEW_SESSION = "This is a new session (reason: "
KEY = SessionKey(OPERATOR, SessionId("/chats"))


class ChatBook(Part):
    """All chats, and the session that stores them."""

    _gateway: Gateway
    _sessions: Sessions
    _clock: Clock
    channels: Mapping[str, Connected]
    _hosts: Callable[[str], frozenset[str]]  # that a text names
    _writing: anyio.Lock = field(default_factory=anyio.Lock)

    async def policy(self) -> access.AccessPolicy:
        """Return the access policy as it is now."""
        rules = {name: c.rules for name, c in self.channels.items()}
        return access.AccessPolicy(rules, (await self.known()).members)

    async def recorded(self) -> access.AccessPolicy:
        """Return the committed policy, to show it."""
        rules = {name: c.rules for name, c in self.channels.items()}
        async with self._sessions.load(KEY) as loaded:
            return access.AccessPolicy(
                rules, (loaded.committed().chats if loaded else Known()).members
            )

    async def known(self) -> Known:
        """Return what the journal stores about all chats."""
        async with self._sessions.load(KEY) as loaded:
            return loaded.session.chats if loaded else Known()

    async def say(
        self,
        place: ChatPlace,
        text: str,
        mode: Mode | None,
        *,
        instead: bool = False,
        own: str | None = None,
    ) -> None:
        """Send a message to the agent, in the present session of the place.

        `own` is the part that the user wrote; None: all of it.
        """
        session_id = await self.route(place)
        keys = (await self.known()).keys
        chosen = address.busy_mode(keys, place.key, place.connected.busy)
        await self._gateway.send(
            Submit(
                by=place.by,
                text=text,
                session_id=session_id,
                mode=mode or chosen,
                came=place.came,
                address=place.address,
                progress=place.connected.progress and place.connected.channel.capabilities.edits,
                hosts=tuple(sorted(self._hosts(text if own is None else own))),
                instead=instead,
            )
        )

    async def route(self, place: ChatPlace) -> SessionId:
        """Return the session for the next message. If a new one is due, the chat is told."""
        current = address.current((await self.known()).keys, place.key)
        condition = None
        if current is not None:
            condition = await self._condition(SessionKey(place.by.owner, current))
        async with self.write() as book:
            keys, now = book.now.chats.keys, self._clock.now()
            bound = address.route(keys, place.key, condition, place.connected.reset, now)
            if bound is not None:
                book.add((bound, *self._notice(place, bound.reason)))  # before the message
                return bound.session_id
        assert current is not None
        return current

    async def _condition(self, key: SessionKey) -> Condition | None:
        async with self._sessions.load(key) as loaded:
            if loaded is None:
                return None
            now = loaded.session
            return Condition(
                suspended=now.status is SessionStatus.SUSPENDED,
                unfinished=bool(now.runs) or now.mark is not None,
                last_input_at=loaded.last_at,
            )

    def _notice(self, place: ChatPlace, reason: Why) -> Sequence[Fact]:
        if not reason.automatic:
            return ()
        text = f"{NEW_SESSION}{reason}). /resume returns to the last one."
        return self.texts(place, f"note_{token_hex(8)}", text)

    def texts(self, place: ChatPlace, name: str, text: str) -> list[DeliveryQueued]:
        """Split `text` into the messages for that chat."""
        parts = place.connected.channel.split(text) if text else ()
        return [
            DeliveryQueued(
                delivery_id=DeliveryId(f"{name}.{at}"),
                address=place.address.place,
                text=part,
                reply_to="" if at else place.reply_to,
            )
            for at, part in enumerate(parts)
        ]

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Writing]:
        """Write to the session that stores the chats, one writer at a time."""
        async with self._writing, self._sessions.load(KEY) as loaded:
            yield Writing(self._sessions, loaded, KEY)
