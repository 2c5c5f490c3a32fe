"""The outbox: sends messages to chats in order, and knows what became of each.

The journal has the messages to send; the queues send them (queues.py). The outbox loads the unsent
messages at the start, adds committed ones, counts, and obeys the operator: a message that was held
or given up can be sent after all, and one that was not sent can be dropped.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

import anyio
from anyio.abc import TaskGroup

from holdfast.core.address import Address
from holdfast.core.chat import delivery, notices
from holdfast.core.chat.notices import Trouble
from holdfast.core.events import Record
from holdfast.core.types import DeliveryId, SessionKey, Value
from holdfast.engine.chats.places import Outlet
from holdfast.engine.chats.queues import (
    LOOK_AGAIN_S,
    NOTHING_TO_CHANGE,
    TOO_LATE,
    Lanes,
    QueuedMessage,
    after,
)
from holdfast.engine.chats.typing import Presence
from holdfast.engine.clock import Clock
from holdfast.engine.commits import Commits
from holdfast.engine.sessions import Sessions
from holdfast.errors import JournalUnavailable, Refused
from holdfast.journal.journal import Conflict, Journal, Outbound

log = logging.getLogger(__name__)

NAMES = 4096  # platform ids of the last sent messages that stay in memory
LISTED = 200
RETRY_CONFLICTS = 5
DROPPED = "dropped by the operator"

_UNSENT = frozenset(delivery.DeliveryStatus) - {delivery.DeliveryStatus.SENT}


class Counts(Value):
    """Figures of the outbox; totals count from the start of the process."""

    pending: int
    lanes: int  # queues that are active
    held: int
    sent: int
    repeated: int  # copies of what may have arrived before
    dead: int


async def _nowhere() -> Address | None:
    return None


class Outbox:
    """Sends the messages that the journal has queued."""

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        clock: Clock,
        outlets: Mapping[str, Outlet],
        tasks: TaskGroup,
        home: Callable[[], Awaitable[Address | None]] = _nowhere,
    ) -> None:
        self._home = home  # the chat where the operator is told of undelivered messages
        self._journal = journal
        self._sessions = sessions
        self._clock = clock
        self._tasks = tasks
        shown = {name: outlet.channel for name, outlet in outlets.items()}
        self._presence = Presence(sessions, clock, shown, tasks, self._name_of)
        self._lanes = Lanes(
            sessions, clock, outlets, tasks, self._presence, self._key_of, self._name_of, self._news
        )
        self._names: OrderedDict[DeliveryId, str] = OrderedDict()
        self._held: set[DeliveryId] = set()
        self._sent = self._dead = 0
        self._word = anyio.Lock()  # one order at a time
        self._open = False
        self._early: list[Record] | None = None  # committed while the journal is read
        journal.on_failure(self._lanes.void)

    async def start(self) -> None:
        """Load what an earlier process left. Before that nothing is sent, and nothing is lost."""
        async with self._word:
            self._early = []
            found = await self._journal.undelivered()
            early, self._early = self._early, None
            self._open = True
            for one in found:
                if one.now.status is delivery.DeliveryStatus.HELD and not one.queued.perishable:
                    self._held.add(one.now.id)
                else:
                    self._lanes.add(QueuedMessage(one.queued, one.now, one.now, one.key, old=True))
            for record in early:
                self.committed(record)
            self._presence.start()

    def subscribe(self, commits: Commits) -> None:
        """Subscribe to queued messages, and to runs that begin and end."""
        commits.subscribe((delivery.DeliveryQueued, *delivery.Event.__args__), self.committed)
        self._presence.subscribe(commits)

    def committed(self, record: Record) -> None:
        """Send a queued message; count the results of others."""
        fact = record.fact
        if self._early is not None:
            self._early.append(record)
        elif not self._open:
            return
        elif type(fact) is delivery.DeliveryQueued:
            self._take(record, fact)
        elif isinstance(fact, delivery.Event):
            self._note(fact)

    async def stop(self, within_s: float) -> None:
        """Send queued messages for so long. Afterwards nothing is sent."""
        self._presence.stop()
        await self._lanes.stop(within_s)
        self._open = False

    def counts(self) -> Counts:
        """Return the figures, from memory."""
        return Counts(
            pending=len(self._lanes.messages),
            lanes=len(self._lanes),
            held=len(self._held),
            sent=self._sent,
            repeated=self._lanes.repeated,
            dead=self._dead,
        )

    async def missed(self) -> list[Outbound]:
        """Return all waiting messages, and abandoned ones that a person may miss."""
        waiting = await self._journal.undelivered()
        dead = await self._journal.deliveries(frozenset({delivery.DeliveryStatus.DEAD}), LISTED)
        return [*waiting, *filter(_is_missed, dead)]

    async def listed(self, *, everything: bool = False) -> list[Outbound]:
        """List undelivered messages, newest first; of abandoned ones those a person may miss."""
        found = await self._journal.deliveries(_UNSENT, LISTED)
        return [one for one in found if everything or _is_missed(one)]

    async def find(self, delivery_id: DeliveryId) -> Outbound:
        """One message; refused with `delivery_not_found`."""
        found = await self._journal.delivery(delivery_id)
        if found is None:
            raise Refused("delivery_not_found", f"There is no message {delivery_id}.")
        return found

    async def release(self, delivery_id: DeliveryId) -> None:
        """Send a message that was held or given up. Durable when this returns."""
        await self._order(delivery.SendReleased(delivery_id=delivery_id, at=self._clock.now()))

    async def drop(self, delivery_id: DeliveryId) -> None:
        """Give up a message that was not sent. Durable when this returns."""
        await self._order(delivery.SendAbandoned(delivery_id=delivery_id, reason=DROPPED))

    def _take(self, record: Record, queued: delivery.DeliveryQueued) -> None:
        """Add a message that was queued now; during a shutdown, only a perishable one."""
        known = queued.delivery_id in self._lanes.messages or queued.delivery_id in self._names
        if known or (self._lanes.closing and not queued.perishable):
            return
        now = delivery.Delivery(queued.delivery_id, queued_at=record.at)
        self._lanes.add(QueuedMessage(queued, now, now, self._sessions.key_of(record.stream)))

    def _note(self, fact: delivery.Event) -> None:
        """Note the result of a message."""
        message = self._lanes.messages.get(fact.delivery_id)
        if message is not None and (kept := after(message.kept, fact)) is not None:
            message.kept = kept
        match fact:
            case delivery.SendAccepted():
                self._sent += 1
                self._names[fact.delivery_id] = fact.external_id
                if len(self._names) > NAMES:
                    self._names.popitem(last=False)
            case delivery.SendHeld():
                self._held.add(fact.delivery_id)
                log.warning("a message is held", extra=_said(fact))
            case delivery.SendAbandoned():
                self._held.discard(fact.delivery_id)
                if fact.reason not in _OF_NO_USE:
                    self._dead += 1
                    log.warning("a message was given up", extra=_said(fact))
            case delivery.SendReleased():
                self._held.discard(fact.delivery_id)
                self._tasks.start_soon(self._fetch, fact.delivery_id)
            case _:
                pass

    async def _fetch(self, delivery_id: DeliveryId) -> None:
        """Load a message that is to be sent again."""
        while self._open and not self._lanes.closing:
            try:
                async with self._word:
                    found = await self._journal.delivery(delivery_id)
                    if found is not None and found.now.status is delivery.DeliveryStatus.PENDING:
                        if delivery_id not in self._lanes.messages:
                            self._lanes.add(
                                QueuedMessage(found.queued, found.now, found.now, found.key)
                            )
                return
            except Exception:
                log.exception("a message is read again", extra={"delivery_id": delivery_id})
            await self._clock.sleep(LOOK_AGAIN_S)

    async def _key_of(self, delivery_id: DeliveryId) -> SessionKey:
        return (await self.find(delivery_id)).key

    async def _name_of(self, delivery_id: DeliveryId) -> str:
        if (name := self._names.get(delivery_id)) is not None:
            return name
        found = await self._journal.delivery(delivery_id)
        return "" if found is None else found.now.external_id

    async def _news(
        self, queued: delivery.DeliveryQueued, trouble: Trouble, reason: str
    ) -> delivery.DeliveryQueued | None:
        now = self._clock.now()
        news = notices.undelivered(queued, trouble, reason, await self._home(), now)
        if news is None or await self._journal.delivery(news.delivery_id) is not None:
            return None
        return news

    async def _order(self, fact: delivery.SendReleased | delivery.SendAbandoned) -> None:
        """Record an order of the operator about one message."""
        async with self._word:
            for _ in range(RETRY_CONFLICTS):
                # Memory first: the journal may be behind a message that is being sent.
                here = self._lanes.messages.get(fact.delivery_id)
                found = await self.find(fact.delivery_id)
                message = here or QueuedMessage(found.queued, found.now, found.now, found.key)
                try:
                    async with self._sessions.load(found.key) as held:
                        in_flight = (
                            here is not None
                            and message.now.status is delivery.DeliveryStatus.SENDING
                        )
                        pending = None if in_flight else self._lanes.enqueue(held, message, fact)
                        if pending is None:
                            raise _declined(message.now)
                        self._lanes.rouse(message)
                        await pending.wait()
                        return
                except Conflict:
                    continue  # the session has changed: try again
        raise JournalUnavailable("the session is busy; try again", retry_after_s=1)


_OF_NO_USE = frozenset({TOO_LATE, DROPPED, NOTHING_TO_CHANGE})


def _is_missed(one: Outbound) -> bool:
    """Return whether a person may miss it: it waits, or the platform refused it."""
    return not (one.now.status is delivery.DeliveryStatus.DEAD and one.now.reason in _OF_NO_USE)


def _said(fact: delivery.SendHeld | delivery.SendAbandoned) -> dict[str, str]:
    return {"delivery_id": fact.delivery_id, "reason": fact.reason}


def _declined(now: delivery.Delivery) -> Refused:
    """Say why an order is too late or too early."""
    match now.status:
        case delivery.DeliveryStatus.SENT:
            words = "was sent"
        case delivery.DeliveryStatus.DEAD:
            words = "was given up already"
        case delivery.DeliveryStatus.SENDING:
            words = "is being sent right now; look again in a moment"
        case _:
            words = "is on its way already"
    return Refused("delivery_not_waiting", f"Message {now.id} {words}.")
