"""The queues of the outbox, one per place (a lane): its messages are sent in order, one at a time.

Lanes do not wait for each other, and an empty one has no task. A send is recorded before the
platform is called, and its result after. A message that the platform takes later blocks its lane
until then. A message that it refuses, or that waits for a person, does not block it and stays
visible.

This is a supervisor: any error of a lane is logged, and the lane tries again.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from math import inf
from random import random
from typing import assert_never

import anyio
from anyio.abc import TaskGroup
from msgspec import field
from msgspec.structs import replace

from holdfast.channels import channel as channels
from holdfast.channels.channel import Button, Outgoing
from holdfast.channels.text import links
from holdfast.core.address import Key
from holdfast.core.chat import delivery
from holdfast.core.chat.notices import Trouble
from holdfast.core.types import DeliveryId, Part, SessionKey
from holdfast.engine.chats.places import Outlet
from holdfast.engine.chats.typing import Presence, carry
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Pending

log = logging.getLogger(__name__)

ANSWER_S = 60.0  # for a platform to answer
TRY_AGAIN_S = 0.5  # when the journal could not be written
LOOK_AGAIN_S = 5.0  # after an unexpected error
LET_GO_S = 1.0  # for cancelled lanes to end
AT_ONCE = 8  # sessions that lanes load; with more, a new message would wait for all of them

A_ROW, LABEL = 3, 14  # buttons in a row, and characters of one; otherwise one per row

TOO_LATE = "too late: the gateway restarted"
CUT = "the gateway ended while it was on its way"
NOTHING_TO_CHANGE = "nothing to change: the message it changes was not sent"

_NO_CHANNEL = delivery.DeliveryPolicy(idempotent=False, on_ambiguous=delivery.OnAmbiguous.HOLD)


class QueuedMessage(Part):
    """One message in memory."""

    queued: delivery.DeliveryQueued
    now: delivery.Delivery  # with what is on its way to the disk
    kept: delivery.Delivery  # as the journal has it
    key: SessionKey | None  # whose stream its facts are in; None: to be looked up
    old: bool = False  # it was there at the start


# Returns the notice for the operator about an undelivered message, if it was not sent before.
News = Callable[[delivery.DeliveryQueued, Trouble, str], Awaitable[delivery.DeliveryQueued | None]]


class _Lane(Part):
    """The messages that wait for one place."""

    messages: deque[QueuedMessage] = field(default_factory=deque)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    nap: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)


class Lanes(Part):
    """All messages that are being sent, by place."""

    _sessions: Sessions
    _clock: Clock
    _outlets: Mapping[str, Outlet]
    _tasks: TaskGroup
    _presence: Presence
    _key_of: Callable[[DeliveryId], Awaitable[SessionKey]]
    _name_of: Callable[[DeliveryId], Awaitable[str]]  # the platform's id; empty: not sent yet
    _news: News
    _lanes: dict[Key, _Lane] = {}
    _last_start: float = inf  # no send begins after that
    _loading: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(AT_ONCE))
    messages: dict[DeliveryId, QueuedMessage] = {}
    repeated: int = 0  # copies of what may have arrived before

    def __len__(self) -> int:
        """Return the number of lanes at work."""
        return sum(not lane.ended.is_set() for lane in self._lanes.values())

    @property
    def closing(self) -> bool:
        """Return whether the process is stopping."""
        return self._last_start < inf

    def add(self, message: QueuedMessage) -> None:
        """Send it after the earlier messages of its place."""
        if self._tasks.cancel_scope.cancel_called:
            return  # the process is ending; the next start finds it
        self.messages[message.now.id] = message
        place = message.queued.address.place.key
        if (lane := self._lanes.get(place)) is None:
            lane = self._lanes[place] = _Lane()
            self._tasks.start_soon(self._run, place, lane)
        lane.messages.append(message)

    def void(self) -> None:
        """Return to the committed state: a commit failed."""
        for message in self.messages.values():
            message.now = message.kept

    def rouse(self, message: QueuedMessage) -> None:
        """Wake the lane of a message that has changed."""
        if (lane := self._lanes.get(message.queued.address.place.key)) is not None:
            lane.nap.cancel()

    async def stop(self, within_s: float) -> None:
        """Send queued messages for so long, then cancel; the next start finds the rest.

        In the last half no send begins, so that it is not cancelled. Afterwards nothing is sent.
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
            if not lane.messages:  # else it was cancelled, and no later message may overtake
                del self._lanes[place]
            lane.ended.set()

    async def _insist(self, lane: _Lane, message: QueuedMessage) -> bool:
        while True:
            try:
                return await self._settle(lane, message)
            except Exception:
                log.exception("a message is looked at again", extra={"id": message.now.id})
            await self._clock.sleep(LOOK_AGAIN_S)

    async def _settle(self, lane: _Lane, message: QueuedMessage) -> bool:
        """Perform its steps until it rests. False: the rest is for the next start."""
        if message.key is None:
            message.key = await self._key_of(message.now.id)
        outlet = self._outlets.get(message.queued.address.platform)
        while True:
            if message.old and message.queued.perishable and not message.now.status.final:
                await self._abandon(message, TOO_LATE)
                continue
            step = delivery.next_step(message.now, _policy(message, outlet), self._clock.now())
            if isinstance(step, delivery.DeliveryRests):
                return True
            if not await self._perform(lane, message, outlet, step):
                return False

    async def _perform(
        self, lane: _Lane, message: QueuedMessage, outlet: Outlet | None, step: delivery.Step
    ) -> bool:
        """Perform one step. False: there is no time left for it."""
        match step:
            case delivery.DoubtDelivery():
                await self._say(message, delivery.cut(message.now, CUT, self._clock.now()))
            case delivery.Hold():
                await self._hold(message, f"it may have arrived: {message.now.reason}")
            case delivery.AbandonDelivery():
                reason = delivery.gave_up(message.now.reason)
                await self._tell(message, Trouble.GIVEN_UP, _abandoned(message, reason))
            case delivery.Send() | delivery.WaitUntil() if outlet is None:
                await self._hold(message, _unserved(message))
            case delivery.WaitUntil(due_at=due_at):
                return await self._wait(lane, due_at)
            case delivery.Send(marked=marked):
                assert outlet is not None
                if anyio.current_time() >= self._last_start:
                    return False
                await self._send(message, outlet, marked=marked)
            case _:  # Rest
                pass
        return True

    async def _wait(self, lane: _Lane, until: float) -> bool:
        """Sleep, at most until the lane is woken. False: there is no time for that."""
        wait_s = until - self._clock.now()
        if wait_s > self._last_start - anyio.current_time():
            return False
        with anyio.CancelScope() as lane.nap:
            await self._clock.sleep(wait_s)
        return True

    async def _send(self, message: QueuedMessage, outlet: Outlet, *, marked: bool) -> None:
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
                hold = self._sessions.load(message.key)
                await stack.enter_async_context(hold)  # until the result is recorded
            if not await self._say(message, delivery.SendStarted(delivery_id=message.now.id)):
                return
            self.repeated += marked
            outgoing = _outgoing(queued, edit, repeated=marked)
            answer = await carry(outlet.channel, outgoing, self._clock, ANSWER_S)
            meaning = self._meaning(message, answer)
            if isinstance(answer, channels.Later | channels.Doubtful):
                await self._tell_if_late(message, meaning)
            else:
                await self._say(message, meaning)

    def _meaning(self, message: QueuedMessage, answer: channels.Sent) -> delivery.Event:
        """Convert an answer of the platform to a fact."""
        delivery_id, now = message.now.id, self._clock.now()
        match answer:
            case channels.Accepted(message_id=name):
                return delivery.SendAccepted(delivery_id=delivery_id, external_id=name)
            case channels.Later(reason=reason, after_s=after_s):
                return delivery.defer(message.now, reason, after_s, random(), now)
            case channels.SendRefused(reason=reason):
                return delivery.SendAbandoned(delivery_id=delivery_id, reason=reason)
            case channels.Doubtful(reason=reason):
                return delivery.doubt(message.now, reason, random(), now)
            case _:
                assert_never(answer)

    async def _hold(self, message: QueuedMessage, reason: str) -> None:
        held = delivery.SendHeld(delivery_id=message.now.id, reason=reason)
        await self._tell(message, Trouble.HELD, held)

    async def _abandon(self, message: QueuedMessage, reason: str) -> None:
        await self._say(message, _abandoned(message, reason))

    async def _tell_if_late(self, message: QueuedMessage, fact: delivery.Event) -> None:
        if isinstance(fact, delivery.SendAbandoned):
            await self._tell(message, Trouble.GIVEN_UP, fact)
        elif delivery.is_late(message.now, self._clock.now()):
            await self._tell(message, Trouble.LATE, fact)
        else:
            await self._say(message, fact)

    async def _tell(self, message: QueuedMessage, trouble: Trouble, fact: delivery.Event) -> None:
        """Record the fact together with the notice for the operator."""
        reason: str = getattr(fact, "reason")  # noqa: B009  all of these have one
        news = await self._news(message.queued, trouble, reason)
        await self._say(message, fact, *filter(None, (news,)))

    async def _say(
        self, message: QueuedMessage, fact: delivery.Event, *news: delivery.DeliveryQueued
    ) -> bool:
        """Record the fact, however long the journal takes. False: it does not apply any more."""
        assert message.key is not None
        while True:
            try:
                async with self._sessions.load(message.key) as held:
                    pending = self.enqueue(held, message, fact, *news)
                    if pending is not None:
                        await pending.wait()
                    return pending is not None
            except JournalUnavailable:
                await self._clock.sleep(TRY_AGAIN_S)

    def enqueue(
        self,
        held: LoadedSession | None,
        message: QueuedMessage,
        fact: delivery.Event,
        *news: delivery.DeliveryQueued,
    ) -> Pending | None:
        """Decide and append without an await in between; None: the fact does not apply now."""
        if held is None:
            raise LookupError(f"message {message.now.id} belongs to a session that is not there")
        then = after(message.now, fact)
        if then is None:
            return None
        pending = self._sessions.append(held, fact, *news)
        message.now = then
        return pending


def after(now: delivery.Delivery, fact: delivery.Event) -> delivery.Delivery | None:
    """Apply `fact` to a delivery; None: it does not apply."""
    known = (now.status, type(fact)) in delivery.TRANSITIONS
    return delivery.evolve(now, fact) if known else None


def _policy(message: QueuedMessage, outlet: Outlet | None) -> delivery.DeliveryPolicy:
    if outlet is None:
        return _NO_CHANNEL
    changes = message.queued.edits and outlet.channel.capabilities.edits
    # The same change made twice is one change.
    return replace(outlet.policy, idempotent=True) if changes else outlet.policy


def _outgoing(queued: delivery.DeliveryQueued, edit: str, *, repeated: bool) -> Outgoing:
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
        named_hosts=links.hosts(queued.text) if queued.verbatim else frozenset(queued.hosts),
    )


def _abandoned(message: QueuedMessage, reason: str) -> delivery.SendAbandoned:
    return delivery.SendAbandoned(delivery_id=message.now.id, reason=reason)


def _unserved(message: QueuedMessage) -> str:
    platform = message.queued.address.platform
    return f"no channel {platform} is configured; configure it, then: holdfast outbox resend"
