"""The lanes of the outbox: each place's messages, one at a time, each behind those before it.

No lane waits for another, and one with nothing to do has no task. A send is written down before
the platform is called and its answer after. What the platform takes later holds its lane until
then; what it refuses, or what is left to a person, lets the lane go on and stays visible.

This is a supervisor: whatever a lane meets is logged, and it looks again; nothing ends for it.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import inf
from random import random
from typing import assert_never

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from holdfast.channels import addresses
from holdfast.channels import channel as channels
from holdfast.channels.channel import Button, Channel, Outgoing
from holdfast.core import delivery
from holdfast.core.address import Key
from holdfast.core.delivery import (
    Delivery,
    DeliveryQueued,
    OnAmbiguous,
    Policy,
    SendAbandoned,
    SendAccepted,
    SendDoubted,
    SendHeld,
    SendStarted,
)
from holdfast.core.types import DeliveryId, SessionKey, Value
from holdfast.engine.clock import Clock
from holdfast.engine.presence import Presence, carry
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Conflict, Pending

log = logging.getLogger(__name__)

ANSWER_S = 60.0  # for a platform to say what became of a message
TRY_AGAIN_S = 0.5  # when the journal could not be written
LOOK_AGAIN_S = 5.0  # after what should not have been raised
LET_GO_S = 1.0  # for lanes that are cut to end
AT_ONCE = 8  # sessions that lanes load: with more, whoever speaks meanwhile would wait for all

A_ROW, LABEL = 3, 14  # buttons beside each other, and characters of one: else one a row

TOO_LATE = "too late: the gateway restarted"
CUT = "the gateway ended while it was on its way"
NOTHING_TO_CHANGE = "nothing to change: the message it changes was not sent"

_NOBODY = Policy(idempotent=False, on_ambiguous=OnAmbiguous.HOLD)


class Outlet(Value):
    """A channel, and what to do where nobody knows whether a message has arrived."""

    channel: Channel
    policy: Policy


@dataclass(slots=True, eq=False)
class Message:
    """One message in memory."""

    queued: DeliveryQueued
    now: Delivery  # with what is on its way to the disk
    kept: Delivery  # as the journal has it
    key: SessionKey | None  # whose stream its facts are in; None: to be looked up
    old: bool = False  # it was there at the start


@dataclass(slots=True, eq=False)
class _Lane:
    """What is to be said at one place."""

    messages: deque[Message] = field(default_factory=deque)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    nap: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)


class Lanes:
    """Everything that is on its way, by place."""

    def __init__(
        self,
        sessions: Sessions,
        clock: Clock,
        outlets: Mapping[str, Outlet],
        tasks: TaskGroup,
        presence: Presence,
        key_of: Callable[[DeliveryId], Awaitable[SessionKey]],
        name_of: Callable[[DeliveryId], Awaitable[str]],
    ) -> None:
        self._sessions = sessions
        self._clock = clock
        self._outlets = outlets
        self._tasks = tasks
        self._presence = presence
        self._key_of = key_of
        self._name_of = name_of  # what the platform calls it; empty: it does not have it
        self._lanes: dict[Key, _Lane] = {}
        self._last_start = inf  # no send begins after that
        self._loading = anyio.CapacityLimiter(AT_ONCE)
        self.messages: dict[DeliveryId, Message] = {}
        self.repeated = 0  # copies of what may have arrived before

    def __len__(self) -> int:
        """How many are at work."""
        return sum(not lane.ended.is_set() for lane in self._lanes.values())

    @property
    def closing(self) -> bool:
        """Whether it is the way down."""
        return self._last_start < inf

    def add(self, message: Message) -> None:
        """Send it, behind what is to be said there before."""
        if self._tasks.cancel_scope.cancel_called:
            return  # we are cut: nobody would end what begins now; the next start finds it
        self.messages[message.now.id] = message
        place = message.queued.address.place.key
        if (lane := self._lanes.get(place)) is None:
            lane = self._lanes[place] = _Lane()
            self._tasks.start_soon(self._run, place, lane)
        lane.messages.append(message)

    def void(self) -> None:
        """A commit failed: what was on its way to the disk was not said."""
        for message in self.messages.values():
            message.now = message.kept

    def rouse(self, message: Message) -> None:
        """Something was said of it: whoever waits there looks again."""
        if (lane := self._lanes.get(message.queued.address.place.key)) is not None:
            lane.nap.cancel()

    async def stop(self, within_s: float) -> None:
        """Let what is queued go out for so long; what is cut then, the next start finds.

        In the last half of it no send begins, lest it be cut. Afterwards nothing is sent.
        """
        self._last_start = anyio.current_time() + within_s / 2
        for lane in self._lanes.values():
            lane.nap.cancel()
        with anyio.move_on_after(within_s):
            await self._ended()
        for lane in self._lanes.values():
            lane.scope.cancel()
        with anyio.move_on_after(LET_GO_S, shield=True):
            await self._ended()

    async def _ended(self) -> None:
        while at_work := [lane for lane in self._lanes.values() if not lane.ended.is_set()]:
            await at_work[0].ended.wait()

    async def _run(self, place: Key, lane: _Lane) -> None:
        try:
            with lane.scope:
                while lane.messages and await self._insist(lane, lane.messages[0]):
                    del self.messages[lane.messages.popleft().now.id]
        finally:
            if not lane.messages:  # else it was cut, and nothing that comes later may overtake
                del self._lanes[place]
            lane.ended.set()

    async def _insist(self, lane: _Lane, message: Message) -> bool:
        while True:
            try:
                return await self._settle(lane, message)
            except Exception:
                log.exception("a message is looked at again", extra={"id": message.now.id})
            await self._clock.sleep(LOOK_AGAIN_S)

    async def _settle(self, lane: _Lane, message: Message) -> bool:
        """Go on with it until it is out of our hands. False: that is for the next start."""
        if message.key is None:
            message.key = await self._key_of(message.now.id)
        outlet = self._outlets.get(message.queued.address.platform)
        while True:
            if message.old and message.queued.perishable and not message.now.status.final:
                await self._abandon(message, TOO_LATE)
                continue
            match delivery.next_step(message.now, _policy(message, outlet), self._clock.now()):
                case delivery.Rest():
                    return True
                case delivery.Doubt():
                    await self._say(message, SendDoubted(delivery_id=message.now.id, reason=CUT))
                case delivery.Hold():
                    await self._hold(message, _doubted(message))
                case delivery.Send() | delivery.WaitUntil() if outlet is None:
                    await self._hold(message, _unserved(message))
                case delivery.WaitUntil(due_at=due_at):
                    if not await self._wait(lane, due_at):
                        return False
                case delivery.Send(marked=marked):
                    assert outlet is not None
                    if anyio.current_time() >= self._last_start:
                        return False
                    await self._send(message, outlet, marked=marked)

    async def _wait(self, lane: _Lane, until: float) -> bool:
        """Sleep, or until somebody has a word to say. False: there is no time for that."""
        wait_s = until - self._clock.now()
        if wait_s > self._last_start - anyio.current_time():
            return False
        with anyio.CancelScope() as lane.nap:
            await self._clock.sleep(wait_s)
        return True

    async def _send(self, message: Message, outlet: Outlet, *, marked: bool) -> None:
        queued = message.queued
        original = await self._name_of(queued.edits) if queued.edits else ""
        if queued.edits and not original:
            await self._abandon(message, NOTHING_TO_CHANGE)
            return
        await self._presence.settled(queued.edits)
        edit = original if outlet.channel.capabilities.edits else ""
        assert message.key is not None
        async with AsyncExitStack() as stack:
            async with self._loading:
                hold = self._sessions.hold(message.key)
                await stack.enter_async_context(hold)  # until the answer is written down
            if not await self._say(message, SendStarted(delivery_id=message.now.id)):
                return
            self.repeated += marked
            outgoing = _outgoing(queued, edit, repeated=marked)
            answer = await carry(outlet.channel, outgoing, self._clock, ANSWER_S)
            await self._say(message, self._meaning(message, answer))

    def _meaning(self, message: Message, answer: channels.Sent) -> delivery.Event:
        """The fact that an answer of the platform is."""
        delivery_id, now = message.now.id, self._clock.now()
        match answer:
            case channels.Accepted(message_id=name):
                return SendAccepted(delivery_id=delivery_id, external_id=name)
            case channels.Later(reason=reason, after_s=after_s):
                return delivery.defer(message.now, reason, after_s, random(), now)
            case channels.Refused(reason=reason):
                return SendAbandoned(delivery_id=delivery_id, reason=reason)
            case channels.Doubtful(reason=reason):
                return delivery.doubt(message.now, reason, now)
            case _:
                assert_never(answer)

    async def _hold(self, message: Message, reason: str) -> None:
        await self._say(message, SendHeld(delivery_id=message.now.id, reason=reason))

    async def _abandon(self, message: Message, reason: str) -> None:
        await self._say(message, SendAbandoned(delivery_id=message.now.id, reason=reason))

    async def _say(self, message: Message, fact: delivery.Event) -> bool:
        """Write it down, however long the journal takes. False: it is not so any more."""
        assert message.key is not None
        while True:
            try:
                async with self._sessions.hold(message.key) as held:
                    pending = self.enqueue(held, message, fact)
                    if pending is not None:
                        await pending.wait()
                    return pending is not None
            except (JournalUnavailable, Conflict):
                await self._clock.sleep(TRY_AGAIN_S)

    def enqueue(self, held: Held | None, message: Message, fact: delivery.Event) -> Pending | None:
        """Decided and enqueued with no await in between; None: it cannot be said of it now."""
        if held is None:
            raise LookupError(f"message {message.now.id} belongs to a session that is not there")
        then = after(message.now, fact)
        if then is None:
            return None
        pending = self._sessions.append(held, fact)
        message.now = then
        return pending


def after(now: Delivery, fact: delivery.Event) -> Delivery | None:
    """What `fact` makes of it; None: it cannot be said of it."""
    known = (now.status, type(fact)) in delivery.TRANSITIONS
    return delivery.evolve(now, fact) if known else None


def _policy(message: Message, outlet: Outlet | None) -> Policy:
    if outlet is None:
        return _NOBODY
    changes = message.queued.edits and outlet.channel.capabilities.edits
    # The same change made twice is one change.
    return replace(outlet.policy, idempotent=True) if changes else outlet.policy


def _outgoing(queued: DeliveryQueued, edit: str, *, repeated: bool) -> Outgoing:
    buttons = tuple(Button(text, data) for text, data in queued.buttons)
    fits = len(buttons) <= A_ROW and all(len(button.text) <= LABEL for button in buttons)
    a_row = len(buttons) if fits else 1
    return Outgoing(
        delivery_id=queued.delivery_id,
        address=queued.address.place,
        text=queued.text,
        reply_to=queued.reply_to,
        edit=edit,
        buttons=tuple(buttons[at : at + a_row] for at in range(0, len(buttons), a_row or 1)),
        repeated=repeated,
        named_hosts=addresses.hosts(queued.text) if queued.verbatim else frozenset(queued.hosts),
    )


def _doubted(message: Message) -> str:
    return f"it may have arrived: {message.now.reason}"


def _unserved(message: Message) -> str:
    platform = message.queued.address.platform
    return f"no channel {platform} is configured; configure it, then: holdfast outbox resend"
