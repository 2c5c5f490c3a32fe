"""Inbound messages of chats: each becomes an input, an answer, a command, or nothing.

The updates of a channel are taken one at a time, in order. An update is taken when its facts are
durable, together with the new cursor and the id of the update. After a crash before that, the
platform sends it again; after a crash behind it, its id is known and nothing happens twice. A
sender who is not let in is ignored, and told only how to be let in. This is a supervisor too: a
channel that fails is started again; an update that causes an error is logged and skipped.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from secrets import token_bytes, token_hex
from typing import Protocol

import anyio

from holdfast.channels.channel import Accepted, Channel, Incoming, Outgoing
from holdfast.commands import parse
from holdfast.commands.command import Command
from holdfast.core import address
from holdfast.core.address import Sender
from holdfast.core.chat import access, notices
from holdfast.core.chat.access import AccessDenied
from holdfast.core.chat.chats import UpdateTaken
from holdfast.core.inbox import UpdateRef, digest_of
from holdfast.core.intents import Principal
from holdfast.core.material import fenced
from holdfast.core.types import DeliveryId, Fact, Part, Value
from holdfast.engine.chats.answers import Answering
from holdfast.engine.chats.book import ChatBook
from holdfast.engine.chats.places import ChatPlace, Connected
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import Sessions
from holdfast.errors import JournalUnavailable, Misconfigured, Refused, Transient
from holdfast.gateway import CommandTarget, Gateway
from holdfast.journal.journal import Journal

log = logging.getLogger(__name__)

BEGIN_AGAIN_S = 5.0  # after an unexpected error of a channel
REFUSED_S, LONGEST_REFUSED_S = 1.0, 300.0  # after a channel was refused by its platform
OFFER_S = 10.0  # to show a stranger their code
STILL_VALID = "Your code is still valid for {} min."


class InboundDeps(Value):
    """The parts that inbound messages need."""

    gateway: Gateway
    journal: Journal
    sessions: Sessions
    clock: Clock
    commands: Mapping[str, Command]
    converse: "Callable[[ChatPlace], CommandChat]"


class CommandChat(CommandTarget, Protocol):
    """A conversation, and the changes of a command, which are recorded with the command."""

    facts: list[Fact]  # for the session that stores the chats
    afterwards: list[Callable[[], Awaitable[None]]]  # called once they are durable


class _Code(Part):
    """A code that was shown to a stranger. Only this process knows that it arrived."""

    message: DeliveryId
    minutes: int = 0  # of validity, as they were told last


class Inbound:
    """Takes the updates of all channels."""

    def __init__(self, parts: InboundDeps, book: ChatBook) -> None:
        self._parts = parts
        self._book = book
        self._taking = {name: anyio.Lock() for name in book.channels}
        self._codes: dict[Sender, _Code] = {}  # shown, or being sent
        self._answering = Answering(
            parts.gateway, parts.journal, parts.sessions, parts.clock, book.policy
        )

    async def listen(self, name: str) -> None:
        """Receive the updates of a channel as long as the process lives."""
        channel, clock = self._book.channels[name].channel, self._parts.clock
        refused_s = REFUSED_S
        while True:
            wait_s, begun_at = BEGIN_AGAIN_S, clock.now()
            try:
                cursor = await self._parts.journal.cursor(name)
                await channel.receive(cursor, partial(self.take, name))
            except Misconfigured as wrong:
                # A refusal may be a mistake of the platform, or the operator fixes the token.
                channel.trouble = f"{wrong}: {wrong.hint}"
                log.critical("a channel cannot be used", extra={"reason": channel.trouble})
                if clock.now() - begun_at > LONGEST_REFUSED_S:
                    refused_s = REFUSED_S
                wait_s, refused_s = refused_s, min(2 * refused_s, LONGEST_REFUSED_S)
                await self._tell_unheard(name, str(wrong))
            except Exception:
                log.exception("a channel broke", extra={"channel": name})
            await clock.sleep(wait_s)

    async def _tell_unheard(self, name: str, reason: str) -> None:
        """Tell the home chat, once a day, that a channel receives nothing."""
        try:
            home = (await self._book.known()).home
            news = notices.unheard(name, reason, home, self._parts.clock.now())
            if news is None or await self._parts.journal.delivery(news.delivery_id) is not None:
                return
            async with self._book.write() as book:
                book.add((news,))
        except JournalUnavailable:
            log.warning("the home could not be told of a channel", extra={"channel": name})

    async def take(self, name: str, incoming: Incoming) -> str:
        """Take one update durably; return a text for the user who pressed a button.

        `Transient`: it was not taken, and may be tried again.
        """
        connected = self._book.channels[name]
        came = UpdateRef(
            channel=name,
            external_id=incoming.external_id,
            cursor=incoming.cursor,
            message_id=incoming.message_id,
            place=incoming.address.place.key,
            digest=digest_of(incoming.text) if incoming.message_id else "",
        )
        # If the caller is cancelled, finish the update, so that its id is known.
        with anyio.CancelScope(shield=True):
            async with self._taking[name]:
                if await self._parts.journal.seen(name, incoming.external_id):
                    return ""
                shown = await self._deal(connected, incoming, came)
        if isinstance(shown, str):
            return shown
        # Not durable, so outside of the lock.
        await self._show(connected.channel, shown, incoming.address.sender)
        return ""

    async def _show(self, channel: Channel, shown: Outgoing, sender: Sender) -> None:
        arrived = False
        with anyio.move_on_after(OFFER_S):
            arrived = isinstance(await channel.deliver(shown), Accepted)
        code = self._codes.get(sender)
        if not arrived and code is not None and code.message == shown.delivery_id:
            del self._codes[sender]  # it may not have arrived: their next message gets another

    async def _deal(
        self, connected: Connected, incoming: Incoming, came: UpdateRef
    ) -> Outgoing | str:
        """Handle an update durably; return what to show afterwards without a record.

        A text is only for the person who pressed a button.
        """
        place = await self._place(connected, incoming, came)
        try:
            if incoming.edited and await self._is_unchanged(came):
                await self.taken(place, "")
            elif incoming.pressed:
                return await self._press(place, incoming)
            elif isinstance(verdict := await self._may_speak(place), AccessDenied):
                return await self._turn_away(place, incoming, verdict)
            else:
                await self._hear(place, incoming)
        except Refused as refused:
            await self.taken(place, str(refused))
        except Transient:
            raise
        except Exception:
            # An update that causes an error must not block those after it.
            log.exception("an update was left behind", extra={"update": came.external_id})
            await self.taken(place, "That did not work: an internal error. The log has more.")
        return ""

    async def _place(self, connected: Connected, incoming: Incoming, came: UpdateRef) -> ChatPlace:
        said_at = incoming.address
        policy = await self._book.policy()
        by = Principal(
            address.owner(said_at, connected.groups),
            connected.door,
            access.roles_of(policy, said_at.sender),
            said_at.sender.owner,
        )
        return ChatPlace(connected, said_at, by, came, incoming.message_id)

    async def _is_unchanged(self, came: UpdateRef) -> bool:
        """Return whether an edit leaves the text as it was taken: a reaction, a preview, a move."""
        return await self._parts.journal.message_digest(came.place, came.message_id) == came.digest

    async def _may_speak(self, place: ChatPlace) -> access.Verdict:
        said_at = place.address
        return access.may_speak(await self._book.policy(), said_at.sender, said_at.chat_type)

    async def _turn_away(
        self, place: ChatPlace, incoming: Incoming, denied: AccessDenied
    ) -> Outgoing | str:
        """Ignore the sender, or offer them a pairing code, which is stored nowhere else."""
        now, said_at = self._parts.clock.now(), place.address
        policy = await self._book.policy()
        waiting = policy.members.offers
        self._codes = {s: code for s, code in self._codes.items() if s in waiting}
        code = self._codes.get(said_at.sender)
        offer = access.offer(
            policy,
            said_at.sender,
            said_at.chat_type,
            incoming.name,
            token_bytes(access.ENTROPY),
            now,
            said_at.chat,
            shown=code is not None,
        )
        log.info("not let in", extra={"sender": said_at.sender.owner, "cause": denied.cause})
        if isinstance(offer, AccessDenied):
            await self.taken(place, "")
            return ""
        name = DeliveryId(f"pair_{token_hex(8)}")
        if isinstance(offer, access.StillGood):
            assert code is not None
            await self.taken(place, "")
            text = _still_good(code, offer.expires_at - now)
            return Outgoing(name, said_at.place, text) if text else ""
        await self.taken(place, "", offer.fact)
        self._codes[said_at.sender] = _Code(name)
        text = (
            "I do not know you yet. My operator can let you in within ten minutes:\n\n"
            f"`holdfast pair {offer.code}`"
        )
        return Outgoing(name, said_at.place, text)

    async def _hear(self, place: ChatPlace, incoming: Incoming) -> None:
        # A forwarded text is no command, no answer, and names no host.
        own = "" if incoming.forwarded else incoming.text
        call = parse.read(own)
        if call is None:
            if not (own and await self._answering.hear(place, incoming)):
                await self._book.say(place, _whole(incoming), None, own=own)
            return
        chat = self._parts.converse(place)
        answer = await parse.answer(call, chat, self._parts.commands)
        await self.taken(place, answer, *chat.facts)
        for then in chat.afterwards:
            await then()

    async def _press(self, place: ChatPlace, incoming: Incoming) -> str:
        """Take a pressed button; return the text for the presser, if only they can be shown it."""
        # A stranger is told nothing.
        told = await self._answering.press(place, incoming.pressed) if place.by.roles else ""
        alone = place.connected.channel.capabilities.alerts
        await self.taken(place, "" if alone else told)
        return told if alone else ""

    async def taken(self, place: ChatPlace, answer: str, *facts: Fact) -> None:
        """Record an update as taken, with its changes and the reply to it, durably."""
        told = self._book.texts(place, f"cmd_{place.came.channel}_{place.came.external_id}", answer)
        async with self._book.write() as book:
            pending = book.add((*facts, UpdateTaken(came=place.came), *told))
        if pending is not None:
            await pending.wait()


def _still_good(code: _Code, for_s: float) -> str:
    """Return the text for a stranger who has a code; empty: they were told just now."""
    before, code.minutes = code.minutes, int(for_s // 60)
    told = before == code.minutes
    return "" if told else STILL_VALID.format(code.minutes)


def _whole(incoming: Incoming) -> str:
    """Return the text, with the quote and the source that it refers to."""
    text = incoming.text
    if incoming.forwarded:
        text = fenced(incoming.forwarded, text)
    if incoming.quoted:
        quoted = "\n".join(f"> {line}" for line in incoming.quoted.splitlines())
        text = f"{quoted}\n\n{text}"
    return f"(I have edited my message. It now says:)\n{text}" if incoming.edited else text
