"""What only the operator may do with messages to chats: see them, send one after all, drop one."""

from collections.abc import Awaitable, Callable, Sequence

from holdfast.core.intents import Principal
from holdfast.core.types import DeliveryId
from holdfast.engine.keeper import check_admin
from holdfast.engine.outbox import Outbox
from holdfast.journal.audit import Entry
from holdfast.journal.journal import Outbound


class Clerk:
    """The operator's hands on the outbox."""

    def __init__(self, outbox: Outbox, audit: Callable[[Entry], Awaitable[None]]) -> None:
        self._outbox = outbox
        self._audit = audit

    async def unsent(self, by: Principal, *, everything: bool) -> Sequence[Outbound]:
        """What is not sent, newest first; of what was given up only what somebody may miss."""
        check_admin(by)
        return await self._outbox.listed(everything=everything)

    async def message(self, by: Principal, delivery_id: DeliveryId) -> Outbound:
        """One message; refused with `delivery_not_found`."""
        check_admin(by)
        return await self._outbox.find(delivery_id)

    async def resend(self, by: Principal, delivery_id: DeliveryId) -> None:
        """Send what was held or given up after all."""
        await self._note(by, delivery_id, "message.resent")
        await self._outbox.release(delivery_id)

    async def drop(self, by: Principal, delivery_id: DeliveryId) -> None:
        """Give up what was not sent."""
        await self._note(by, delivery_id, "message.dropped")
        await self._outbox.drop(delivery_id)

    async def _note(self, by: Principal, delivery_id: DeliveryId, kind: str) -> None:
        """An order is in the audit before it counts."""
        found = await self.message(by, delivery_id)
        entry = Entry(
            kind=kind,
            who=by.owner,
            platform=by.platform,
            run_id=found.queued.of_run,
            what=delivery_id,
        )
        await self._audit(entry)
