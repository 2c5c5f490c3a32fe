"""Pairing: the people who are let into the chats, and the state of the channels.

For the operator alone. Every decision is in the audit before it counts. A person who was let in is
told so in the chat where they asked, by the same append that lets them in.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from math import ceil
from secrets import token_hex
from typing import TypeVar

from msgspec.structs import asdict

from holdfast.channels.channel import ChannelCapabilities
from holdfast.core.address import Sender
from holdfast.core.approval.approval import Role
from holdfast.core.chat import access
from holdfast.core.chat.delivery import DeliveryStatus
from holdfast.core.intents import Principal
from holdfast.core.types import DeliveryId, Fact, Value
from holdfast.engine.chats.book import ChatBook
from holdfast.engine.clock import Clock
from holdfast.engine.life.gateway_state import Writing
from holdfast.engine.permission import check_admin
from holdfast.engine.runs.approvals import Audit
from holdfast.errors import Refused
from holdfast.gateway import ChannelState
from holdfast.journal.audit import entry_of
from holdfast.journal.journal import Outbound

_Found = TypeVar("_Found", access.PairingOffered, access.PairingConfirmed)

Missed = Callable[[], Awaitable[Sequence[Outbound]]]


class Pairing(Value):
    """Lets in and shuts out."""

    _book: ChatBook
    _clock: Clock
    _audit: Audit
    _missed: Missed

    async def look_up(self, by: Principal, code: str) -> access.Person:
        """Find the person who was shown that code. A wrong code is counted."""
        check_admin(by)
        async with self._book.write() as writing:
            members, now = writing.now.chats.members, self._clock.now()
            found = access.look_up(members, code, by.owner, now)
            asked = await self._or_refuse(writing, by, found, now)
        return access.Person(
            asked.sender, frozenset(), access.Source.OFFER, asked.name, asked.expires_at
        )

    async def pair(self, by: Principal, code: str, roles: Collection[Role]) -> access.Person:
        """Let in the person who was shown that code, durably; they are told."""
        check_admin(by)
        async with self._book.write() as writing:
            members, now = writing.now.chats.members, self._clock.now()
            found = access.confirm(members, code, roles, by.owner, now)
            confirmed = await self._or_refuse(writing, by, found, now)
            sender, asked = confirmed.sender, members.offers[confirmed.sender]
            await self._note(by, "pairing.confirmed", sender, confirmed.roles)
            told: Sequence[Fact] = ()
            if sender.platform in self._book.channels:
                told = access.welcome(asked, DeliveryId(f"paired_{token_hex(8)}"))
            await writing.record(confirmed, *told)
        return access.Person(sender, frozenset(confirmed.roles), access.Source.PAIRING, asked.name)

    async def users(self, by: Principal) -> Sequence[access.Person]:
        """List everyone who is let in, then those who wait for it."""
        check_admin(by)
        return access.people(await self._book.recorded(), self._clock.now())

    async def remove(self, by: Principal, platform: str, user: str) -> None:
        """Take back what pairing gave, or an offer. It counts at once, durably."""
        check_admin(by)
        policy, sender = await self._book.policy(), Sender(platform, user)
        async with self._book.write() as writing:
            now = access.AccessPolicy(policy.platforms, writing.now.chats.members)
            removed = access.remove(now, sender, by.owner)
            if isinstance(removed, access.NotPaired):
                raise Refused("user_not_found", removed.reason)
            await self._note(by, "user.removed", sender)
            await writing.record(removed)

    async def channels(self, by: Principal) -> Sequence[ChannelState]:
        """Every channel that is on."""
        check_admin(by)
        missed = Counter((o.queued.address.platform, o.now.status) for o in await self._missed())
        return [
            ChannelState(
                name,
                connected.channel.trouble,
                abilities(connected.channel.capabilities),
                sum(missed[name, status] for status in DeliveryStatus),
                missed[name, DeliveryStatus.HELD],
                missed[name, DeliveryStatus.DEAD],
            )
            for name, connected in self._book.channels.items()
        ]

    async def _or_refuse(
        self,
        writing: Writing,
        by: Principal,
        found: _Found | access.PairingFailed | access.TooOften,
        now: float,
    ) -> _Found:
        """Return what was found; record and refuse a wrong code."""
        if isinstance(found, access.TooOften):
            left_s = max(found.retry_at - now, 1.0)
            reason = f"{found.reason} Try again in {ceil(left_s / 60)} min."
            raise Refused("too_many_codes", reason, retry_after_s=left_s)
        if isinstance(found, access.PairingFailed):
            await self._note(by, "pairing.failed")
            await writing.record(found)
            raise Refused("code_not_found", access.NO_SUCH_CODE)
        return found

    async def _note(
        self, by: Principal, kind: str, sender: Sender | None = None, roles: Sequence[Role] = ()
    ) -> None:
        whom = sender.owner if sender else ""
        await self._audit(entry_of(by, kind, choice=", ".join(roles), result=whom))


def abilities(can: ChannelCapabilities) -> tuple[str, ...]:
    """List what a channel can do."""
    return tuple(name.replace("_", " ") for name, able in asdict(can).items() if able is True)
