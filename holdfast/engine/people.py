"""Who is let into the chats, as the operator sees and changes it; and how the channels are doing.

For the operator alone. Every decision is in the audit before it counts. Whoever was let in is
told so in the chat where they asked, by the same append that lets them in.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from secrets import token_hex
from typing import TypeVar

from msgspec.structs import asdict

from holdfast.channels.channel import Capabilities
from holdfast.core import access
from holdfast.core.access import (
    NO_SUCH_CODE,
    NotPaired,
    PairingConfirmed,
    PairingFailed,
    PairingOffered,
    Person,
    Source,
    TooOften,
)
from holdfast.core.address import Sender
from holdfast.core.approval import Role
from holdfast.core.delivery import Status
from holdfast.core.intents import Principal
from holdfast.core.types import DeliveryId, Fact
from holdfast.engine.chats import Chats
from holdfast.engine.clock import Clock
from holdfast.engine.keeper import check_admin
from holdfast.engine.permits import Audit
from holdfast.engine.standing import Writing
from holdfast.errors import JournalUnavailable, Refused
from holdfast.gateway import ChannelState
from holdfast.journal.audit import Entry
from holdfast.journal.journal import Conflict, Outbound

CONFLICT_S = 1.0

_Found = TypeVar("_Found", PairingOffered, PairingConfirmed)

Missed = Callable[[], Awaitable[Sequence[Outbound]]]


class People:
    """Lets in and shuts out."""

    def __init__(self, chats: Chats, clock: Clock, audit: Audit, missed: Missed) -> None:
        self._chats = chats
        self._clock = clock
        self._audit = audit
        self._missed = missed

    async def look_up(self, by: Principal, code: str) -> Person:
        """Who was shown that code. A wrong one counts as such."""
        check_admin(by)
        with _retriable():
            async with self._chats.hold() as book:
                members, now = book.now.chats.members, self._clock.now()
                found = access.look_up(members, code, by.owner, now)
                asked = await self._or_refuse(book, by, found, now)
        return Person(asked.sender, frozenset(), Source.OFFER, asked.name, asked.expires_at)

    async def pair(self, by: Principal, code: str, roles: Collection[Role]) -> Person:
        """Let in whoever was shown that code, durably; they are told."""
        check_admin(by)
        with _retriable():
            async with self._chats.hold() as book:
                members, now = book.now.chats.members, self._clock.now()
                found = access.confirm(members, code, roles, by.owner, now)
                confirmed = await self._or_refuse(book, by, found, now)
                sender, asked = confirmed.sender, members.offers[confirmed.sender]
                await self._note(by, "pairing.confirmed", sender, confirmed.roles)
                told: Sequence[Fact] = ()
                if sender.platform in self._chats.channels:
                    told = access.welcome(asked, DeliveryId(f"paired_{token_hex(8)}"))
                await _durably(book, confirmed, *told)
        return Person(sender, frozenset(confirmed.roles), Source.PAIRING, asked.name)

    async def users(self, by: Principal) -> Sequence[Person]:
        """Everybody who is let in, then those who wait for it."""
        check_admin(by)
        return access.people(await self._chats.policy(), self._clock.now())

    async def remove(self, by: Principal, platform: str, user: str) -> None:
        """Take back what pairing gave, or an offer. It counts at once, durably."""
        check_admin(by)
        policy, sender = await self._chats.policy(), Sender(platform, user)
        with _retriable():
            async with self._chats.hold() as book:
                now = access.Policy(policy.platforms, book.now.chats.members)
                removed = access.remove(now, sender, by.owner)
                if isinstance(removed, NotPaired):
                    raise Refused("user_not_found", removed.reason)
                await self._note(by, "user.removed", sender)
                await _durably(book, removed)

    async def channels(self, by: Principal) -> Sequence[ChannelState]:
        """Every channel that is on."""
        check_admin(by)
        missed = Counter((o.queued.address.platform, o.now.status) for o in await self._missed())
        return [
            ChannelState(
                name,
                connected.channel.trouble,
                abilities(connected.channel.capabilities),
                sum(missed[name, status] for status in Status),
                missed[name, Status.HELD],
                missed[name, Status.DEAD],
            )
            for name, connected in self._chats.channels.items()
        ]

    async def _or_refuse(
        self, book: Writing, by: Principal, found: _Found | PairingFailed | TooOften, now: float
    ) -> _Found:
        """What was found; a code that is none is written down, and refused."""
        if isinstance(found, TooOften):
            left_s = max(found.retry_at - now, 1.0)
            reason = f"{found.reason} Try again in {ceil(left_s / 60)} min."
            raise Refused("too_many_codes", reason, retry_after_s=left_s)
        if isinstance(found, PairingFailed):
            await self._note(by, "pairing.failed")
            await _durably(book, found)
            raise Refused("code_not_found", NO_SUCH_CODE)
        return found

    async def _note(
        self, by: Principal, kind: str, sender: Sender | None = None, roles: Sequence[Role] = ()
    ) -> None:
        whom = sender.owner if sender else ""
        await self._audit(
            Entry(
                kind=kind,
                who=by.owner,
                platform=by.platform,
                choice=", ".join(roles),
                result=whom,
            )
        )


def abilities(can: Capabilities) -> tuple[str, ...]:
    """What a channel can do, in words."""
    return tuple(name.replace("_", " ") for name, able in asdict(can).items() if able is True)


async def _durably(book: Writing, *facts: Fact) -> None:
    pending = book.add(facts)
    assert pending is not None
    await pending.wait()


@contextmanager
def _retriable() -> Iterator[None]:
    try:
        yield
    except Conflict as busy:
        raise JournalUnavailable(str(busy), retry_after_s=CONFLICT_S) from busy
