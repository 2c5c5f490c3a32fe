"""Chats: what a channel hears becomes an input, an answer, a command, or nothing.

One update of a channel at a time, in order. It is taken when its facts are durable, with the
cursor that moves behind it and the name by which it is known again: a crash before that leaves
it to the platform, a crash after it changes nothing, and the same update twice is one. Whoever
is not let in is not heard, and told nothing but how to be let in. This is a supervisor too: a
channel that breaks is begun again; an update that breaks us is left behind, aloud.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from secrets import token_bytes, token_hex
from typing import Protocol

import anyio

from holdfast.channels.channel import Accepted, Channel, Incoming, Outgoing
from holdfast.commands import parse
from holdfast.commands.command import Command
from holdfast.core import access, address, delivery, replies, words
from holdfast.core.access import Denied
from holdfast.core.address import Address, Condition, Groups, Key, Reset, Sender, Why
from holdfast.core.chats import Chats as Known
from holdfast.core.chats import UpdateTaken
from holdfast.core.delivery import DeliveryQueued
from holdfast.core.inbox import Came, InputAdmitted, Mode
from holdfast.core.intents import Answer, Capabilities, Principal, Submit
from holdfast.core.session import Status as SessionStatus
from holdfast.core.types import (
    OPERATOR,
    CallId,
    DeliveryId,
    Fact,
    InputId,
    Owner,
    SessionId,
    SessionKey,
    Value,
)
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import Held, Sessions
from holdfast.engine.standing import Writing
from holdfast.errors import Misconfigured, Refused, Transient
from holdfast.gateway import Chat, Gateway
from holdfast.journal.journal import Conflict, Journal

log = logging.getLogger(__name__)

KEY = SessionKey(OPERATOR, SessionId("/chats"))
BEGIN_AGAIN_S = 5.0  # after a channel broke in a way it should not have
OFFER_S = 10.0  # to show a stranger their code

OVER = "That is over already."


class Connected(Value):
    """A channel and what the configuration says of it."""

    channel: Channel
    rules: access.Rules
    groups: Groups
    reset: Reset
    busy: Mode
    on_ambiguous: delivery.OnAmbiguous
    progress: bool  # show how far a run is, where the platform can

    @property
    def door(self) -> Capabilities:
        can = self.channel.capabilities
        return Capabilities(self.channel.name, can.answerable, can.late)


class Place(Value):
    """One conversation, and who speaks in it now."""

    connected: Connected
    address: Address
    by: Principal
    came: Came
    reply_to: str

    @property
    def key(self) -> Key:
        return address.conversation(self.address, self.connected.groups).key


class Parts(Value):
    """What the chats need of the rest."""

    gateway: Gateway
    journal: Journal
    sessions: Sessions
    clock: Clock
    hosts: Callable[[str], frozenset[str]]  # that a text names
    commands: Mapping[str, Command]
    converse: "Callable[[Chats, Place], Talk]"


class Talk(Chat, Protocol):
    """A conversation, with what a command changed that is written down with the command itself."""

    facts: list[Fact]  # for the session that keeps the chats
    afterwards: list[Callable[[], Awaitable[None]]]  # what is done once they are durable


@dataclass(slots=True, eq=False)
class _Code:
    """What a stranger has seen of their code. Only this process knows that it reached them."""

    message: DeliveryId
    minutes: int = 0  # that they were last told it is good for


class Chats:
    """All channels' updates, on their way in."""

    def __init__(self, parts: Parts, channels: Mapping[str, Connected]) -> None:
        self._parts = parts
        self._channels = channels
        self._writing = anyio.Lock()
        self._taking = {name: anyio.Lock() for name in channels}
        self._codes: dict[Sender, _Code] = {}  # that are shown, or on their way

    @property
    def channels(self) -> Mapping[str, Connected]:
        return self._channels

    async def listen(self, name: str) -> None:
        """For as long as the process lives: hear what a channel has to say."""
        channel = self._channels[name].channel
        while True:
            try:
                cursor = await self._parts.journal.cursor(name)
                await channel.receive(cursor, partial(self.take, name))
            except Misconfigured as wrong:
                channel.trouble = f"{wrong}: {wrong.hint}"
                log.critical("a channel cannot be used", extra={"reason": channel.trouble})
                return
            except Exception:
                log.exception("a channel broke", extra={"channel": name})
            await self._parts.clock.sleep(BEGIN_AGAIN_S)

    async def take(self, name: str, incoming: Incoming) -> None:
        """Take one update, durably. `Transient`: it was not taken, and may be tried again."""
        connected = self._channels[name]
        came = Came(
            channel=name,
            external_id=incoming.external_id,
            cursor=incoming.cursor,
            message_id=incoming.message_id,
        )
        # Whoever hands it on may leave; what has begun is finished, so that it is known again.
        with anyio.CancelScope(shield=True):
            async with self._taking[name]:
                if await self._parts.journal.seen(name, incoming.external_id):
                    return
                try:
                    shown = await self._deal(connected, incoming, came)
                except Conflict as busy:
                    raise Transient(str(busy)) from busy
        if shown is not None:  # nobody waits for this, and it is not worth a wait
            await self._show(connected.channel, shown, incoming.address.sender)

    async def _show(self, channel: Channel, shown: Outgoing, sender: Sender) -> None:
        arrived = False
        with anyio.move_on_after(OFFER_S):
            arrived = isinstance(await channel.deliver(shown), Accepted)
        code = self._codes.get(sender)
        if not arrived and code is not None and code.message == shown.delivery_id:
            del self._codes[sender]  # they may not have it: their next words get another

    async def _deal(self, connected: Connected, incoming: Incoming, came: Came) -> Outgoing | None:
        """Deal with it, durably; what is to be shown afterwards that is not written down."""
        place = await self._place(connected, incoming, came)
        try:
            if incoming.pressed:
                await self._press(place, incoming)
            elif isinstance(verdict := await self._may_speak(place), Denied):
                return await self._turn_away(place, incoming, verdict)
            else:
                await self._hear(place, incoming)
        except Refused as refused:
            await self.taken(place, str(refused))
        except (Transient, Conflict):
            raise
        except Exception:
            # One update that we cannot deal with must not stand in the way of all others.
            log.exception("an update was left behind", extra={"update": came.external_id})
            await self.taken(place, "That did not work: an internal error. The log has more.")
        return None

    async def _place(self, connected: Connected, incoming: Incoming, came: Came) -> Place:
        said_at = incoming.address
        policy = await self.policy()
        by = Principal(
            address.owner(said_at, connected.groups),
            connected.door,
            access.roles_of(policy, said_at.sender),
            said_at.sender.owner,
        )
        return Place(connected, said_at, by, came, incoming.message_id)

    async def _may_speak(self, place: Place) -> access.Verdict:
        said_at = place.address
        return access.may_speak(await self.policy(), said_at.sender, said_at.chat_type)

    async def policy(self) -> access.Policy:
        """Who may do what, as things stand."""
        rules = {name: c.rules for name, c in self._channels.items()}
        return access.Policy(rules, (await self.known()).members)

    async def known(self) -> Known:
        """What the facts say of all chats."""
        async with self._parts.sessions.hold(KEY) as held:
            return held.session.chats if held else Known()

    async def _turn_away(self, place: Place, incoming: Incoming, denied: Denied) -> Outgoing | None:
        """Nobody hears them; a stranger may be shown how to be let in. The code is nowhere else."""
        now, said_at = self._parts.clock.now(), place.address
        policy = await self.policy()
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
        if isinstance(offer, Denied):
            await self.taken(place, "")
            return None
        name = DeliveryId(f"pair_{token_hex(8)}")
        if isinstance(offer, access.StillGood):
            assert code is not None
            await self.taken(place, "")
            text = _still_good(code, offer.expires_at - now)
            return Outgoing(name, said_at.place, text) if text else None
        await self.taken(place, "", offer.fact)
        self._codes[said_at.sender] = _Code(name)
        text = (
            "I do not know you yet. Whoever runs me can let you in, within ten minutes, with\n\n"
            f"`holdfast pair {offer.code}`"
        )
        return Outgoing(name, said_at.place, text)

    async def _hear(self, place: Place, incoming: Incoming) -> None:
        call = parse.read(incoming.text)
        if call is None:
            await self.say(place, _whole(incoming), None)
            return
        chat = self._parts.converse(self, place)
        answer = await parse.answer(call, chat, self._parts.commands)
        await self.taken(place, answer, *chat.facts)
        for then in chat.afterwards:
            await then()

    async def say(
        self, place: Place, text: str, mode: Mode | None, *, instead: bool = False
    ) -> None:
        """Words for the agent: to the session behind the conversation's key."""
        session_id = await self.route(place)
        keys = (await self.known()).keys
        chosen = address.busy_mode(keys, place.key, place.connected.busy)
        await self._parts.gateway.send(
            Submit(
                by=place.by,
                text=text,
                session_id=session_id,
                mode=mode or chosen,
                came=place.came,
                address=place.address,
                progress=place.connected.progress and place.connected.channel.capabilities.edits,
                hosts=tuple(sorted(self._parts.hosts(text))),
                instead=instead,
            )
        )

    async def route(self, place: Place) -> SessionId:
        """The session for the next words, begun afresh where that is due; then somebody is told."""
        current = address.current((await self.known()).keys, place.key)
        condition = None
        if current is not None:
            condition = await self._condition(SessionKey(place.by.owner, current))
        async with self.hold() as book:
            keys, now = book.now.chats.keys, self._parts.clock.now()
            bound = address.route(keys, place.key, condition, place.connected.reset, now)
            if bound is not None:
                book.add((bound, *self._afresh(place, bound.reason)))  # before what follows it
                return bound.session_id
        assert current is not None
        return current

    async def _condition(self, key: SessionKey) -> Condition | None:
        async with self._parts.sessions.hold(key) as held:
            if held is None:
                return None
            now = held.session
            return Condition(
                suspended=now.status is SessionStatus.SUSPENDED,
                unfinished=bool(now.runs) or now.mark is not None,
                last_input_at=held.last_at,
            )

    def _afresh(self, place: Place, reason: Why) -> Sequence[Fact]:
        if not reason.automatic:
            return ()
        text = f"This is a fresh conversation (reason: {reason}). /resume brings the last one back."
        return self._texts(place, f"note_{token_hex(8)}", text)

    async def _press(self, place: Place, incoming: Incoming) -> None:
        match replies.read_press(incoming.pressed):
            case replies.Answers() as press:
                answer = await self._answer(place, press)
            case replies.Chooses() as press:
                answer = await self._choose(place, press)
            case _:
                answer = OVER
        # A stranger is told nothing.
        await self.taken(place, answer if place.by.roles else "")

    async def _answer(self, place: Place, press: replies.Answers) -> str:
        """An approval, by a button. It counts for what the button was shown for, or not at all."""
        asked = await self._parts.journal.delivery(DeliveryId(f"ask_{press.request_id}"))
        row = await self._parts.journal.run(asked.queued.of_run) if asked else None
        if asked is None or row is None or asked.queued.address != place.address.place:
            return access.NOTHING_TO_ANSWER
        refused = await self._may_not(place, row.key, asked.queued.of_run, access.may_answer)
        if refused:
            return refused
        by = Principal(row.key.owner, place.by.door, place.by.roles, place.by.speaker)
        run_id, came = asked.queued.of_run, place.came
        intent = Answer(by, run_id, press.choice, press.request_id, came=came)
        try:
            await self._parts.gateway.send(intent)
        except Refused as late:
            return OVER if late.code in _LATE else str(late)
        return ""  # the message itself says so

    async def _may_not(
        self,
        place: Place,
        key: SessionKey,
        run_id: str,
        judge: Callable[[access.Policy, address.Sender, Owner], access.Verdict],
    ) -> str:
        """Why the one who speaks may not have a say in that run; empty: they may."""
        policy = await self.policy()
        async with self._parts.sessions.hold(key) as held:
            runs = held.session.runs if held else {}
            found = next((r for r in runs.values() if r.id == run_id), None)
            if held is None or found is None:
                works_for = key.owner
            else:
                works_for = words.works_for(held.session, found)
        verdict = judge(policy, place.address.sender, works_for)
        if isinstance(verdict, Denied):
            log.info(
                "not allowed",
                extra={"sender": place.address.sender.owner, "cause": verdict.cause},
            )
            return access.NOTHING_TO_ANSWER  # as if there were no such run
        return "" if found is not None else OVER

    async def _choose(self, place: Place, press: replies.Chooses) -> str:
        """An answer to a question of a run, by a button."""
        row = await self._parts.journal.run(press.run_id)
        if row is None:
            return access.NOTHING_TO_ANSWER
        refused = await self._may_not(place, row.key, press.run_id, access.may_stop)
        if refused:
            return refused
        async with self._parts.sessions.hold(row.key) as held:
            chosen = _chosen(held, place, press)
            if held is None or chosen is None:
                return OVER
            call_id, option = chosen
            said = InputAdmitted(
                input_id=InputId(""), run_id=press.run_id, text=option, came=place.came
            )
            facts = words.answer(held.session, press.run_id, call_id, said)
            await self._parts.sessions.append(held, *facts).wait()
        return ""

    async def taken(self, place: Place, answer: str, *facts: Fact) -> None:
        """The update is dealt with: say so, with what it changed and the answer to it, durably."""
        told = self._texts(place, f"cmd_{place.came.channel}_{place.came.external_id}", answer)
        async with self.hold() as book:
            pending = book.add((*facts, UpdateTaken(came=place.came), *told))
        if pending is not None:
            await pending.wait()

    def _texts(self, place: Place, name: str, text: str) -> list[DeliveryQueued]:
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
    async def hold(self) -> AsyncIterator[Writing]:
        """The session that keeps the chats, one who writes at a time."""
        async with self._writing, self._parts.sessions.hold(KEY) as held:
            yield Writing(self._parts.sessions, held, KEY)


def _still_good(code: _Code, for_s: float) -> str:
    """What to tell one who has a code; empty: they were told a moment ago."""
    before, code.minutes = code.minutes, int(for_s // 60)
    told = before == code.minutes
    return "" if told else f"The code I have shown you is still good for {code.minutes} min."


def _whole(incoming: Incoming) -> str:
    """The words, with what they are about."""
    text = incoming.text
    if incoming.quoted:
        quoted = "\n".join(f"> {line}" for line in incoming.quoted.splitlines())
        text = f"{quoted}\n\n{text}"
    return f"(I have changed what I said before, to:)\n{text}" if incoming.edited else text


_LATE = frozenset({"approval_not_active", "approval_not_pending", "run_not_found", "run_ended"})


def _chosen(held: Held | None, place: Place, press: replies.Chooses) -> tuple[CallId, str] | None:
    """The call whose question that button was shown for, and the words on it."""
    found = held.session.runs.get(press.run_id) if held else None
    shown_at = found.origin.address if found else None
    if found is None or shown_at is None or shown_at.place != place.address.place:
        return None
    for call_id, call in found.calls.items():
        options = call.parked.options if call.parked else ()
        if replies.mark(call_id) == press.mark and press.option < len(options):
            return call_id, options[press.option]
    return None
